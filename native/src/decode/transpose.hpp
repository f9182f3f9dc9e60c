// Transposes of bytes and bits in vectors of `width` bytes: 16, 32 or 64.
//
// Each file that has them for a machine includes this once, inside its unnamed namespace and behind its target pragma,
// with `width` defined before: so no function here is ever taken for another machine's, and there is no include guard.
// The shuffles are the compiler's own, which knows the instruction for each: all widths work on all machines, and the
// widest is tested where there are no such vectors. Loops over vectors are unrolled by hand: only then do all of them
// stay in registers.

using Vector [[gnu::vector_size(width)]] = std::uint8_t;
using Words [[gnu::vector_size(width)]] = std::uint64_t;

constexpr std::size_t lanes = width / 16;  // what a shuffle of bytes does, it does in each lane
constexpr std::size_t tile_items = 64;     // a cache line of each plane

#define SOLAR_INLINE [[gnu::always_inline]] inline

template <class Any>
SOLAR_INLINE void load(Any& v, const void* from) {
  std::memcpy(&v, from, sizeof v);
}
template <class Any>
SOLAR_INLINE void store(void* to, const Any& v) {
  std::memcpy(to, &v, sizeof v);
}
template <std::size_t N>
SOLAR_INLINE void store_all(std::byte* to, const Vector (&v)[N]) {  // one by one, or they go by way of memory
#pragma GCC unroll 8
  for (std::size_t i = 0; i < N; ++i) store(to + i * width, v[i]);
}

// Of each lane of a and b the low halves, then the high halves, in turns of `grain` bytes.
template <std::size_t grain, std::size_t... I>
SOLAR_INLINE void zip(Vector& a, Vector& b, std::index_sequence<I...>) {
  constexpr auto from = [](std::size_t i) {
    return i / 16 * 16 + i % 16 / (2 * grain) * grain + i % grain + i / grain % 2 * width;
  };
  const Vector low = __builtin_shufflevector(a, b, from(I)...);
  b = __builtin_shufflevector(a, b, from(I) + 8 ...);
  a = low;
}
template <std::size_t grain>
SOLAR_INLINE void zip(Vector& a, Vector& b) {
  zip<grain>(a, b, std::make_index_sequence<width>());
}

// Words of a and b, by their numbers from(0), from(1), ...; b's follow a's.
template <class From, std::size_t... I>
SOLAR_INLINE Words words(const Words& a, const Words& b, From from, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, from(I)...);
}
template <class First, class Second>
SOLAR_INLINE void exchange(Vector& a, Vector& b, First first, Second second) {
  constexpr auto all = std::make_index_sequence<width / 8>();
  Words x, y;
  load(x, &a);
  load(y, &b);
  store(&a, words(x, y, first, all));
  store(&b, words(x, y, second, all));
}
// Lanes of a and b in turns.
SOLAR_INLINE void zip_lanes(Vector& a, Vector& b) {
  if constexpr (lanes == 1) return;
  constexpr std::size_t half = width / 16;
  exchange(
      a, b, [](std::size_t i) { return i / 4 * 2 + i % 2 + i / 2 % 2 * 2 * half; },
      [](std::size_t i) { return half + i / 4 * 2 + i % 2 + i / 2 % 2 * 2 * half; });
}
// The even lanes of both, and the odd ones.
SOLAR_INLINE void part_lanes(Vector& a, Vector& b) {
  exchange(
      a, b, [](std::size_t i) { return i / 2 * 4 + i % 2; }, [](std::size_t i) { return i / 2 * 4 + 2 + i % 2; });
}

// Vector k holds byte k of `width` items; afterwards each lane of the N vectors, one vector after the other, holds the
// items that were in that lane.
template <std::size_t N>
SOLAR_INLINE void interleave_lanes(Vector (&v)[N]) {
  Vector next[N];
#pragma GCC unroll 4
  for (std::size_t level = 1; level < N; level *= 2) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < N / 2; ++i) {
      zip<1>(v[i], v[i + N / 2]);
      next[2 * i] = v[i];
      next[2 * i + 1] = v[i + N / 2];
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < N; ++i) v[i] = next[i];
  }
}

// The same, afterwards with all items one after another.
template <std::size_t N>
SOLAR_INLINE void interleave(Vector (&v)[N]) {
  interleave_lanes(v);
  if constexpr (N == 2) zip_lanes(v[0], v[1]);
  if constexpr (lanes > 1 && N > 2) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < N; i += 2) part_lanes(v[i], v[i + 1]);
    if constexpr (lanes > 2) {
#pragma GCC unroll 8
      for (std::size_t i = 0; i < N; ++i)
        if (i % 4 < 2) part_lanes(v[i], v[i + 2]);
    }
    Vector next[N];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < N; ++i) next[i % lanes * (N / lanes) + i / lanes] = v[i];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < N; ++i) v[i] = next[i];
  }
}

