// The learned predictor, which is experimental: each patch of 64 values is foretold from a few integers of its own
// (latents) by patterns that a writer learned once from its data set. They lie behind the coding tables.
//
// The decoder's arithmetic is of integers alone, modulo 2^32; plain loops do for every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/format.hpp"
#include "codec/kept.hpp"
#include "codec/patches.hpp"

namespace solar::codec {

inline constexpr std::size_t most_patterns = 8, patch_values = 64;
inline constexpr unsigned most_shift = 15;

// Predictors 24 and 25: residuals row by row, and in the order of patches.
inline constexpr unsigned first_learned = 24, last_learned = 25;
constexpr bool is_learned(unsigned predictor) { return predictor >= first_learned && predictor <= last_learned; }

struct Basis {
  std::size_t count = 0;  // patterns; 0: nothing was learned
  unsigned shift = 0;
  bool deep = false;  // patches of 4 x 4 x 4, not of 8 x 8
  std::int32_t patterns[most_patterns][patch_values] = {};

  // Only tiles whose patches are as these, and that have no more latents than a tile may have values.
  bool fits(Extent tile) const;
};

std::vector<std::byte> pack_basis(const Basis& basis);  // whole words
Basis parse_basis(Bytes packed);                        // throws Error(codec)

// Patches along each axis; a pattern's latents lie in C order of these, one pattern behind the other.
Extent patches_along(Extent tile);
inline std::size_t latents_of(const Basis& basis, Extent tile) { return basis.count * patches_along(tile).values(); }
// Latents from their differences along `axes`, in place; and differences from latents, the other way.
void sum_latents(std::int32_t* latents, Extent grid, std::size_t count, unsigned axes);
void part_latents(std::int32_t* latents, Extent grid, std::size_t count, unsigned axes);
// Fills `out` with what the latents foretell, row by row.
void foretell(const Basis& basis, Extent tile, const std::int32_t* latents, std::int32_t* out);

// --- the encoder's ---

// Integers of a tile, row by row.
struct Integers {
  Extent extent;
  Ints values;
};
// Latents that foretell the tile best.
class Projector {
 public:
  explicit Projector(const Basis& basis);
  Ints latents(const std::int32_t* integers, Extent tile) const;

 private:
  const Basis& basis_;
  double inverse_[most_patterns][patch_values];
};
// Patterns for tiles like these, at most so many; none where there is nothing to learn from.
Basis learn(const std::vector<Integers>& tiles, std::size_t most);

}  // namespace solar::codec
