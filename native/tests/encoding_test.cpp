// The encoder's loops: what vectors give is what plain loops give; and the tiles it cuts where they make chunks
// smaller.
#include "codec/encoding.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "solar/codec.hpp"

using namespace solar;
using codec::EncodingKernels;

namespace {

std::mt19937_64 random_bits(17);

std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_bits); }
double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_bits); }

std::vector<const EncodingKernels*> vectors() {
  std::vector<const EncodingKernels*> found;
  if (codec::has_avx2()) found.push_back(&codec::avx2_encoding());
  if (codec::has_avx512()) found.push_back(&codec::avx512_encoding());
  return found;
}

// Values like a field's, now and then with what no quantum stands for.
template <class T>
std::vector<T> values_of(std::size_t count) {
  const double special[] = {std::nan(""), INFINITY, -0.0, 0.0, 1e-41, 3e38, 1e-310, -1e30};
  std::vector<T> values(count);
  const bool odd = below(3) == 0;
  for (T& value : values) value = static_cast<T>(odd && below(40) == 0 ? special[below(8)] : uniform(-50, 50));
  return values;
}

std::vector<std::int32_t> integers_of(std::size_t count) {
  std::vector<std::int32_t> values(count);
  const unsigned width = static_cast<unsigned>(below(33));
  for (std::int32_t& value : values) value = width == 0 ? 0 : static_cast<std::int32_t>(random_bits()) >> (32 - width);
  return values;
}

// The same answer, and the same integers where it is yes.
template <class Ask>
void check_alike(const EncodingKernels& fast, std::size_t count, Ask ask) {
  std::vector<std::int32_t> a(2 * count), b(2 * count);
  const bool yes = ask(codec::plain_encoding(), a.data(), a.data() + count);
  REQUIRE(ask(fast, b.data(), b.data() + count) == yes);
  if (yes) REQUIRE(a == b);
}

template <class T>
void check_values(const EncodingKernels& fast) {
  const std::size_t count = 1 + below(300);
  const std::vector<T> values = values_of<T>(count);
  const std::vector<std::int32_t> foretold = integers_of(count);
  const codec::Aim aim{std::pow(10.0, uniform(-4, 1)), below(2) == 0 ? 0 : uniform(-9, 9), uniform(0, 2),
                       below(3) == 0};
  check_alike(fast, count, [&](const EncodingKernels& set, std::int32_t* one, std::int32_t*) {
    if constexpr (sizeof(T) == 4)
      return set.quantise32(values.data(), count, aim, one);
    else
      return set.quantise64(values.data(), count, aim, one);
  });
  check_alike(fast, count, [&](const EncodingKernels& set, std::int32_t* one, std::int32_t* other) {
    if constexpr (sizeof(T) == 4)
      return set.residuals32(values.data(), foretold.data(), count, aim, one, other);
    else
      return set.residuals64(values.data(), foretold.data(), count, aim, one, other);
  });
  const auto look = [&](const EncodingKernels& set) {
    if constexpr (sizeof(T) == 4)
      return set.look32(values.data(), count, 40.0f);
    else
      return set.look64(values.data(), count, 40.0);
  };
  const codec::Seen a = look(codec::plain_encoding()), b = look(fast);
  CHECK((a.finite == b.finite && a.near == b.near && a.largest == b.largest && a.largest_near == b.largest_near));
}

// A field of `kind`: 0 smooth, 1 with sharp edges and flat land, 2 few counts.
std::vector<float> field(std::size_t kind, std::size_t z, std::size_t y, std::size_t x) {
  std::vector<float> values;
  for (std::size_t i = 0; i < z * y * x; ++i) {
    const double a = static_cast<double>(i / (y * x)), b = static_cast<double>(i / x % y),
                 c = static_cast<double>(i % x);
    const double wave = std::sin(a / 9 + 1) * std::cos(b / 7) + std::sin(c / 11 + b / 13);
    const double cells = std::floor(b / 12) + 2 * std::floor(c / 9) + std::floor(a / 5);
    values.push_back(static_cast<float>(kind == 0   ? wave
                                        : kind == 1 ? (wave > 0.3 ? 0 : cells + 0.1 * wave + uniform(0, 0.01))
                                                    : static_cast<double>(below(300) == 0)));
  }
  return values;
}

}  // namespace

