// Small HDF5 files written byte by byte, for tests of what reads their metadata.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "hdf5/lookup3.hpp"
#include "made.hpp"

namespace written {

using solar::File;

// Grows a file of version 2 structures; addresses are positions.
class Writer {
 public:
  std::vector<std::byte> bytes;

  void u(std::uint64_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void text(const std::string& s) {
    for (const char c : s) bytes.push_back(static_cast<std::byte>(c));
  }
  void append(const Writer& other) { bytes.insert(bytes.end(), other.bytes.begin(), other.bytes.end()); }
  std::uint64_t at() const { return bytes.size(); }
  void checksum(std::uint64_t begin) { u(solar::lookup3(solar::Bytes(bytes).subspan(begin)), 4); }
};

struct Message {
  unsigned type;
  Writer body;
};

// An object header of version 2; returns its address.
inline std::uint64_t object(Writer& file, const std::vector<Message>& messages) {
  Writer all;
  for (const Message& message : messages) {
    all.u(message.type, 1);
    all.u(message.body.bytes.size(), 2);
    all.u(0, 1);
    all.append(message.body);
  }
  const std::uint64_t begin = file.at();
  file.text("OHDR");
  file.u(2, 1);
  file.u(2, 1);  // the size has four bytes
  file.u(all.bytes.size(), 4);
  file.append(all);
  file.checksum(begin);
  return begin;
}

inline Message hard_link(const std::string& name, std::uint64_t address) {
  Message link{6, {}};
  link.body.u(1, 1);
  link.body.u(0, 1);
  link.body.u(name.size(), 1);
  link.body.text(name);
  link.body.u(address, 8);
  return link;
}

inline Message soft_link(const std::string& name, const std::string& target) {
  Message link{6, {}};
  link.body.u(1, 1);
  link.body.u(8, 1);
  link.body.u(1, 1);
  link.body.u(name.size(), 1);
  link.body.text(name);
  link.body.u(target.size(), 2);
  link.body.text(target);
  return link;
}

inline Message compact_group() {
  Message info{2, {}};
  info.body.u(0, 2);
  info.body.u(~std::uint64_t{0}, 8);
  info.body.u(~std::uint64_t{0}, 8);
  return info;
}

// Three elements of four bytes, contiguous.
inline std::vector<Message> dataset(std::uint64_t address, std::uint64_t nbytes) {
  Message space{1, {}}, type{3, {}}, layout{8, {}};
  space.body.u(0x01000102, 4);
  space.body.u(3, 8);
  type.body.u(0x00000810, 4);
  type.body.u(4, 4);
  type.body.u(0, 2);
  type.body.u(32, 2);
  layout.body.u(3, 1);
  layout.body.u(1, 1);
  layout.body.u(address, 8);
  layout.body.u(nbytes, 8);
  return {space, type, layout};
}

inline constexpr std::uint64_t superblock_nbytes = 48;

// Room for the superblock, which finish() writes when the root is known.
inline Writer start() {
  Writer file;
  for (std::uint64_t i = file.at(); i < superblock_nbytes; ++i) file.u(0, 1);
  return file;
}

inline void finish(Writer& file, std::uint64_t root, unsigned version = 2, unsigned flags = 0,
            std::uint64_t extension = ~std::uint64_t{0}) {
  Writer block;
  block.text("\x89HDF\r\n\x1a\n");
  block.u(version, 1);
  block.u(8, 1);
  block.u(8, 1);
  block.u(flags, 1);
  block.u(0, 8);
  block.u(extension, 8);
  block.u(file.at(), 8);
  block.u(root, 8);
  block.checksum(0);
  std::copy(block.bytes.begin(), block.bytes.end(), file.bytes.begin());
}

// The bytes as a file without a name.
inline std::unique_ptr<const File> opened(const std::vector<std::byte>& bytes) {
  const made::Folder folder;
  return std::make_unique<const File>(made::write_file(folder / "a", bytes).path);
}

}  // namespace written
