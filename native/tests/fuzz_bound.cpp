// Fuzzes encoding: whatever the values, their shape, the bound, coder and predictor, all values come back within the
// bound, by every path alike, and NaN and infinities bit for bit. Now and then some of the values are marks or limits:
// those come back bit for bit, nothing else becomes one, and these are not crossed.
//
// The input: the type, axes and their lengths, the bound, coder and predictor, how values are made and their seed; then
// values as they are, and made ones behind. Differences are worked out here once more, in wider arithmetic. How many
// values went through is told at the end: "values: 12345".
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "fuzz.hpp"
#include "solar/codec.hpp"

namespace {

using namespace solar;

constexpr std::size_t most_values = 1 << 15;
constexpr std::array predictors{Predictor::none,          Predictor::x,     Predictor::xy,     Predictor::xyz,
                                Predictor::interpolation, Predictor::tried, Predictor::patches};
constexpr std::array coders{Coder::smaller, Coder::pack, Coder::dense};

// Printed when the process ends, as the fuzzer's own counts are.
struct Count {
  std::uint64_t values = 0;
  ~Count() { std::fprintf(stderr, "values: %llu\n", static_cast<unsigned long long>(values)); }
} count;

std::vector<std::size_t> shape_of(fuzz::Input& input) {
  std::vector<std::size_t> shape(input.upto(5));
  std::size_t values = 1;
  for (std::size_t& length : shape) {
    length = input.take<std::uint16_t>() % (most_values / std::max<std::size_t>(values, 1) + 1);
    values *= length;
  }
  return shape;
}

double bound_of(fuzz::Input& input) {
  switch (input.upto(3)) {
    case 0: return 0;
    case 1: return std::pow(10.0, static_cast<double>(input.take<std::int8_t>()) / 3);
    case 2: return std::ldexp(1.0, input.take<std::int16_t>() % 1100);
    default: return std::bit_cast<double>(input.take<std::uint64_t>());
  }
}

struct Asked {
  double bound;
  Coder coder;
  Predictor predictor;
  bool trained;
  std::size_t marks, limits;
};

Asked asked_of(fuzz::Input& input) {
  Asked asked{bound_of(input), coders[input.upto(2)], predictors[input.upto(predictors.size() - 1)], false, 0, 0};
  const std::size_t more = input.upto(7);
  asked.trained = more == 0;
  asked.marks = more & 1 ? 1 + more / 2 : 0;
  asked.limits = more & 2 ? 1 + more / 4 : 0;
  return asked;
}

// Small, quick and always the same.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ ^ state_ >> 32) * 0x9e3779b97f4a7c15u;
  }
  double real() { return static_cast<double>(bits() >> 11) * 0x1p-53 - 0.5; }

 private:
  std::uint64_t state_;
};

template <class T>
T of_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T near(double value) {
  const double low = static_cast<double>(std::numeric_limits<T>::lowest()) / 2;
  return static_cast<T>(std::clamp(value, low, static_cast<double>(std::numeric_limits<T>::max()) / 2));
}

template <class T>
T special(std::uint64_t which) {
  using Limits = std::numeric_limits<T>;
  const T all[] = {Limits::quiet_NaN(),  Limits::infinity(),   static_cast<T>(-Limits::infinity()),
                   static_cast<T>(-0.0), Limits::denorm_min(), Limits::max(),
                   Limits::lowest(),     Limits::min()};
  return all[which % std::size(all)];
}

// Bits of any kind, a walk, a smooth curve, counts, one value alone, a lattice of tenths; some of them special ones.
template <class T>
std::vector<T> values_of(fuzz::Input& input, std::size_t values) {
  const std::size_t kind = input.upto(5), specials = input.upto(3);
  const double size = std::pow(10.0, static_cast<double>(input.take<std::int8_t>()) / 4);
  Random random(input.take<std::uint64_t>());
  std::vector<T> out(values);
  double walk = 0, slope = 0;
  for (T& value : out) {
    slope += random.real();
    walk += kind == 2 ? slope : random.real();
    switch (kind) {
      case 0: value = of_bits<T>(random.bits()); break;
      case 3: value = near<T>(std::floor(std::exp(10 * random.real()))); break;
      case 4: value = near<T>(size); break;
      case 5: value = near<T>(std::floor(size * random.real()) * 0.1); break;
      default: value = near<T>(walk * size);
    }
    if (specials > 0 && random.bits() % (1u << 4 * specials) == 0) value = special<T>(random.bits());
  }
  const Bytes given = input.bytes(values * sizeof(T));
  if (!given.empty()) std::memcpy(out.data(), given.data(), given.size());
  return out;
}

