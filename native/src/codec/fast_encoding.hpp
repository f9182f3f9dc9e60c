// The encoder's loops, plain, for the compiler to turn into vectors.
//
// Each of plain_encoding.cpp, avx2.cpp and avx512.cpp includes this once, inside its unnamed namespace, behind its
// target pragma. So no function here is ever taken for another machine's, and there is no include guard.

// In whole numbers, whose order is that of the values' sizes.
template <class T>
Seen look(const T* values, std::size_t count, T reach) {
  using Order = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  constexpr Order sizes = sizeof(T) == 4 ? 0x7fffffff : 0x7fffffffffffffff;
  const Order infinite = __builtin_bit_cast(Order, static_cast<T>(__builtin_inf()));
  const Order most = __builtin_bit_cast(Order, reach);
  Order finite = 0, near = 0, largest = 0, largest_near = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Order size = __builtin_bit_cast(Order, values[i]) & sizes;
    const Order is_finite = size < infinite, is_near = size <= most;
    const Order if_finite = size & -is_finite, if_near = size & -is_near;
    finite += is_finite;
    near += is_near;
    largest = largest < if_finite ? if_finite : largest;
    largest_near = largest_near < if_near ? if_near : largest_near;
  }
  return {static_cast<std::size_t>(finite), static_cast<std::size_t>(near), __builtin_bit_cast(T, largest),
          __builtin_bit_cast(T, largest_near)};
}

template <class T>
bool multiples(const T* values, std::size_t count, double step) {
  const double inverse = 1 / step;
  std::int32_t odd = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = values[i], times = __builtin_rint(value * inverse);
    odd |= (times * step != value) & (value - value == 0);
  }
  return odd == 0;
}

template <class T>
constexpr T least_normal = sizeof(T) == 4 ? static_cast<T>(0x1p-126) : static_cast<T>(0x1p-1022);

template <class T>
[[gnu::always_inline]] inline T restored_by(std::int32_t whole, T step, T base) {
  if constexpr (sizeof(T) == 4)
    return __builtin_fmaf(static_cast<float>(whole), step, base);
  else
    return __builtin_fma(static_cast<double>(whole), step, base);
}

// The largest T that is no larger.
template <class T>
T no_larger(double bound) {
  if constexpr (sizeof(T) == 8) {
    return bound;
  } else {
    const auto near = static_cast<float>(bound < 0x1.fffffep127 ? bound : 0x1.fffffep127);
    return near <= bound ? near : __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, near) - 1);
  }
}

// Whether `back` may stand for `value`. A distance that comes out below the bound is below it, for rounding keeps
// order, in T too; what a processor may flush never stands.
template <bool exact, class T>
[[gnu::always_inline]] inline bool stands(T value, T back, T bound) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  const T size = back < 0 ? -back : back;
  const bool normal = (size >= least_normal<T>) | (size == 0);
  if constexpr (exact) return normal & (__builtin_bit_cast(Bits, value) == __builtin_bit_cast(Bits, back));
  const T away = back - value;
  return normal & ((away < 0 ? -away : away) < bound);
}

template <bool exact, class T>
bool quantise_as(const T* __restrict values, std::size_t count, const Aim& aim, std::int32_t* __restrict out) {
  const double inverse = 1 / aim.step, base = aim.base, far = 0x1p30;
  const T step = static_cast<T>(aim.step), from = static_cast<T>(aim.base), bound = no_larger<T>(aim.bound);
  std::int32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double scaled = (static_cast<double>(values[i]) - base) * inverse;
    const double near = scaled < far ? (scaled > -far ? scaled : -far) : far;
    const auto whole = static_cast<std::int32_t>(__builtin_rint(near));
    out[i] = whole;
    bad |= !(stands<exact>(values[i], restored_by(whole, step, from), bound) & (near == scaled));
  }
  return bad == 0;
}

template <class T>
bool quantise_aimed(const T* values, std::size_t count, const Aim& aim, std::int32_t* out) {
  return aim.exact ? quantise_as<true>(values, count, aim, out) : quantise_as<false>(values, count, aim, out);
}

