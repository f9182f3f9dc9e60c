// Blosc chunks and frames: small ones as the libraries write them, changed byte by byte, and ones made by hand.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <string_view>

#include "solar/decode.hpp"

using namespace solar;

namespace {

// i / 7 * 1000 for i below 40, eight times over, as int32, shuffled: a chunk of blosc 1 with blosclz ...
constexpr std::string_view kChunk =
    "0201010400050000000500008600000014000000240000002700000000000000e8800000d0800000b8800000a080000488888888"
    "88e0ff0e2701888824000000270000000000000003800000078000000b8000000f8000041313131313e0ff0e270113130d000000"
    "2300000000e0ff3103020000000d0000002300000000e0ff310302000000";

// ... and a frame of blosc 2 with lz4.
constexpr std::string_view kFrame =
    "9ea862326672616d6500d200000061cf0000000000000152a412009103d30000000000000500d300000000000000a6d200000004"
    "d200000500d200000500d10000d10001c2d8060000000000010100000000000000000093cd0007de0000dc000005012504000500"
    "0000050000a60000000000000000010100000000000000000024000000390000001200010012e8010012d0010012b8010012a001"
    "00108801000227001200270012e8270012d0270012b8270010a027000f2800d95088888888883900000012000100120301001207"
    "0100120b0100120f010010130100022700120027001203270012072700120b2700100f27000f2800d95013131313130000000000"
    "00000005010708080000000800000028000000000000000001000000000000000000000000000000000000940193cd0006de0000"
    "dc0000ce00000023d80000000000000000000000000000000000";

// 3 * i for i below 35 as int16, as an array of 5 x 7 in blocks of 4 x 4.
constexpr std::string_view kArray =
    "9ea862326672616d6500d2000000a5cf0000000000000190a412005503d30000000000000080d300000000000000a0d200000002"
    "d200000020d200000080d10000d10001c2d8060000000000010500000000000000000093cd0011de0001a462326e64d20000006b"
    "dc0001c60000003597000292d30000000000000005d3000000000000000792d200000005d20000000792d200000004d200000004"
    "00db000000037c5632050197028000000020000000a0000000000000000001050000000000000000000000030006000900150018"
    "001b001e002a002d00300033003f004200450048000c000f00120000002100240027000000360039003c0000004b004e00510000"
    "00540057005a005d0000000000000000000000000000000000000000000000000060006300660000000000000000000000000000"
    "00000000000000000000000000050107080800000008000000280000000000000000010000000000000000000000000000000000"
    "00940193cd0006de0000dc0000ce00000023d80000000000000000000000000000000000";

std::vector<std::byte> from_hex(std::string_view hex) {
  std::vector<std::byte> made;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    made.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return made;
}

using Decode = std::size_t (*)(Bytes, MutableBytes, Scratch&);

template <class T = std::uint8_t>
std::vector<T> decoded(Decode decode, Bytes in, std::size_t room) {
  std::vector<T> out(room);
  Scratch scratch;
  const std::size_t nbytes = decode(in, std::as_writable_bytes(std::span(out)), scratch);
  REQUIRE(nbytes % sizeof(T) == 0);
  out.resize(nbytes / sizeof(T));
  return out;
}

std::vector<std::int32_t> steps() {
  std::vector<std::int32_t> values;
  for (int i = 0; i < 320; ++i) values.push_back(i % 40 / 7 * 1000);
  return values;
}

// A header of blosc 2 for three items of four bytes, without filters.
std::vector<std::byte> special(int kind, std::string_view behind = "") {
  auto chunk = from_hex(
      "05010704"
      "0c000000"
      "0c000000"
      "20000000"
      "00000000000000000000000000000000" +
      std::string(behind));
  chunk[12] = static_cast<std::byte>(chunk.size());
  chunk[31] = static_cast<std::byte>(kind << 4);
  return chunk;
}

// Blocks that are stored as they are, each by itself: byte k of block b is b + k, before a delta to the first is undone.
std::vector<std::byte> stored_blocks(std::size_t blocks, std::size_t nbytes, bool delta) {
  std::vector<std::byte> chunk{std::byte{5}, std::byte{1}, std::byte(delta ? 0x38 : 0x30), std::byte{1}};
  const auto put = [&](std::size_t value) {
    for (int i = 0; i < 4; ++i) chunk.push_back(static_cast<std::byte>(value >> (8 * i)));
  };
  put(blocks * nbytes);
  put(nbytes);
  put(16 + blocks * (4 + 4 + nbytes));
  for (std::size_t b = 0; b < blocks; ++b) put(16 + 4 * blocks + b * (4 + nbytes));
  for (std::size_t b = 0; b < blocks; ++b) {
    put(nbytes);
    for (std::size_t k = 0; k < nbytes; ++k) chunk.push_back(static_cast<std::byte>(b + k));
  }
  return chunk;
}

std::size_t lz(Bytes in, MutableBytes out, Scratch&) { return decode_blosclz(in, out); }

// Every byte in turn gets every one of a few values: the decoder may refuse, or give something of the right size.
void survives(Decode decode, std::vector<std::byte> good, std::size_t room) {
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int change : {0x01, 0x10, 0x80, 0xff}) {
      auto bad = good;
      bad[i] ^= static_cast<std::byte>(change);
      try {
        decoded(decode, bad, room);
      } catch (const Error& error) {
        CHECK(error.kind() == Kind::codec);
      }
    }
    CHECK_THROWS_AS(decoded(decode, Bytes(good).first(i), room), Error);
  }
}

}  // namespace

