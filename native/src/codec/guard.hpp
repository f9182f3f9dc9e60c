// A Guard says what quantising must not confuse: values that say "missing" with others, and the sides of limits.
//
// It is a value with a copy of the marks; any thread may ask it. concerns() is quick and looks at many values; where it
// says true, allows() must be asked of each value. An idle Guard concerns nothing and allows everything.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "codec/quantise.hpp"
#include "solar/codec.hpp"

namespace solar::codec {

template <class T>
inline constexpr T lowest_of =
    std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
template <class T>
inline constexpr T highest_of =
    std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();

// The next number below, and above; at the ends the same one.
template <class T>
T before(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return std::nextafter(value, lowest_of<T>);
  else
    return value == lowest_of<T> ? value : static_cast<T>(value - 1);
}
template <class T>
T behind(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return std::nextafter(value, highest_of<T>);
  else
    return value == highest_of<T> ? value : static_cast<T>(value + 1);
}

// All that is within the bound of a number lies between these, and hardly more.
template <class T>
T lower_end(T value, double bound) {
  if constexpr (std::is_floating_point_v<T>)
    return before(static_cast<T>(std::max<double>(-std::numeric_limits<T>::max(), value - bound)));
  else
    return static_cast<T>(std::max<__int128>(value - static_cast<__int128>(std::min(bound, 0x1p70)), lowest_of<T>));
}
template <class T>
T upper_end(T value, double bound) {
  if constexpr (std::is_floating_point_v<T>)
    return behind(static_cast<T>(std::min<double>(std::numeric_limits<T>::max(), value + bound)));
  else
    return static_cast<T>(std::min<__int128>(value + static_cast<__int128>(std::min(bound, 0x1p70)), highest_of<T>));
}

// A whole number of the same width, for comparing bits: unlike same_bits(), the compiler makes vectors of that.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                                  std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                                     std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;

// Marks of an array's own type. An idle one allows everything.
template <class T>
class Guard {
 public:
  Guard() = default;
  Guard(const Marks& marks, double bound)
      : marks_(marks.values.size() / sizeof(T)), limits_(marks.limits.size() / sizeof(T)) {
    if (marks_ > 0) std::memcpy(points_.data(), marks.values.data(), marks_ * sizeof(T));
    if (limits_ > 0) std::memcpy(points_.data() + marks_, marks.limits.data(), limits_ * sizeof(T));
    for (std::size_t i = 0; i < count(); ++i) around_[i] = {lower_end(points_[i], bound), upper_end(points_[i], bound)};
  }

  bool idle() const { return count() == 0; }
  std::span<const T> marks() const { return {points_.data(), marks_}; }
  std::span<const T> limits() const { return {points_.data() + marks_, limits_}; }

  // The same where values become the nearest that the quantiser gives, and nothing else: then what it gives itself is
  // never off, and no value moves past it. Of 64 bits, integers may go round their end, so that there are two ways.
  Guard rounding(const Quantiser& how) const {
    Guard easier = *this;
    if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return easier;
    for (std::size_t i = 0; i < marks_; ++i) easier.given_[i] = gives(points_[i], how);
    for (std::size_t i = marks_; i < count(); ++i) {
      if (gives(points_[i], how)) easier.around_[i].high = before(points_[i]);
      if (gives(before(points_[i]), how)) easier.around_[i].low = points_[i];
    }
    return easier;
  }

  // Whether a mark is still itself, nothing else became one, and no limit lies between the two.
  bool allows(T value, T restored) const {
    for (std::size_t i = 0; i < marks_; ++i)
      if ((value == points_[i] || restored == points_[i]) && !same_bits(value, restored)) return false;
    for (std::size_t i = marks_; i < count(); ++i)
      if ((value < points_[i]) != (restored < points_[i])) return false;
    return true;
  }

  // Whether any value is within the bound of a mark or a limit: of others, allows() need not be asked. Most arrays lie
  // in one gap between these.
  bool concerns(const T* values, std::size_t length) const {
    if (idle() || length == 0) return false;
    const Range gap = gap_around(values[0]);
    if (gap.low <= gap.high && !any(values, length, [=](T v) { return (v < gap.low) | (v > gap.high); })) return false;
    for (std::size_t i = 0; i < count(); ++i) {
      const Range near = around_[i];
      const auto inside = [=](T v) { return (v >= near.low) & (v <= near.high); };
      const Bits itself = std::bit_cast<Bits>(points_[i]);
      if (given_[i] ? any(values, length, [=](T v) { return inside(v) & (std::bit_cast<Bits>(v) != itself); })
                    : any(values, length, inside))
        return true;
    }
    return false;
  }

  // A byte for each value: 1 for marks.
  std::vector<std::uint8_t> marked(const T* values, std::size_t length) const {
    std::vector<std::uint8_t> found(length);
    for (const T mark : marks())
      for (std::size_t i = 0; i < length; ++i) found[i] |= static_cast<std::uint8_t>(values[i] == mark);
    return found;
  }

 private:
  using Bits = BitsOf<T>;
  struct Range {
    T low, high;
  };
  // What lies around a value and within the bound of nothing; empty, low above high, where it is near to something.
  Range gap_around(T value) const {
    Range gap{lowest_of<T>, highest_of<T>};
    for (std::size_t i = 0; i < count(); ++i) {
      const Range& near = around_[i];
      if (near.high < value)
        gap.low = std::max(gap.low, behind(near.high));
      else if (near.low > value)
        gap.high = std::min(gap.high, before(near.low));
      else
        return {T{1}, T{0}};
    }
    return gap;
  }

  template <class Test>
  static bool any(const T* values, std::size_t length, Test test) {
    int found = 0;
    for (std::size_t i = 0; i < length; ++i) found |= static_cast<int>(test(values[i]));
    return found != 0;
  }

  std::size_t count() const { return marks_ + limits_; }

  std::array<T, most_marks + most_limits> points_{};  // marks, then limits
  std::array<Range, most_marks + most_limits> around_{};
  std::array<bool, most_marks + most_limits> given_{};  // marks that come back by themselves
  std::size_t marks_ = 0, limits_ = 0;
};

// Whether `restored` may stand for `value`, and is not confused with what it is not.
template <class T>
bool stands(T value, T restored, double bound, const Guard<T>& guard) {
  return may_stand(value, restored, bound) && guard.allows(value, restored);
}

}  // namespace solar::codec
