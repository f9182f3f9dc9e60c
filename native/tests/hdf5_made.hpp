// Small HDF5 files for tests, made byte by byte: version 2 structures, links of all kinds, contiguous data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hdf5/lookup3.hpp"
#include "made.hpp"
#include "solar/bytes.hpp"
#include "solar/file.hpp"

namespace made {

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

// Its value is `value` as it is, or the version, the file and the object.
inline Message external_link(const std::string& name, const std::string& value) {
  Message link{6, {}};
  link.body.u(1, 1);
  link.body.u(8, 1);
  link.body.u(64, 1);
  link.body.u(name.size(), 1);
  link.body.text(name);
  link.body.u(value.size(), 2);
  link.body.text(value);
  return link;
}

inline Message external_link(const std::string& name, const std::string& file, const std::string& object) {
  return external_link(name, std::string(1, '\0') + file + '\0' + object + '\0');
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

// Twelve bytes of data at 48, a dataset `data` and what else the test links into the root.
inline std::vector<std::byte> file_with(std::uint64_t nbytes, std::vector<Message> links = {}, unsigned version = 2,
                                 unsigned flags = 0) {
  Writer file = start();
  file.text("abcdefghijkl");
  const std::uint64_t data = object(file, dataset(superblock_nbytes, nbytes));
  links.push_back(hard_link("data", data));
  links.push_back(compact_group());
  const std::uint64_t root = object(file, links);
  finish(file, root, version, flags);
  return file.bytes;
}

// The bytes as a file without a name.
inline std::unique_ptr<const solar::File> opened(const std::vector<std::byte>& bytes) {
  const Folder folder;
  return std::make_unique<const solar::File>(write_file(folder / "a", bytes).path);
}

}  // namespace made
