#include "solar/attributes.hpp"

#include <algorithm>

#include "hdf5/btree2.hpp"
#include "hdf5/describe.hpp"
#include "hdf5/files.hpp"
#include "hdf5/fractal_heap.hpp"
#include "hdf5/global_heap.hpp"
#include "hdf5/lookup3.hpp"
#include "hdf5/superblock.hpp"

namespace solar {

namespace hdf5 {

namespace {

using Names = std::vector<std::string>;

constexpr std::uint8_t shared_flag = 0x02;  // of a message

// Text of variable length is an object in a global heap.
std::vector<std::byte> text_of(Image& image, Bytes reference) {
  const HeapReference text = parse_reference(image.facts, reference);
  if (text.values == 0) return {};
  if (text.address == undefined_address) throw Error(Kind::layout, "text of variable length is nowhere");
  const std::vector<HeapObject> objects = heap_objects(image, text.address);
  return image.read(object_at(objects, text.number, text.values).address, text.values, "global heap");
}

bool is_varying_text(const std::vector<std::byte>& datatype) {
  constexpr std::byte low{15}, variable{9}, text{1};
  return datatype.size() > 1 && (datatype[0] & low) == variable && (datatype[1] & low) == text;
}

struct Parts {
  std::string name;
  unsigned shared;  // bit 0: the datatype, bit 1: the dataspace
  Bytes datatype, dataspace, values;
};

Parts message_parts(const FileFacts& facts, Bytes message) {
  Fields fields(message, facts, "attribute");
  const unsigned version = fields.u8();
  if (version < 1 || version > 3) fields.refuse("has version " + std::to_string(version));
  const unsigned flags = fields.u8();  // in version 1 of no meaning
  if (version > 1 && (flags & ~3u) != 0) fields.refuse("has unknown flags");
  const std::size_t name = fields.u16(), datatype = fields.u16(), dataspace = fields.u16();
  if (version == 3) fields.skip(1);  // character set of the name
  const auto part = [&](std::size_t nbytes) {
    const Bytes bytes = fields.take(nbytes);
    if (version == 1) fields.skip(to_eights(nbytes) - nbytes);
    return bytes;
  };
  Parts parts;
  parts.shared = version == 1 ? 0 : flags;
  parts.name = until_zero(part(name));
  parts.datatype = part(datatype);
  parts.dataspace = part(dataspace);
  parts.values = fields.take(fields.left());
  return parts;
}

void read_values(Image& image, const Parts& parts, Attribute& attribute) {
  const auto unshared = [&](MessageType type, Bytes body, bool is_shared) {
    return content(image, Message{type, is_shared ? shared_flag : std::uint8_t{0}, body});
  };
  Dataset like;
  attribute.datatype = unshared(MessageType::datatype, parts.datatype, (parts.shared & 1) != 0);
  parse_datatype(attribute.datatype, like);
  parse_dataspace(image.facts, unshared(MessageType::dataspace, parts.dataspace, (parts.shared & 2) != 0), like);
  std::uint64_t values = like.null_space ? 0 : 1, nbytes = 0;
  bool overflow = false;
  for (const std::uint64_t n : like.shape) overflow |= __builtin_mul_overflow(values, n, &values);
  overflow |= __builtin_mul_overflow(values, like.itemsize, &nbytes);
  if (overflow || nbytes > parts.values.size()) throw Error(Kind::layout, "has fewer bytes than its values need");
  const Bytes stored = parts.values.first(static_cast<std::size_t>(nbytes));
  if (!is_varying_text(attribute.datatype)) {
    attribute.bytes.assign(stored.begin(), stored.end());
  } else if (values == 1) {
    attribute.bytes = text_of(image, stored);
  } else if (values > 1) {
    throw Elsewhere{"it is a list of text"};
  }
  attribute.values = values;
}

// Appends the attribute of a message, if it is wanted and not there yet.
void take(Image& image, Bytes message, const Names& wanted, std::vector<Attribute>& found) {
  const Parts parts = message_parts(image.facts, message);
  const auto known = [&](const Attribute& one) { return one.name == parts.name; };
  if (std::ranges::find(wanted, parts.name) == wanted.end() || std::ranges::any_of(found, known)) return;
  Attribute attribute;
  attribute.name = parts.name;
  try {
    read_values(image, parts, attribute);
  } catch (const Exhausted&) {
    throw;
  } catch (const Elsewhere& elsewhere) {
    attribute.problem = elsewhere.why;
  } catch (const Error& error) {
    if (error.kind() != Kind::layout) throw;
    attribute.problem = error.what();
  }
  found.push_back(std::move(attribute));
}

// Where there are many, they are in a heap, found by the hashes of their names.
void take_dense(Image& image, Bytes info, const Names& wanted, std::vector<Attribute>& found) {
  constexpr std::uint8_t by_name = 8;
  constexpr std::uint16_t record_nbytes = 17;  // identifier in the heap, flags, order of creation, hash of the name
  Fields fields(info, image.facts, "attribute info message");
  fields.version(0);
  const unsigned flags = fields.u8();
  if ((flags & ~3u) != 0) fields.refuse("has unknown flags");
  if ((flags & 1) != 0) fields.skip(2);
  const std::uint64_t heap_address = fields.address();
  const std::uint64_t name_index = fields.address();
  if (heap_address == undefined_address) return;
  FractalHeap heap(image, heap_address);
  each_record(image, name_index, by_name, record_nbytes, [&](Bytes record) {
    const auto hash = load_le<std::uint32_t>(record.data() + 13);
    const auto named = [&](const std::string& name) { return lookup3(std::as_bytes(std::span(name))) == hash; };
    if (std::ranges::none_of(wanted, named)) return;
    if ((load_le<std::uint8_t>(record.data() + 8) & shared_flag) != 0) {
      std::vector<std::byte> place = {std::byte{3}, std::byte{1}};  // the form that a shared message has in a header
      place.insert(place.end(), record.begin(), record.begin() + 8);
      return take(image, content(image, Message{MessageType::attribute, shared_flag, place}), wanted, found);
    }
    const Bytes object = heap.object(record.first(8));
    image.spend(object.size());
    take(image, object, wanted, found);
  });
}

std::vector<Attribute> attributes_of(Image& image, const ObjectHeader& header, const Names& wanted) {
  std::vector<Attribute> found;
  try {
    for (const Message& message : header.messages) {
      if (message.type == MessageType::attribute_info) take_dense(image, message.body, wanted, found);
      if (message.type != MessageType::attribute) continue;
      take(image, content(image, message), wanted, found);
    }
  } catch (const Elsewhere&) {
    throw Error(Kind::layout, "its attributes are stored in a way that only libhdf5 reads; write the file anew");
  }
  return found;
}

std::vector<Attribute> attributes_of_group(const File& file, const std::string& name, const Names& wanted) {
  const std::string where = file.path() + ": " + name + ": ";
  try {
    Files files(file, "");
    const ObjectLocation place = files.follow(name);
    const ObjectHeader header = read_header(place.file->image, place.address);
    if (!is_group(header)) throw Error(Kind::layout, "it is no group");
    return attributes_of(place.file->image, header, wanted);
  } catch (const Elsewhere& elsewhere) {
    throw Error(Kind::layout, where + "its attributes can only be read by libhdf5: " + elsewhere.why);
  } catch (const Error& error) {
    if (error.kind() != Kind::layout) throw;
    throw Error(Kind::layout, where + error.what());
  }
}

}  // namespace

}  // namespace hdf5

std::vector<Attribute> read_attributes(const File& file, const std::string& name,
                                       const std::vector<std::string>& wanted, std::uint64_t header_address) {
  if (name.ends_with('/')) return hdf5::attributes_of_group(file, name.substr(0, name.size() - 1), wanted);
  const Dataset dataset = read_metadata(file, name, header_address).datasets.at(0);
  if (dataset.header_address == undefined_address)
    throw Error(Kind::layout, file.path() + ": " + name + ": its attributes cannot be read: " + dataset.elsewhere);
  try {
    hdf5::Image image(file);
    hdf5::read_superblock(image);
    const hdf5::ObjectHeader header = hdf5::read_header(image, dataset.header_address - image.facts.base);
    return hdf5::attributes_of(image, header, wanted);
  } catch (const Error& error) {
    if (error.kind() != Kind::layout) throw;
    throw Error(Kind::layout, file.path() + ": " + dataset.name + ": " + error.what());
  }
}

}  // namespace solar
