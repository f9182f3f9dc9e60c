// The bit stream of zstd's entropy coders: written forwards, read from its end to its start.
//
// The last byte carries an end mark (its highest set bit). Reading below the start gives zeros and makes left()
// negative, so a decoder may run on and check once. No byte outside the stream is read.
#pragma once

#include "damaged.hpp"
#include "solar/bytes.hpp"

// Functions that shift by variable amounts all day are compiled twice where the baseline has no BMI2.
#if defined(__x86_64__) && !defined(__BMI2__)
#define SOLAR_ZSTD_BMI2 __attribute__((target("bmi,bmi2")))
#else
#define SOLAR_ZSTD_BMI2
#endif
#define SOLAR_ZSTD_INLINE inline __attribute__((always_inline))

namespace solar::zstd {

inline bool has_bmi2() noexcept {
#if defined(__x86_64__) && !defined(__BMI2__)
  return __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("bmi");
#else
  return false;
#endif
}

class BackwardBits {
 public:
  explicit BackwardBits(Bytes stream) : base_(stream.data()) {
    if (stream.empty() || stream.back() == std::byte{0}) damaged("a bit stream has no end mark");
    const auto mark = std::bit_width(std::to_integer<unsigned>(stream.back())) - 1;
    left_ = static_cast<std::int64_t>(stream.size() - 1) * 8 + mark;
  }
  // The bits of `base` below bit `left`.
  BackwardBits(const std::byte* base, std::int64_t left) : base_(base), left_(left) {}
  BackwardBits() = default;

  const std::byte* base() const { return base_; }
  std::int64_t left() const { return left_; }

  // After it, 57 bits can be taken.
  SOLAR_ZSTD_INLINE void refill() {
    if (left_ >= 64) [[likely]] {
      window_ = load_le<std::uint64_t>(base_ + ((left_ + 7) >> 3) - 8) << (-left_ & 7);
    } else {
      window_ = last_bits();
    }
  }
  SOLAR_ZSTD_INLINE std::uint64_t peek(unsigned n) const { return (window_ >> 1) >> (63 - n); }
  SOLAR_ZSTD_INLINE void skip(unsigned n) {
    window_ <<= n;
    left_ -= n;
  }
  SOLAR_ZSTD_INLINE std::uint64_t take(unsigned n) {
    const auto value = peek(n);
    skip(n);
    return value;
  }

 private:
  std::uint64_t last_bits() const {
    if (left_ <= 0) return 0;
    std::uint64_t value = 0;
    std::memcpy(&value, base_, static_cast<std::size_t>((left_ + 7) >> 3));
    return value << (64 - left_);
  }

  const std::byte* base_ = nullptr;
  std::int64_t left_ = 0;
  std::uint64_t window_ = 0;
};

}  // namespace solar::zstd