TEST_CASE("a chunk of blosc 1 is decompressed and unshuffled into room enough, and refused else") {
  CHECK(decoded<std::int32_t>(decode_blosc, from_hex(kChunk), 320) == steps());
  CHECK(decoded<std::int32_t>(decode_blosc, from_hex(kChunk), 400) == steps());
  CHECK_THROWS_AS(decoded<std::int32_t>(decode_blosc, from_hex(kChunk), 319), Error);
}

TEST_CASE("a frame of blosc 2 is decoded, with and without axes") {
  CHECK(decoded<std::int32_t>(decode_blosc2, from_hex(kFrame), 320) == steps());
  CHECK_THROWS_AS(decoded<std::int32_t>(decode_blosc2, from_hex(kFrame), 319), Error);
  std::vector<std::int16_t> ramp;
  for (int i = 0; i < 35; ++i) ramp.push_back(static_cast<std::int16_t>(3 * i));
  CHECK(decoded<std::int16_t>(decode_blosc2, from_hex(kArray), 35) == ramp);
  CHECK_THROWS_AS(decoded<std::int16_t>(decode_blosc2, from_hex(kArray), 34), Error);
}

TEST_CASE("only blocks of blosc of which something is wanted are decoded, and what they refer to") {
  for (const bool delta : {false, true}) {
    const auto chunk = stored_blocks(20, 64, delta);
    const auto all = decoded(decode_blosc, chunk, 20 * 64);
    std::vector<std::uint8_t> out(20 * 64, 0xEE);
    const std::vector<Wanted::Range> ranges{{3 * 64 + 5, 3 * 64 + 6}, {8 * 64 - 1, 9 * 64}};  // of blocks 3, 7 and 8
    Wanted wanted{ranges};
    Scratch scratch;
    CHECK(decode_blosc(chunk, std::as_writable_bytes(std::span(out)), scratch, &wanted) == out.size());
    CHECK(wanted.nbytes == (delta ? 4 : 3) * 64);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t block = i / 64;
      const bool is_decoded = block == 3 || block == 7 || block == 8 || (delta && block == 0);
      CHECK(out[i] == (is_decoded ? all[i] : 0xEE));
    }
  }
  // Of an array of 5 x 7 in blocks of 4 x 4, every stretch of bytes.
  const auto frame = from_hex(kArray);
  const auto all = decoded(decode_blosc2, frame, 70);
  for (std::size_t begin = 0; begin < 70; ++begin) {
    for (std::size_t end = begin + 1; end <= 70; ++end) {
      std::vector<std::uint8_t> out(70, 0xEE);
      const Wanted::Range range{begin, end};
      Wanted wanted{{&range, 1}};
      Scratch scratch;
      REQUIRE(decode_blosc2(frame, std::as_writable_bytes(std::span(out)), scratch, &wanted) == out.size());
      REQUIRE(std::equal(out.begin() + static_cast<std::ptrdiff_t>(begin),
                         out.begin() + static_cast<std::ptrdiff_t>(end),
                         all.begin() + static_cast<std::ptrdiff_t>(begin)));
      REQUIRE(wanted.nbytes <= 4 * 32);
      if (end <= 8) REQUIRE(wanted.nbytes == 32);
    }
  }
}

