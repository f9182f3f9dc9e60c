// The decoder as io/FORMAT.md tells it, one value at a time.
#include <algorithm>
#include <cmath>

#include "codec/interpolation.hpp"
#include "codec/kernels.hpp"
#include "codec/number.hpp"
#include "codec/patches.hpp"

namespace solar::codec {
namespace {

// The `width` bits of field i; the block has `width` words.
std::uint32_t field(const std::byte* words, std::size_t i, unsigned width) {
  if (width == 0) return 0;
  const std::size_t bit = i * width, word = bit / 32;
  std::uint64_t two = load_le<std::uint32_t>(words + 4 * word);
  if (word + 1 < width) two |= std::uint64_t{load_le<std::uint32_t>(words + 4 * word + 4)} << 32;
  return static_cast<std::uint32_t>(two >> bit % 32 & ((std::uint64_t{1} << width) - 1));
}

void unpack(const std::byte* words, const std::byte*, const std::uint8_t* widths, std::size_t blocks,
            std::int32_t* out) {
  for (std::size_t b = 0; b < blocks; ++b) {
    const unsigned width = widths[b];
    const std::uint32_t half = width == 0 ? 0 : 1u << (width - 1);
    for (std::size_t i = 0; i < block; ++i) *out++ = static_cast<std::int32_t>(field(words, i, width) - half);
    words += 4 * width;
  }
}

void step(Lanes& of, const std::uint32_t* places, std::int32_t* symbols) {
  for (std::size_t i = 0; i < lanes; ++i) {
    if (of.counts[i] < table_bits) {
      const std::uint32_t word = of.at < of.end ? load_le<std::uint16_t>(of.at) : 0;
      if (of.at < of.end) of.at += 2;
      of.bits[i] |= word << of.counts[i];
      of.counts[i] += 16;
    }
    const std::uint32_t place = places[of.states[i]], width = place >> 8 & 255;
    symbols[i] = static_cast<std::int8_t>(place & 255);
    of.states[i] = (place >> 16) + (of.bits[i] & ((1u << width) - 1));
    of.bits[i] >>= width;
    of.counts[i] -= width;
  }
}

void symbols(Lanes& of, const std::uint32_t* places, std::size_t steps, std::int8_t* out) {
  std::int32_t got[lanes];
  for (std::size_t s = 0; s < steps; ++s) {
    step(of, places, got);
    for (const std::int32_t symbol : got) *out++ = static_cast<std::int8_t>(symbol);
  }
}

bool residuals(Lanes& of, const Residuals& from, std::int32_t* out) {
  const std::byte* low = from.low;
  std::size_t escapes = 0;
  for (std::size_t b = 0; b < from.blocks; ++b) {
    std::int32_t got[lanes];
    step(of, from.places + table_of(from.classes[b]) * table_size, got);
    const int low_bits = low_bits_of(from.classes[b]);
    for (std::size_t i = 0; i < lanes; ++i) {
      if (got[i] != escape) {
        const std::uint32_t high = static_cast<std::uint32_t>(got[i]) << low_bits;
        *out++ = static_cast<std::int32_t>(high + field(low, i, static_cast<unsigned>(low_bits)));
      } else {
        if (escapes == from.escape_count) return false;
        *out++ = load_le<std::int32_t>(from.escapes + 4 * escapes++);
      }
    }
    low += 4 * low_bits;
  }
  return true;
}

std::int32_t* interpolate(const std::int32_t* residuals, Extent extent, std::uint32_t stride, std::int32_t origin,
                          std::int32_t* values, std::int32_t*) {
  interpolate_all(extent, stride, origin, values, [&](std::size_t at, std::int32_t foretold) {
    values[at] =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(foretold) + 16 * static_cast<std::uint32_t>(*residuals++));
  });
  return values;
}

template <class T>
void put_value(std::byte* out, std::size_t i, T value) {
  std::memcpy(out + i * sizeof value, &value, sizeof value);
}

void restore(const std::int32_t* values, std::size_t count, const Restore& how, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t v = values[i];
    if (how.quanta == Quanta::bits) {
      put_value(out, i, v < 0 ? v ^ 0x7fffffff : v);
    } else if (how.quanta == Quanta::integer) {
      const std::uint64_t whole = how.whole_base + how.whole_step * static_cast<std::uint64_t>(std::int64_t{v});
      if (how.cast)
        with_type(how.number, [&]<class T>(T) { put_value(out, i, static_cast<float>(static_cast<T>(whole))); });
      else
        std::memcpy(out + i * how.itemsize, &whole, how.itemsize);
    } else if (how.itemsize == 4) {
      put_value(out, i, std::fma(static_cast<float>(v), static_cast<float>(how.step), static_cast<float>(how.base)));
    } else {
      put_value(out, i, std::fma(static_cast<double>(v), how.step, how.base));
    }
  }
}

void lorenzo(std::int32_t* values, const Sums& sums) {
  const Extent extent = sums.extent;
  const unsigned axes = sums.axes;
  const std::size_t row = extent.x, plane = row * extent.y;
  const auto each = [&](std::size_t from_z, std::size_t from_y, std::size_t from_x, auto use) {
    for (std::size_t z = from_z; z < extent.z; ++z)
      for (std::size_t y = from_y; y < extent.y; ++y)
        for (std::size_t x = from_x; x < extent.x; ++x) use(values + z * plane + y * row + x, z, y, x);
  };
  const auto behind = [](std::size_t back) {
    return [back](std::int32_t* v, std::size_t, std::size_t, std::size_t) { *v = add(*v, *(v - back)); };
  };
  each(0, 0, 0, [&](std::int32_t* v, std::size_t z, std::size_t y, std::size_t x) {
    const bool first = !((axes & 4) && z > 0) && !((axes & 2) && y > 0) && !((axes & 1) && x > 0);
    if (first) *v = add(*v, sums.origin);
  });
  if (axes & 1) each(0, 0, 1, behind(1));
  if (axes & 2) each(0, 1, 0, behind(row));
  if (axes & 4) each(1, 0, 0, behind(plane));
  for (std::size_t z = 0; z < extent.z; ++z)
    for (std::size_t y = 0; y < extent.y; ++y) restore(values + z * plane + y * row, row, sums.how, sums.out.at(z, y));
}

bool dense_lorenzo(Lanes& of, const Residuals& from, std::int32_t* out, const Sums& sums) {
  if (!residuals(of, from, out)) return false;
  lorenzo(out, sums);
  return true;
}

void plain_to_rows(const std::int32_t* from, Extent tile, std::int32_t* to) {
  const Extent patch = patch_of(tile);
  const auto end = [](std::uint32_t first, std::uint32_t side, std::uint32_t length) {
    return std::min(first + side, length);
  };
  for (std::uint32_t z0 = 0; z0 < tile.z; z0 += patch.z)
    for (std::uint32_t y0 = 0; y0 < tile.y; y0 += patch.y)
      for (std::uint32_t x0 = 0; x0 < tile.x; x0 += patch.x)
        for (std::uint32_t z = z0; z < end(z0, patch.z, tile.z); ++z)
          for (std::uint32_t y = y0; y < end(y0, patch.y, tile.y); ++y)
            for (std::uint32_t x = x0; x < end(x0, patch.x, tile.x); ++x)
              to[(std::size_t{z} * tile.y + y) * tile.x + x] = *from++;
}

}  // namespace

const Kernels& plain_kernels() {
  static constexpr Kernels set{unpack,        symbols, residuals,   dense_lorenzo,
                               plain_to_rows, lorenzo, interpolate, restore};
  return set;
}

}  // namespace solar::codec
