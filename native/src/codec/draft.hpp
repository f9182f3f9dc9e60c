// A tile between its values and its bytes: residuals, and what is kept beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/format.hpp"
#include "codec/quantise.hpp"
#include "codec/tables.hpp"
#include "solar/codec.hpp"

namespace solar::codec {

// Values of the same bits, kept as they are.
struct Run {
  std::uint16_t first, length;
  std::uint64_t bits;
};

struct Draft {
  bool constant = false, raw = false;
  std::uint64_t bits = 0;  // of the constant
  std::uint8_t predictor = 0;
  std::int32_t origin = 0;
  std::vector<std::int32_t> residuals;  // whole blocks, zeros at the end
  std::vector<Run> runs;
};

// One tile's values, gathered. `tried`: which predictors may be chosen (bit i: predictor i) to be small with `coder`.
Draft draft_tile(const void* values, Number number, Extent extent, const Quantiser& how, std::uint32_t tried,
                 Coder coder);

// About how many bits the coder needs for these residuals.
double estimate(const std::vector<std::int32_t>& residuals, Coder coder);

// A chunk's header without its lengths, its grid, and the drafts of all tiles.
struct Drafts {
  Header header;
  std::vector<Draft> tiles;
};
Drafts draft(const Array& array, double bound, Predictor predictor, Coder coder);
void gather(const Array& array, const Grid& grid, std::size_t tile, std::byte* out);

// The bits a value of a block takes in `pack`.
unsigned width_of(const std::int32_t* residuals);
// The bytes of a tile's residuals, nothing where the coder cannot take them.
std::vector<std::byte> pack_tile(const std::vector<std::int32_t>& residuals);
std::vector<std::byte> dense_tile(const std::vector<std::int32_t>& residuals, const Encoding& encoding);

// 32 fields of `width` bits, the lowest first, into `width` words.
void put_fields(const std::uint32_t* fields, unsigned width, std::byte* out);

// Tables for these residuals, and how many bits they would take with given ones.
AllFrequencies trained(const std::vector<const Draft*>& drafts);
std::uint64_t cost(const std::vector<const Draft*>& drafts, const Encoding& encoding);
// The class for each block.
std::vector<std::uint8_t> classes(const std::vector<std::int32_t>& residuals, const Encoding& encoding,
                                  std::uint64_t* bits = nullptr);

}  // namespace solar::codec
