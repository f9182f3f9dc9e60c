// Which rows samples are made of: solar/samples/row_windows.py, for who carries plans out.
//
// A value: a few small arrays of its own. Any thread may use it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace solar {

// Row k of a sample lies steps[k] rows from its place, held within the stretch of that. Stretch s has the samples from
// first[s] on: at the row anchor[s], and each `every` rows behind the one before. Fields of one dataset follow one
// another: sizes[f] of the steps are field f's.
struct Extents {
  std::vector<std::int64_t> first;  // stretches + 1: the last is the number of samples
  std::vector<std::int64_t> anchor, low, high;
  std::int64_t every = 1;
  std::vector<std::int64_t> steps, sizes;

  struct RowLimits {
    std::int64_t row, low, high;
  };

  std::int64_t samples() const noexcept { return first.back(); }
  std::size_t slots() const noexcept { return steps.size(); }
  // REQUIRES: 0 <= sample < samples().
  RowLimits place(std::int64_t sample) const noexcept {
    const auto s = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), sample) - first.begin()) - 1;
    return {anchor[s] + (sample - first[s]) * every, low[s], high[s]};
  }
  std::int64_t row(const RowLimits& place, std::size_t k) const noexcept {
    return std::clamp(place.row + steps[k], place.low, place.high - 1);
  }
  // Calls act(k, slot) for each row of the sample at `position` of so many: all of the first field, then all of the second.
  template <class Act>
  void each_slot(std::int64_t position, std::int64_t samples, const Act& act) const {
    std::int64_t begin = 0;
    std::size_t k = 0;
    for (const std::int64_t size : sizes) {
      for (std::int64_t within = 0; within < size; ++within) {
        act(k++, position < 0 ? -1 : begin * samples + position * size + within);
      }
      begin += size;
    }
  }
  // Throws std::invalid_argument unless the arrays fit each other, and all places and stretches lie in so many rows.
  void check(std::int64_t rows) const {
    const std::size_t stretches = anchor.size();
    bool fits = first.size() == stretches + 1 && low.size() == stretches && high.size() == stretches;
    fits = fits && first.front() == 0 && std::is_sorted(first.begin(), first.end()) && every >= 1 && !steps.empty();
    std::int64_t all = 0;
    for (const std::int64_t size : sizes) fits = fits && size >= 1 && (all += size) <= static_cast<std::int64_t>(slots());
    fits = fits && all == static_cast<std::int64_t>(slots());
    for (const std::int64_t step : steps) fits = fits && step > -(std::int64_t{1} << 32) && step < std::int64_t{1} << 32;
    for (std::size_t s = 0; fits && s < stretches; ++s) {
      const std::int64_t more = first[s + 1] - first[s] - 1;
      fits = 0 <= low[s] && low[s] <= anchor[s] && anchor[s] < high[s] && high[s] <= rows;
      fits = fits && more <= (high[s] - 1 - anchor[s]) / every;
    }
    if (!fits) throw std::invalid_argument("the arrays of these extents do not fit each other, or the rows there are");
  }
};

}  // namespace solar
