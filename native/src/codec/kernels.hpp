// The inner loops of decoding, one set for each Path. What they read was checked before; they throw nothing.
//
// plain.cpp is the specification: obvious loops. The others give the same integers and the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/format.hpp"
#include "codec/tables.hpp"
#include "solar/codec.hpp"

namespace solar::codec {

inline constexpr std::size_t lanes = 32;
inline constexpr std::size_t most_blocks = most_values / block;
inline constexpr std::size_t slack = 64;  // values that a loop may write behind those asked for

// The 32 coders of a tile, which share one stream of 16-bit words. A word behind the end is 0.
struct Lanes {
  std::uint32_t states[lanes], bits[lanes], counts[lanes];
  const std::byte* at;
  const std::byte* end;
};

struct Residuals {
  const std::uint32_t* places;  // of Coding
  const std::uint8_t* classes;  // one a block
  std::size_t blocks;
  const std::byte* low;  // lowest bits: low_bits_of(class) words a block
  const std::byte* low_end;
  const std::byte* escapes;  // 4 bytes each
  std::size_t escape_count;
};

// Predictors 8, 9 and 10 interpolate from points 8, 16 or 32 apart.
inline constexpr unsigned first_interpolation = 8, last_interpolation = 10;
constexpr bool is_interpolation(unsigned predictor) {
  return predictor >= first_interpolation && predictor <= last_interpolation;
}
constexpr std::uint32_t stride_of(unsigned predictor) { return 8u << (predictor - first_interpolation); }

// How the integers of a tile become values. `cast`: whole numbers of the type `number`, which then become float32.
struct Restore {
  Quanta quanta;
  std::size_t itemsize;
  double step, base;
  std::uint64_t whole_step, whole_base;
  Number number;
  bool cast;
};

// The bits of an int32 that are those of a smaller whole number, and the one that is its sign.
struct Held {
  int all, sign;
};
constexpr Held held_of(Number number) {
  switch (number) {
    case Number::int8: return {0xff, 0x80};
    case Number::uint8: return {0xff, 0};
    case Number::int16: return {0xffff, 0x8000};
    case Number::uint16: return {0xffff, 0};
    default: return {-1, 0};  // int32
  }
}

// Where a tile's rows go: rows and planes lie so many bytes apart.
struct Rows {
  std::byte* first;
  std::size_t row, plane;
  std::byte* at(std::size_t z, std::size_t y) const { return first + z * plane + y * row; }
};

// Lorenzo's sums over a tile (`axes` as Predictor's), from `origin`, and where their values go. `room` is for twice
// most_values.
struct Sums {
  Extent extent;
  unsigned axes;
  std::int32_t origin;
  std::int32_t* room;
  const Restore& how;
  const Rows& out;
};

struct Kernels {
  // Blocks of fields of `widths[i]` bits, less half their range. The words are there; none is read at or behind `end`.
  void (*unpack)(const std::byte* words, const std::byte* end, const std::uint8_t* widths, std::size_t blocks,
                 std::int32_t* out);
  // `steps` times 32 symbols, all with one table.
  void (*symbols)(Lanes& of, const std::uint32_t* places, std::size_t steps, std::int8_t* out);
  // False when there are more escapes than were stored.
  bool (*residuals)(Lanes& of, const Residuals& from, std::int32_t* out);
  // residuals() and lorenzo() at once: the sums of one row while the next is decoded. REQUIRES: extent.x >= 16.
  bool (*dense_lorenzo)(Lanes& of, const Residuals& from, std::int32_t* residuals, const Sums& sums);
  // Residuals in the order of patches, to rows; the two do not overlap.
  void (*to_rows)(const std::int32_t* in_patches, Extent extent, std::int32_t* out);
  // The residuals are lost.
  void (*lorenzo)(std::int32_t* residuals, const Sums& sums);
  // Residuals, in the order of the passes, to values in sixteenths: in `one` or `other`, as it returns.
  std::int32_t* (*interpolate)(const std::int32_t* residuals, Extent extent, std::uint32_t stride, std::int32_t origin,
                               std::int32_t* one, std::int32_t* other);
  void (*restore)(const std::int32_t* values, std::size_t count, const Restore& how, std::byte* out);
};

const Kernels& plain_kernels();
const Kernels& avx2_kernels();    // REQUIRES: has_avx2()
const Kernels& avx512_kernels();  // REQUIRES: has_avx512()
const Kernels& neon_kernels();    // REQUIRES: has_neon()
bool has_avx2();
bool has_avx512();
bool has_neon();
const Kernels& kernels(Path path);  // throws Error(codec) where the machine cannot

// A 32-bit sum as HDF5 and processors make it: modulo 2^32.
constexpr std::int32_t add(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
constexpr std::int32_t sub(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b));
}

}  // namespace solar::codec