bool quantise_whole(const std::int64_t* __restrict values, std::size_t count, const WholeAim& aim,
                    std::int32_t* __restrict out) {
  const double inverse = 1 / static_cast<double>(aim.step), far = 0x1p31 - 1;
  const auto base = static_cast<std::uint64_t>(aim.base), step = static_cast<std::uint64_t>(aim.step);
  const std::int64_t low = aim.low, high = aim.high;
  const auto twice = 2 * static_cast<std::uint64_t>(aim.bound);
  std::int32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t above = static_cast<std::uint64_t>(values[i]) - base;
    const double scaled = static_cast<double>(static_cast<std::int64_t>(above)) * inverse;
    const double near = scaled < far ? (scaled > -far ? scaled : -far) : far;
    const auto whole = static_cast<std::int32_t>(__builtin_rint(near));
    const std::uint64_t away = above - step * static_cast<std::uint64_t>(std::int64_t{whole});
    const auto back = static_cast<std::int64_t>(static_cast<std::uint64_t>(values[i]) - away);
    const bool turned = (static_cast<std::int64_t>(away) > 0) != (back < values[i]);  // over an end of 64 bits
    out[i] = whole;
    bad |= !((away + static_cast<std::uint64_t>(aim.bound) <= twice) & (near == scaled) & (back >= low) &
             (back <= high) & !turned);
  }
  return bad == 0;
}

template <class T>
bool residuals_aimed(const T* __restrict values, const std::int32_t* __restrict foretold, std::size_t count,
                     const Aim& aim, std::int32_t* __restrict residuals, std::int32_t* __restrict made) {
  const double scale = 1 / aim.step, base = aim.base, far = 0x1p26;
  const T step = static_cast<T>(aim.step), from = static_cast<T>(aim.base), bound = no_larger<T>(aim.bound);
  std::int32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double sixteenths = (static_cast<double>(values[i]) - base) * scale;
    const double away = (sixteenths - foretold[i]) * 0.0625;
    const double near = away < far ? (away > -far ? away : -far) : far;
    const auto residual = static_cast<std::int32_t>(__builtin_rint(near));
    const auto whole =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(foretold[i]) + 16 * static_cast<std::uint32_t>(residual));
    residuals[i] = residual;
    made[i] = whole;
    bad |= !(stands<false>(values[i], restored_by(whole, step, from), bound) & (near == away) &
             (__builtin_fabs(sixteenths) < far));
  }
  return bad == 0;
}

template <class Weigh>
inline void weighed(std::int32_t* __restrict out, std::size_t count, Weigh weigh) {
  for (std::size_t i = 0; i < count; ++i) out[i] = weigh(i);
}

void between(const std::int32_t* const rows[4], bool before, int after, std::size_t count,
             std::int32_t* __restrict out) {
  const std::int32_t *const a = rows[0], *const b = rows[1], *const c = rows[2], *const d = rows[3];
  if (before && after == 2)
    weighed(out, count, [=](std::size_t i) { return halfway(a[i], b[i], c[i], d[i], true, 2); });
  else if (after == 2)
    weighed(out, count, [=](std::size_t i) { return halfway(0, b[i], c[i], d[i], false, 2); });
  else if (before && after == 1)
    weighed(out, count, [=](std::size_t i) { return halfway(a[i], b[i], c[i], 0, true, 1); });
  else if (after == 1)
    weighed(out, count, [=](std::size_t i) { return halfway(0, b[i], c[i], 0, false, 1); });
  else if (before)
    weighed(out, count, [=](std::size_t i) { return halfway(a[i], b[i], 0, 0, true, 0); });
  else
    weighed(out, count, [=](std::size_t i) { return b[i]; });
}

template <class T>
void thin(const T* __restrict values, std::size_t count, T* __restrict out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = values[2 * i];
}

void weave(const std::int32_t* __restrict known, const std::int32_t* __restrict made, std::size_t count, bool more,
           std::int32_t* __restrict out) {
  for (std::size_t i = 0; i < count; ++i) {
    out[2 * i] = known[i];
    out[2 * i + 1] = made[i];
  }
  if (more) out[2 * count] = known[count];
}

