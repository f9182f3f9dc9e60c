// Samples as a Field has them come: cut and transposed, unpacked, cast, minus a mean, divided by a standard deviation.
//
// The source is read by strides, so a slice or a transpose is just another view of the same memory. Every result has
// the bits of numpy's `(x.astype(to) - mean) / deviation`, worked out in the type `to`. bfloat16 is worked out in
// float32 and rounded to nearest, ties to even.
// The caller owns all memory. Nothing is kept, no thread is started; any number of threads may convert at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "solar/bytes.hpp"

namespace solar {

enum class Number {
  boolean, int8, uint8, int16, uint16, int32, uint32, int64, uint64, float16, float32, float64,
  bfloat16  // which is only written
};

// What is read: item (i, j, ...) lies at bytes + i * strides[0] + j * strides[1] + ... It need not be aligned.
struct Strided {
  const std::byte* bytes;
  std::vector<std::size_t> shape;
  std::vector<std::ptrdiff_t> strides;  // in bytes, may be negative; as many as shape has
};

// What is subtracted, or divided by: one value of the output's type for each item, found by strides (in values).
struct Term {
  const void* values = nullptr;  // nullptr: neither subtracted nor divided by
  std::vector<std::ptrdiff_t> strides;  // as many as the source has; 0 along an axis: the same all along it
};

// What CF's conventions make of a stored number x before anything else: NaN where x is missing, else x * scale + offset.
struct Packing {
  Number in = Number::float64;      // the type that x is cast to, in which all of it is worked out: float32 or float64
  bool wide = false;                // products and sums are worked out in float64, and each is rounded to `in`
  std::vector<double> missing{};    // REQUIRES: `in` has them exactly
  std::optional<double> scale{}, offset{};
  std::optional<double> instead{};  // comes at last wherever the result is NaN
};

// Casts and normalises into `out`: all items, in C order; unpacks them first where there is a packing.
// float16 is cast to by way of float32, which is numpy's result where float32 has what is read exactly or numpy goes that
// way, too: from all but float64, with no terms and no packing.
// REQUIRES: `to` is float32, float64, bfloat16, or float16 as said; the terms are of that type, for bfloat16 of float32; out and the
// terms are aligned; out overlaps nothing that is read.
void convert(const Strided& source, Number from, std::byte* out, Number to, const Term& mean, const Term& deviation,
             const Packing* packing = nullptr);

// Moves items of any kind as they are into `out`, in C order. REQUIRES: out does not overlap the source.
void rearrange(const Strided& source, std::size_t itemsize, std::byte* out);

// What is done with the samples of every batch, by one of the two functions above. It owns its terms, and never changes.
struct Conversion {
  std::size_t sample_nbytes = 0, made_nbytes = 0;  // of a sample, before and after
  std::ptrdiff_t offset = 0;  // from the first byte of a sample to its item (0, 0, ...)
  Strided sample{};           // of a sample: shape and strides; its bytes are nobody's
  Number from = Number::uint8, to = Number::float32;
  std::size_t rearranged = 0;  // the size of an item that is only moved; else 0
  Term mean{}, deviation{};    // without the axis of the samples
  std::optional<Packing> packing{};
  std::vector<std::byte> terms{};  // what these two point to

  // Converts `count` samples that lie one after another. REQUIRES: neither overlaps the other.
  void operator()(const std::byte* samples, std::size_t count, std::byte* out) const;
};

}  // namespace solar