TEST_CASE("the encoder's loops give the same in vectors as one by one") {
  for (const EncodingKernels* fast : vectors())
    for (int round = 0; round < 400; ++round) {
      check_values<float>(*fast);
      check_values<double>(*fast);
      const std::size_t blocks = 1 + below(12), count = 32 * blocks;
      const std::vector<std::int32_t> integers = integers_of(count);
      const auto same = [&](auto ask) { REQUIRE(ask(codec::plain_encoding()) == ask(*fast)); };
      same([&](const EncodingKernels& set) {
        std::vector<std::int32_t> out(count);
        set.less(integers.data(), 1 + static_cast<std::size_t>(round) % 70, count, out.data());
        return out;
      });
      same([&](const EncodingKernels& set) {
        std::vector<std::int32_t> out(count + 1, 7);
        set.weave(integers.data(), integers.data() + 1, count / 2 - 1, round % 2 == 0, out.data());
        return out;
      });
      same([&](const EncodingKernels& set) {
        std::vector<float> all(integers.begin(), integers.end()), out(count / 2);
        const std::vector<double> wide(all.begin(), all.end());
        std::vector<double> more(count / 2);
        set.thin32(all.data() + 1, count / 2 - round % 2, out.data());
        set.thin64(wide.data(), count / 2, more.data());
        out.insert(out.end(), more.begin(), more.end());
        return out;
      });
      same([&](const EncodingKernels& set) {
        std::vector<std::uint8_t> out(blocks);
        set.widths(integers.data(), blocks, out.data());
        return out;
      });
      same([&](const EncodingKernels& set) {
        std::vector<codec::Size> sizes(blocks);
        set.sizes(integers.data(), blocks, sizes.data());
        std::vector<std::uint64_t> out;
        for (const codec::Size& size : sizes) out.push_back(size.sum), out.push_back(size.negative);
        return out;
      });
      same([&](const EncodingKernels& set) {
        const std::int32_t* const rows[4] = {integers.data(), integers.data() + 1, integers.data() + 2,
                                             integers.data() + 3};
        std::vector<std::int32_t> out(count - 3);
        set.between(rows, round % 2 == 0, round / 2 % 3, out.size(), out.data());
        return out;
      });
      same([&](const EncodingKernels& set) {
        std::vector<std::int64_t> whole(integers.begin(), integers.end());
        std::vector<std::int32_t> out(count);
        const codec::WholeAim aim{1 + round, round % 7, round / 2, -100000, 100000};
        if (!set.quantise_whole(whole.data(), count, aim, out.data())) out.clear();
        return out;
      });
    }
}

TEST_CASE("loops of the coders give the same in vectors as one by one") {
  for (const EncodingKernels* fast : vectors())
    for (int round = 0; round < 200; ++round) {
      std::vector<std::uint8_t> symbols(32), widths(32), counts(32);
      std::vector<std::uint16_t> bits(32);
      std::vector<std::uint32_t> table(256 * 16), steps(80), strings(32);
      for (std::size_t i = 0; i < 32; ++i) {
        symbols[i] = static_cast<std::uint8_t>(random_bits());
        widths[i] = static_cast<std::uint8_t>(below(11));
        counts[i] = static_cast<std::uint8_t>(below(26));
        bits[i] = static_cast<std::uint16_t>(below(std::size_t{1} << widths[i]));
        strings[i] = static_cast<std::uint32_t>(random_bits());
      }
      for (std::uint32_t& cost : table) cost = static_cast<std::uint32_t>(below(20000));
      for (std::uint32_t& cost : steps) cost = static_cast<std::uint32_t>(below(3000));
      const auto run = [&](const EncodingKernels& set) {
        std::vector<std::uint32_t> out(16 + codec::most_ways), made = strings;
        std::vector<std::uint8_t> from(codec::most_ways);
        std::vector<std::uint16_t> words(32);
        set.costs(symbols.data(), table.data(), out.data());
        set.extend(table.data(), 1 + round % 20, steps.data() + 20, out.data() + 16, from.data());
        set.prepend(bits.data(), widths.data(), counts.data(), made.data(), words.data());
        out.insert(out.end(), made.begin(), made.end());
        out.insert(out.end(), from.begin(), from.end());
        out.insert(out.end(), words.begin(), words.end());
        return out;
      };
      REQUIRE(run(codec::plain_encoding()) == run(*fast));
    }
}

TEST_CASE("whatever tiles make a chunk smaller, every value is within the bound by every path") {
  for (std::size_t kind = 0; kind < 3; ++kind)
    for (const std::vector<std::size_t>& shape :
         {std::vector<std::size_t>{40, 70, 66}, {11, 60, 150}, {300, 200}, {2, 17, 100, 40}, {33, 33, 5}}) {
      std::size_t all = 1;
      for (const std::size_t length : shape) all *= length;
      const std::size_t x = shape.back(), y = shape[shape.size() - 2];
      const std::vector<float> values = field(kind, all / (x * y), y, x);
      for (const Coder coder : {Coder::pack, Coder::dense}) {
        const auto chunk = encode({values.data(), Number::float32, shape}, 0.01, coder, Predictor::tried);
        for (const Path path : codec_paths()) {
          std::vector<float> back(all);
          Scratch scratch;
          decode_codec(chunk, std::as_writable_bytes(std::span(back)), {}, scratch, path);
          REQUIRE(compare(values.data(), back.data(), Number::float32, all, 0.01).beyond == 0);
        }
      }
    }
}