template <std::size_t N>
SOLAR_INLINE void load_planes(Vector (&v)[N], const std::byte* planes, std::size_t plane) {
#pragma GCC unroll 8
  for (std::size_t k = 0; k < N; ++k) load(v[k], planes + k * plane);
}

// Calls step(item) for each `size` of items; the last ones are done twice where they are no whole number of that.
// REQUIRES: items >= size.
template <class Step>
SOLAR_INLINE void each(std::size_t items, std::size_t size, Step step) {
  std::size_t item = 0;
  for (; item + size <= items; item += size) step(item);
  if (item < items) step(items - size);
}

// Joins N planes of bytes: out[item * N + k] = planes[k * plane + item]. REQUIRES: items >= width.
template <std::size_t N>
SOLAR_INLINE void join(const std::byte* planes, std::size_t plane, std::byte* out, std::size_t items) {
  each(items, width, [=](std::size_t item) __attribute__((always_inline)) {
    Vector v[N];
    load_planes(v, planes + item, plane);
    interleave(v);
    store_all(out + item * N, v);
  });
}

// Sixteen planes, to items that begin `stride` bytes after each other; by way of two times eight, for which there are
// registers.
template <bool close>  // whether stride == 16
SOLAR_INLINE void join_16(const std::byte* planes, std::size_t plane, std::byte* out, std::size_t stride,
                          std::size_t items) {
  each(items, width, [=](std::size_t item) __attribute__((always_inline)) {
    Vector first[8], second[8];
    load_planes(first, planes + item, plane);
    interleave_lanes(first);
    std::byte aside[sizeof first];
    store_all(aside, first);
    load_planes(second, planes + 8 * plane + item, plane);
    interleave_lanes(second);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      Vector pair[2];
      load(pair[0], aside + i * width);
      pair[1] = second[i];
      zip<8>(pair[0], pair[1]);  // in each lane an item, and the one behind it
      if constexpr (close) zip_lanes(pair[0], pair[1]);
      const auto* const made = reinterpret_cast<const std::byte*>(pair);
#pragma GCC unroll 4
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        std::byte* const to = out + (item + 16 * lane + 2 * i) * stride;
        if constexpr (close) {
          std::memcpy(to, made + 32 * lane, 32);
        } else {
          std::memcpy(to, made + 16 * lane, 16);
          std::memcpy(to + stride, made + width + 16 * lane, 16);
        }
      }
    }
  });
}

// Words of three vectors in turns, lane by lane.
template <std::size_t... I>
SOLAR_INLINE void zip_three(Vector (&v)[3], std::index_sequence<I...>) {
  using Singles [[gnu::vector_size(width)]] = std::uint32_t;
  constexpr std::size_t second = width / 4;
  // Of each lane's four: where it comes from, first of two vectors, then of those and the third.
  constexpr auto pick = [](std::size_t i, std::array<std::size_t, 4> from) {
    return i / 4 * 4 + from[i % 4] % 4 + from[i % 4] / 4 * second;
  };
  Singles a, b, c;
  load(a, &v[0]);
  load(b, &v[1]);
  load(c, &v[2]);
  const Singles ab = __builtin_shufflevector(a, b, pick(I, {0, 4, 0, 1})...);
  store(&v[0], Singles(__builtin_shufflevector(ab, c, pick(I, {0, 1, 4, 3})...)));
  const Singles ba = __builtin_shufflevector(a, b, pick(I, {5, 5, 2, 6})...);
  store(&v[1], Singles(__builtin_shufflevector(ba, c, pick(I, {0, 5, 2, 3})...)));
  const Singles last = __builtin_shufflevector(a, b, pick(I, {3, 3, 7, 7})...);
  store(&v[2], Singles(__builtin_shufflevector(last, c, pick(I, {6, 1, 2, 7})...)));
}

// Twelve planes, as three times four.
inline void join_12(const std::byte* planes, std::size_t plane, std::byte* out, std::size_t items) {
  each(items, width, [=](std::size_t item) __attribute__((always_inline)) {
    std::byte aside[3][4 * width];
#pragma GCC unroll 3
    for (std::size_t group = 0; group < 3; ++group) {
      Vector v[4];
      load_planes(v, planes + 4 * group * plane + item, plane);
      interleave_lanes(v);
      store_all(aside[group], v);
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      Vector v[3];
#pragma GCC unroll 3
      for (std::size_t group = 0; group < 3; ++group) load(v[group], aside[group] + i * width);
      zip_three(v, std::make_index_sequence<width / 4>());
#pragma GCC unroll 12
      for (std::size_t piece = 0; piece < 3 * lanes; ++piece)
        std::memcpy(out + (item + piece / 3 * 16 + 4 * i) * 12 + piece % 3 * 16,
                    reinterpret_cast<const std::byte*>(&v[piece % 3]) + piece / 3 * 16, 16);
    }
  });
}

