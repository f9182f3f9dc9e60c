// One number made into another, and runs of them, with numpy's results to the bit.
//
// Every value has a result, also one that the other type cannot hold: that which numpy has on this processor. Nothing
// is allocated or thrown.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace solar::converting {

struct Boolean {
  std::uint8_t byte;  // true is whatever is not 0
};
struct Half {
  std::uint16_t bits;
};

// Widens without the processor's help: it would turn signalling NaNs quiet, which numpy does not.
template <class To>
To widened(Half half) {
  using Bits = std::conditional_t<sizeof(To) == 4, std::uint32_t, std::uint64_t>;
  constexpr int mantissa = sizeof(To) == 4 ? 23 : 52, rebias = sizeof(To) == 4 ? 127 - 15 : 1023 - 15;
  constexpr Bits exponent = Bits{0x7c00} << (mantissa - 10);
  constexpr Bits smallest = Bits{rebias + 1} << mantissa;  // 2^-14, below which halves are denormal
  const Bits magnitude = static_cast<Bits>(half.bits & 0x7fffu) << (mantissa - 10);
  const Bits normal = magnitude + (Bits{rebias} << mantissa);
  const Bits special = normal + (Bits{rebias} << mantissa);
  const Bits denormal = std::bit_cast<Bits>(std::bit_cast<To>(magnitude + smallest) - std::bit_cast<To>(smallest));
  const Bits held = magnitude & exponent;
  const Bits value = held == 0 ? denormal : held == exponent ? special : normal;
  return std::bit_cast<To>(value | (static_cast<Bits>(half.bits & 0x8000u) << (8 * sizeof(To) - 16)));
}

template <class From, class To>
inline To cast(From value) {
  if constexpr (std::is_same_v<From, Boolean>) {
    return static_cast<To>(value.byte != 0);
  } else if constexpr (std::is_same_v<From, Half>) {
    return widened<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class From>
inline From item_at(const std::byte* bytes) {
  From item;
  std::memcpy(&item, bytes, sizeof item);
  return item;
}

// `items` of them, `step` bytes apart, to consecutive places.
template <class From, class To>
inline void load(To* __restrict out, const std::byte* __restrict source, std::ptrdiff_t step, std::size_t items) {
  constexpr auto dense = static_cast<std::ptrdiff_t>(sizeof(From));
  if (step == -dense) {
    for (std::size_t i = 0; i < items; ++i)
      out[i] = cast<From, To>(item_at<From>(source - static_cast<std::ptrdiff_t>(i) * dense));
  } else if (step != dense) {
    for (std::size_t i = 0; i < items; ++i)
      out[i] = cast<From, To>(item_at<From>(source + static_cast<std::ptrdiff_t>(i) * step));
  } else if constexpr (std::is_same_v<From, To>) {
    std::memcpy(out, source, items * sizeof(To));
  } else {
    for (std::size_t i = 0; i < items; ++i) out[i] = cast<From, To>(item_at<From>(source + i * sizeof(From)));
  }
}

}  // namespace solar::converting
