#include "hdf5/global_heap.hpp"

#include <algorithm>

#include "hdf5/superblock.hpp"
#include "solar/varying.hpp"

namespace solar {

namespace hdf5 {

namespace {

constexpr const char* global_heap_name = "global heap";

}  // namespace

HeapReference parse_reference(const FileFacts& facts, Bytes bytes) {
  Fields fields(bytes, facts, "value of variable length");
  HeapReference found;
  found.values = fields.u32();
  found.address = fields.address();
  found.number = fields.u32();
  return found;
}

std::vector<HeapObject> heap_objects(Image& image, std::uint64_t address) {
  const std::uint64_t head_nbytes = to_eights(8u + image.facts.length_width);  // of the collection, and of an object
  const auto head_at = [&](std::uint64_t at) { return image.read(at, head_nbytes, global_heap_name); };
  const std::vector<std::byte> head = head_at(address);
  Fields heap(head, image.facts, global_heap_name);
  heap.signature("GCOL");
  heap.version(1);
  heap.skip(3);
  const std::uint64_t size = heap.length();
  image.absolute(address, size, global_heap_name);
  std::vector<HeapObject> objects;
  for (std::uint64_t at = head_nbytes; at + head_nbytes <= size;) {
    const std::vector<std::byte> bytes = head_at(address + at);
    Fields object(bytes, image.facts, global_heap_name);
    const unsigned number = object.u16();
    object.skip(6);
    const std::uint64_t nbytes = object.length(), left = size - at - head_nbytes;
    if (number == 0) {  // a gap, whose size counts its head
      if (nbytes < head_nbytes) damaged(global_heap_name, address + at, "has a gap of no size");
      if (nbytes > left + head_nbytes) damaged(global_heap_name, address + at, "has an object that leaves it");
      at += nbytes;
      continue;
    }
    if (nbytes > left) damaged(global_heap_name, address + at, "has an object that leaves it");
    objects.push_back({number, address + at + head_nbytes, nbytes});
    at += head_nbytes + std::min(to_eights(nbytes), left);
  }
  std::stable_sort(objects.begin(), objects.end(),
                   [](const HeapObject& a, const HeapObject& b) { return a.number < b.number; });
  return objects;
}

const HeapObject& object_at(const std::vector<HeapObject>& objects, std::uint32_t number, std::uint64_t nbytes) {
  const auto at = std::lower_bound(objects.begin(), objects.end(), number,
                                   [](const HeapObject& one, std::uint32_t wanted) { return one.number < wanted; });
  if (at == objects.end() || at->number != number) {
    throw Error(Kind::layout, std::string(global_heap_name) + " has no object " + std::to_string(number));
  }
  if (nbytes > at->nbytes) {
    damaged(global_heap_name, at->address,
            "has an object that is too short: it has " + std::to_string(at->nbytes) + " bytes, and " +
                std::to_string(nbytes) + " are wanted of it");
  }
  return *at;
}

}  // namespace hdf5

VaryingPlaces varying_places(const File& file, Bytes references, std::uint64_t itemsize) {
  hdf5::Image image(file);
  hdf5::read_superblock(image);
  const std::size_t width = hdf5::reference_nbytes(image.facts);
  if (itemsize == 0 || references.size() % width != 0) {
    throw Error(Kind::layout, file.path() + ": values of variable length are not as wide as its addresses say");
  }
  const std::size_t samples = references.size() / width;
  VaryingPlaces found{std::vector<std::uint64_t>(samples), std::vector<std::uint64_t>(samples), file.identity()};
  std::vector<std::pair<std::uint64_t, std::size_t>> by_heap;  // each collection is read once
  const auto at = [&](std::size_t i) {
    return hdf5::parse_reference(image.facts, references.subspan(i * width, width));
  };
  for (std::size_t i = 0; i < samples; ++i) {
    if (const hdf5::HeapReference one = at(i); one.values > 0) by_heap.emplace_back(one.address, i);
  }
  std::sort(by_heap.begin(), by_heap.end());
  std::vector<hdf5::HeapObject> objects;
  for (std::size_t k = 0; k < by_heap.size(); ++k) {
    const auto [address, sample] = by_heap[k];
    try {
      if (address == undefined_address) throw Error(Kind::layout, "its values are nowhere");
      if (k == 0 || by_heap[k - 1].first != address) objects = hdf5::heap_objects(image, address);
      const hdf5::HeapReference one = at(sample);
      const std::uint64_t nbytes = one.values * itemsize;  // below 2^64: itemsize is that of a number
      found.offset[sample] =
          image.absolute(hdf5::object_at(objects, one.number, nbytes).address, nbytes, "global heap");
      found.length[sample] = one.values;
    } catch (const Error& error) {
      throw Error(error.kind(), "sample " + std::to_string(sample) + ": " + error.what(), error.code());
    }
  }
  return found;
}

}  // namespace solar
