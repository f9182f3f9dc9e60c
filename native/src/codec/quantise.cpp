#include "codec/quantise.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "codec/number.hpp"

namespace solar::codec {
namespace {

template <class T>
struct Traits;
template <>
struct Traits<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa = 23, exponents = 255, bias = 127;
  static constexpr double reach = 0x1p22;    // largest value, in bounds, of which a step is still half its rounding
  static constexpr double margin = 0x1p-22;  // for the rounding of the quotient
  static constexpr double least = 0x1p-110;  // step, so that a sixteenth of it is normal
};
template <>
struct Traits<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa = 52, exponents = 2047, bias = 1023;
  static constexpr double reach = 0x1p29, margin = 0x1p-48, least = 0x1p-1000;
};

// What a pass over the values shows.
struct Seen {
  std::size_t finite = 0, near = 0;  // near: small enough for the bound
  double largest = 0, largest_near = 0;
};

// In whole numbers, whose order is that of the values' sizes.
template <class T>
Seen look(std::span<const T> values, double bound) {
  using Bits = typename Traits<T>::Bits;
  using Order = std::make_signed_t<Bits>;
  constexpr auto sizes = static_cast<Order>(~Bits{0} >> 1);
  constexpr auto infinite = std::bit_cast<Order>(std::numeric_limits<T>::infinity());
  const double most = bound * Traits<T>::reach, top = std::numeric_limits<T>::max();
  const auto reach = std::bit_cast<Order>(static_cast<T>(std::min(most, top)));
  Order finite = 0, near = 0, largest = 0, largest_near = 0;
  for (const T value : values) {
    const Order size = std::bit_cast<Order>(value) & sizes;
    const Order is_finite = size < infinite, is_near = size <= reach;
    finite += is_finite;
    near += is_near;
    largest = std::max<Order>(largest, size & -is_finite);
    largest_near = std::max<Order>(largest_near, size & -is_near);
  }
  return {static_cast<std::size_t>(finite), static_cast<std::size_t>(near), std::bit_cast<T>(largest),
          std::bit_cast<T>(largest_near)};
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
int common_grain(std::span<const T> values, double largest) {
  int grain = only_zeros;
  const int top = largest > 0 ? std::ilogb(largest) : 0;
  for (const T value : values) {
    if (!std::isfinite(value) || value == 0) continue;
    grain = std::min(grain, grain_of(value));
    if (top - grain > 29) return no_grain;
  }
  return grain;
}

// The greatest g of which every finite value is a multiple, when the multiples are below 2^30; else 0.
template <class T>
double common_step(std::span<const T> values, const Seen& seen) {
  const int grain = common_grain(values, seen.largest);
  if (grain == no_grain) return 0;
  if (grain == only_zeros) return 1;
  const double unit = std::ldexp(1.0, grain);
  std::uint64_t common = 0;
  for (const T value : values)
    if (std::isfinite(value) && common != 1)
      common = std::gcd(common, static_cast<std::uint64_t>(std::fabs(static_cast<double>(value)) / unit));
  const double step = unit * static_cast<double>(common);
  return static_cast<double>(static_cast<T>(step)) == step ? step : unit;
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
  const Seen seen = look(values, bound);
  const double g = common_step(values, seen), on_lattice = lattice_step(g, bound);
  if (seen.finite > 0 && on_lattice >= Traits<T>::least && on_lattice < std::numeric_limits<T>::max()) {
    how.lattice = true;
    how.step = on_lattice;
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

template <class T>
Quantiser whole_quantiser(std::span<const T> values, double bound) {
  Quantiser how{.quanta = Quanta::integer, .bound = bound};
  how.whole_step = 2 * static_cast<std::int64_t>(std::min(bound, 0x1p61)) + 1;
  if (values.empty() || (sizeof(T) <= 4 && how.whole_step == 1)) return how;
  const auto [low, high] = std::ranges::minmax(values);
  const __int128 reach = static_cast<__int128>(how.whole_step) << 30;
  if (low > -reach && high < reach) return how;
  const __int128 middle = (static_cast<__int128>(low) + static_cast<__int128>(high)) / 2;
  how.whole_base = static_cast<std::int64_t>(static_cast<std::uint64_t>(middle));
  if (middle > std::numeric_limits<std::int64_t>::max()) how.coded = false;
  return how;
}

}  // namespace

Quantiser quantiser_for(const void* values, Number number, std::size_t count, double bound) {
  return with_type(number, [&]<class T>(T) {
    const std::span typed(static_cast<const T*>(values), count);
    if constexpr (std::is_floating_point_v<T>)
      return real_quantiser(typed, bound);
    else
      return whole_quantiser(typed, bound);
  });
}

}  // namespace solar::codec
