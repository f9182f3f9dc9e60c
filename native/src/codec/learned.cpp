#include "codec/learned.hpp"

#include <algorithm>

#include "codec/kernels.hpp"

namespace solar::codec {
namespace {

// Calls `visit(position, previous)` for each latent that has one before it along the axis, forwards or backwards.
template <class Visit>
void along(Extent grid, std::size_t count, unsigned axis, bool forwards, Visit visit) {
  const std::size_t back = axis == 1 ? 1 : axis == 2 ? grid.x : std::size_t{grid.x} * grid.y;
  const std::size_t all = grid.values() * count;
  for (std::size_t n = 0; n < all; ++n) {
    const std::size_t i = forwards ? n : all - 1 - n, inside = i % grid.values();
    const std::size_t place = axis == 1 ? inside % grid.x : axis == 2 ? inside / grid.x % grid.y : inside / back;
    if (place > 0) visit(i, i - back);
  }
}

}  // namespace

bool Basis::fits(Extent tile) const {
  return count > 0 && deep == (tile.z > 1) && count * patches_along(tile).values() <= most_values;
}

std::vector<std::byte> pack_basis(const Basis& basis) {
  std::vector<std::byte> out{static_cast<std::byte>(basis.count), static_cast<std::byte>(basis.shift),
                             static_cast<std::byte>(basis.deep), std::byte{0}};
  for (std::size_t k = 0; k < basis.count; ++k)
    for (const std::int32_t value : basis.patterns[k]) out.push_back(static_cast<std::byte>(value));
  return out;
}

Basis parse_basis(Bytes packed) {
  Cursor at(packed, Kind::codec, "what was learned");
  Basis basis;
  basis.count = at.u8();
  basis.shift = at.u8();
  const unsigned deep = at.u8(), nothing = at.u8();
  if (basis.count == 0 || basis.count > most_patterns || basis.shift > most_shift || deep > 1 || nothing != 0)
    damaged("what was learned of its data set is impossible");
  basis.deep = deep == 1;
  for (std::size_t k = 0; k < basis.count; ++k)
    for (std::int32_t& value : basis.patterns[k]) value = static_cast<std::int8_t>(at.u8());
  if (at.left() != 0) damaged("there is more behind its coding tables than what was learned");
  return basis;
}

Extent patches_along(Extent tile) {
  const Extent patch = patch_of(tile);
  const auto parts = [](std::uint32_t length, std::uint32_t part) { return (length + part - 1) / part; };
  return {parts(tile.z, patch.z), parts(tile.y, patch.y), parts(tile.x, patch.x)};
}

void sum_latents(std::int32_t* latents, Extent grid, std::size_t count, unsigned axes) {
  for (const unsigned axis : {1u, 2u, 4u})
    if (axes & axis)
      along(grid, count, axis, true,
            [=](std::size_t i, std::size_t before) { latents[i] = add(latents[i], latents[before]); });
}

void part_latents(std::int32_t* latents, Extent grid, std::size_t count, unsigned axes) {
  for (const unsigned axis : {1u, 2u, 4u})
    if (axes & axis)
      along(grid, count, axis, false,
            [=](std::size_t i, std::size_t before) { latents[i] = sub(latents[i], latents[before]); });
}

void foretell(const Basis& basis, Extent tile, const std::int32_t* latents, std::int32_t* out) {
  const Extent grid = patches_along(tile), patch = patch_of(tile);
  const std::size_t patches = grid.values();
  for (std::size_t p = 0; p < patches; ++p) {
    std::uint32_t sums[patch_values];
    std::fill_n(sums, patch_values, basis.shift == 0 ? 0u : 1u << (basis.shift - 1));
    for (std::size_t k = 0; k < basis.count; ++k) {
      const auto latent = static_cast<std::uint32_t>(latents[k * patches + p]);
      for (std::size_t i = 0; i < patch_values; ++i)
        sums[i] += latent * static_cast<std::uint32_t>(basis.patterns[k][i]);
    }
    const auto x = static_cast<std::uint32_t>(p % grid.x * patch.x),
               y = static_cast<std::uint32_t>(p / grid.x % grid.y * patch.y),
               z = static_cast<std::uint32_t>(p / grid.x / grid.y * patch.z);
    const std::uint32_t wide = std::min(patch.x, tile.x - x);
    for (std::uint32_t i = 0; i < std::min(patch.z, tile.z - z); ++i)
      for (std::uint32_t j = 0; j < std::min(patch.y, tile.y - y); ++j) {
        const std::uint32_t* const from = sums + (i * patch.y + j) * patch.x;
        std::int32_t* const to = out + (std::size_t{z + i} * tile.y + y + j) * tile.x + x;
        for (std::uint32_t v = 0; v < wide; ++v) to[v] = static_cast<std::int32_t>(from[v]) >> basis.shift;
      }
  }
}

}  // namespace solar::codec
