// Inputs that the fuzzers found, made by hand: each once broke a promise of the headers.
#include <doctest/doctest.h>

#include <cstring>

#include "codec/format.hpp"
#include "decode/zstd_checksum.hpp"
#include "solar/codec.hpp"

using namespace solar;

namespace {

std::vector<std::byte> with_predictor(std::vector<std::byte> chunk, int predictor) {
  constexpr std::size_t predictor_at = codec::header_nbytes + 4;  // of the first tile's entry, where no tables are
  chunk[predictor_at] = static_cast<std::byte>(predictor);
  const std::uint64_t sum = zstd::xxhash64(Bytes(chunk).first(chunk.size() - sizeof(std::uint64_t)));
  std::memcpy(chunk.data() + chunk.size() - sizeof sum, &sum, sizeof sum);
  return chunk;
}

}  // namespace

TEST_CASE("an unknown predictor is refused also of tiles that need none, as decoders elsewhere refuse it") {
  const std::vector<float> values(100, 2.5f);  // one constant tile
  const std::vector<std::byte> good = encode({values.data(), Number::float32, {100}}, 0.1, Coder::pack, Predictor::x);
  REQUIRE(describe_codec(good).tiles_constant == 1);
  std::vector<float> out(values.size());
  Scratch scratch;
  for (const Path path : codec_paths()) {
    const auto decode = [&](int predictor) {
      return decode_codec(with_predictor(good, predictor), std::as_writable_bytes(std::span(out)), {}, scratch, path);
    };
    CHECK(decode(0) == 400);
    CHECK_THROWS_AS(decode(77), Error);
  }
  CHECK_THROWS_AS(check_codec(with_predictor(good, 77), Number::float32, 400, {}), Error);
}