void less(const std::int32_t* __restrict values, std::size_t back, std::size_t count, std::int32_t* __restrict out) {
  const std::size_t first = back < count ? back : count;
  for (std::size_t i = 0; i < first; ++i) out[i] = values[i];
  for (std::size_t i = first; i < count; ++i) out[i] = sub(values[i], values[i - back]);
}

void widths(const std::int32_t* __restrict residuals, std::size_t blocks, std::uint8_t* __restrict out) {
  for (std::size_t b = 0; b < blocks; ++b, residuals += block) {
    std::uint32_t any = 0;  // the sign as the lowest bit: it takes one, as all others do
    for (std::size_t i = 0; i < block; ++i)
      any |= static_cast<std::uint32_t>(residuals[i]) << 1 ^ static_cast<std::uint32_t>(residuals[i] >> 31);
    out[b] = static_cast<std::uint8_t>(any == 0 ? 0 : 32 - __builtin_clz(any));
  }
}

void sizes(const std::int32_t* __restrict residuals, std::size_t blocks, Size* __restrict out) {
  for (std::size_t b = 0; b < blocks; ++b, residuals += block) {
    std::uint32_t low = 0, high = 0, sign = 0;  // halves, whose sums fit
    for (std::size_t i = 0; i < block; ++i) {
      const auto bits = static_cast<std::uint32_t>(residuals[i]);
      const std::uint32_t size = residuals[i] < 0 ? 0u - bits : bits;
      low += size & 0xffff;
      high += size >> 16;
      sign |= bits;
    }
    out[b] = {low + (std::uint64_t{high} << 16), sign >> 31 != 0};
  }
}

// In registers: the compiler keeps an array in memory.
void costs(const std::uint8_t* symbols, const std::uint32_t* of, std::uint32_t* sums) {
  using Sixteen [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = std::uint32_t;
  Sixteen even{}, odd{};
  for (std::size_t i = 0; i < block; i += 2) {
    even += *reinterpret_cast<const Sixteen*>(of + 16 * std::size_t{symbols[i]});
    odd += *reinterpret_cast<const Sixteen*>(of + 16 * std::size_t{symbols[i + 1]});
  }
  even += odd;
  __builtin_memcpy(sums, &even, sizeof even);
}

void extend(const std::uint32_t* __restrict costs, int count, const std::uint32_t* __restrict steps,
            std::uint32_t* __restrict best, std::uint8_t* __restrict from) {
  std::uint32_t least[most_ways], way[most_ways];
  for (int k = 0; k < most_ways; ++k) least[k] = costs[0] + steps[k], way[k] = 0;
  for (int i = 1; i < count; ++i)
    for (int k = 0; k < most_ways; ++k) {
      const std::uint32_t cost = costs[i] + steps[k - i];
      const bool better = cost < least[k];
      way[k] = better ? static_cast<std::uint32_t>(i) : way[k];
      least[k] = better ? cost : least[k];
    }
  for (int k = 0; k < most_ways; ++k) best[k] = least[k], from[k] = static_cast<std::uint8_t>(way[k]);
}

void prepend(const std::uint16_t* __restrict bits, const std::uint8_t* __restrict widths,
             const std::uint8_t* __restrict counts, std::uint32_t* __restrict strings,
             std::uint16_t* __restrict words) {
  for (std::size_t i = 0; i < lanes; ++i) {
    strings[i] = strings[i] << widths[i] | bits[i];
    words[i] = static_cast<std::uint16_t>(strings[i] >> counts[i]);
  }
}

constexpr EncodingKernels encoding_set{look<float>,
                                       look<double>,
                                       multiples<float>,
                                       multiples<double>,
                                       quantise_aimed<float>,
                                       quantise_aimed<double>,
                                       quantise_whole,
                                       residuals_aimed<float>,
                                       residuals_aimed<double>,
                                       between,
                                       thin<float>,
                                       thin<double>,
                                       weave,
                                       less,
                                       widths,
                                       sizes,
                                       costs,
                                       extend,
                                       prepend};
