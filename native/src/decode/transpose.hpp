// Transposes of bytes and bits with vectors of 16 bytes, which every 64-bit machine has (SSE2, NEON).
// The loops over vectors are unrolled by hand: only then do all of them stay in registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace solar {

typedef std::uint8_t Vector __attribute__((vector_size(16)));

inline Vector load_vector(const std::byte* p) noexcept {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Vector zip_low(Vector a, Vector b) noexcept {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Vector zip_high(Vector a, Vector b) noexcept {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// Vector k holds byte k of 16 items; afterwards the N vectors hold the items one after another. N: a power of two.
template <std::size_t N>
inline void interleave(Vector (&v)[N]) noexcept {
#pragma GCC unroll 4
  for (std::size_t level = 1; level < N; level *= 2) {
    Vector next[N];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < N / 2; ++i) {
      next[2 * i] = zip_low(v[i], v[i + N / 2]);
      next[2 * i + 1] = zip_high(v[i], v[i + N / 2]);
    }
    std::memcpy(v, next, sizeof v);
  }
}

// Joins N planes of bytes: out[item * stride + k] = planes[k * plane + item] for `items`, a multiple of 16.
template <std::size_t N>
inline void join_planes(const std::byte* planes, std::size_t plane, std::byte* out, std::size_t stride,
                        std::size_t items) noexcept {
  for (std::size_t item = 0; item < items; item += 16) {
    Vector v[N];
#pragma GCC unroll 16
    for (std::size_t k = 0; k < N; ++k) v[k] = load_vector(planes + k * plane + item);
    interleave(v);
    if (stride == N) {
      std::memcpy(out + item * N, v, sizeof v);
      continue;
    }
    std::byte joined[sizeof v];
    std::memcpy(joined, v, sizeof v);
    for (std::size_t i = 0; i < 16; ++i) std::memcpy(out + (item + i) * stride, joined + i * N, N);
  }
}

// The same for any number of planes, widest groups first.
inline void join_planes(const std::byte* planes, std::size_t plane, std::size_t count, std::byte* out,
                        std::size_t stride, std::size_t items) noexcept {
  std::size_t k = 0;
  for (; count - k >= 16; k += 16) join_planes<16>(planes + k * plane, plane, out + k, stride, items);
  for (; count - k >= 8; k += 8) join_planes<8>(planes + k * plane, plane, out + k, stride, items);
  for (; count - k >= 4; k += 4) join_planes<4>(planes + k * plane, plane, out + k, stride, items);
  for (; count - k >= 2; k += 2) join_planes<2>(planes + k * plane, plane, out + k, stride, items);
  if (count - k == 1) join_planes<1>(planes + k * plane, plane, out + k, stride, items);
}

// Eight rows of bits become columns: bit j of byte n of vector k was bit k of byte n of vector j.
inline void transpose_bits(Vector (&v)[8]) noexcept {
  typedef std::uint64_t Wide __attribute__((vector_size(16)));
  Wide w[8];
  std::memcpy(w, v, sizeof w);
  const auto swap = [](Wide& a, Wide& b, int shift, std::uint64_t mask) {
    const Wide moved = ((a >> shift) ^ b) & (Wide{} + mask);
    b ^= moved;
    a ^= moved << shift;
  };
#pragma GCC unroll 4
  for (std::size_t j = 0; j < 4; ++j) {
    swap(w[j], w[j + 4], 4, 0x0f0f0f0f0f0f0f0f);
  }
#pragma GCC unroll 4
  for (std::size_t j = 0; j < 4; ++j) {
    const std::size_t k = j + (j & 2);  // 0 1 4 5
    swap(w[k], w[k + 2], 2, 0x3333333333333333);
  }
#pragma GCC unroll 4
  for (std::size_t j = 0; j < 8; j += 2) {
    swap(w[j], w[j + 1], 1, 0x5555555555555555);
  }
  std::memcpy(v, w, sizeof w);
}

// The same for eight bytes in a word: byte j is row j.
inline std::uint64_t transpose_bits(std::uint64_t x) noexcept {
  const auto swap = [&x](unsigned shift, std::uint64_t mask) {
    const std::uint64_t moved = (x ^ (x >> shift)) & mask;
    x ^= moved ^ (moved << shift);
  };
  swap(7, 0x00aa00aa00aa00aa);
  swap(14, 0x0000cccc0000cccc);
  swap(28, 0x00000000f0f0f0f0);
  return x;
}

}  // namespace solar
