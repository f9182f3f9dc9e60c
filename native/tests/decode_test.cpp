// Decoders on bytes made by hand: what no writer makes by itself, and what only a hostile one would.
#include "solar/decode.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <random>

using namespace solar;

namespace {

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> made;
  for (const int value : values) made.push_back(static_cast<std::byte>(value));
  return made;
}

std::vector<std::byte> noise(std::size_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::byte> made(n);
  for (std::byte& b : made) b = static_cast<std::byte>(random());
  return made;
}

template <class Decode>
std::vector<std::byte> decoded(Decode decode, std::vector<std::byte> in, std::size_t room) {
  std::vector<std::byte> out(room);
  out.resize(decode(in, MutableBytes(out)));
  return out;
}

std::vector<std::byte> through(std::vector<Filter> filters, std::vector<std::byte> in, std::size_t nbytes,
                               std::uint32_t mask = 0) {
  std::vector<std::byte> out(nbytes);
  Scratch scratch;
  Pipeline(std::move(filters), 1, nbytes).decode(in, mask, out, scratch);
  return out;
}

}  // namespace

TEST_CASE("a stored, a fixed and an empty block make one zlib stream") {
  // 78 01: header. Stored "abc"; fixed: literal 'd', end; fixed and last: end.
  const auto stream =
      bytes({0x78, 0x01, 0x00, 0x03, 0x00, 0xfc, 0xff, 'a', 'b', 'c', 0x4a, 0x01, 0x0c, 0x00, 0x03, 0xd8, 0x01, 0x8b});
  CHECK(decoded(inflate_zlib, stream, 9) == bytes({'a', 'b', 'c', 'd'}));
  CHECK(decoded(inflate_zlib, stream, 4) == bytes({'a', 'b', 'c', 'd'}));
  CHECK_THROWS_AS(decoded(inflate_zlib, stream, 3), Error);
}

TEST_CASE("a zlib stream with a wrong header, block or checksum is refused") {
  const auto good = bytes({0x78, 0x01, 0x01, 0x01, 0x00, 0xfe, 0xff, 'a', 0x00, 0x62, 0x00, 0x62});
  CHECK(decoded(inflate_zlib, good, 1) == bytes({'a'}));
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto bad = good;
    bad[i] ^= std::byte{4};
    CHECK_THROWS_AS(decoded(inflate_zlib, bad, 100), Error);
    CHECK_THROWS_AS(decoded(inflate_zlib, std::vector(good.begin(), good.begin() + static_cast<int>(i)), 100), Error);
  }
}

TEST_CASE("an LZ4 block repeats at every distance and length, to the last byte of its room") {
  for (int distance = 1; distance <= 40; ++distance)
    for (int length : {4, 5, 17, 18, 19, 100, 273}) {
      const auto start = noise(static_cast<std::size_t>(distance), 7);
      std::vector<std::byte> block;
      const auto put = [&](int n) { block.push_back(static_cast<std::byte>(n)); };
      const auto put_rest = [&](int n) {
        for (n -= 15; n >= 255; n -= 255) put(255);
        put(n);
      };
      put(std::min(distance, 15) << 4 | std::min(length - 4, 15));
      if (distance >= 15) put_rest(distance);
      block.insert(block.end(), start.begin(), start.end());
      put(distance);
      put(0);
      if (length >= 19) put_rest(length - 4);
      put(0);  // no more literals
      auto expected = start;
      for (int i = 0; i < length; ++i) expected.push_back(expected[expected.size() - start.size()]);
      CHECK(decoded(decode_lz4_block, block, expected.size()) == expected);
      CHECK(decoded(decode_lz4_block, block, expected.size() + 100) == expected);
      CHECK_THROWS_AS(decoded(decode_lz4_block, block, expected.size() - 1), Error);
    }
}

TEST_CASE("dictionary coders refuse distances before the beginning and input cut short") {
  CHECK_THROWS_AS(decoded(decode_lz4_block, bytes({0x10, 'a', 2, 0, 0}), 100), Error);
  CHECK_THROWS_AS(decoded(decode_lz4_block, bytes({0x10, 'a', 0, 0, 0}), 100), Error);
  CHECK_THROWS_AS(decoded(decode_lz4_block, bytes({0xf0, 0xff, 0xff}), 100), Error);
  CHECK_THROWS_AS(decoded(decode_lz4_block, {}, 100), Error);
  CHECK(decoded(decode_lzf, bytes({0, 'a', 0x20, 0}), 4) == bytes({'a', 'a', 'a', 'a'}));
  CHECK_THROWS_AS(decoded(decode_lzf, bytes({0, 'a', 0x20, 1}), 100), Error);
  CHECK_THROWS_AS(decoded(decode_lzf, bytes({5, 'a'}), 100), Error);
  CHECK_THROWS_AS(decoded(decode_lzf, bytes({0, 'a', 0xe0}), 100), Error);
}

TEST_CASE("the LZ4 container refuses blocks of no bytes and sizes beyond its room") {
  CHECK(decoded(decode_h5lz4, bytes({0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 2, 'a', 'b'}), 2) ==
        bytes({'a', 'b'}));
  CHECK_THROWS_AS(decoded(decode_h5lz4, bytes({0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0}), 2), Error);
  CHECK_THROWS_AS(decoded(decode_h5lz4, bytes({255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 9}), 2), Error);
  CHECK_THROWS_AS(decoded(decode_h5lz4, bytes({0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 255, 255, 255, 255}), 2), Error);
}

