// Each set of instructions joins the same items, of all sizes and numbers, wherever they lie.
#include <doctest/doctest.h>

#include <random>

#include "decode/shuffling.hpp"
#include "solar/decode.hpp"

using namespace solar;

#pragma GCC diagnostic ignored "-Wpsabi"  // of vectors that this machine may not have: they stay within this file

namespace {

// Vectors that this machine may not have, by its instructions: what is asked of the compiler is the same.
namespace wide {
constexpr std::size_t width = 32;
#include "decode/transpose.hpp"
}  // namespace wide
namespace widest {
constexpr std::size_t width = 64;
#include "decode/transpose.hpp"
}  // namespace widest

std::vector<ShuffleKernels> all_kernels() {
  auto all = shuffle_kernels();
  all.push_back({wide::width, wide::join_planes, wide::join_bits});
  all.push_back({widest::width, widest::join_planes, widest::join_bits});
  return all;
}

std::vector<std::byte> noise(std::size_t n) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::vector<std::byte> made(n);
  for (std::byte& b : made) b = static_cast<std::byte>(random());
  return made;
}

std::vector<std::byte> joined(const std::vector<std::byte>& planes, std::size_t itemsize) {
  const std::size_t items = planes.size() / itemsize;
  std::vector<std::byte> made(planes.size());
  for (std::size_t i = 0; i < items; ++i)
    for (std::size_t k = 0; k < itemsize; ++k) made[i * itemsize + k] = planes[k * items + i];
  return made;
}

std::vector<std::byte> joined_bits(const std::vector<std::byte>& rows, std::size_t itemsize) {
  const std::size_t row = rows.size() / itemsize / 8;
  std::vector<std::byte> made(rows.size());
  for (std::size_t bit = 0; bit < 8 * itemsize; ++bit)
    for (std::size_t i = 0; i < 8 * row; ++i) {
      const auto one = rows[bit * row + i / 8] >> (i % 8) & std::byte{1};
      made[i * itemsize + bit / 8] |= one << (bit % 8);
    }
  return made;
}

// Runs `join` with input and output at the ends of memory that is theirs alone, the output `off` bytes off its place;
// what is before and behind it must stay.
template <class Join>
std::vector<std::byte> placed(const std::vector<std::byte>& in, std::size_t off, Join join) {
  constexpr std::size_t around = 64;
  const std::byte mark{0x5a};
  std::vector<std::byte> from(off), out(around + off + in.size() + around, mark);
  from.insert(from.end(), in.begin(), in.end());
  std::byte* const to = out.data() + around + off;
  join(from.data() + off, to);
  const auto kept = [&](const std::byte* at, const std::byte* end) {
    return std::all_of(at, end, [&](std::byte b) { return b == mark; });
  };
  CHECK(kept(out.data(), to));
  CHECK(kept(to + in.size(), out.data() + out.size()));
  return {to, to + in.size()};
}

constexpr std::size_t most = 300;

}  // namespace

TEST_CASE("planes of bytes are joined alike by all vectors") {
  for (const std::size_t itemsize : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 20, 24, 31, 32, 33, 48, 57})
    for (std::size_t items = 0; items <= most; ++items) {
      const auto in = noise(items * itemsize), expected = joined(in, itemsize);
      for (const ShuffleKernels& kernels : all_kernels())
        if (items >= kernels.width)
          for (const std::size_t off : {0, 1, 13})
            REQUIRE(placed(in, off, [&](const std::byte* from, std::byte* to) {
                      kernels.join_planes(from, items, itemsize, to);
                    }) == expected);
      std::vector<std::byte> out(in.size());
      unshuffle(in, out, itemsize);
      REQUIRE(out == expected);
    }
}

TEST_CASE("rows of bits are joined alike by all vectors") {
  for (const std::size_t itemsize : {1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 33})
    for (std::size_t row = 0; row <= most; row += row < 80 ? 1 : 11) {
      const auto in = noise(8 * row * itemsize), expected = joined_bits(in, itemsize);
      for (const ShuffleKernels& kernels : all_kernels())
        if (row >= kernels.width)
          for (const std::size_t off : {0, 5})
            REQUIRE(placed(in, off, [&](const std::byte* from, std::byte* to) {
                      kernels.join_bits(from, row, itemsize, to);
                    }) == expected);
      std::vector<std::byte> out(in.size());
      bitunshuffle(in, out, itemsize);
      REQUIRE(out == expected);
    }
}
