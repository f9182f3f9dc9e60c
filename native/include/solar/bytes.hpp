// Views of raw bytes, and a cursor that cannot leave its view.
//
// Everything read from a file passes through Cursor: a length that lies ends in an Error, not in a bad access. Bytes,
// MutableBytes and Cursor own nothing: the memory must stay as long as they are used. A Cursor belongs to one thread.
// It throws an Error of its Kind, and has then not moved.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "solar/error.hpp"

namespace solar {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

static_assert(std::endian::native == std::endian::little, "solar's formats are read in place: little-endian only");

template <class T>
inline T load_le(const std::byte* p) noexcept {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

inline std::uint32_t load_be32(const std::byte* p) noexcept { return __builtin_bswap32(load_le<std::uint32_t>(p)); }
inline std::uint64_t load_be64(const std::byte* p) noexcept { return __builtin_bswap64(load_le<std::uint64_t>(p)); }

// Reads little-endian fields one after another. `what` names the structure in the error.
class Cursor {
 public:
  Cursor(Bytes bytes, Kind kind, const char* what) : bytes_(bytes), kind_(kind), what_(what) {}

  std::size_t left() const noexcept { return bytes_.size() - at_; }
  std::size_t position() const noexcept { return at_; }

  Bytes take(std::size_t n) {
    if (n > left()) fail();
    Bytes part = bytes_.subspan(at_, n);
    at_ += n;
    return part;
  }
  void skip(std::size_t n) { take(n); }
  std::uint8_t u8() { return load_le<std::uint8_t>(take(1).data()); }
  std::uint16_t u16() { return load_le<std::uint16_t>(take(2).data()); }
  std::uint32_t u32() { return load_le<std::uint32_t>(take(4).data()); }
  std::uint64_t u64() { return load_le<std::uint64_t>(take(8).data()); }
  // An unsigned integer of `width` bytes, 0 to 8 (HDF5 chooses widths by file).
  std::uint64_t uint(std::size_t width) {
    if (width > 8) fail();
    std::uint64_t value = 0;
    std::memcpy(&value, take(width).data(), width);
    return value;
  }

 private:
  [[noreturn]] void fail() const { throw Error(kind_, std::string(what_) + " is cut short or damaged"); }

  Bytes bytes_;
  Kind kind_;
  const char* what_;
  std::size_t at_ = 0;
};

}  // namespace solar
