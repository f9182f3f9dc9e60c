#include "codec/quantise.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "codec/encoding.hpp"
#include "codec/guard.hpp"
#include "codec/number.hpp"

namespace solar::codec {
namespace {

template <class T>
struct Traits;
template <>
struct Traits<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa = 23, exponents = 255, bias = 127;
  // The largest value, in bounds, at which a step is still half its rounding.
  static constexpr double reach = 0x1p22;
  static constexpr double margin = 0x1p-22;  // for the rounding of the quotient
  static constexpr double least = 0x1p-110;  // step, so that a sixteenth of it is normal
};
template <>
struct Traits<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa = 52, exponents = 2047, bias = 1023;
  static constexpr double reach = 0x1p29, margin = 0x1p-48, least = 0x1p-1000;
};

template <class T>
Seen look_at(std::span<const T> values, double bound) {
  const double most = bound * Traits<T>::reach, top = std::numeric_limits<T>::max();
  const auto reach = static_cast<T>(std::min(most, top));
  if constexpr (sizeof(T) == 4)
    return encoding_kernels().look32(values.data(), values.size(), reach);
  else
    return encoding_kernels().look64(values.data(), values.size(), reach);
}

template <class T>
bool all_multiples(std::span<const T> values, double step) {
  if constexpr (sizeof(T) == 4)
    return encoding_kernels().multiples32(values.data(), values.size(), step);
  else
    return encoding_kernels().multiples64(values.data(), values.size(), step);
}

template <class T>
int grain_of(T value) {
  using Bits = typename Traits<T>::Bits;
  constexpr int mantissa = Traits<T>::mantissa;
  const Bits bits = std::bit_cast<Bits>(value), fraction = bits & ((Bits{1} << mantissa) - 1);
  const int exponent = static_cast<int>(bits >> mantissa) & Traits<T>::exponents;
  const Bits whole = exponent == 0 ? fraction : fraction | Bits{1} << mantissa;
  return std::max(exponent, 1) - Traits<T>::bias - mantissa + std::countr_zero(whole);
}

constexpr int only_zeros = 5000, no_grain = -5000;

// The largest e for which all finite values are multiples of 2^e and below 2^(e + 30). Most fields show soon that there
// is none.
template <class T>
int common_grain(std::span<const T> values, std::size_t stride, double largest) {
  int grain = only_zeros;
  const int top = largest > 0 ? std::ilogb(largest) : 0;
  for (std::size_t i = 0; i < values.size(); i += stride) {
    if (!std::isfinite(values[i]) || values[i] == 0) continue;
    grain = std::min(grain, grain_of(values[i]));
    if (top - grain > 29) return no_grain;
  }
  return grain;
}

// The greatest g of which every `stride`-th finite value is a multiple, when the multiples are below 2^30; else 0.
template <class T>
double common_step(std::span<const T> values, std::size_t stride, const Seen& seen) {
  const int grain = common_grain(values, stride, seen.largest);
  if (grain == no_grain) return 0;
  if (grain == only_zeros) return 1;
  const double unit = std::ldexp(1.0, grain);
  std::uint64_t common = 0;
  for (std::size_t i = 0; i < values.size() && common != 1; i += stride)
    if (std::isfinite(values[i]))
      common = std::gcd(common, static_cast<std::uint64_t>(std::fabs(static_cast<double>(values[i])) / unit));
  const double step = unit * static_cast<double>(common);
  return static_cast<double>(static_cast<T>(step)) == step ? step : unit;
}

// Of all values: some of them tell, and the others agree, or are asked one by one.
template <class T>
double common_step(std::span<const T> values, const Seen& seen) {
  const std::size_t stride = values.size() / 200 + 1;
  const double step = common_step(values, stride, seen);
  return step == 0 || stride == 1 || all_multiples(values, step) ? step : common_step(values, 1, seen);
}

// The step on the lattice of multiples of g; 0 when plain steps do better.
double lattice_step(double g, double bound) {
  if (g == 0) return 0;
  const double step = g * (2 * std::floor(bound / g) + 1);
  return bound < g || step > 2 * bound ? step : 0;
}

// The next number towards 0 that T can hold.
template <class T>
double rounded_down(double value) {
  const T near = static_cast<T>(value);
  return near > value ? std::nextafter(near, T{0}) : near;
}

template <class T>
std::pair<double, double> ends(std::span<const T> values) {
  double low = std::numeric_limits<double>::max(), high = -low;
  for (const T value : values)
    if (std::isfinite(value)) low = std::min<double>(low, value), high = std::max<double>(high, value);
  return {low, high};
}

template <class T>
Quantiser real_quantiser(std::span<const T> values, double bound) {
  Quantiser how{.bound = bound};
  const Seen seen = look_at(values, bound);
  const double g = common_step(values, seen), on_lattice = lattice_step(g, bound);
  if (seen.finite > 0 && on_lattice >= Traits<T>::least && on_lattice < std::numeric_limits<T>::max()) {
    how.lattice = true;
    how.step = on_lattice;
    how.unit = g;
    return how;
  }
  double largest = seen.largest_near;
  bool possible = 2 * seen.near >= seen.finite;
  if (sizeof(T) == 8 && !possible) {  // far from 0, but close together
    const auto [low, high] = ends(values);
    if (high - low < bound * Traits<T>::reach) {
      how.base = low + (high - low) / 2;
      largest = seen.largest;
      possible = true;
    }
  }
  const double ulp = std::nextafter(static_cast<T>(largest), std::numeric_limits<T>::infinity()) - largest;
  const double step = std::min(2 * (bound - ulp / 2) * (1 - Traits<T>::margin), std::numeric_limits<T>::max() / 4.0);
  if (possible && std::isfinite(ulp) && step >= Traits<T>::least) {
    how.step = rounded_down<T>(step);
    return how;
  }
  how.quanta = sizeof(T) == 4 ? Quanta::bits : Quanta::real;
  how.coded = sizeof(T) == 4;
  return how;
}

