// The order of the interpolation, and what it foretells: shared by the encoder and the plain decoder.
//
// Points whose coordinates all divide by `stride` come first, each foretold by the one before. Then, at distances of
// half that, a quarter, and so on to 1, what lies halfway between known points along z, then y, then x, is foretold
// from the four known points around it on that line. All is in sixteenths of a quantum, in 32-bit arithmetic without
// overflow checks.
#pragma once

#include "codec/kernels.hpp"

namespace solar::codec {

// Of the point halfway between b and c on the line a b . c d; `before`: a is there, `after`: how many of c and d are.
[[gnu::always_inline]] inline std::int32_t halfway(std::int32_t a, std::int32_t b, std::int32_t c, std::int32_t d,
                                                   bool before, int after) {
  const auto ua = static_cast<std::uint32_t>(a), ub = static_cast<std::uint32_t>(b), uc = static_cast<std::uint32_t>(c),
             ud = static_cast<std::uint32_t>(d);
  if (before && after == 2) return static_cast<std::int32_t>(9 * (ub + uc) - ua - ud + 8) >> 4;
  if (after == 2) return static_cast<std::int32_t>(3 * ub + 6 * uc - ud + 4) >> 3;
  if (before && after == 1) return static_cast<std::int32_t>(6 * ub + 3 * uc - ua + 4) >> 3;
  if (after == 1) return static_cast<std::int32_t>(ub + uc + 1) >> 1;
  if (before) return static_cast<std::int32_t>(3 * ub - ua + 1) >> 1;
  return b;
}

// Calls `visit(position, foretold)` for every point of the tile in order; it must set values[position].
template <class Visit>
void interpolate_all(Extent extent, std::uint32_t stride, std::int32_t origin, const std::int32_t* values,
                     Visit visit) {
  const std::size_t length[3] = {extent.z, extent.y, extent.x};
  const std::size_t pitch[3] = {std::size_t{extent.y} * extent.x, extent.x, 1};
  std::int32_t last = origin;
  for (std::size_t z = 0; z < extent.z; z += stride)
    for (std::size_t y = 0; y < extent.y; y += stride)
      for (std::size_t x = 0; x < extent.x; x += stride) {
        const std::size_t at = z * pitch[0] + y * pitch[1] + x;
        visit(at, last);
        last = values[at];
      }
  for (std::size_t h = stride / 2; h > 0; h /= 2) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      std::size_t first[3], step[3];
      for (std::size_t i = 0; i < 3; ++i) {
        first[i] = i == axis ? h : 0;
        step[i] = i < axis ? h : 2 * h;
      }
      const std::size_t hop = h * pitch[axis];
      for (std::size_t z = first[0]; z < extent.z; z += step[0])
        for (std::size_t y = first[1]; y < extent.y; y += step[1])
          for (std::size_t x = first[2]; x < extent.x; x += step[2]) {
            const std::size_t at = z * pitch[0] + y * pitch[1] + x, along = axis == 0 ? z : axis == 1 ? y : x;
            const bool before = along >= 3 * h;
            const int after = (along + h < length[axis]) + (along + 3 * h < length[axis]);
            visit(at, halfway(before ? values[at - 3 * hop] : 0, values[at - hop], after > 0 ? values[at + hop] : 0,
                              after > 1 ? values[at + 3 * hop] : 0, before, after));
          }
    }
  }
}

}  // namespace solar::codec