// Items of another size: groups of N planes, of which the last ones may overlap. A tile after the other, for planes may
// lie such that few of their lines are in the cache at the same time.
template <std::size_t N>
void join_groups(const std::byte* planes, std::size_t plane, std::size_t itemsize, std::byte* out, std::size_t items) {
  const std::size_t tile = std::min(items, tile_items);
  each(items, tile, [=](std::size_t item) {
    each(itemsize, N, [=](std::size_t k) {
      const std::byte* const from = planes + k * plane + item;
      std::byte* const to = out + item * itemsize + k;
      if constexpr (N == 16) return join_16<false>(from, plane, to, itemsize, tile);
      std::byte joined[tile_items * N];
      join<N>(from, plane, joined, tile);
      for (std::size_t i = 0; i < tile; ++i) std::memcpy(to + i * itemsize, joined + i * N, N);
    });
  });
}

void join_any(const std::byte* planes, std::size_t plane, std::size_t itemsize, std::byte* out, std::size_t items) {
  switch (itemsize) {
    case 1: std::memcpy(out, planes, items); return;
    case 2: return join<2>(planes, plane, out, items);
    case 4: return join<4>(planes, plane, out, items);
    case 8: return join<8>(planes, plane, out, items);
    case 12: return join_12(planes, plane, out, items);
    case 16: return join_16<true>(planes, plane, out, 16, items);
    default: break;
  }
  if (itemsize > 16) return join_groups<16>(planes, plane, itemsize, out, items);
  if (itemsize > 8) return join_groups<8>(planes, plane, itemsize, out, items);
  if (itemsize > 4) return join_groups<4>(planes, plane, itemsize, out, items);
  join_groups<2>(planes, plane, itemsize, out, items);
}

// Eight rows of bits become columns: bit j of byte n of vector k was bit k of byte n of vector j.
SOLAR_INLINE void transpose_bits(Vector (&v)[8]) {
  Words w[8];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) load(w[i], &v[i]);
  const auto swap = [](Words& a, Words& b, int shift, std::uint64_t mask) __attribute__((always_inline)) {
    const Words moved = ((a >> shift) ^ b) & (Words{} + mask);
    b ^= moved;
    a ^= moved << shift;
  };
#pragma GCC unroll 4
  for (std::size_t j = 0; j < 4; ++j) swap(w[j], w[j + 4], 4, 0x0f0f0f0f0f0f0f0f);
#pragma GCC unroll 8
  for (std::size_t j = 0; j < 8; ++j)
    if ((j & 2) == 0) swap(w[j], w[j + 2], 2, 0x3333333333333333);
#pragma GCC unroll 4
  for (std::size_t j = 0; j < 8; j += 2) swap(w[j], w[j + 1], 1, 0x5555555555555555);
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) store(&v[i], w[i]);
}

// A plane of 8 * width items from its eight rows of bits.
SOLAR_INLINE void join_plane(const std::byte* rows, std::size_t row, std::byte* out) {
  Vector v[8];
  load_planes(v, rows, row);
  transpose_bits(v);
  interleave(v);
  store_all(out, v);
}

void join_planes(const std::byte* planes, std::size_t items, std::size_t itemsize, std::byte* out) {
  join_any(planes, items, itemsize, out, items);
}

void join_bits(const std::byte* rows, std::size_t row, std::size_t itemsize, std::byte* out) {
  constexpr std::size_t items = 8 * width, most_planes = 16;
  each(row, width, [=](std::size_t n) {
    if (itemsize == 1) return join_plane(rows + n, row, out + 8 * n);
    const std::size_t planes = std::min(itemsize, most_planes);
    each(itemsize, planes, [=](std::size_t k) {
      std::byte tile[most_planes * items];
      for (std::size_t i = 0; i < planes; ++i) join_plane(rows + 8 * (k + i) * row + n, row, tile + i * items);
      std::byte* const to = out + 8 * n * itemsize + k;
      if (planes == itemsize) return join_any(tile, items, itemsize, to, items);
      join_16<false>(tile, items, to, itemsize, items);
    });
  });
}

#undef SOLAR_INLINE
