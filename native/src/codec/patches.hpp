// The order of patches: residuals that lie close together in a tile lie close together in its bytes.
//
// A tile is cut into patches from its start, the last of an axis being what is left; patches follow one another in C
// order of their places, and so do the values of each. Nothing is added: it is another order of as many values.
#pragma once

#include <cstdint>

#include "codec/format.hpp"

namespace solar::codec {

// Predictors 16 to 23 are 0 to 7 with residuals in this order.
inline constexpr unsigned patched = 16, last_patched = patched + 7;
constexpr bool is_patched(unsigned predictor) { return predictor >= patched && predictor <= last_patched; }
constexpr Extent patch_of(Extent tile) { return tile.z == 1 ? Extent{1, 8, 8} : Extent{4, 4, 4}; }

// REQUIRES: `from` and `to` do not overlap.
void to_patches(const std::int32_t* from, Extent tile, std::int32_t* to);

}  // namespace solar::codec