TEST_CASE("a smooth field in space is cut into round tiles, one with edges is stored in the order of patches") {
  const std::vector<float> smooth = field(0, 64, 64, 64), edged = field(1, 64, 64, 64);
  const auto made = [](const std::vector<float>& values) {
    return describe_codec(encode({values.data(), Number::float32, {64, 64, 64}}, 1e-3, Coder::pack, Predictor::tried));
  };
  CHECK(made(smooth).tile[2] == 33);
  CHECK(made(smooth).tiles_patched == 0);
  CHECK(made(edged).tiles_patched > 0);
}

TEST_CASE("no chunk is larger than its values, its header and an entry for each 16384 of them") {
  for (const std::vector<std::size_t>& shape : {std::vector<std::size_t>{900, 2, 2, 2},
                                                {7, 5, 3, 2, 3, 2},
                                                {50, 3, 3, 130},
                                                {2000, 3},
                                                {1, 1, 1},
                                                {40, 40, 40, 2},
                                                {3, 0, 5},
                                                {20000}})
    for (const Number number : {Number::float32, Number::float64, Number::uint8}) {
      std::size_t count = 1;
      for (const std::size_t length : shape) count *= length;
      const std::size_t itemsize = number == Number::float32 ? 4 : number == Number::float64 ? 8 : 1;
      std::vector<std::byte> noise(count * itemsize + 1);  // of which nothing can be foretold, nor left out
      for (std::byte& one : noise) one = static_cast<std::byte>(random_bits());
      const std::size_t most = 88 + 12 * ((count + 16383) / 16384) + (count * itemsize + 3) / 4 * 4;
      for (const Coder coder : {Coder::pack, Coder::dense, Coder::smaller}) {
        const auto chunk = encode({noise.data(), number, shape}, 0, coder, Predictor::tried);
        CHECK(chunk.size() <= most);
        for (const Path path : codec_paths()) {
          std::vector<std::byte> back(count * itemsize);
          Scratch scratch;
          decode_codec(chunk, back, {}, scratch, path);
          CHECK(std::equal(back.begin(), back.end(), noise.begin()));
        }
      }
    }
}

TEST_CASE("small last axes cost a chunk no more than others") {
  std::vector<float> values(900 * 8);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(std::sin(static_cast<double>(i / 8) / 30) + static_cast<double>(i % 8));
  const auto nbytes = [&](const std::vector<std::size_t>& shape) {
    return encode({values.data(), Number::float32, shape}, 1e-3, Coder::pack, Predictor::tried).size();
  };
  CHECK(nbytes({30, 30, 2, 2, 2}) == nbytes({900, 2, 2, 2}));
  CHECK(10 * nbytes({900, 2, 2, 2}) < 11 * nbytes({1800, 2, 2}));
  CHECK(2 * nbytes({900, 2, 2, 2}) < 4 * values.size());
}

TEST_CASE("whole numbers with a common spacing are stored in its multiples") {
  std::vector<std::uint64_t> times(5000);
  for (std::size_t i = 0; i < times.size(); ++i)
    times[i] = (std::uint64_t{1} << 63) + 77 + 1'000'000 * (i * 1000 + below(400));
  std::vector<std::int16_t> shifted(5000);
  for (std::int16_t& value : shifted) value = static_cast<std::int16_t>(16 * static_cast<int>(below(64)) - 3);
  const auto check = [](const auto& values, Number number, double bound, std::size_t ratio) {
    const std::size_t nbytes = values.size() * sizeof(values[0]);
    const auto chunk = encode({values.data(), number, {values.size()}}, bound, Coder::pack, Predictor::tried);
    CHECK(chunk.size() * ratio < nbytes);
    for (const Path path : codec_paths()) {
      auto back = values;
      Scratch scratch;
      decode_codec(chunk, std::as_writable_bytes(std::span(back)), {}, scratch, path);
      CHECK(compare(values.data(), back.data(), number, values.size(), bound).beyond == 0);
    }
  };
  check(times, Number::uint64, 0, 4);
  check(times, Number::uint64, 1.7e6, 4);
  check(shifted, Number::int16, 0, 2);
  check(shifted, Number::int16, 20, 2);
}
