// Drafts of tiles in which values say "missing". These are put back by the runs behind the coder's bytes, over others
// that let the field go on as smooth as it is; or, where they are strewn too thin for that, coded as all else is.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "codec/draft.hpp"
#include "codec/number.hpp"

namespace solar::codec {
namespace {

constexpr std::size_t few = 128;  // values for a run, or more: no other way is tried

// From one value to another, `at` of `of` steps on the way.
template <class T>
T between(T from, T to, std::size_t at, std::size_t of) {
  if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return from;  // more digits than a double has
  const double share = static_cast<double>(at) / static_cast<double>(of);
  return static_cast<T>(from * (1 - share) + to * share);
}

constexpr std::size_t near = 4;  // values that a straight line goes over: a longer one has more to tell than one value

// A row with others in place of marks: those on a short line, or the one before, or at its start the one behind. What
// has no value stays.
template <class T>
void bridge(T* row, const std::uint8_t* marked, std::size_t length) {
  for (std::size_t first = 0; first < length; ++first) {
    if (marked[first] == 0) continue;
    const std::size_t end = static_cast<std::size_t>(std::find(marked + first, marked + length, 0) - marked);
    if (first == 0 && end == length) return;
    const T left = row[first > 0 ? first - 1 : end];
    const T right = end < length && end - first <= near ? row[end] : left;
    for (std::size_t i = first; i < end; ++i) row[i] = between(left, right, i - first + 1, end - first + 1);
    first = end;
  }
}

// The values with others in place of the marks that make the field go on as smoothly as may be. REQUIRES: not all are
// marks.
template <class T>
std::vector<T> filled(const T* values, const std::vector<std::uint8_t>& marked, std::size_t length) {
  std::vector<T> out(values, values + marked.size());
  const auto first = static_cast<std::size_t>(std::ranges::find(marked, 0) - marked.begin());
  for (std::size_t row = 0; row < out.size(); row += length) {
    bridge(out.data() + row, marked.data() + row, length);
    const auto* const end = marked.data() + row + length;
    if (std::find(marked.data() + row, end, 0) != end) continue;
    if (row > 0)
      std::copy_n(out.data() + row - length, length, out.data() + row);
    else
      std::fill_n(out.data(), length, values[first]);
  }
  return out;
}

// Runs of the marks, and of what a draft keeps of the others.
template <class T>
std::vector<Run> with_marks(const T* values, std::vector<std::uint8_t> marked, const std::vector<Run>& kept) {
  for (const Run& run : kept) std::fill_n(marked.begin() + run.first, run.length, 1);
  std::vector<Run> runs;
  for (auto at = std::ranges::find(marked, 1); at != marked.end(); at = std::find(at + 1, marked.end(), 1))
    keep(runs, static_cast<std::size_t>(at - marked.begin()), values[at - marked.begin()]);
  return runs;
}

template <class T>
double needed_bits(const Draft& draft, Coder coder) {
  return draft.constant ? 8.0 * static_cast<double>(draft.runs.size() * (4 + std::max<std::size_t>(4, sizeof(T))))
                        : cost_of<T>(draft, coder);
}

template <class T>
Draft draft_guarded(const T* values, Extent extent, const Quantiser& how, std::uint32_t tried, Coder coder) {
  const std::size_t count = extent.values();
  const Guard<T> guard(how.marks, how.bound), idle;
  if (!guard.concerns(values, count)) return draft_typed(values, extent, how, idle, tried, coder);
  const std::vector<std::uint8_t> marked = guard.marked(values, count);
  const auto marks = static_cast<std::size_t>(std::ranges::count(marked, 1));
  if (marks == 0 || marks == count || !how.coded)
    return draft_typed(values, extent, how, guard, tried, coder);
  const std::vector<T> smooth = filled(values, marked, extent.x);
  const Guard<T>& left = guard.concerns(smooth.data(), count) ? guard : idle;
  Draft draft = draft_typed(smooth.data(), extent, how, left, tried, coder);
  draft.runs = with_marks(values, marked, draft.runs);
  const bool given = std::ranges::any_of(guard.marks(), [&](T mark) { return gives(mark, how); });
  tried &= ~interpolations;
  if (!given || tried == 0 || draft.runs.size() * few <= count) return draft;
  Draft coded = draft_typed(values, extent, how, guard, tried, coder);
  return needed_bits<T>(coded, coder) < needed_bits<T>(draft, coder) ? std::move(coded) : std::move(draft);
}

}  // namespace

Draft draft_tile(const void* values, Number number, Extent extent, const Quantiser& how, std::uint32_t tried,
                 Coder coder) {
  return with_type(number, [&]<class T>(T) {
    return draft_guarded(static_cast<const T*>(values), extent, how, tried, coder);
  });
}

}  // namespace solar::codec