TEST_CASE("unshuffle puts byte k of item i at i * itemsize + k and copies the tail") {
  for (std::size_t itemsize = 1; itemsize <= 40; ++itemsize)
    for (std::size_t items : {0, 1, 15, 16, 17, 64, 81, 200}) {
      const auto in = noise(items * itemsize + itemsize / 2);
      std::vector<std::byte> out(in.size()), expected = in;
      for (std::size_t i = 0; i < items; ++i)
        for (std::size_t k = 0; k < itemsize; ++k) expected[i * itemsize + k] = in[k * items + i];
      unshuffle(in, out, itemsize);
      CHECK(out == expected);
    }
}

TEST_CASE("bitunshuffle puts bit j of byte k of item i back from row 8k + j") {
  for (std::size_t itemsize = 1; itemsize <= 20; ++itemsize)
    for (std::size_t items : {0, 8, 120, 128, 136, 264}) {
      const auto in = noise(items * itemsize);
      std::vector<std::byte> out(in.size()), expected(in.size());
      for (std::size_t row = 0; row < 8 * itemsize; ++row)
        for (std::size_t i = 0; i < items; ++i) {
          const auto bit = in[row * items / 8 + i / 8] >> (i % 8) & std::byte{1};
          expected[i * itemsize + row / 8] |= bit << (row % 8);
        }
      bitunshuffle(in, out, itemsize);
      CHECK(out == expected);
    }
}

TEST_CASE("fletcher32 agrees with its definition on every length, also of bytes that are all set") {
  for (std::size_t n : {0, 1, 2, 3, 719, 720, 721, 100001})
    for (const bool full : {false, true}) {
      const auto in = full ? std::vector<std::byte>(n, std::byte{255}) : noise(n);
      std::uint64_t first = 0, second = 0;
      for (std::size_t i = 0; i < n; i += 2) {
        const auto low = i + 1 < n ? std::to_integer<std::uint64_t>(in[i + 1]) : 0;
        first += std::to_integer<std::uint64_t>(in[i]) << 8 | low;
        second += first;
      }
      const auto reduced = [](std::uint64_t sum) { return sum ? (sum - 1) % 65535 + 1 : 0; };
      CHECK(fletcher32(in) == (reduced(second) << 16 | reduced(first)));
    }
}

TEST_CASE("scaleoffset and nbit refuse parameters and widths that do not fit") {
  Filter scale{6, 0, std::vector<std::uint32_t>(20)};
  scale.values = {2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  std::vector<std::byte> chunk(22), out(8);
  chunk[0] = std::byte{2};
  chunk[4] = std::byte{8};
  chunk[5] = std::byte{7};
  chunk[21] = std::byte{0b00011011};
  CHECK(decode_scaleoffset(chunk, out, scale) == 8);
  CHECK(out == bytes({7, 0, 8, 0, 9, 0, 10, 0}));
  CHECK_THROWS_AS(decode_scaleoffset(Bytes(chunk).first(21), out, scale), Error);
  CHECK_THROWS_AS(decode_scaleoffset(chunk, MutableBytes(out).first(7), scale), Error);
  chunk[0] = std::byte{17};
  CHECK_THROWS_AS(decode_scaleoffset(chunk, out, scale), Error);

  const auto packed = bytes({0b10110000});
  CHECK(decode_nbit(packed, out, {5, 0, {8, 0, 2, 1, 2, 1, 2, 3}}) == 4);  // big-endian, 2 bits at bit 3
  CHECK(std::vector(out.begin(), out.begin() + 4) == bytes({0, 2 << 3, 0, 3 << 3}));
  CHECK_THROWS_AS(decode_nbit(packed, out, {5, 0, {8, 0, 2, 1, 2, 1, 16, 3}}), Error);
  CHECK_THROWS_AS(decode_nbit(packed, out, {5, 0, {8, 0, 2, 1, 2, 1, 2}}), Error);
  CHECK_THROWS_AS(decode_nbit(packed, out, {5, 0, {8, 0, 5, 1, 2, 1, 2, 3}}), Error);
  std::vector<std::uint32_t> deep{0, 0, 1, 2};
  for (int i = 0; i < 100; ++i) deep.insert(deep.end(), {8, 2});
  deep[0] = static_cast<std::uint32_t>(deep.size());
  CHECK_THROWS_AS(decode_nbit(packed, out, {5, 0, deep}), Error);
}

TEST_CASE("a pipeline undoes its filters from the last to the first and skips those of the mask") {
  const std::vector<Filter> filters = {{2, 0, {2}}, {32004, 0, {}}, {3, 0, {}}};
  auto stored = bytes({0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 1, 2, 3, 4});
  const std::uint32_t sum = fletcher32(stored);
  for (int i = 0; i < 4; ++i) stored.push_back(static_cast<std::byte>(sum >> (8 * i)));
  CHECK(through(filters, stored, 4) == bytes({1, 3, 2, 4}));
  CHECK(through(filters, stored, 4, 1) == bytes({1, 2, 3, 4}));
  CHECK(through(filters, stored, 24, 7) == stored);
  CHECK_THROWS_AS(through(filters, stored, 5), Error);
  CHECK_THROWS_WITH(through({{4, 0, {}}}, {}, 5), "filter 4 (szip) has no native decoder");
}
