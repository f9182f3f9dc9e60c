// The axes of a conversion, and the order in which they are walked.
//
// plan() is a function of its arguments; a Walk is a value, and may be used by several threads at once. Strides and
// sizes were checked by whoever made the Strided: nothing here checks that a place lies within an array.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "solar/convert.hpp"

namespace solar::converting {

// Where the walk is, or how far one step takes it: in bytes of the source, in values of the output and the terms.
struct Offsets {
  std::ptrdiff_t source = 0, out = 0, mean = 0, deviation = 0;

  Offsets after(const Offsets& step, std::size_t steps) const {
    const auto n = static_cast<std::ptrdiff_t>(steps);
    return {source + n * step.source, out + n * step.out, mean + n * step.mean, deviation + n * step.deviation};
  }
};

struct Axis {
  std::size_t size = 1;
  Offsets step;
};

// Output is written along `along`. Where the source is dense along another axis, that one is `across`, and both are
// walked together in tiles; else its size is 1.
struct Walk {
  std::vector<Axis> outer;
  Axis across;
  Axis along;
  std::size_t period = 0;  // not 0: the terms repeat after so many items of `along`
  bool empty = false;
};

// As few and as long axes as the strides allow. `itemsize` is that of the source.
Walk plan(const Strided& source, std::size_t itemsize, const Term& mean, const Term& deviation);

template <class Visit>
void walk_axes(std::span<const Axis> axes, const Offsets& place, const Visit& visit) {
  if (axes.empty()) return visit(place);
  for (std::size_t i = 0; i < axes[0].size; ++i) walk_axes(axes.subspan(1), place.after(axes[0].step, i), visit);
}

}  // namespace solar::converting
