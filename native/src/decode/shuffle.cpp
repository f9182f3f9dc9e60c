// Byte and bit shuffles: planes of bytes, or of bits, joined to items again.
#include <algorithm>
#include <array>

#include "solar/decode.hpp"
#include "transpose.hpp"

namespace solar {
namespace {

constexpr std::size_t tile_items = 64;    // a cache line of each plane
constexpr std::size_t plane_items = 128;  // items whose bits fill a vector of each of eight rows
constexpr std::size_t planes_at_once = 16;

// Planes `first` to `first + planes` of 128 items, joined.
void join_bits(const std::byte* rows, std::size_t row, std::size_t planes, std::byte* out, std::size_t itemsize) {
  std::array<std::byte, planes_at_once * plane_items> tile;
  for (std::size_t k = 0; k < planes; ++k) {
    Vector v[8];
#pragma GCC unroll 8
    for (std::size_t bit = 0; bit < 8; ++bit) v[bit] = load_vector(rows + (8 * k + bit) * row);
    transpose_bits(v);
    interleave(v);
    std::memcpy(tile.data() + k * plane_items, v, sizeof v);
  }
  join_planes(tile.data(), plane_items, planes, out, itemsize, plane_items);
}

}  // namespace

void unshuffle(Bytes in, MutableBytes out, std::size_t itemsize) {
  const std::size_t items = itemsize ? in.size() / itemsize : 0, whole = items / 16 * 16;
  for (std::size_t item = 0; item < whole; item += tile_items)
    join_planes(in.data() + item, items, itemsize, out.data() + item * itemsize, itemsize,
                std::min(tile_items, whole - item));
  for (std::size_t item = whole; item < items; ++item)
    for (std::size_t k = 0; k < itemsize; ++k) out[item * itemsize + k] = in[k * items + item];
  const std::size_t done = items * itemsize;
  if (in.size() > done) std::memcpy(out.data() + done, in.data() + done, in.size() - done);
}

void bitunshuffle(Bytes in, MutableBytes out, std::size_t itemsize) {
  const std::size_t row = itemsize ? in.size() / itemsize / 8 : 0;  // bytes of a row of bits: one for 8 items
  const std::size_t whole = row / 16 * 16;
  for (std::size_t n = 0; n < whole; n += 16)
    for (std::size_t k = 0; k < itemsize; k += planes_at_once)
      join_bits(in.data() + 8 * k * row + n, row, std::min(planes_at_once, itemsize - k),
                out.data() + 8 * n * itemsize + k, itemsize);
  for (std::size_t n = whole; n < row; ++n)
    for (std::size_t k = 0; k < itemsize; ++k) {
      std::uint64_t bits = 0;
      for (std::size_t j = 0; j < 8; ++j) bits |= std::to_integer<std::uint64_t>(in[(8 * k + j) * row + n]) << (8 * j);
      bits = transpose_bits(bits);
      for (std::size_t j = 0; j < 8; ++j) out[(8 * n + j) * itemsize + k] = static_cast<std::byte>(bits >> (8 * j));
    }
}

}  // namespace solar
