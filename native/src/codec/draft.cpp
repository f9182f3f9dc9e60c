// Tries what a tile's values can be foretold by, and keeps the best.
#include "codec/draft.hpp"

#include <algorithm>

#include "codec/interpolation.hpp"
#include "codec/number.hpp"

namespace solar::codec {
namespace {

constexpr std::uint32_t interpolated = 1u << 8;

std::vector<std::int32_t> blocks_of(std::size_t values) {
  return std::vector<std::int32_t>((values + block - 1) / block * block);
}

template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

// Appends a value to the runs.
template <class T>
void keep(std::vector<Run>& runs, std::size_t at, T value) {
  const std::uint64_t bits = bits_of(value);
  if (!runs.empty() && runs.back().bits == bits && runs.back().first + runs.back().length == static_cast<int>(at))
    ++runs.back().length;
  else
    runs.push_back({static_cast<std::uint16_t>(at), 1, bits});
}

// One value that may stand for all of them.
template <class T>
bool constant(const T* values, std::size_t count, double bound, std::uint64_t& bits) {
  if (std::all_of(values, values + count, [&](T v) { return same_bits(v, values[0]); })) {
    bits = bits_of(values[0]);
    return true;
  }
  if (bound == 0) return false;
  T low = values[0], high = values[0];
  for (std::size_t i = 0; i < count; ++i) {
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
    // Two bounds apart, or NaN, or infinite: the usual end of this loop is soon.
    const bool close = static_cast<double>(high) - static_cast<double>(low) <= 2 * bound && values[i] - values[i] == 0;
    if (!close) return false;
  }
  T middle = static_cast<T>(low / 2 + high / 2);
  if (low <= 0 && high >= 0 && may_stand(low, T{0}, bound) && may_stand(high, T{0}, bound)) middle = 0;
  bits = bits_of(middle);
  return may_stand(low, middle, bound) && may_stand(high, middle, bound);
}

// Where no value needs a closer look.
template <class T>
bool quantise_quickly(const T* values, std::size_t count, const Quantiser& how, std::int32_t* out) {
  const Kernels& fast = kernels(codec_paths().back());
  const Asked asked{how.step, how.base, how.bound};
  if constexpr (std::is_same_v<T, float>) {
    if (how.quanta == Quanta::real && how.bound > 0) return fast.quantise32(values, count, asked, out);
  } else if constexpr (std::is_same_v<T, double>) {
    if (how.quanta == Quanta::real && how.bound > 0) return fast.quantise64(values, count, asked, out);
  } else if constexpr (sizeof(T) <= 4) {
    if (how.whole_step != 1 || how.whole_base != 0) return false;
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(values[i]);
    return true;
  }
  return false;
}

// Integers for all values; those that none stands for are kept.
template <class T>
void quantise_all(const T* values, std::size_t count, const Quantiser& how, std::int32_t* out, std::vector<Run>& runs) {
  if (quantise_quickly(values, count, how, out)) return;
  std::int32_t last = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t v;
    const bool found = quantise(values[i], how, v);
    if (!found || (how.quanta != Quanta::bits && !may_stand(values[i], restored<T>(v, how), how.bound))) {
      keep(runs, i, values[i]);
      v = last;
    }
    out[i] = last = v;
  }
}

// Values to residuals along one axis, in place: each less the one before, `back` away.
void difference(std::int32_t* values, Extent extent, unsigned axis) {
  const std::size_t row = extent.x, plane = row * extent.y;
  const std::size_t back = axis == 1 ? 1 : axis == 2 ? row : plane;
  for (std::size_t z = extent.z; z-- > 0;)
    for (std::size_t y = extent.y; y-- > 0;) {
      if ((axis == 4 && z == 0) || (axis == 2 && y == 0)) continue;
      std::int32_t* const line = values + z * plane + y * row;
      for (std::size_t x = row; x-- > (axis == 1 ? 1u : 0u);)
        line[x] = sub(line[x], line[x - static_cast<std::ptrdiff_t>(back)]);
    }
}

// The residuals of the interpolation, each foretold from what the decoder will have.
template <class T>
Draft interpolate(const T* values, Extent extent, const Quantiser& how, unsigned predictor) {
  Draft draft;
  draft.predictor = static_cast<std::uint8_t>(predictor);
  draft.residuals = blocks_of(extent.values());
  std::vector<std::int32_t> made(extent.values());
  Quantiser fine = how;
  fine.step = how.step / 16;
  const double scale = 1 / fine.step;
  std::size_t next = 0;
  const auto valid = [&](double v) { return std::fabs(v) < 0x1p26; };
  const double start = (static_cast<double>(values[0]) - how.base) * scale;
  draft.origin = valid(start) ? static_cast<std::int32_t>(std::nearbyint(start)) : 0;
  std::vector<std::uint16_t> kept;
  interpolate_all(extent, stride_of(predictor), draft.origin, made.data(), [&](std::size_t at, std::int32_t foretold) {
    const double aim = (static_cast<double>(values[at]) - how.base) * scale;
    const double away = std::nearbyint((aim - foretold) / 16);
    const bool near = valid(aim) && std::fabs(away) < 0x1p26;
    const std::int32_t residual = near ? static_cast<std::int32_t>(away) : 0;
    draft.residuals[next++] = residual;
    made[at] = add(foretold, 16 * residual);
    if (!near || !may_stand(values[at], restored<T>(made[at], fine), how.bound))
      kept.push_back(static_cast<std::uint16_t>(at));
  });
  std::ranges::sort(kept);
  for (const std::uint16_t at : kept) keep(draft.runs, at, values[at]);
  return draft;
}

template <class T>
double cost_of(const Draft& draft, Coder coder) {
  const std::size_t kept = draft.runs.size() * (4 + std::max<std::size_t>(4, sizeof(T)));
  return estimate(draft.residuals, coder) + 8.0 * static_cast<double>(kept);
}

// The best interpolation, or `other` where that is better. Wider strides are tried while they are better.
template <class T>
Draft smoothest(const T* values, Extent extent, const Quantiser& how, Coder coder, Draft* other) {
  const std::uint32_t longest = std::max({extent.z, extent.y, extent.x});
  Draft best = interpolate(values, extent, how, first_interpolation);
  double least = cost_of<T>(best, coder);
  if (other != nullptr && cost_of<T>(*other, coder) <= least) return std::move(*other);
  for (unsigned predictor = first_interpolation + 1; predictor <= last_interpolation; ++predictor) {
    if (stride_of(predictor) / 2 >= longest) break;
    Draft wider = interpolate(values, extent, how, predictor);
    const double bits = cost_of<T>(wider, coder);
    if (bits >= least) break;
    least = bits;
    best = std::move(wider);
  }
  return best;
}

template <class T>
Draft draft_typed(const T* values, Extent extent, const Quantiser& how, std::uint32_t tried, Coder coder) {
  const std::size_t count = extent.values();
  Draft best;
  best.constant = constant(values, count, how.bound, best.bits);
  best.raw = !how.coded;
  if (best.constant || best.raw) return best;
  best.residuals = blocks_of(count);
  quantise_all(values, count, how, best.residuals.data(), best.runs);
  std::vector<std::int32_t> trial = best.residuals;
  const bool smooth = std::is_floating_point_v<T> && how.quanta == Quanta::real && !how.lattice;
  if (tried == interpolated && !smooth) tried = 1u << (extent.z > 1 ? 7 : extent.y > 1 ? 3 : 1);
  double least = -1;
  unsigned done = 0;
  std::int32_t origin = 0;
  const auto take = [&](unsigned axes) {
    if ((tried >> axes & 1) == 0) return;
    if (axes != 0 && done == 0) {  // zeros are many where nothing is foretold: they stay zeros
      origin = trial[0];
      for (std::size_t i = 0; i < count; ++i) trial[i] = sub(trial[i], origin);
    }
    for (const unsigned axis : {1u, 2u, 4u})
      if (axes & ~done & axis) difference(trial.data(), extent, axis);
    done |= axes;
    const double bits = estimate(trial, coder);
    if (least >= 0 && bits >= least) return;
    least = bits;
    best.residuals = trial;
    best.origin = axes == 0 ? 0 : origin;
    best.predictor = static_cast<std::uint8_t>(axes);
  };
  for (const unsigned axes : {0u, 1u, 3u, 7u}) take(axes);
  if constexpr (std::is_floating_point_v<T>)
    if ((tried & interpolated) && smooth) return smoothest(values, extent, how, coder, least < 0 ? nullptr : &best);
  return best;
}

}  // namespace

double estimate(const std::vector<std::int32_t>& residuals, Coder coder) {
  double bits = 0;
  for (std::size_t b = 0; b < residuals.size(); b += block) {
    if (coder == Coder::pack) {
      bits += block * width_of(residuals.data() + b);
      continue;
    }
    std::uint64_t sum = 0;
    std::int32_t sign = 0;
    for (std::size_t i = 0; i < block; ++i) {
      const std::int32_t r = residuals[b + i];
      sign |= r;
      sum += static_cast<std::uint32_t>(r < 0 ? 0u - static_cast<std::uint32_t>(r) : static_cast<std::uint32_t>(r));
    }
    // The entropies of geometric sizes, with signs and without, nearly.
    bits += block * std::log2(1 + static_cast<float>(sum) * ((sign < 0 ? 5.44f : 3.2f) / block));
  }
  return bits;
}

Draft draft_tile(const void* values, Number number, Extent extent, const Quantiser& how, std::uint32_t tried,
                 Coder coder) {
  return with_type(number,
                   [&]<class T>(T) { return draft_typed(static_cast<const T*>(values), extent, how, tried, coder); });
}

}  // namespace solar::codec
