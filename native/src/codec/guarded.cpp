// Drafts of tiles in which values say "missing". These are put back by the runs behind the coder's bytes, over others
// that let the field go on as smooth as it is; or, where they are strewn too thin for that, coded as all else is.
#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <vector>

#include "codec/draft.hpp"
#include "codec/number.hpp"

namespace solar::codec {
namespace {

// With so many values for each run, or more, the runs cost so little that no other way is tried.
constexpr std::size_t few = 128;

// The first of the values from `first` to `end` - 1 that is marked (`wanted` 1) or is not (0); `end` if there is none. It
// looks at eight at a time: of most neighbours all are marked or none.
std::size_t find_marked(const std::uint8_t* marked, std::size_t first, std::size_t end, std::uint8_t wanted) {
  const std::uint64_t others = wanted == 0 ? 0x0101010101010101 : 0;
  for (; first + 8 <= end; first += 8) {
    const auto eight = load_le<std::uint64_t>(reinterpret_cast<const std::byte*>(marked + first));
    if (eight != others) return first + static_cast<std::size_t>(std::countr_zero(eight ^ others)) / 8;
  }
  while (first < end && marked[first] != wanted) ++first;
  return first;
}

// A straight line goes over so many values. Over more of them the value before the marks foretells as well.
constexpr std::size_t near = 4;

// The shares of the way from one end of a short line to the other.
constexpr auto shares = [] {
  std::array<std::array<double, near>, near> made{};
  for (std::size_t length = 1; length <= near; ++length)
    for (std::size_t i = 0; i < length; ++i)
      made[length - 1][i] = static_cast<double>(i + 1) / static_cast<double>(length + 1);
  return made;
}();

// A line of so many values from `left` to `right`, these not included. Of float32 one between equal ends is constant;
// others are as they come out, which may be less by what the sum is rounded by.
template <class T>
void draw_line(T* out, std::size_t length, T left, T right) {
  if constexpr (std::is_integral_v<T> && sizeof(T) == 8)  // more digits than a double has
    return static_cast<void>(std::fill_n(out, length, left));
  if (std::is_same_v<T, float> && left == right) return static_cast<void>(std::fill_n(out, length, left));
  for (std::int32_t i = 0, steps = static_cast<std::int32_t>(length) + 1; i + 1 < steps; ++i) {
    const double share = static_cast<double>(i + 1) / static_cast<double>(steps);
    out[i] = static_cast<T>(left * (1 - share) + right * share);
  }
}

// The same of a short line, behind which at least `near` values lie: as many are written whatever its length, for where
// marks are strewn a processor cannot foresee that; what lies behind is then put back.
template <class T>
void draw_short_line(T* out, std::size_t length, T left, T right) {
  T behind[near];
  std::copy_n(out + length, near, behind);
  for (std::size_t i = 0; i < near; ++i) {
    const double share = shares[length - 1][i];
    out[i] = std::is_integral_v<T> && sizeof(T) == 8 ? left : static_cast<T>(left * (1 - share) + right * share);
  }
  std::copy_n(behind, near, out + length);
}

// A row with others in place of marks: those on a short line, or the one before, or at its start the one behind.
// Returns whether it has any value; where it has none, nothing is changed.
template <class T>
bool bridge(T* row, const std::uint8_t* marked, std::size_t length) {
  for (std::size_t first = find_marked(marked, 0, length, 1); first < length;) {
    const std::size_t end = find_marked(marked, first, length, 0);
    if (first == 0 && end == length) return false;
    const T left = row[first > 0 ? first - 1 : end];
    if (end - first <= near && end + near <= length)
      draw_short_line(row + first, end - first, left, row[end]);
    else
      draw_line(row + first, end - first, left, end < length && end - first <= near ? row[end] : left);
    first = find_marked(marked, end, length, 1);
  }
  return true;
}

// The values with others in place of the marks that make the field go on as smoothly as may be. REQUIRES: not all are
// marks.
template <class T>
std::vector<T> filled(const T* values, const std::vector<std::uint8_t>& marked, std::size_t length) {
  std::vector<T> out(values, values + marked.size());
  for (std::size_t row = 0; row < out.size(); row += length) {
    if (bridge(out.data() + row, marked.data() + row, length)) continue;
    if (row > 0)
      std::copy_n(out.data() + row - length, length, out.data() + row);
    else
      std::fill_n(out.data(), length, values[find_marked(marked.data(), 0, marked.size(), 0)]);
  }
  return out;
}

// How many runs of equal values the marked ones make.
template <class T>
std::size_t count_runs(const T* values, const std::vector<std::uint8_t>& marked) {
  constexpr std::size_t part = 128;  // whose runs a byte can count
  std::size_t runs = marked[0];
  for (std::size_t first = 1; first < marked.size(); first += part) {
    std::uint8_t found = 0;
    const std::size_t end = std::min(first + part, marked.size());
    for (std::size_t i = first; i < end; ++i) {
      const bool differs = std::bit_cast<BitsOf<T>>(values[i]) != std::bit_cast<BitsOf<T>>(values[i - 1]);
      found =
          static_cast<std::uint8_t>(found + (marked[i] & (static_cast<std::uint8_t>(differs) | (marked[i - 1] ^ 1))));
    }
    runs += found;
  }
  return runs;
}

// These runs. REQUIRES: there are so many.
template <class T>
std::vector<Run> runs_of(const T* values, const std::vector<std::uint8_t>& marked, std::size_t number) {
  std::vector<Run> runs;
  runs.reserve(number);
  for (std::size_t first = find_marked(marked.data(), 0, marked.size(), 1); first < marked.size();) {
    const std::size_t end = find_marked(marked.data(), first, marked.size(), 0);
    while (first < end) {  // several marks may follow one another
      std::size_t same = first + 1;
      while (same < end && same_bits(values[same], values[first])) ++same;
      runs.push_back(
          {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(same - first), bits_of(values[first])});
      first = same;
    }
    first = find_marked(marked.data(), end, marked.size(), 1);
  }
  return runs;
}

// About how many bits a draft takes with so many runs beside it.
template <class T>
double needed_bits(const Draft& draft, std::size_t runs, Coder coder) {
  const double beside = 8.0 * static_cast<double>(runs * (4 + std::max<std::size_t>(4, sizeof(T))));
  return draft.constant ? beside : estimate(draft.residuals, coder) + beside;
}

template <class T>
Draft draft_guarded(const T* values, Extent extent, const Quantiser& how, std::uint32_t tried, Coder coder) {
  const std::size_t count = extent.values();
  const Guard<T> guard(how.marks, how.bound), idle;
  if (!guard.concerns(values, count)) return draft_typed(values, extent, how, idle, tried, coder);
  std::vector<std::uint8_t> marked = guard.marked(values, count);
  const auto marks = static_cast<std::size_t>(std::ranges::count(marked, 1));
  if (marks == 0 || marks == count || !how.coded)
    return draft_typed(values, extent, how, guard, tried, coder);
  const std::vector<T> smooth = filled(values, marked, extent.x);
  const Guard<T>& left = guard.concerns(smooth.data(), count) ? guard : idle;
  Draft draft = draft_typed(smooth.data(), extent, how, left, tried, coder);
  for (const Run& run : draft.runs) std::fill_n(marked.begin() + run.first, run.length, 1);
  const std::size_t runs = count_runs(values, marked);
  const bool given = std::ranges::any_of(guard.marks(), [&](T mark) { return gives(mark, how); });
  tried &= ~interpolations;
  if (given && tried != 0 && runs * few > count) {
    const double bits = needed_bits<T>(draft, runs, coder);
    double least = 0;  // of whole numbers too much hangs on where their steps lie
    if constexpr (std::is_floating_point_v<T>) least = hope * sampled_bits(values, count, extent, how, coder);
    if (least * static_cast<double>(count) <= bits) {
      Draft coded = draft_typed(values, extent, how, guard, tried, coder);
      if (needed_bits<T>(coded, coded.runs.size(), coder) < bits) return coded;
    }
  }
  draft.runs = runs_of(values, marked, runs);
  return draft;
}

}  // namespace

Draft draft_tile(const void* values, Number number, Extent extent, const Quantiser& how, std::uint32_t tried,
                 Coder coder) {
  return with_type(number, [&]<class T>(T) {
    return draft_guarded(static_cast<const T*>(values), extent, how, tried, coder);
  });
}

}  // namespace solar::codec
