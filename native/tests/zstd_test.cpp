// zstd frames made by hand, and what becomes of a real one when its bytes are changed.
#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "decode/zstd_fse.hpp"
#include "solar/decode.hpp"

using namespace solar;

namespace {

// 2000 bytes of words chosen by a small generator, at level 19 with a checksum: four Huffman streams, coded tables.
constexpr std::string_view kWords =
    "28b52ffd64d006b50c00c204121890eb01587b0d231442b7f9163e1e68e32da0e07f70fd410ecd58e8e77ab56264b5a370c16383"
    "e881b102d26a5032d0528f5f9dfac0757ed68d9cae423d2eeb4df538d3ba7cfa4980b6a8316fa7d0761010821053671e11600c44"
    "091025a298821a2a1d7980c2838eb64a55acb4a9df71cfa3087fc387ced5fb348bffb528eba546b773d5d7bfae09761153b5fa91"
    "49a112f2d5cc6670a5b4af34a172f20affe16e324b1158625b3a4a7c6fe419452a32f5e60d53faeb4bc21aa7747d30de97587248"
    "1a32636f51c375830f41384007d272d11f5ef170d3d0ca8b1ce2fa982cd07352a22af1bdfe1c9d5a7353101b6cfe04d72b6c4814"
    "ccb780b10565bed8f7664fb4483c0d61f1a33c4026ccfde8aa1f88158447667f1da853e0f87e3a214ee94b5a2c3a68ada92b6539"
    "f9e2f4df190a5e275c0e44e36e23e15cf7e008cb803622cc10f546aba5f8a1ab3d9f8c8bc705481b1b93b52e48ec70d961ecec93"
    "ca1886481d3d8802d8b2e93cf83ec0cd6b67f83fcfeb18e8c3682d36650b9a8bc6c9421b11146dc8d84eb21863e70aca2a198e0a"
    "345af175";

std::string words() {
  constexpr std::string_view list[] = {"solar ", "wind ", "flare ", "spot ", "corona ", "plasma ", "dust ", "ray "};
  std::string text;
  std::uint32_t x = 12345;
  while (text.size() < 2000) {
    x = (x * 1103515245u + 12345u) & 0x7fffffff;
    text += list[x >> 16 & 7];
    if ((x >> 20 & 7) == 0) text += static_cast<char>(65 + (x >> 23) % 26);
  }
  return text.substr(0, 2000);
}

std::vector<std::byte> from_hex(std::string_view hex) {
  std::vector<std::byte> made;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    made.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return made;
}

std::string decoded(Bytes in, std::size_t room) {
  std::string out(room, '?');
  out.resize(decode_zstd(in, std::as_writable_bytes(std::span(out))));
  return out;
}

std::string decoded(std::string_view hex, std::size_t room) { return decoded(from_hex(hex), room); }

// Magic, a frame header without size and checksum, one last block.
constexpr std::string_view kRaw =
    "28b52ffd"
    "0000"
    "190000"
    "616263";
constexpr std::string_view kRun =
    "28b52ffd"
    "0000"
    "2b0000"
    "7a";

}  // namespace

TEST_CASE("zstd frames of raw and repeated bytes are read, one behind the other, and skippable ones skipped") {
  CHECK(decoded(kRaw, 3) == "abc");
  CHECK(decoded(kRun, 9) == "zzzzz");
  CHECK(decoded("", 5) == "");
  CHECK(decoded(std::string(kRaw) +
                    "522a4d18"
                    "02000000"
                    "ffff" +
                    std::string(kRun),
                8) == "abczzzzz");
}

TEST_CASE("a zstd frame of words is read to the last byte of its room") {
  CHECK(decoded(kWords, 2000) == words());
  CHECK(decoded(kWords, 5000) == words());
  CHECK(decoded(std::string(kRaw) + std::string(kWords) + std::string(kRun), 2008) == "abc" + words() + "zzzzz");
}

TEST_CASE("a zstd frame that does not fit its room is refused") {
  CHECK_THROWS_AS(decoded(kRaw, 2), Error);
  CHECK_THROWS_AS(decoded(kRun, 4), Error);
  CHECK_THROWS_AS(decoded(kWords, 1999), Error);
  CHECK_THROWS_AS(decoded(kWords, 0), Error);
}

TEST_CASE("a zstd frame with the wrong checksum, size, dictionary or reserved bits is refused") {
  CHECK_THROWS_WITH_AS(decoded("28b52ffd"
                               "0400"
                               "190000"
                               "616263"
                               "00000000",
                               3),
                       "the checksum is wrong", Error);
  CHECK_THROWS_WITH_AS(decoded("28b52ffd"
                               "2004"
                               "190000"
                               "616263",
                               9),
                       "a frame has not the size it says", Error);
  CHECK_THROWS_WITH_AS(decoded("28b52ffd"
                               "010007"
                               "190000"
                               "616263",
                               3),
                       "the frame needs a dictionary", Error);
  CHECK_THROWS_AS(decoded("28b52ffd"
                          "0800"
                          "190000"
                          "616263",
                          3),
                  Error);
  CHECK_THROWS_AS(decoded("28b52ffd"
                          "0000"
                          "1f0000"
                          "616263",
                          3),
                  Error);
  CHECK_THROWS_WITH_AS(decoded(std::string(kRaw) + "00000000", 9), "this is no frame", Error);
}

TEST_CASE("a few bytes of zstd that claim a huge output are refused at once") {
  CHECK_THROWS_AS(decoded("28b52ffd"
                          "e0"
                          "ffffffffffffff7f"
                          "190000"
                          "616263",
                          100),
                  Error);
  CHECK_THROWS_AS(decoded("28b52ffd"
                          "0000"
                          "feffff"
                          "7a"
                          "ffffff"
                          "7a",
                          100),
                  Error);
}

TEST_CASE("a zstd frame cut short anywhere is refused") {
  const auto frame = from_hex(kWords);
  for (std::size_t n = 1; n < frame.size(); ++n) CHECK_THROWS_AS(decoded(Bytes(frame).first(n), 2000), Error);
}

TEST_CASE("a zstd frame with any bit changed is refused by its checksum or before") {
  auto frame = from_hex(kWords);
  for (std::size_t bit = 8 * 6; bit < 8 * frame.size(); ++bit) {
    frame[bit / 8] ^= std::byte{1} << (bit % 8);
    std::string got;
    try {
      got = decoded(frame, 2000);
    } catch (const Error& error) {
      CHECK(error.kind() == Kind::codec);
    }
    CHECK((got.empty() || got == words()));
    frame[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST_CASE("a symbol that has all states takes no bits from one to the next") {
  const std::byte stored[] = {std::byte{0xf0}, std::byte{0x03}};  // 32 states, 32 of them of the first symbol
  Bytes rest(stored);
  const zstd::Distribution distribution = zstd::read_distribution(rest, 9, 53);
  CHECK(rest.empty());
  CHECK(distribution.counts[0] == 32);
  zstd::for_each_state(distribution, [](unsigned state, unsigned symbol, unsigned bits, unsigned next) {
    CHECK(symbol == 0);
    CHECK(bits == 0);
    CHECK(next == state);
  });
}