template <class T>
bool within(T original, T restored, double bound) {
  if (std::memcmp(&original, &restored, sizeof(T)) == 0) return true;
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(original) || !std::isfinite(restored) || bound == 0) return false;
    return std::fabs(static_cast<long double>(original) - static_cast<long double>(restored)) <=
           static_cast<long double>(bound);
  } else {
    const auto a = static_cast<__int128>(original), b = static_cast<__int128>(restored);
    return static_cast<long double>(a < b ? b - a : a - b) <= static_cast<long double>(bound);
  }
}

// Whether no mark moved, none came to be, and no limit was crossed.
template <class T>
bool means_the_same(T value, T back, std::span<const T> marks, std::span<const T> limits) {
  const bool same = std::memcmp(&value, &back, sizeof(T)) == 0;
  return std::ranges::all_of(marks, [&](T mark) { return same || (value != mark && back != mark); }) &&
         std::ranges::all_of(limits, [&](T limit) { return (value < limit) == (back < limit); });
}

template <class T>
void check(const Array& array, std::span<const T> values, const Asked& asked) {
  const auto spread = [&](std::size_t count, std::size_t from) {
    std::vector<T> some;
    for (std::size_t i = 0; i < count && !values.empty(); ++i) some.push_back(values[(from + 7919 * i) % values.size()]);
    return some;
  };
  const std::vector<T> marks = spread(asked.marks, 0), limits = spread(asked.limits, 31);
  const Marks kept{std::as_bytes(std::span(marks)), std::as_bytes(std::span(limits))};
  const std::vector<std::byte> tables =
      asked.trained ? train({array}, asked.bound, asked.predictor, kept) : std::vector<std::byte>{};
  const std::vector<std::byte> chunk = encode(array, asked.bound, asked.coder, asked.predictor, tables, kept);
  static Scratch scratch;
  for (const Path path : codec_paths()) {
    std::vector<T> back(values.size(), of_bits<T>(0x5555555555555555));
    decode_codec(chunk, std::as_writable_bytes(std::span(back)), tables, scratch, path);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!within(values[i], back[i], asked.bound)) fuzz::broken("a value is beyond the bound");
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!means_the_same<T>(values[i], back[i], marks, limits)) fuzz::broken("a value means something else");
    fuzz::require(compare(values.data(), back.data(), array.number, values.size(), asked.bound).beyond == 0,
                  "solar verify would say that the bound is not kept");
  }
  count.values += values.size();
}

template <class T>
void check(fuzz::Input& input, Number number) {
  const std::vector<std::size_t> shape = shape_of(input);
  const Asked asked = asked_of(input);
  std::size_t n = 1;
  for (const std::size_t length : shape) n *= length;
  const std::vector<T> values = values_of<T>(input, n);
  const Array array{values.data(), number, shape};
  const bool possible = asked.bound >= 0 && std::isfinite(asked.bound);
  try {
    check<T>(array, values, asked);
    fuzz::require(possible, "an impossible bound is kept");
  } catch (const Error& error) {
    if (possible) fuzz::broken(error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  switch (input.upto(9)) {
    case 1: check<double>(input, Number::float64); break;
    case 2: check<std::int8_t>(input, Number::int8); break;
    case 3: check<std::uint8_t>(input, Number::uint8); break;
    case 4: check<std::int16_t>(input, Number::int16); break;
    case 5: check<std::uint16_t>(input, Number::uint16); break;
    case 6: check<std::int32_t>(input, Number::int32); break;
    case 7: check<std::uint32_t>(input, Number::uint32); break;
    case 8: check<std::int64_t>(input, Number::int64); break;
    case 9: check<std::uint64_t>(input, Number::uint64); break;
    default: check<float>(input, Number::float32);
  }
  return 0;
}
