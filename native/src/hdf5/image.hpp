// One HDF5 file as its metadata sees it: addresses count from the base, every read is checked and paid for.
//
// An Image keeps a few pages of the file, so that a field costs no system call. It is used by one thread. Addresses are
// relative to facts.base, as the file stores them; only names that say `absolute` are offsets in the file.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "solar/metadata.hpp"

namespace solar::hdf5 {

// Thrown for what is sound but only libhdf5 can read.
struct Elsewhere {
  std::string why;
};

// The file's metadata refers to more than it can hold: nothing of it is worth reading on.
class Exhausted : public Error {
 public:
  using Error::Error;
};

// What metadata may cost in all: enough for any honest file, and an end for one that refers to itself.
inline constexpr std::uint64_t free_bytes = 4 << 20;
inline constexpr std::uint64_t free_turns = 8;  // each byte of the file may be read so often
inline constexpr std::uint64_t largest_structure = 256 << 20;

// Where the next one begins, of what begins at multiples of 8.
inline constexpr std::uint64_t to_eights(std::uint64_t nbytes) { return (nbytes + 7) / 8 * 8; }

class FractalHeap;

class Image {
 public:
  explicit Image(const File& file);

  const File& file() const noexcept { return file_; }
  // `what` names the structure in the Error(layout) for bytes outside the file.
  void read(std::uint64_t address, MutableBytes out, const char* what);
  std::vector<std::byte> read(std::uint64_t address, std::uint64_t nbytes, const char* what);
  // Takes from what is left of the budget; throws Exhausted when that is nothing.
  void spend(std::uint64_t nbytes);
  bool exhausted() const noexcept { return exhausted_; }
  // REQUIRES: address is defined. Error(layout) when [address, address + nbytes) leaves the file.
  std::uint64_t absolute(std::uint64_t address, std::uint64_t nbytes, const char* what) const;

  FileFacts facts;
  std::uint16_t group_node_entries = 32;  // of a version 1 B-tree of links: twice its K
  std::uint16_t symbol_node_entries = 8;
  // Committed datatypes read so far, by the address of their headers.
  std::unordered_map<std::uint64_t, std::shared_ptr<const std::vector<std::byte>>> datatypes;
  // The heap of shared messages of each type, where the file has one; and those heaps that were opened.
  std::unordered_map<std::uint16_t, std::uint64_t> shared_heaps;
  std::unordered_map<std::uint64_t, std::shared_ptr<FractalHeap>> heaps;

 private:
  static constexpr std::uint64_t page_nbytes = 8192;
  struct Page {
    std::uint64_t number = ~std::uint64_t{0};
    std::unique_ptr<std::byte[]> bytes;
  };
  const std::byte* page(std::uint64_t number);

  const File& file_;
  std::uint64_t budget_;
  bool exhausted_ = false;  // spend has thrown
  std::array<Page, 32> pages_;
};

[[noreturn]] void damaged(const char* what, std::uint64_t address, const std::string& why);

// The fields of one structure; addresses and lengths have the widths of the file.
class Fields : public Cursor {
 public:
  Fields(Bytes bytes, const FileFacts& facts, const char* what)
      : Cursor(bytes, Kind::layout, what), facts_(facts), what_(what) {}

  std::uint64_t address() {
    const std::uint64_t value = uint(facts_.offset_width);
    const bool undefined = facts_.offset_width < 8 && value == (std::uint64_t{1} << (8 * facts_.offset_width)) - 1;
    return undefined ? undefined_address : value;
  }
  std::uint64_t length() { return uint(facts_.length_width); }
  void signature(const char (&expected)[5]) {
    if (std::memcmp(take(4).data(), expected, 4) != 0) refuse(std::string("lacks its signature ") + expected);
  }
  void version(std::uint8_t expected) {
    const unsigned found = u8();
    if (found != expected) refuse("has version " + std::to_string(found));
  }
  // REQUIRES: the four bytes that follow are the checksum of all before.
  void checksum(Bytes whole);
  [[noreturn]] void refuse(const std::string& why) const { throw Error(Kind::layout, std::string(what_) + " " + why); }

 private:
  const FileFacts& facts_;
  const char* what_;
};

// Bytes that hold any number up to `limit`.
inline std::size_t width_of(std::uint64_t limit) {
  return limit == 0 ? 1 : (static_cast<std::size_t>(std::bit_width(limit)) - 1) / 8 + 1;
}

}  // namespace solar::hdf5
