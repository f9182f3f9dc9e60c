// An EncodingKernels is the inner loops of encoding, one set for each kind of vector. All sets give the same bytes.
//
// They look at what a decoder would restore and say where that will not do; what then becomes of a value is up to the
// caller. They are pure, own nothing and throw nothing; any thread may call them. All memory is the caller's: inputs
// and outputs do not overlap, and nothing is written behind what was asked for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/kernels.hpp"

namespace solar::codec {

// What a quantised value must keep to. `exact`: every bit of it.
struct Aim {
  double step, base, bound;
  bool exact;
};

// Of integers: base + step * v, modulo 2^64, at most `bound` from the value, and from low to high.
struct WholeAim {
  std::int64_t step, base, bound, low, high;
};

// A block's sizes: their sum, and whether one is negative.
struct Size {
  std::uint64_t sum;
  bool negative;
};

// What a pass over values shows. near: no larger than what was asked for.
struct Seen {
  std::size_t finite = 0, near = 0;
  double largest = 0, largest_near = 0;
};

inline constexpr int most_ways = 32;  // between classes of successive blocks

struct EncodingKernels {
  Seen (*look32)(const float* values, std::size_t count, float reach);
  Seen (*look64)(const double* values, std::size_t count, double reach);
  // Whether every finite value is a multiple of the step.
  bool (*multiples32)(const float* values, std::size_t count, double step);
  bool (*multiples64)(const double* values, std::size_t count, double step);
  // Integers for values. False when any of them needs a closer look; `out` then means nothing.
  bool (*quantise32)(const float* values, std::size_t count, const Aim& aim, std::int32_t* out);
  bool (*quantise64)(const double* values, std::size_t count, const Aim& aim, std::int32_t* out);
  bool (*quantise_whole)(const std::int64_t* values, std::size_t count, const WholeAim& aim, std::int32_t* out);
  // The same when the values are foretold, in sixteenths of a quantum (`aim.step` is a sixteenth): residuals, and what
  // a decoder makes of them.
  bool (*residuals32)(const float* values, const std::int32_t* foretold, std::size_t count, const Aim& aim,
                      std::int32_t* residuals, std::int32_t* made);
  bool (*residuals64)(const double* values, const std::int32_t* foretold, std::size_t count, const Aim& aim,
                      std::int32_t* residuals, std::int32_t* made);
  // Halfway between rows a, b . c, d, as halfway() says; rows that are not there are not read.
  void (*between)(const std::int32_t* const rows[4], bool before, int after, std::size_t count, std::int32_t* foretold);
  // Every other value; and known points with those between them, in turn: `count` of these, and of those one more if
  // `more`.
  void (*thin32)(const float* values, std::size_t count, float* out);
  void (*thin64)(const double* values, std::size_t count, double* out);
  void (*weave)(const std::int32_t* known, const std::int32_t* made, std::size_t count, bool more, std::int32_t* out);
  // Each value less the one `back` before it, but for the first `back`, which stay.
  void (*less)(const std::int32_t* values, std::size_t back, std::size_t count, std::int32_t* out);
  void (*widths)(const std::int32_t* residuals, std::size_t blocks, std::uint8_t* out);
  void (*sizes)(const std::int32_t* residuals, std::size_t blocks, Size* out);
  // The costs of a block's symbols in each of the tables 0 to 15; `of`: 16 for each symbol.
  void (*costs)(const std::uint8_t* symbols, const std::uint32_t* of, std::uint32_t* sums);
  // The cheapest of `count` ways to each of most_ways classes: `costs` of the ways so far, and `steps[k - i]` from the
  // i-th of them to class k. `from` says which it is.
  void (*extend)(const std::uint32_t* costs, int count, const std::uint32_t* steps, std::uint32_t* best,
                 std::uint8_t* from);
  // The 32 coders' next bits, at one step before those they hold in `strings`; `words`: 16 of them behind the first
  // `counts`, for the coders that ask there.
  void (*prepend)(const std::uint16_t* bits, const std::uint8_t* widths, const std::uint8_t* counts,
                  std::uint32_t* strings, std::uint16_t* words);
};

const EncodingKernels& plain_encoding();
const EncodingKernels& avx2_encoding();     // REQUIRES: has_avx2()
const EncodingKernels& avx512_encoding();   // REQUIRES: has_avx512()
const EncodingKernels& encoding_kernels();  // the fastest here

}  // namespace solar::codec
