// An ObjectHeader is the messages that make an object a group, a dataset or a datatype.
//
// It owns the blocks that its messages point into: it may be moved, but a copy's messages would point into the
// original. Reading one, and following a message to what it refers to, belongs to the thread of the Image. Damage, also
// a checksum that is wrong, is Error(layout).
#pragma once

#include <string>
#include <vector>

#include "hdf5/image.hpp"

namespace solar::hdf5 {

// Text that is padded with zeros, or ends with one.
inline std::string until_zero(Bytes bytes) {
  const std::string all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return all.substr(0, all.find('\0'));
}

enum class MessageType : std::uint16_t {
  dataspace = 0x01,
  link_info = 0x02,
  datatype = 0x03,
  fill_old = 0x04,
  fill = 0x05,
  link = 0x06,
  external_files = 0x07,
  layout = 0x08,
  group_info = 0x0a,
  filters = 0x0b,
  attribute = 0x0c,
  old_modification_time = 0x0e,
  shared_table = 0x0f,
  continuation = 0x10,
  symbol_table = 0x11,
  modification_time = 0x12,
  btree_k = 0x13,
  driver_info = 0x14,
  attribute_info = 0x15,
  reference_count = 0x16,
  file_space = 0x17,
  cache_image = 0x18,
};

struct Message {
  MessageType type;
  std::uint8_t flags = 0;
  Bytes body;                  // inside a block of its ObjectHeader
  std::uint64_t absolute = 0;  // offset of the body in the file
};

// Owns the blocks its messages point into. Messages that solar never looks at are left out.
struct ObjectHeader {
  std::uint64_t address = 0;
  std::uint8_t version = 0;
  std::vector<std::vector<std::byte>> blocks;
  std::vector<Message> messages;

  const Message* find(MessageType type) const;  // the first, or nullptr
};

// Reads all blocks of the header, with their checksums; refuses what libhdf5 refuses.
ObjectHeader read_header(Image& image, std::uint64_t address);

// The message's own bytes, or those of the committed object, or in the heap of shared messages, that it refers to.
std::vector<std::byte> content(Image& image, const Message& message);

// The same for a datatype. A committed one is read once, however many datasets are of it.
std::shared_ptr<const std::vector<std::byte>> datatype_of(Image& image, const Message& message);

}  // namespace solar::hdf5
