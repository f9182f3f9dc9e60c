// A BitReader reads fields of bits, highest bit first, from bytes it cannot leave.
//
// It is a view of the caller's bytes, and belongs to one thread. Error(codec) where the bytes end within a field.
#pragma once

#include "solar/bytes.hpp"

namespace solar {

class BitReader {
 public:
  explicit BitReader(Bytes bytes) : bytes_(bytes) {}

  // REQUIRES: 1 <= n <= 64.
  std::uint64_t take(unsigned n) {
    if (n > 56) {
      const std::uint64_t high = take(n - 32);
      return high << 32 | take(32);
    }
    const std::uint64_t value = word() << (at_ & 7) >> (64 - n);
    at_ += n;
    if (at_ > 8 * std::uint64_t{bytes_.size()}) throw Error(Kind::codec, "the packed values are cut short");
    return value;
  }

 private:
  // Eight bytes from the current one; zeros behind the end.
  std::uint64_t word() const {
    const std::size_t first = at_ / 8, left = bytes_.size() - first;
    if (left >= 8) return load_be64(bytes_.data() + first);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < left; ++i) value |= std::to_integer<std::uint64_t>(bytes_[first + i]) << (56 - 8 * i);
    return value;
  }

  Bytes bytes_;
  std::uint64_t at_ = 0;  // in bits, never behind the end
};

}  // namespace solar
