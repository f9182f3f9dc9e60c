#include "codec/patches.hpp"

#include <cstring>

namespace solar::codec {
namespace {

#include "codec/fast_patches.hpp"

}  // namespace

void to_patches(const std::int32_t* __restrict from, Extent tile, std::int32_t* __restrict to) {
  each_row(
      tile, [=](std::size_t in_rows, std::size_t in_patches, std::size_t count)
                __attribute__((always_inline)) { std::memcpy(to + in_patches, from + in_rows, 4 * count); });
}

}  // namespace solar::codec
