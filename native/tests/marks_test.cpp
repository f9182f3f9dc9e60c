// Values that say "missing", and limits, in chunks with a bound.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "codec/guard.hpp"
#include "solar/codec.hpp"

using namespace solar;

namespace {

std::mt19937_64 random_bits(23);

double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_bits); }

template <class T>
Marks marks_of(const std::vector<T>& marks, const std::vector<T>& limits) {
  return {std::as_bytes(std::span(marks)), std::as_bytes(std::span(limits))};
}

// A walk in which marks lie in patches and as noise.
template <class T>
std::vector<T> masked(std::size_t count, double size, T mark) {
  std::vector<T> values(count);
  double walk = 0;
  for (std::size_t i = 0; i < count; ++i) {
    walk = 0.99 * walk + uniform(-size, size);
    const bool missing = i % 1000 < 300 || (i % 5000 > 2500 && uniform(0, 1) < 0.3);
    const double most = static_cast<double>(std::numeric_limits<T>::max()) / 2;
    values[i] = missing ? mark : static_cast<T>(std::min(std::is_signed_v<T> ? walk : std::fabs(walk), most));
  }
  return values;
}

template <class T>
void check(const std::vector<T>& values, Number number, double bound, const std::vector<T>& marks,
           const std::vector<T>& limits) {
  const Marks kept = marks_of(marks, limits);
  for (const Coder coder : {Coder::pack, Coder::dense})
    for (const Predictor predictor : {Predictor::tried, Predictor::none, Predictor::xy, Predictor::interpolation}) {
      const auto chunk = encode({values.data(), number, {values.size() / 100, 100}}, bound, coder, predictor, {}, kept);
      for (const Path path : codec_paths()) {
        std::vector<T> back(values.size());
        Scratch scratch;
        decode_codec(chunk, std::as_writable_bytes(std::span(back)), {}, scratch, path);
        REQUIRE(compare(values.data(), back.data(), number, values.size(), bound).beyond == 0);
        for (std::size_t i = 0; i < values.size(); ++i) {
          for (const T mark : marks)
            if (values[i] == mark || back[i] == mark) REQUIRE(codec::same_bits(values[i], back[i]));
          for (const T limit : limits) REQUIRE((values[i] < limit) == (back[i] < limit));
        }
      }
    }
}

}  // namespace

TEST_CASE("marks come back bit for bit, nothing else becomes one, and limits are not crossed") {
  check<float>(masked<float>(20000, 3, -9999), Number::float32, 0.05, {-9999}, {-4, 5});
  check<float>(masked<float>(20000, 3, 1e20f), Number::float32, 0.05, {1e20f, 0}, {});
  check<float>(masked<float>(20000, 3, -0.0f), Number::float32, 0.5, {0}, {0});
  check<double>(masked<double>(20000, 3, -9999.9), Number::float64, 0.05, {-9999.9}, {1});
  check<std::int16_t>(masked<std::int16_t>(20000, 300, -32768), Number::int16, 5, {-32768}, {-32767, 0});
  check<std::uint8_t>(masked<std::uint8_t>(20000, 30, 255), Number::uint8, 3, {255, 0}, {128});
  check<std::int32_t>(masked<std::int32_t>(20000, 3e5, -9999), Number::int32, 40, {-9999, 7}, {});
  check<std::uint64_t>(masked<std::uint64_t>(20000, 3e5, ~std::uint64_t{0}), Number::uint64, 40, {~std::uint64_t{0}}, {});
}

TEST_CASE("what lies near a mark or a limit is known, and nothing else") {
  const std::vector<float> marks{-9999, 1e20f}, limits{100};
  const codec::Guard<float> guard(marks_of(marks, limits), 0.5);
  const auto concerns = [&](float value) { return guard.concerns(&value, 1); };
  for (const float value : {-9999.0f, -9998.5f, -9999.5f, 99.5f, 100.5f, 1e20f}) CHECK(concerns(value));
  for (const float value : {-9998.4f, -9999.6f, 0.0f, 99.4f, 100.6f, 2e20f, INFINITY, -INFINITY}) CHECK(!concerns(value));
  CHECK(!guard.concerns(std::vector<float>{1, 2, 3, NAN}.data(), 4));
  CHECK(guard.concerns(std::vector<float>{1, 2, -9999, NAN}.data(), 4));
  CHECK(guard.allows(-9999, -9999));
  CHECK(!guard.allows(-9999, -9999.1f));
  CHECK(!guard.allows(-9999.1f, -9999));
  CHECK(!guard.allows(99.9f, 100));
  CHECK(guard.allows(100, 100.1f));
}

TEST_CASE("marks of another type, or too many, are refused") {
  const std::vector<float> values(100), many(most_marks + 1);
  const Array array{values.data(), Number::float32, {100}};
  CHECK_THROWS_AS(encode(array, 0.1, Coder::pack, Predictor::x, {}, marks_of(many, {})), Error);
  CHECK_THROWS_AS(encode(array, 0.1, Coder::pack, Predictor::x, {}, marks_of<float>({}, many)), Error);
  CHECK_THROWS_AS(encode(array, 0.1, Coder::pack, Predictor::x, {}, {std::as_bytes(std::span(many)).first(3), {}}), Error);
}
