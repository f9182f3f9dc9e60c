// The bounded codec: every value within its bound, all paths alike, and whatever the bytes, an error or the values.
#include "solar/codec.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "codec/format.hpp"
#include "codec/tables.hpp"
#include "decode/zstd_checksum.hpp"

using namespace solar;

namespace {

std::mt19937_64 random_bits(5);

double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_bits); }
std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_bits); }

template <class T>
constexpr Number number_of() {
  if constexpr (std::is_same_v<T, float>)
    return Number::float32;
  else if constexpr (std::is_same_v<T, double>)
    return Number::float64;
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return Number::int16;
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return Number::uint8;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return Number::int32;
  else
    return Number::uint64;
}

template <class T>
struct Made {
  std::vector<std::size_t> shape;
  std::vector<T> values;
  Array array() const { return {values.data(), number_of<T>(), shape}; }
};

// Smooth, rough, counted or arbitrary values of 1 to 4 axes.
template <class T>
Made<T> made(std::size_t kind, std::size_t most = 40000) {
  Made<T> out;
  const std::size_t axes = 1 + below(4);
  std::size_t values = 1;
  for (std::size_t i = 0; i < axes; ++i) {
    out.shape.push_back(1 + below(static_cast<std::size_t>(std::pow(most, 1.0 / static_cast<double>(axes)))));
    values *= out.shape.back();
  }
  double walk = 0, slope = 0;
  const double size = std::pow(10.0, uniform(-3, 4));
  for (std::size_t i = 0; i < values; ++i) {
    slope += uniform(-1, 1);
    walk += kind == 0 ? slope : uniform(-1, 1);
    if (kind == 3) {
      const std::uint64_t bits = random_bits();
      T value;
      std::memcpy(&value, &bits, sizeof value);
      out.values.push_back(value);
    } else {
      const double value = kind == 2 ? std::floor(std::exp(uniform(0, 5))) : walk * size;
      const double low = static_cast<double>(std::numeric_limits<T>::lowest()) / 2;
      out.values.push_back(
          static_cast<T>(std::min(std::max(value, low), static_cast<double>(std::numeric_limits<T>::max()) / 2)));
    }
  }
  return out;
}

template <class T>
std::vector<T> decoded(const std::vector<std::byte>& chunk, std::size_t values, Path path, Bytes tables = {}) {
  std::vector<T> out(values);
  Scratch scratch;
  decode_codec(chunk, std::as_writable_bytes(std::span(out)), tables, scratch, path);
  return out;
}

// What is decoded as float32 is a cast of what is decoded.
template <class T>
void check_cast(const std::vector<std::byte>& chunk, const std::vector<T>& whole, Path path) {
  std::vector<float> out(whole.size()), wanted(whole.begin(), whole.end());
  Scratch scratch;
  decode_codec_cast(chunk, std::as_writable_bytes(std::span(out)), {}, scratch, path);
  REQUIRE(out == wanted);
}

// What is wanted of a chunk comes as it does with all of it.
template <class T>
void check_wanted(const std::vector<std::byte>& chunk, const std::vector<T>& whole, Path path) {
  const Bytes all = std::as_bytes(std::span(whole));
  std::vector<Wanted::Range> ranges;
  for (std::size_t at = below(all.size() + 1); at < all.size(); at += 1 + below(all.size())) {
    ranges.push_back({at, at + 1 + below(std::min<std::size_t>(200, all.size() - at))});
    at = ranges.back().end;
  }
  std::vector<T> out(whole.size());
  const Bytes found = std::as_bytes(std::span(out));
  Scratch scratch;
  Wanted wanted{ranges};
  REQUIRE(decode_codec(chunk, std::as_writable_bytes(std::span(out)), {}, scratch, path, &wanted) == all.size());
  REQUIRE(wanted.nbytes <= all.size());
  REQUIRE((wanted.nbytes > 0) == !ranges.empty());
  for (const auto [begin, end] : ranges) REQUIRE(std::memcmp(&found[begin], &all[begin], end - begin) == 0);
}

