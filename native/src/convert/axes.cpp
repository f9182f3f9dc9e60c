#include "convert/axes.hpp"

#include <algorithm>
#include <cstdlib>

namespace solar::converting {
namespace {

constexpr std::size_t long_enough = 64;  // items along the innermost axis that pay for the walk to them

bool continues(const Offsets& outer, const Axis& inner) {
  const Offsets end = Offsets{}.after(inner.step, inner.size);
  return outer.source == end.source && outer.mean == end.mean && outer.deviation == end.deviation;
}

bool same_terms_all_along(const Axis& axis) { return axis.step.mean == 0 && axis.step.deviation == 0; }

// Axes of more than one item, outermost first; neighbours that are one run everywhere are one axis.
std::vector<Axis> joined(const Strided& source, const Term& mean, const Term& deviation) {
  const auto step = [](const Term& term, std::size_t axis) { return term.values == nullptr ? 0 : term.strides[axis]; };
  std::vector<Axis> axes;  // innermost first
  std::ptrdiff_t out = 1;
  for (std::size_t i = source.shape.size(); i-- > 0;) {
    const std::size_t size = source.shape[i];
    if (size == 1) continue;
    const Offsets place{source.strides[i], out, step(mean, i), step(deviation, i)};
    if (!axes.empty() && continues(place, axes.back())) {
      axes.back().size *= size;
    } else {
      axes.push_back({size, place});
    }
    out *= static_cast<std::ptrdiff_t>(size);
  }
  std::reverse(axes.begin(), axes.end());
  return axes;
}

// One axis of two, where the innermost has few items and the next repeats its terms: the colours of pixels.
void join_repeated(Walk& walk) {
  if (walk.outer.empty() || walk.along.size >= long_enough) return;
  const Axis& repeats = walk.outer.back();
  const std::ptrdiff_t end = Offsets{}.after(walk.along.step, walk.along.size).source;
  if (repeats.step.source != end || !std::ranges::all_of(walk.outer, same_terms_all_along)) return;
  walk.period = walk.along.size;
  walk.along.size *= repeats.size;
  walk.outer.pop_back();
}

}  // namespace

Walk plan(const Strided& source, std::size_t itemsize, const Term& mean, const Term& deviation) {
  Walk walk;
  walk.empty = std::ranges::find(source.shape, std::size_t{0}) != source.shape.end();
  walk.outer = joined(source, mean, deviation);
  if (walk.empty || walk.outer.empty()) return walk;
  walk.along = walk.outer.back();
  walk.outer.pop_back();
  if (walk.along.step.source == static_cast<std::ptrdiff_t>(itemsize)) {
    join_repeated(walk);
    return walk;
  }
  const auto stride = [](const Axis& axis) { return std::abs(axis.step.source); };
  const auto densest = std::ranges::min_element(walk.outer, {}, stride);
  if (densest == walk.outer.end() || stride(*densest) >= stride(walk.along)) return walk;
  walk.across = *densest;
  walk.outer.erase(densest);
  return walk;
}

}  // namespace solar::converting
