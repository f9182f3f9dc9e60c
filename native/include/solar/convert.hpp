// Samples as a Field has them come: cut and transposed, cast, minus a mean, divided by a standard deviation.
//
// The source is read by strides, so a slice or a transpose is just another view of the same memory. Every result has
// the bits of numpy's `(x.astype(to) - mean) / deviation`, worked out in the type `to`.
// The caller owns all memory. Nothing is kept, no thread is started; any number of threads may convert at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "solar/bytes.hpp"

namespace solar {

enum class Number {
  boolean, int8, uint8, int16, uint16, int32, uint32, int64, uint64, float16, float32, float64
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

// Casts and normalises into `out`: all items, in C order.
// REQUIRES: `to` is float32 or float64, out and the terms are aligned for it, out overlaps nothing that is read.
void convert(const Strided& source, Number from, std::byte* out, Number to, const Term& mean, const Term& deviation);

// Moves items of any kind as they are into `out`, in C order. REQUIRES: out does not overlap the source.
void rearrange(const Strided& source, std::size_t itemsize, std::byte* out);

}  // namespace solar
