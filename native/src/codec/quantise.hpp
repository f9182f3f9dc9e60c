// A Quantiser says how the values of a chunk become integers: by which step, from which base, or by their bits.
//
// This is the encoder's side. It promises nothing: whoever uses an integer asks may_stand() first whether what the
// decoder will restore is within the bound. A Quantiser is a value that refers to the caller's marks. All functions are
// pure; any thread may call them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "codec/format.hpp"
#include "codec/kernels.hpp"
#include "solar/codec.hpp"

namespace solar::codec {

// How a chunk is quantised. `coded` false: nothing better than raw is known.
struct Quantiser {
  Quanta quanta = Quanta::real;
  bool coded = true, lattice = false;
  double step = 1, base = 0;                    // of Quanta::real
  std::int64_t whole_step = 1, whole_base = 0;  // of Quanta::integer
  double bound = 0;
  double unit = 0;              // of a lattice: what all values are multiples of
  std::int64_t whole_unit = 1;  // the same of whole numbers, counted from whole_base
  Marks marks = {};             // what is not to be confused
};

Quantiser quantiser_for(const void* values, Number number, std::size_t count, double bound, const Marks& marks);

// What would cost much if it were kept beside the coder's bytes, and how many bits for each value of the chunk.
template <class T>
struct Target {
  T value;
  double bits;
};
// Makes the step a little smaller, or moves the base, so that the dearest targets are among what quantising gives.
template <class T>
void align(Quantiser& how, std::span<const Target<T>> targets);

// Whether |a - b|, exactly, is at most `bound`: the rounding of the difference is worked out with it.
inline bool within(double a, double b, double bound) {
  const double difference = a - b, back = difference - a;
  const double rest = (a - (difference - back)) + (-b - back);
  const double size = std::fabs(difference);
  return size < bound || (size == bound && (difference < 0 ? -rest : rest) <= 0);
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Whether `restored` may stand for `value`. A number that a processor may flush to zero never may.
template <class T>
bool may_stand(T value, T restored, double bound) {
  if constexpr (std::is_floating_point_v<T>) {
    // Rounding keeps order: what comes out below the bound is below it. Most values end here.
    if (std::fabs(static_cast<double>(restored) - static_cast<double>(value)) < bound &&
        std::fabs(restored) >= std::numeric_limits<T>::min())
      return true;
    if (same_bits(value, restored)) return std::isnormal(value) || value == 0;
    if (bound == 0 || !std::isfinite(value) || !std::isfinite(restored)) return false;
    return (std::isnormal(restored) || restored == 0) && within(value, restored, bound);
  } else {
    const auto a = static_cast<__int128>(value), b = static_cast<__int128>(restored);
    const auto distance = static_cast<double>(a < b ? b - a : a - b);  // exact below 2^53, and rounded rightly above
    return a == b || (distance <= bound && (distance < 0x1p53 || distance < bound));
  }
}

// The bits of a float32 as a whole number whose order is that of the values.
inline std::int32_t ordered_bits(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// The integer for a value, or false where there is none.
template <class T>
bool quantise(T value, const Quantiser& how, std::int32_t& out) {
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (sizeof(T) == 4) {
      if (how.quanta == Quanta::bits) {
        out = ordered_bits(value);
        return true;
      }
    }
    const double scaled = (static_cast<double>(value) - how.base) / how.step;
    if (!(std::fabs(scaled) < 0x1p30)) return false;
    out = static_cast<std::int32_t>(std::nearbyint(scaled));
    return true;
  } else {
    if (sizeof(T) <= 4 && how.whole_step == 1 && how.whole_base == 0) {
      out = static_cast<std::int32_t>(value);
      return true;
    }
    const __int128 base = std::is_same_v<T, std::uint64_t>
                              ? static_cast<__int128>(static_cast<std::uint64_t>(how.whole_base))
                              : static_cast<__int128>(how.whole_base);
    const __int128 above = static_cast<__int128>(value) - base + how.whole_step / 2;
    const __int128 whole = above / how.whole_step - (above % how.whole_step < 0);
    if (whole < std::numeric_limits<std::int32_t>::min() || whole > std::numeric_limits<std::int32_t>::max())
      return false;
    out = static_cast<std::int32_t>(whole);
    return true;
  }
}

// What the decoder makes of the integer.
template <class T>
T restored(std::int32_t v, const Quantiser& how) {
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (sizeof(T) == 4)
      if (how.quanta == Quanta::bits) return std::bit_cast<float>(v < 0 ? v ^ 0x7fffffff : v);
    return std::fma(static_cast<T>(v), static_cast<T>(how.step), static_cast<T>(how.base));
  } else {
    return static_cast<T>(static_cast<std::uint64_t>(how.whole_base) +
                          static_cast<std::uint64_t>(how.whole_step) * static_cast<std::uint64_t>(std::int64_t{v}));
  }
}

// Whether a value comes back bit for bit through its integer.
template <class T>
bool gives(T value, const Quantiser& how) {
  std::int32_t v;
  return quantise(value, how, v) && same_bits(restored<T>(v, how), value);
}

}  // namespace solar::codec