template <class T>
void check_bound(const Made<T>& from, double bound, Coder coder, Predictor predictor) {
  const std::vector<std::byte> chunk = encode(from.array(), bound, coder, predictor);
  for (const Path path : codec_paths()) {
    const std::vector<T> back = decoded<T>(chunk, from.values.size(), path);
    const Difference found = compare(from.values.data(), back.data(), number_of<T>(), back.size(), bound);
    CAPTURE(bound);
    CAPTURE(static_cast<int>(path));
    CAPTURE(static_cast<int>(predictor));
    REQUIRE(found.beyond == 0);
    if constexpr (!std::is_floating_point_v<T>) check_cast(chunk, back, path);
    check_wanted(chunk, back, path);
  }
}

constexpr Predictor predictors[] = {Predictor::none,          Predictor::x,       Predictor::xy,   Predictor::xyz,
                                    Predictor::interpolation, Predictor::patches, Predictor::tried};
constexpr Coder all_coders[] = {Coder::smaller, Coder::pack, Coder::dense};

template <class T>
void check_many(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const double bound = below(4) == 0 ? 0 : std::pow(10.0, uniform(-6, 5));
    check_bound(made<T>(below(4)), bound, all_coders[below(3)], predictors[below(std::size(predictors))]);
  }
}

// The same chunk with a right checksum, so that decoding looks further.
void seal(std::vector<std::byte>& chunk) {
  if (chunk.size() < 88) return;
  const auto nbytes = static_cast<std::uint32_t>(chunk.size());
  std::memcpy(chunk.data() + 72, &nbytes, 4);
  const std::uint64_t sum = zstd::xxhash64(Bytes(chunk).first(chunk.size() - 8));
  std::memcpy(chunk.data() + chunk.size() - 8, &sum, 8);
}

// All paths refuse, or all give the same.
void check_agreement(const std::vector<std::byte>& chunk, std::size_t values) {
  std::vector<std::vector<float>> results;
  std::size_t refused = 0;
  for (const Path path : codec_paths()) {
    try {
      results.push_back(decoded<float>(chunk, values, path));
    } catch (const Error& error) {
      CHECK(error.kind() == Kind::codec);
      ++refused;
    }
  }
  CHECK((refused == 0 || results.empty()));
  for (const std::vector<float>& result : results)
    CHECK(std::memcmp(result.data(), results[0].data(), 4 * values) == 0);
}

}  // namespace

TEST_CASE("every value of every type comes back within its bound, by every path") {
  check_many<float>(60);
  check_many<double>(40);
  check_many<std::int16_t>(20);
  check_many<std::uint8_t>(20);
  check_many<std::int32_t>(20);
  check_many<std::uint64_t>(20);
}

TEST_CASE("NaN, infinities, zeros, denormals and huge values are kept") {
  const float special[] = {std::numeric_limits<float>::quiet_NaN(),
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           -0.0f,
                           0.0f,
                           3e38f,
                           -3e38f,
                           1e-40f,
                           1e20f};
  for (const double bound : {0.0, 1e-45, 1e-7, 1e-3, 10.0, 1e38})
    for (int i = 0; i < 7; ++i) {
      Made<float> from = made<float>(static_cast<std::size_t>(i % 3), 3000);
      for (float& value : from.values)
        if (below(8) == 0) value = special[below(9)];
      check_bound(from, bound, all_coders[i % 3], predictors[i]);
    }
}

TEST_CASE("arrays without values, of one value, and of one value again and again are chunks") {
  for (const std::vector<std::size_t>& shape :
       {std::vector<std::size_t>{}, {0}, {3, 0, 2}, {1, 1, 1, 1, 1}, {2, 3, 4, 5, 6}}) {
    const std::size_t values = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies{});
    check_bound(Made<float>{shape, std::vector<float>(values, 2.5f)}, 1e-3, Coder::dense, Predictor::tried);
  }
}