// The greatest g of which all differences are multiples; 0 when there are none.
template <class T>
std::uint64_t common_difference(std::span<const T> values) {
  std::uint64_t common = 0;
  for (const T value : values) {
    const auto a = static_cast<std::uint64_t>(value), b = static_cast<std::uint64_t>(values[0]);
    common = std::gcd(common, value < values[0] ? b - a : a - b);
    if (common == 1) break;
  }
  return common;
}

template <class T>
Quantiser whole_quantiser(std::span<const T> values, double bound) {
  Quantiser how{.quanta = Quanta::integer, .bound = bound};
  const auto whole_bound = static_cast<std::int64_t>(std::min(bound, 0x1p61));
  how.whole_step = 2 * whole_bound + 1;
  if (values.empty()) return how;
  const auto g = static_cast<__int128>(common_difference(values));
  const __int128 on_lattice = g <= 1 ? 0 : g * (2 * (whole_bound / g) + 1);
  if (on_lattice < 0x1p62 && on_lattice > 0 && (whole_bound < g || on_lattice > how.whole_step)) {
    how.whole_step = static_cast<std::int64_t>(on_lattice);
    how.whole_unit = static_cast<std::int64_t>(g);
    how.lattice = true;
  }
  if (sizeof(T) <= 4 && how.whole_step == 1) return how;
  const __int128 apart = how.lattice ? g : 1, first = values[0];
  const __int128 nearest = (first % apart + apart) % apart;  // to 0, of the lattice
  T least = values[0], most = values[0];
  for (const T value : values) least = std::min(least, value), most = std::max(most, value);
  const __int128 low = least, high = most;
  const __int128 reach = static_cast<__int128>(how.whole_step) << 30;
  __int128 base = nearest;
  if (low - base <= -reach || high - base >= reach) {
    const __int128 middle = (low + high) / 2;
    base = first + (middle - first) / apart * apart;
  }
  how.whole_base = static_cast<std::int64_t>(static_cast<std::uint64_t>(base));
  return how;
}

template <class T>
Quantiser plain_quantiser(std::span<const T> values, double bound) {
  if constexpr (std::is_floating_point_v<T>)
    return real_quantiser(values, bound);
  else
    return whole_quantiser(values, bound);
}

// Marks that take more bits than this for each value of the chunk, if they are kept beside the coder's bytes, are worth
// a finer step or another base.
constexpr double worth_aligning = 0.5;

// What it would cost to keep marks and what is near to limits, where that is much.
template <class T>
std::vector<Target<T>> targets_of(std::span<const T> values, const Guard<T>& guard, double bound) {
  const double each = 8.0 * (4 + std::max<std::size_t>(4, sizeof(T))) / static_cast<double>(values.size());
  std::vector<Target<T>> targets;
  const auto add = [&](T value, std::size_t runs) {
    if (const double bits = each * static_cast<double>(runs); bits > worth_aligning) targets.push_back({value, bits});
  };
  for (const T mark : guard.marks()) {
    std::uint32_t runs = values[0] == mark;  // a chunk has fewer than 2^32 values
    for (std::size_t i = 1; i < values.size(); ++i)
      runs += static_cast<std::uint32_t>((values[i] == mark) & (values[i - 1] != mark));
    add(mark, runs);
  }
  for (const T limit : guard.limits()) {
    const auto below = static_cast<T>(before(limit)), low = lower_end(limit, bound), high = upper_end(limit, bound);
    std::uint32_t under = 0, over = 0;
    for (const T value : values) {
      under += static_cast<std::uint32_t>((value >= low) & (value < limit));
      over += static_cast<std::uint32_t>((value >= limit) & (value <= high));
    }
    add(under > over ? below : limit, (std::size_t{under} + over) / 2);
  }
  return targets;
}

// Of an array in which some values are marks, or near to them or to a limit: that of the others, and as close to these
// as it can be.
template <class T>
Quantiser guarded_quantiser(std::span<const T> values, double bound, const Marks& marks) {
  const Guard<T> guard(marks, bound);
  if (!guard.concerns(values.data(), values.size())) return plain_quantiser(values, bound);
  const std::vector<std::uint8_t> marked = guard.marked(values.data(), values.size());
  // Each value is written and only counted if it is no mark: where marks are strewn, a processor foresees no branch.
  std::vector<T> real(values.size());
  std::size_t reals = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    real[reals] = values[i];
    reals += marked[i] == 0;
  }
  real.resize(reals);
  Quantiser how = plain_quantiser(real.empty() ? values : std::span<const T>(real), bound);
  how.marks = marks;
  align<T>(how, targets_of(values, guard, bound));
  return how;
}

}  // namespace

Quantiser quantiser_for(const void* values, Number number, std::size_t count, double bound, const Marks& marks) {
  return with_type(number, [&]<class T>(T) {
    return guarded_quantiser(std::span(static_cast<const T*>(values), count), bound, marks);
  });
}

}  // namespace solar::codec
