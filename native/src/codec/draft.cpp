// Tries what a tile's values can be foretold by, and keeps the best.
#include "codec/draft.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "codec/encoding.hpp"
#include "codec/guard.hpp"
#include "codec/interpolation.hpp"
#include "codec/number.hpp"

namespace solar::codec {
namespace {

// So many values are quantised together. If one of them asks for a closer look, they are quantised one by one.
constexpr std::size_t piece = 512;

// One value that may stand for all of them.
template <class T>
bool constant(const T* values, std::size_t count, double bound, const Guard<T>& guard, std::uint64_t& bits) {
  for (std::size_t i = 0; i < count; i += count / 64 + 1)  // what is not constant shows it here
    if (static_cast<double>(values[i]) - static_cast<double>(values[0]) > 2 * bound ||
        static_cast<double>(values[0]) - static_cast<double>(values[i]) > 2 * bound)
      return false;
  if (std::all_of(values, values + count, [&](T v) { return same_bits(v, values[0]); })) {
    bits = bits_of(values[0]);
    return true;
  }
  if (bound == 0 || guard.concerns(values, count)) return false;
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

// Whole numbers in the order of int64.
template <class T>
std::int64_t ordered(T value) {
  if constexpr (std::is_same_v<T, std::uint64_t>)
    return static_cast<std::int64_t>(value ^ std::uint64_t{1} << 63);
  else
    return static_cast<std::int64_t>(value);
}

// Where no value needs a closer look.
template <class T>
bool quantise_quickly(const T* values, std::size_t count, const Quantiser& how, std::int32_t* out) {
  const EncodingKernels& fast = encoding_kernels();
  if constexpr (std::is_floating_point_v<T>) {
    const Aim aim{how.step, how.base, how.bound, how.bound == 0};
    if constexpr (sizeof(T) == 4) {
      if (how.quanta == Quanta::real) return fast.quantise32(values, count, aim, out);
      for (std::size_t i = 0; i < count; ++i) out[i] = ordered_bits(values[i]);
      return true;
    } else {
      return how.quanta == Quanta::real && fast.quantise64(values, count, aim, out);
    }
  } else {
    if (sizeof(T) <= 4 && how.whole_step == 1 && how.whole_base == 0) {
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(values[i]);
      return true;
    }
    std::int64_t whole[piece];
    for (std::size_t i = 0; i < count; ++i) whole[i] = ordered(values[i]);
    const auto base =
        std::is_same_v<T, std::uint64_t> ? ordered(static_cast<std::uint64_t>(how.whole_base)) : how.whole_base;
    return fast.quantise_whole(whole, count,
                               {how.whole_step, base, static_cast<std::int64_t>(std::min(how.bound, 0x1p61)),
                                ordered(std::numeric_limits<T>::min()), ordered(std::numeric_limits<T>::max())},
                               out);
  }
}

// Integers for all values from first to end - 1; those that none stands for, or may not, are kept. Where a value needs a closer
// look, it is in small parts, and in those one by one.
template <class T>
void quantise_all(const T* values, std::size_t first, std::size_t end, std::size_t part, const Quantiser& how,
                  const Guard<T>& guard, std::int32_t* out, std::vector<Run>& runs) {
  for (; first < end; first += part) {
    const std::size_t last = std::min(end, first + part);
    if (quantise_quickly(values + first, last - first, how, out + first) &&
        !guard.concerns(values + first, last - first))
      continue;
    if (part > block) {
      quantise_all(values, first, last, block, how, guard, out, runs);
      continue;
    }
    for (std::size_t i = first; i < last; ++i) {
      std::int32_t v;
      const bool found = quantise(values[i], how, v);
      if (!found || (how.quanta != Quanta::bits && !stands(values[i], restored<T>(v, how), how.bound, guard))) {
        keep(runs, i, values[i]);
        v = i == 0 ? 0 : out[i - 1];
      }
      out[i] = v;
    }
  }
}

// Each value less the one before it along an axis.
void difference(const std::int32_t* values, Extent extent, unsigned axis, std::int32_t* out) {
  const std::size_t row = extent.x, plane = row * extent.y, count = extent.values();
  const auto less = encoding_kernels().less;
  if (axis == 4) return less(values, plane, count, out);
  if (axis == 2) {
    for (std::size_t z = 0; z < count; z += plane) less(values + z, row, plane, out + z);
    return;
  }
  less(values, 1, count, out);
  for (std::size_t i = 0; i < count; i += row) out[i] = values[i];
}

// The best interpolation of those to be tried, or `other` where that is better. Wider strides are tried while they are
// better.
template <class T>
Draft smoothest(const T* values, Extent extent, const Quantiser& how, const Guard<T>& guard, std::uint32_t tried,
                Coder coder, Draft* other) {
  const std::uint32_t longest = std::max({extent.z, extent.y, extent.x});
  auto predictor = static_cast<unsigned>(std::countr_zero(tried & interpolations));
  Draft best = interpolate(values, extent, how, guard, predictor);
  if (other == nullptr && (tried & interpolations) == 1u << predictor) return best;  // there is nothing to compare
  double least = cost_of(best, sizeof(T), coder);
  if (other != nullptr && cost_of(*other, sizeof(T), coder) <= least) return std::move(*other);
  while (++predictor <= last_interpolation && stride_of(predictor) / 2 < longest) {
    if ((tried >> predictor & 1) == 0) continue;
    Draft wider = interpolate(values, extent, how, guard, predictor);
    const double bits = cost_of(wider, sizeof(T), coder);
    if (bits >= least) break;
    least = bits;
    best = std::move(wider);
  }
  return best;
}

// What lies at the odd places of a row (or of a column, where places are so far apart), less what is foretold of it.
void halfway_residuals(const std::int32_t* values, std::size_t length, std::size_t pitch, Ints& out) {
  for (std::size_t i = 3; i + 3 < length; i += 2) {
    const std::int32_t* const v = values + i * pitch;
    out.push_back(sub(*v, halfway(*(v - 3 * pitch), *(v - pitch), v[pitch], v[3 * pitch], true, 2)));
  }
}

// The least bits that interpolation can need for a value, about: those of its last passes, seen in some rows and
// columns. What comes before lies further apart.
double halfway_bits(const Ints& integers, Extent extent, Coder coder) {
  const std::size_t rows = std::size_t{extent.z} * extent.y;
  Ints along, across;
  for (std::size_t row = 0; row < rows; row += rows / 24 + 1)
    halfway_residuals(integers.data() + row * extent.x, extent.x, 1, along);
  for (std::size_t z = 0; z < extent.z; z += extent.z / 4 + 1)
    for (std::size_t x = 0; x < extent.x; x += extent.x / 12 + 1)
      halfway_residuals(integers.data() + z * extent.y * extent.x + x, extent.y, extent.x, across);
  const auto bits = [coder](Ints& residuals) {
    residuals.resize(residuals.size() / block * block);
    return residuals.empty() ? 0 : estimate(residuals, coder) / static_cast<double>(residuals.size());
  };
  return (2 * bits(along) + bits(across)) / 3;
}

// One of Lorenzo's ways, and about how many bits it needs.
struct Way {
  double bits = -1;  // none yet
  unsigned predictor = 0;
  Ints residuals;

  // Whether these are fewer bits, and so the way from now on; whoever asks then puts them there.
  bool takes(const Ints& other, unsigned of, Coder coder) {
    const double needed = estimate(other, coder);
    if (bits >= 0 && needed >= bits) return false;
    bits = needed;
    predictor = of;
    return true;
  }
};

// The best of the Lorenzo ways that may be tried, by rows and in the order of patches.
void choose_axes(const Ints& integers, Extent extent, std::uint32_t tried, Coder coder, Way& rows, Way& patches) {
  const std::size_t count = extent.values();
  const Ints* now = &integers;
  Ints trial = blocks_of(count), next = blocks_of(count);  // what is parted, and where to
  rows.residuals = blocks_of(count);
  patches.residuals = blocks_of(count);
  unsigned done = 0;
  for (const unsigned axes : {0u, 1u, 3u, 7u}) {
    const bool in_rows = (tried >> axes & 1) != 0, in_order = (tried >> (axes + patched) & 1) != 0;
    if (!in_rows && !in_order) continue;
    for (const unsigned axis : {1u, 2u, 4u}) {
      if ((axes & ~done & axis) == 0) continue;
      difference(now->data(), extent, axis, next.data());
      // The first value of the tile is its origin, so rows begin with their difference from it. Without any prediction
      // nothing is subtracted: data with many zeros keep them.
      if (axis == 1)
        for (std::size_t i = 0; i < count; i += extent.x) next[i] = sub(next[i], integers[0]);
      std::swap(trial, next);
      now = &trial;
    }
    done |= axes;
    if (in_order) {
      to_patches(now->data(), extent, next.data());
      if (patches.takes(next, axes + patched, coder)) std::swap(patches.residuals, next);
    }
    if (in_rows && rows.takes(*now, axes, coder) && now == &trial) {
      std::swap(rows.residuals, trial);
      now = &rows.residuals;
    }
  }
  if (rows.bits >= 0 && rows.predictor == 0) rows.residuals = integers;
}

void take(Way& way, std::int32_t first, Draft& draft) {
  draft.origin = (way.predictor & 7) == 0 ? 0 : first;
  draft.predictor = static_cast<std::uint8_t>(way.predictor);
  draft.residuals = std::move(way.residuals);
}

// The order of patches takes longer to decode, which is more of what `pack` takes: its gain has to be worth it.
constexpr double patches_worth(Coder coder) { return coder == Coder::pack ? 0.9 : 0.97; }

// The other where there is one that is worth it.
Draft better(Draft best, Draft other, std::size_t itemsize, Coder coder, double worth) {
  if (other.residuals.empty()) return best;
  if (best.residuals.empty()) return other;
  const double bits = cost_of(best, itemsize, coder);
  if (cost_of(other, itemsize, coder) >= worth * bits) return best;
  other.bits_in_rows = best.bits_in_rows >= 0 ? best.bits_in_rows : bits;
  other.predictor_in_rows = best.bits_in_rows >= 0 ? best.predictor_in_rows : best.predictor;
  return other;
}

// Of Lorenzo's ways the best by rows, and the best in the order of patches. Returns what else is worth a try of the
// predictors that are tried.
std::uint32_t draft_axes(const Ints& integers, Extent extent, bool smooth, std::uint32_t tried, Coder coder,
                         Draft& by_rows, Draft& in_order) {
  Way rows, ordered;
  choose_axes(integers, extent, tried, coder, rows, ordered);
  const double least = (rows.bits >= 0 ? rows.bits : ordered.bits) / static_cast<double>(extent.values());
  if (ordered.bits >= 0) {
    in_order.runs = by_rows.runs;
    take(ordered, integers[0], in_order);
  }
  if (rows.bits >= 0) take(rows, integers[0], by_rows);
  // A closed loop has a little less to store than what is seen here, which matters to `dense` where there is little.
  const double most = coder == Coder::pack ? least + 0.1 : 1.05 * least + 0.15;
  if (smooth && (tried & interpolations) != 0 && halfway_bits(integers, extent, coder) > most) tried &= ~interpolations;
  return tried;
}

}  // namespace

template <class T>
Draft draft_typed(const T* values, Extent extent, const Quantiser& how, const Guard<T>& guard, std::uint32_t tried,
                  Coder coder) {
  const std::size_t count = extent.values();
  Draft best, other;
  best.constant = constant(values, count, how.bound, guard, best.bits);
  best.raw = !how.coded;
  if (best.constant || best.raw) return best;
  const bool smooth = std::is_floating_point_v<T> && how.quanta == Quanta::real && !how.lattice;
  if ((tried & ~interpolations) == 0 && !smooth) tried = 1u << (extent.z > 1 ? 7 : extent.y > 1 ? 3 : 1);
  if ((tried & ~interpolations) != 0) {
    Ints integers = blocks_of(count);
    quantise_all(values, 0, count, piece, how, guard.rounding(how), integers.data(), best.runs);
    tried = draft_axes(integers, extent, smooth, tried, coder, best, other);
  }
  if constexpr (std::is_floating_point_v<T>)
    if ((tried & interpolations) && smooth)
      best = smoothest(values, extent, how, guard, tried, coder, best.residuals.empty() ? nullptr : &best);
  return better(std::move(best), std::move(other), sizeof(T), coder, patches_worth(coder));
}

// Stretches of neighbours from all over are quantised together with those that lie one before them along each axis, so
// that the residuals of each way are differences of such stretches.
template <class T>
double sampled_bits(const T* values, std::size_t count, Extent extent, const Quantiser& how, Coder coder) {
  constexpr std::size_t length = 256, stretches = 8;
  const std::size_t back[3] = {1, extent.x, std::size_t{extent.x} * extent.y};
  const int axes = extent.z > 1 ? 3 : extent.y > 1 ? 2 : 1;
  std::size_t farthest = 0;
  for (int axis = 0; axis < axes; ++axis) farthest += back[axis];
  if (count < 2 * stretches * length + farthest) return 0;
  std::int32_t origin = 0;
  quantise_quickly(values, 1, how, &origin);
  Ints residuals[4];  // of none, x, xy and xyz
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t first = farthest + i * (count - farthest - length) / (stretches - 1);
    std::int32_t now[8][length] = {};  // by the axes along which they lie before the stretch, as bits
    for (unsigned before = 0; before < 1u << axes; ++before) {
      std::size_t at = first;
      for (int axis = 0; axis < axes; ++axis) at -= (before >> axis & 1) * back[axis];
      quantise_quickly(values + at, length, how, now[before]);
      if ((before & 1) != 0)  // the first of a row is foretold from the tile's first
        for (std::size_t k = (extent.x - first % extent.x) % extent.x; k < length; k += extent.x)
          now[before][k] = origin;
    }
    for (int way = 0; way <= axes; ++way) {
      if (way > 0)  // along one axis more
        for (unsigned before = 0; before < 1u << axes; ++before)
          if ((before >> (way - 1) & 1) == 0)
            for (std::size_t k = 0; k < length; ++k)
              now[before][k] = sub(now[before][k], now[before | 1u << (way - 1)][k]);
      residuals[way].insert(residuals[way].end(), now[0], now[0] + length);
    }
  }
  double least = std::numeric_limits<double>::max();
  for (int way = 0; way <= axes; ++way) least = std::min(least, estimate(residuals[way], coder));
  return least / (stretches * length);
}

double estimate(const Ints& residuals, Coder coder) {
  const std::size_t blocks = residuals.size() / block;
  double bits = 0;
  if (coder == Coder::pack) {
    std::uint8_t widths[most_blocks];
    encoding_kernels().widths(residuals.data(), blocks, widths);
    std::uint32_t all = 0;
    for (std::size_t b = 0; b < blocks; ++b) all += widths[b];
    return static_cast<double>(block * all);
  }
  Size sizes[most_blocks];
  encoding_kernels().sizes(residuals.data(), blocks, sizes);
  // Nearly the entropy of sizes that are distributed geometrically, with signs and without.
  for (std::size_t b = 0; b < blocks; ++b)
    bits += block * std::log2(1 + static_cast<float>(sizes[b].sum) * ((sizes[b].negative ? 5.44f : 3.2f) / block));
  return bits;
}

template Draft draft_typed(const float*, Extent, const Quantiser&, const Guard<float>&, std::uint32_t, Coder);
template Draft draft_typed(const double*, Extent, const Quantiser&, const Guard<double>&, std::uint32_t, Coder);
template Draft draft_typed(const std::int8_t*, Extent, const Quantiser&, const Guard<std::int8_t>&, std::uint32_t, Coder);
template Draft draft_typed(const std::uint8_t*, Extent, const Quantiser&, const Guard<std::uint8_t>&, std::uint32_t, Coder);
template Draft draft_typed(const std::int16_t*, Extent, const Quantiser&, const Guard<std::int16_t>&, std::uint32_t, Coder);
template Draft draft_typed(const std::uint16_t*, Extent, const Quantiser&, const Guard<std::uint16_t>&, std::uint32_t, Coder);
template Draft draft_typed(const std::int32_t*, Extent, const Quantiser&, const Guard<std::int32_t>&, std::uint32_t, Coder);
template Draft draft_typed(const std::uint32_t*, Extent, const Quantiser&, const Guard<std::uint32_t>&, std::uint32_t, Coder);
template Draft draft_typed(const std::int64_t*, Extent, const Quantiser&, const Guard<std::int64_t>&, std::uint32_t, Coder);
template Draft draft_typed(const std::uint64_t*, Extent, const Quantiser&, const Guard<std::uint64_t>&, std::uint32_t, Coder);
template double sampled_bits(const float*, std::size_t, Extent, const Quantiser&, Coder);
template double sampled_bits(const double*, std::size_t, Extent, const Quantiser&, Coder);

}  // namespace solar::codec