TEST_CASE("a bound that is no number, negative or infinite is refused") {
  const Made<float> from = made<float>(0, 100);
  for (const double bound : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK_THROWS_AS(encode(from.array(), bound, Coder::pack, Predictor::x), Error);
}

TEST_CASE("a chunk with trained tables needs exactly those") {
  Made<float> from = made<float>(1);
  while (from.values.size() < 2000) from = made<float>(1);  // few values are stored as they are
  const std::vector<std::byte> tables = train({from.array()}, 0.1, Predictor::tried);
  const std::vector<std::byte> chunk = encode(from.array(), 0.1, Coder::dense, Predictor::tried, tables);
  const auto back = decoded<float>(chunk, from.values.size(), Path::plain, tables);
  CHECK(compare(from.values.data(), back.data(), Number::float32, back.size(), 0.1).beyond == 0);
  CHECK_THROWS_AS(decoded<float>(chunk, from.values.size(), Path::plain), Error);
  std::vector<float> out(from.values.size());
  Scratch scratch;
  const Filter filter{codec_filter, 0, client_data(tables)};
  CHECK(decode_codec(chunk, std::as_writable_bytes(std::span(out)), filter, scratch) == 4 * out.size());
  CHECK(std::memcmp(out.data(), back.data(), 4 * out.size()) == 0);
}

TEST_CASE("real numbers are not cast, and whole ones into nothing but room for all of them") {
  Scratch scratch;
  std::vector<float> out(4);
  const auto cast = [&](const std::vector<std::byte>& chunk, std::size_t nbytes) {
    decode_codec_cast(chunk, std::as_writable_bytes(std::span(out)).first(nbytes), {}, scratch, Path::plain);
  };
  const float real[] = {1, 2, 3, 4};
  const std::int16_t whole[] = {1, -2, 3, -32768};
  const std::vector<std::byte> of_real = encode({real, Number::float32, {4}}, 0, Coder::pack, Predictor::none),
                               of_whole = encode({whole, Number::int16, {4}}, 0, Coder::pack, Predictor::none);
  CHECK_THROWS_AS(cast(of_real, 16), Error);
  CHECK_THROWS_AS(cast(of_whole, 8), Error);
  CHECK_THROWS_AS(cast(of_whole, 12), Error);
  cast(of_whole, 16);
  CHECK(out == std::vector<float>{1, -2, 3, -32768});
}

TEST_CASE("truncated and flipped chunks are errors") {
  const Made<float> from = made<float>(1, 2000);
  for (const Coder coder : {Coder::pack, Coder::dense}) {
    const std::vector<std::byte> good = encode(from.array(), 0.5, coder, Predictor::tried);
    for (std::size_t n = 0; n < good.size(); n += 1 + n / 9) {
      const std::vector<std::byte> part(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n));
      CHECK_THROWS_AS(decoded<float>(part, from.values.size(), Path::plain), Error);
    }
    for (int i = 0; i < 300; ++i) {
      std::vector<std::byte> bad = good;
      bad[below(bad.size())] ^= static_cast<std::byte>(1u << below(8));
      CHECK_THROWS_AS(decoded<float>(bad, from.values.size(), codec_paths().back()), Error);
    }
  }
}

TEST_CASE("chunks made to deceive, with right checksums, end in an error or in values, the same by every path") {
  for (int i = 0; i < 400; ++i) {
    Made<float> from = made<float>(below(4), 3000);
    if (below(2) == 0) from.values[below(from.values.size())] = std::nanf("");
    std::vector<std::byte> chunk =
        encode(from.array(), 0.1, all_coders[below(3)], predictors[below(std::size(predictors))]);
    const std::size_t flips = 1 + below(4);
    for (std::size_t k = 0; k < flips; ++k) {
      const std::size_t at = below(3) == 0 ? below(std::min<std::size_t>(chunk.size(), 200)) : below(chunk.size());
      chunk[at] = static_cast<std::byte>(random_bits());
    }
    if (below(4) == 0) chunk.resize(below(chunk.size()) / 4 * 4);
    seal(chunk);
    check_agreement(chunk, from.values.size());
  }
}

