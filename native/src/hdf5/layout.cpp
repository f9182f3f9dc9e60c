// Layout and fill value messages of all versions.

#include <algorithm>

#include "hdf5/describe.hpp"

namespace solar::hdf5 {

namespace {

enum LayoutClass : unsigned { compact = 0, contiguous = 1, chunked = 2, virtual_data = 3 };

constexpr unsigned most_dimensions = 33;  // those of the dataset, and the bytes of an element

void set_compact(const Image& image, const Message& message, Fields& fields, std::uint64_t nbytes, Dataset& dataset) {
  dataset.storage = Storage::compact;
  dataset.nbytes = nbytes;
  dataset.address = message.absolute + fields.position();
  if (nbytes > fields.left()) fields.refuse("has more compact bytes than there are");
  if (dataset.address > image.facts.end) fields.refuse("is outside the file");
}

// Reads chunk dimensions of `width` bytes each; the last one is the size of an element.
void set_chunk(Fields& fields, unsigned dimensions, std::size_t width, Dataset& dataset) {
  for (unsigned i = 0; i < dimensions; ++i) dataset.chunk.push_back(fields.uint(width));
  const std::uint64_t element = dataset.chunk.back();
  dataset.chunk.pop_back();
  if (dataset.chunk.size() != dataset.shape.size()) fields.refuse("has chunks of another rank than the dataset");
  if (element != dataset.itemsize) fields.refuse("has chunks of another datatype's size");
  std::uint64_t nbytes = element;
  for (const std::uint64_t n : dataset.chunk) {
    if (n == 0 || __builtin_mul_overflow(nbytes, n, &nbytes)) fields.refuse("has chunks of no valid size");
  }
}

void check_dimensions(Fields& fields, unsigned dimensions) {
  if (dimensions < 2 || dimensions > most_dimensions) {
    fields.refuse("has chunks of " + std::to_string(dimensions) + " dimensions");
  }
}

std::uint64_t absolute_index(const Image& image, std::uint64_t address) {
  return address == undefined_address ? address : image.absolute(address, 1, "chunk index");
}

void version_1_and_2(Image& image, const Message& message, Fields& fields, Dataset& dataset) {
  const unsigned dimensions = fields.u8();
  const unsigned kind = fields.u8();
  if (dimensions == 0 || dimensions > most_dimensions)
    fields.refuse("has " + std::to_string(dimensions) + " dimensions");
  if (kind > chunked) fields.refuse("is of unknown class");
  fields.skip(5);
  const std::uint64_t address = kind == compact ? undefined_address : fields.address();
  if (kind == chunked) {
    check_dimensions(fields, dimensions);
    dataset.storage = Storage::chunked;
    dataset.index = Index::btree1;
    dataset.index_address = absolute_index(image, address);
    return set_chunk(fields, dimensions, 4, dataset);
  }
  fields.skip(4u * dimensions);
  if (kind == compact) {
    const std::uint64_t nbytes = fields.u32();
    return set_compact(image, message, fields, nbytes, dataset);
  }
  // These versions do not say how many bytes there are: as many as the elements need.
  dataset.storage = Storage::contiguous;
  dataset.address = address;
  dataset.nbytes = ~std::uint64_t{0};
}

Index index_of(Fields& fields, unsigned type, Dataset& dataset) {
  constexpr unsigned filtered_single = 0x02;
  switch (type) {
    case 1:
      if ((dataset.layout_flags & filtered_single) != 0) {
        dataset.single_nbytes = fields.length();
        dataset.single_mask = fields.u32();
      }
      return Index::single;
    case 2: return Index::implicit;
    case 3:
      if (fields.u8() == 0) fields.refuse("has a damaged fixed array");
      return Index::fixed_array;
    case 4:
      for (int i = 0; i < 5; ++i) {
        if (fields.u8() == 0) fields.refuse("has a damaged extensible array");
      }
      return Index::extensible_array;
    case 5: fields.skip(6); return Index::btree2;
    default: fields.refuse("has an unknown chunk index " + std::to_string(type));
  }
}

void chunked_version_4(Image& image, Fields& fields, Dataset& dataset) {
  dataset.layout_flags = fields.u8();
  if ((dataset.layout_flags & ~3u) != 0) fields.refuse("has unknown flags");
  const unsigned dimensions = fields.u8();
  check_dimensions(fields, dimensions);
  const unsigned width = fields.u8();
  if (width == 0 || width > 8) fields.refuse("has chunk dimensions of " + std::to_string(width) + " bytes");
  set_chunk(fields, dimensions, width, dataset);
  dataset.index = index_of(fields, fields.u8(), dataset);
  const auto unlimited = std::count(dataset.maxshape.begin(), dataset.maxshape.end(), ~std::uint64_t{0});
  if (dataset.index == Index::extensible_array && unlimited == 0) fields.refuse("has an index that nothing extends");
  dataset.index_address = absolute_index(image, fields.address());
}

void version_3_to_5(Image& image, const Message& message, Fields& fields, unsigned version, Dataset& dataset) {
  switch (fields.u8()) {
    case compact: {
      const std::uint64_t nbytes = fields.u16();
      return set_compact(image, message, fields, nbytes, dataset);
    }
    case contiguous:
      dataset.storage = Storage::contiguous;
      dataset.address = fields.address();
      dataset.nbytes = fields.length();
      return;
    case chunked: {
      dataset.storage = Storage::chunked;
      if (version > 3) return chunked_version_4(image, fields, dataset);
      const unsigned dimensions = fields.u8();
      check_dimensions(fields, dimensions);
      dataset.index = Index::btree1;
      dataset.index_address = absolute_index(image, fields.address());
      return set_chunk(fields, dimensions, 4, dataset);
    }
    case virtual_data:
      if (version < 4) fields.refuse("is virtual, which its version cannot be");
      dataset.storage = Storage::virtual_;
      return;
    default: fields.refuse("is of unknown class");
  }
}

// Returns false for a value that is expressly undefined.
bool set_fill(Fields& fields, Dataset& dataset) {
  constexpr std::uint32_t undefined = 0xffffffff;
  const std::uint32_t nbytes = fields.u32();
  if (nbytes == 0 || nbytes == undefined) return nbytes == 0;  // none: zeros
  if (nbytes > 0x7fffffff) fields.refuse("has a size that cannot be");
  const Bytes value = fields.take(nbytes);
  if (nbytes != dataset.itemsize) fields.refuse("has another size than the datatype");
  dataset.fill.assign(value.begin(), value.end());
  return true;
}

}  // namespace

void parse_layout(Image& image, const Message& message, Dataset& dataset) {
  Fields fields(message.body, image.facts, "layout");
  const unsigned version = fields.u8();
  if (version < 1 || version > 5) fields.refuse("has version " + std::to_string(version));
  dataset.layout_version = static_cast<std::uint8_t>(version);
  if (version < 3) return version_1_and_2(image, message, fields, dataset);
  version_3_to_5(image, message, fields, version, dataset);
}

bool parse_fill(const FileFacts& facts, Bytes message, Dataset& dataset) {
  Fields fields(message, facts, "fill value");
  const unsigned version = fields.u8();
  if (version < 1 || version > 3) fields.refuse("has version " + std::to_string(version));
  constexpr unsigned never = 1;  // it is written nowhere: what was not written reads as zeros
  if (version < 3) {
    fields.skip(1);
    const unsigned time = fields.u8();
    const bool has_value = fields.u8() != 0 && set_fill(fields, dataset);
    if (time == never) dataset.fill.clear();
    return has_value || time == never;
  }
  constexpr unsigned undefined = 0x10;
  constexpr unsigned defined = 0x20;
  const unsigned flags = fields.u8();
  if ((flags & 0xc0) != 0 || ((flags & undefined) && (flags & defined))) fields.refuse("has flags that cannot be");
  const bool has_value = (flags & defined) != 0 ? set_fill(fields, dataset) : (flags & undefined) == 0;
  const bool is_never = (flags >> 2 & 3) == never;
  if (is_never) dataset.fill.clear();
  return has_value || is_never;
}

bool parse_old_fill(const FileFacts& facts, Bytes message, Dataset& dataset) {
  Fields fields(message, facts, "fill value");
  return set_fill(fields, dataset);
}

}  // namespace solar::hdf5
