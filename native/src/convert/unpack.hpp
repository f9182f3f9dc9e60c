// What CF's conventions make of packed numbers, a stretch at a time; bfloat16 and float16.
//
// The functions change a row in place, and own nothing. They throw nothing; threads may call them at once for different
// rows.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "solar/convert.hpp"

namespace solar::converting {

// Functions of their own, one for each operation: no compiler can make one of a product and a sum, which rounds
// otherwise, and each is a loop of vectors.
template <class T>
[[gnu::noinline]] void mask(T* __restrict row, std::size_t items, T missing) {
  constexpr T nothing = std::numeric_limits<T>::quiet_NaN();
  for (std::size_t i = 0; i < items; ++i) row[i] = row[i] == missing ? nothing : row[i];
}

template <class T, class In>
[[gnu::noinline]] void scale(T* __restrict row, std::size_t items, In factor) {
  for (std::size_t i = 0; i < items; ++i) row[i] = static_cast<T>(static_cast<In>(row[i]) * factor);
}

template <class T, class In>
[[gnu::noinline]] void shift(T* __restrict row, std::size_t items, In offset) {
  for (std::size_t i = 0; i < items; ++i) row[i] = static_cast<T>(static_cast<In>(row[i]) + offset);
}

template <class T>
[[gnu::noinline]] void replace_nan(T* __restrict row, std::size_t items, T instead) {
  for (std::size_t i = 0; i < items; ++i) row[i] = row[i] != row[i] ? instead : row[i];
}

template <class T, class In>
void unpack_in(T* row, std::size_t items, const Packing& packing) {
  for (const double missing : packing.missing) mask(row, items, static_cast<T>(missing));
  if (packing.scale) scale(row, items, static_cast<In>(*packing.scale));
  if (packing.offset) shift(row, items, static_cast<In>(*packing.offset));
}

template <class T>
void unpack(T* row, std::size_t items, const Packing& packing) {
  packing.wide ? unpack_in<T, double>(row, items, packing) : unpack_in<T, T>(row, items, packing);
}

template <class T>
using Load = void (*)(T* out, const std::byte* source, std::ptrdiff_t step, std::size_t items);

// A stretch of the source, loaded and unpacked in one type and handed on in another.
template <class In, class To>
void load_unpacked(Load<In> load, const Packing& packing, To* out, const std::byte* source, std::ptrdiff_t step,
                   std::size_t items) {
  if constexpr (std::is_same_v<In, To>) {
    load(out, source, step, items);
    unpack(out, items, packing);
  } else {
    std::array<In, 512> near;
    for (std::size_t done = 0; done < items; done += near.size()) {
      const std::size_t n = std::min(near.size(), items - done);
      load(near.data(), source + static_cast<std::ptrdiff_t>(done) * step, step, n);
      unpack(near.data(), n, packing);
      for (std::size_t i = 0; i < n; ++i) out[done + i] = static_cast<To>(near[i]);
    }
  }
}

// To nearest, ties to even. Any NaN becomes the one that torch's vectors give.
inline std::uint16_t bfloat16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0xffff : rounded);
}

// To nearest, ties to even. A NaN keeps its upper bits and stays one, as in numpy.
inline std::uint16_t float16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  const std::uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  constexpr float half = 0.5F;  // its last bit is that of the smallest float16
  const std::uint32_t denormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + half) - std::bit_cast<std::uint32_t>(half);
  const std::uint32_t payload = magnitude >> 13 & 0x3ff;
  const std::uint32_t nan = 0x7c00 | (payload == 0 ? 1 : payload);
  const std::uint32_t large = magnitude > 0x7f800000 ? nan : magnitude >= 0x477ff000 ? 0x7c00 : normal;
  return static_cast<std::uint16_t>(sign | (magnitude < 0x38800000 ? denormal : large));
}

using Narrow = void (*)(std::uint16_t*, const float*, std::size_t);

inline void to_bfloat16(std::uint16_t* __restrict out, const float* __restrict row, std::size_t items) {
  for (std::size_t i = 0; i < items; ++i) out[i] = bfloat16_of(row[i]);
}

inline void to_float16(std::uint16_t* __restrict out, const float* __restrict row, std::size_t items) {
  for (std::size_t i = 0; i < items; ++i) out[i] = float16_of(row[i]);
}

}  // namespace solar::converting