TEST_CASE("tables that lie about themselves are refused") {
  const Made<float> from = made<float>(1, 3000);
  const std::vector<std::byte> good = train({from.array()}, 0.1, Predictor::x);
  for (std::size_t n = 0; n < good.size(); n += 3)
    CHECK_THROWS_AS(codec::parse_tables(Bytes(good).first(n / 4 * 4 == good.size() ? 0 : n / 4 * 4)), Error);
  for (int i = 0; i < 500; ++i) {
    std::vector<std::byte> bad = good;
    bad[below(bad.size())] = static_cast<std::byte>(random_bits());
    try {
      const auto tables = codec::parse_tables(bad);
      for (const auto& table : tables) CHECK(std::accumulate(table.begin(), table.end(), 0u) == codec::table_size);
    } catch (const Error& error) {
      CHECK(error.kind() == Kind::codec);
    }
  }
}

TEST_CASE("halves are rounded to nearest, ties to even") {
  const std::vector<float> values{1.0f,  65519.0f, 65520.0f, 1.00048828125f, 1.00146484375f,
                                  6e-8f, 2.9e-8f,  -0.0f,    1e30f};
  const std::uint16_t expected[] = {0x3c00, 0x7bff, 0x7c00, 0x3c00, 0x3c02, 0x0001, 0x0000, 0x8000, 0x7c00};
  const std::uint16_t brain[] = {0x3f80, 0x4780, 0x4780, 0x3f80, 0x3f80, 0x3381, 0x32f9, 0x8000, 0x714a};
  const auto chunk = encode({values.data(), Number::float32, {values.size()}}, 0, Coder::pack, Predictor::x);
  std::vector<std::uint16_t> out(values.size());
  Scratch scratch;
  decode_codec_half(chunk, std::as_writable_bytes(std::span(out)), Half16::float16, {}, scratch, Path::plain);
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == expected[i]);
  decode_codec_half(chunk, std::as_writable_bytes(std::span(out)), Half16::bfloat16, {}, scratch, Path::plain);
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == brain[i]);
}

TEST_CASE("the comparison counts what is beyond the bound, and knows NaN from NaN") {
  const double a[] = {1, 2, std::nan(""), 4}, b[] = {1.5, 2, std::nan(""), 4.25};
  const Difference found = compare(a, b, Number::float64, 4, 0.25);
  CHECK(found.beyond == 1);
  CHECK(found.first == 0);
  CHECK(found.largest == 0.5);
  CHECK(compare(a, b, Number::float64, 4, 0.5).beyond == 0);
  CHECK(compare(a, b, Number::float64, 4, 0).beyond == 2);
}

TEST_CASE("the same values make the same chunks, and these the same values, on every machine and by every path") {
  std::uint64_t state = 1, seen = 0;
  std::vector<float> values(3 * 40 * 37);
  float height = 0;
  for (float& value : values) {  // sums of multiples of 2^-10, which are exact
    state = state * 6364136223846793005u + 1442695040888963407u;
    height += static_cast<float>(static_cast<std::int32_t>(state >> 52) - 2048) / 1024;
    value = height;
  }
  const auto sum = [](Bytes bytes) { return zstd::xxhash64(bytes); };
  for (const Coder coder : {Coder::pack, Coder::dense})
    for (const Predictor predictor : predictors) {
      const std::vector<std::byte> chunk =
          encode({values.data(), Number::float32, {3, 40, 37}}, 1e-2, coder, predictor);
      std::uint64_t plain = 0;
      for (const Path path : codec_paths()) {
        const std::vector<float> back = decoded<float>(chunk, values.size(), path);
        const std::uint64_t found = sum(std::as_bytes(std::span(back)));
        if (path == Path::plain) plain = found;
        CHECK(found == plain);
      }
      seen = 31 * (31 * seen + sum(chunk)) + plain;
    }
  CHECK(seen == 14005624730412400057u);  // wherever it is made
}