TEST_CASE("changed or cut bytes of blosc are refused or decoded to something, never more than the room") {
  survives(decode_blosc, from_hex(kChunk), 1280);
  survives(decode_blosc2, from_hex(kFrame), 1280);
  survives(decode_blosc2, from_hex(kArray), 70);
}

TEST_CASE("a chunk that is one special value is that value throughout") {
  CHECK(decoded<std::uint32_t>(decode_blosc, special(1), 3) == std::vector<std::uint32_t>(3, 0));
  CHECK(decoded<std::uint32_t>(decode_blosc, special(2), 3) == std::vector<std::uint32_t>(3, 0x7fc00000));
  CHECK(decoded<std::uint32_t>(decode_blosc, special(3, "2a000000"), 3) == std::vector<std::uint32_t>(3, 42));
  CHECK(decoded<std::uint32_t>(decode_blosc, special(4), 3) == std::vector<std::uint32_t>(3, 0));
  CHECK_THROWS_AS(decoded<std::uint32_t>(decode_blosc, special(3), 3), Error);
  CHECK_THROWS_AS(decoded<std::uint32_t>(decode_blosc, special(5), 3), Error);
}

TEST_CASE("what blosc can do and solar cannot is refused by name") {
  auto snappy = from_hex(kChunk);
  snappy[2] |= std::byte{0x40};
  CHECK_THROWS_WITH_AS(decoded(decode_blosc, snappy, 1280), "the compressor snappy has no native decoder", Error);
  auto dictionary = special(0);
  dictionary[31] = std::byte{1};
  CHECK_THROWS_WITH_AS(decoded(decode_blosc, dictionary, 12), "blosc with a dictionary has no native decoder", Error);
  auto filter = special(0);
  filter[16 + 5] = std::byte{35};
  CHECK_THROWS_WITH_AS(decoded(decode_blosc, filter, 12), "blosc filter 35 has no native decoder", Error);
  auto version = special(0);
  version[0] = std::byte{6};
  CHECK_THROWS_WITH_AS(decoded(decode_blosc, version, 12), "blosc format version 6 has no native decoder", Error);
}

TEST_CASE("blocks of blosc that share their bytes are refused: the work would have no end") {
  // 200 blocks of 8 bytes that all begin at the same 8 stored bytes.
  auto chunk = from_hex(
      "02013101"
      "40060000"
      "08000000"
      "00000000");
  const auto put = [&](std::uint32_t value) {
    for (int i = 0; i < 4; ++i) chunk.push_back(static_cast<std::byte>(value >> (8 * i)));
  };
  for (int i = 0; i < 200; ++i) put(16 + 4 * 200);
  put(8);
  for (int i = 0; i < 8; ++i) chunk.push_back(std::byte{7});
  const auto nbytes = static_cast<std::uint32_t>(chunk.size());
  std::memcpy(chunk.data() + 12, &nbytes, 4);
  CHECK_THROWS_WITH_AS(decoded(decode_blosc, chunk, 1600), "blosc blocks overlap", Error);
}

TEST_CASE("blosclz repeats near and far, and refuses what is not there") {
  const auto text = [](std::string_view hex, std::size_t room) { return decoded(lz, from_hex(hex), room); };
  using Values = std::vector<std::uint8_t>;
  CHECK(text("02010203", 3) == Values{1, 2, 3});
  CHECK(text("02010203"
             "2002",
             6) == Values{1, 2, 3, 1, 2, 3});
  CHECK(text("0009"
             "e00000"
             "0004",
             11) == Values{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 4});
  CHECK(text("", 3).empty());
  CHECK_THROWS_AS(text("02010203"
                       "2003",
                       6),
                  Error);  // one byte too far back
  CHECK_THROWS_AS(text("02010203"
                       "2002",
                       5),
                  Error);                       // no room for the match
  CHECK_THROWS_AS(text("02010203", 2), Error);  // nor for the literals
  CHECK_THROWS_AS(text("020102", 9), Error);    // literals cut short
  CHECK_THROWS_AS(text("0001"
                       "e0ffff",
                       9),
                  Error);  // a length without end
  CHECK_THROWS_AS(text("0001"
                       "3fff0000",
                       9),
                  Error);  // a far match before the output
}
