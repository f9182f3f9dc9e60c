// The loops that AVX2, AVX-512 and NEON share; most are plain, for the compiler to turn into vectors.
//
// Each of the three files includes this once, inside its unnamed namespace, behind its target pragma if it has one, and
// what it must define before: fields, add_low, Wide, Reals, Shorts, Counts, vector_values, load, sum_row, interleave,
// interleaved, to_rows. So no function here is ever taken for another machine's, and there is no include guard.

using Unaligned32 [[gnu::aligned(1), gnu::may_alias]] = std::uint32_t;
using UnalignedFloat [[gnu::aligned(1), gnu::may_alias]] = float;
using UnalignedDouble [[gnu::aligned(1), gnu::may_alias]] = double;

template <class Word>
void restore_whole(const std::int32_t* values, std::size_t count, const Restore& how, std::byte* out) {
  using Unaligned [[gnu::aligned(1), gnu::may_alias]] = Word;
  auto* const to = reinterpret_cast<Unaligned*>(out);
  using Whole = std::conditional_t<sizeof(Word) == 8, std::uint64_t, std::uint32_t>;  // never a signed int
  const auto step = static_cast<Whole>(how.whole_step), base = static_cast<Whole>(how.whole_base);
  for (std::size_t i = 0; i < count; ++i)
    to[i] = static_cast<Word>(base + step * static_cast<Whole>(static_cast<std::int64_t>(values[i])));
}

template <class Whole>
void restore_cast(const std::int32_t* values, std::size_t count, const Restore& how, std::byte* out) {
  auto* const to = reinterpret_cast<UnalignedFloat*>(out);
  using Sum = std::conditional_t<sizeof(Whole) == 8, std::uint64_t, std::uint32_t>;
  const auto step = static_cast<Sum>(how.whole_step), base = static_cast<Sum>(how.whole_base);
  for (std::size_t i = 0; i < count; ++i)
    to[i] = static_cast<float>(
        static_cast<Whole>(base + step * static_cast<Sum>(static_cast<std::int64_t>(values[i]))));
}

void restore_cast(const std::int32_t* values, std::size_t count, const Restore& how, std::byte* out) {
  if (how.number == Number::uint32) return restore_cast<std::uint32_t>(values, count, how, out);
  if (how.number == Number::int64) return restore_cast<std::int64_t>(values, count, how, out);
  if (how.number == Number::uint64) return restore_cast<std::uint64_t>(values, count, how, out);
  const Held held = held_of(how.number);
  auto* const to = reinterpret_cast<UnalignedFloat*>(out);
  const auto step = static_cast<std::uint32_t>(how.whole_step), base = static_cast<std::uint32_t>(how.whole_base);
  for (std::size_t i = 0; i < count; ++i) {
    const auto whole = static_cast<std::int32_t>(base + step * static_cast<std::uint32_t>(values[i]));
    to[i] = static_cast<float>(((whole & held.all) ^ held.sign) - held.sign);
  }
}

void restore_real(const std::int32_t* values, std::size_t count, const Restore& how, std::byte* out) {
  if (how.itemsize == 4) {
    auto* const to = reinterpret_cast<UnalignedFloat*>(out);
    const auto step = static_cast<float>(how.step), base = static_cast<float>(how.base);
    for (std::size_t i = 0; i < count; ++i) to[i] = __builtin_fmaf(static_cast<float>(values[i]), step, base);
  } else {
    auto* const to = reinterpret_cast<UnalignedDouble*>(out);
    for (std::size_t i = 0; i < count; ++i) to[i] = __builtin_fma(static_cast<double>(values[i]), how.step, how.base);
  }
}

void restore(const std::int32_t* values, std::size_t count, const Restore& how, std::byte* out) {
  if (how.quanta == Quanta::real) return restore_real(values, count, how, out);
  if (how.cast) return restore_cast(values, count, how, out);
  if (how.quanta == Quanta::bits) {
    auto* const to = reinterpret_cast<Unaligned32*>(out);
    for (std::size_t i = 0; i < count; ++i)
      to[i] = static_cast<std::uint32_t>(values[i] ^ (values[i] >> 31 & 0x7fffffff));
    return;
  }
  switch (how.itemsize) {
    case 1:
      return restore_whole<std::uint8_t>(values, count, how, out);
    case 2:
      return restore_whole<std::uint16_t>(values, count, how, out);
    case 4:
      return restore_whole<std::uint32_t>(values, count, how, out);
    default:
      return restore_whole<std::uint64_t>(values, count, how, out);
  }
}

// out[i] = between its four neighbours, + 16 times its residual; `weigh` is one of the formulas.
template <class Weigh>
inline void foretell(std::int32_t* __restrict out, const std::int32_t* __restrict residuals, std::size_t count,
                     Weigh weigh) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(weigh(i)) + 16 * static_cast<std::uint32_t>(residuals[i]));
}

// Rows (or planes) halfway between rows: point p of `points` along the axis; neighbours are `pitch` apart in `known`.
void between_rows(const std::int32_t* known, std::size_t p, std::size_t points, std::size_t pitch,
                  const std::int32_t* residuals, std::int32_t* out) {
  const std::int32_t* const b = known + p * pitch;
  const bool before = p > 0;
  const int after = (p + 1 < points) + (p + 2 < points);
  const std::int32_t *const a = b - (before ? pitch : 0), *const c = b + (after > 0 ? pitch : 0),
                            *const d = c + (after > 1 ? pitch : 0);
  if (before && after == 2)
    foretell(out, residuals, pitch, [=](std::size_t i) { return halfway(a[i], b[i], c[i], d[i], true, 2); });
  else if (before && after == 1)
    foretell(out, residuals, pitch, [=](std::size_t i) { return halfway(a[i], b[i], c[i], 0, true, 1); });
  else if (before)
    foretell(out, residuals, pitch, [=](std::size_t i) { return halfway(a[i], b[i], 0, 0, true, 0); });
  else
    foretell(out, residuals, pitch, [=](std::size_t i) { return halfway(0, b[i], c[i], d[i], false, after); });
}

// One row: the known ones to even places, what lies between to odd ones.
void between_points(const std::int32_t* __restrict known, std::size_t points, std::size_t count,
                    const std::int32_t* __restrict residuals, std::int32_t* __restrict out) {
  const std::size_t odd = count / 2;
  const auto at = [&](std::size_t i) {
    const bool before = i > 0;
    const int after = (i + 1 < points) + (i + 2 < points);
    out[2 * i] = known[i];
    if (i >= odd) return;
    out[2 * i + 1] = add(halfway(before ? known[i - 1] : 0, known[i], after > 0 ? known[i + 1] : 0,
                                 after > 1 ? known[i + 2] : 0, before, after),
                         static_cast<std::int32_t>(16 * static_cast<std::uint32_t>(residuals[i])));
  };
  // In whole vectors, which run over into what is written next: the rest of this row, the next row, or the slack.
  const std::size_t inner = points > 2 ? points - 2 : 0;
  for (std::size_t i = 1; i < inner; i += interleaved) interleave(known + i, residuals + i, out + 2 * i);
  at(0);
  for (std::size_t i = inner > 1 ? inner : 1; i < points; ++i) at(i);
}

// The points known so far, packed closely: a grid that grows along one axis after another.
struct Growing {
  std::int32_t *grid, *other;
  std::size_t z, y, x;
  const std::int32_t* residuals;

  void turn() {
    std::int32_t* const held = grid;
    grid = other;
    other = held;
  }
  void grow_z(std::size_t length) {
    const std::size_t plane = y * x;
    for (std::size_t p = 0; p < length; ++p) {
      if (p % 2 == 0) {
        std::memcpy(other + p * plane, grid + p / 2 * plane, 4 * plane);
      } else {
        between_rows(grid, p / 2, z, plane, residuals, other + p * plane);
        residuals += plane;
      }
    }
    z = length;
    turn();
  }
  void grow_y(std::size_t length) {
    for (std::size_t plane = 0; plane < z; ++plane)
      for (std::size_t p = 0; p < length; ++p) {
        const std::int32_t* const from = grid + plane * y * x;
        std::int32_t* const to = other + (plane * length + p) * x;
        if (p % 2 == 0) {
          std::memcpy(to, from + p / 2 * x, 4 * x);
        } else {
          between_rows(from, p / 2, y, x, residuals, to);
          residuals += x;
        }
      }
    y = length;
    turn();
  }
  void grow_x(std::size_t length) {
    for (std::size_t row = 0; row < z * y; ++row) {
      between_points(grid + row * x, x, length, residuals, other + row * length);
      residuals += length / 2;
    }
    x = length;
    turn();
  }
};

std::int32_t* interpolate(const std::int32_t* residuals, Extent extent, std::uint32_t stride, std::int32_t origin,
                          std::int32_t* one, std::int32_t* other) {
  const auto points = [](std::uint32_t length, std::uint32_t step) { return std::size_t{(length + step - 1) / step}; };
  Growing all{one, other, points(extent.z, stride), points(extent.y, stride), points(extent.x, stride), residuals};
  std::int32_t last = origin;
  for (std::size_t i = 0; i < all.z * all.y * all.x; ++i)
    all.grid[i] = last = add(last, static_cast<std::int32_t>(16 * static_cast<std::uint32_t>(*all.residuals++)));
  for (std::uint32_t h = stride / 2; h > 0; h /= 2) {
    if (points(extent.z, h) > all.z) all.grow_z(points(extent.z, h));
    if (points(extent.y, h) > all.y) all.grow_y(points(extent.y, h));
    if (points(extent.x, h) > all.x) all.grow_x(points(extent.x, h));
  }
  return all.grid;
}

// Rows too short for vectors: one after another, in place.
void lorenzo_short(std::int32_t* values, Extent extent, unsigned axes) {
  const std::size_t row = extent.x, plane = row * extent.y, all = plane * extent.z;
  if (axes & 1)
    for (std::size_t i = 0; i < all; ++i)
      if (i % row != 0) values[i] = add(values[i], values[i - 1]);
  if (axes & 2)
    for (std::size_t z = 0; z < all; z += plane)
      for (std::size_t i = row; i < plane; ++i) values[z + i] = add(values[z + i], values[z + i - row]);
  if (axes & 4)
    for (std::size_t i = plane; i < all; ++i) values[i] = add(values[i], values[i - plane]);
}

// What is put by restore() instead, from `line` or `plane`.
struct Later {
  static constexpr std::size_t itemsize = 0;
  template <class Vector>
  void put(Vector, std::byte*) const {}
};

// What a row ends with where whole vectors do not reach: the last vector's worth again.
template <class Put>
inline void put_end(const std::int32_t* row, std::size_t count, const Restore& how, const Put& to, std::byte* out) {
  if constexpr (Put::itemsize == 0) {
    restore(row, count, how, out);
  } else if (count % vector_values != 0) {
    const std::size_t at = count - vector_values;
    to.put(load(row + at), out + at * Put::itemsize);
  }
}

// The origin belongs to every value: it goes where each sum begins.
inline void add_origin(std::int32_t* row, const Sums& sums, std::size_t z, std::size_t y) {
  if (sums.origin == 0 || ((sums.axes & 4) && z > 0) || ((sums.axes & 2) && y > 0)) return;
  for (std::size_t x = 0; x < (sums.axes & 1 ? 1 : sums.extent.x); ++x) row[x] = add(row[x], sums.origin);
}

// Asks for the memory of a row some rows on, to be written: rows of a narrow tile lie far apart, where nothing is
// foreseen by the processor.
template <std::size_t itemsize>
[[gnu::always_inline]] inline void ask_ahead(const Sums& sums, std::size_t z, std::size_t y) {
  constexpr std::size_t ahead = 16, line = 64;
  y += ahead;
  if (y >= sums.extent.y) y -= sums.extent.y, ++z;
  if (y >= sums.extent.y || z >= sums.extent.z) return;
  const std::byte* const row = sums.out.at(z, y);
  for (std::size_t at = 0; at < sums.extent.x * itemsize; at += line) __builtin_prefetch(row + at, 1);
}

// Sums along x, then y (in `line`, the row before), then z (in `planes`, the plane before): a row's way in one pass, as
// soon as `source` has its residuals. Rows in `room` are as long as whole vectors, so that only residuals are read in
// part.
template <class Source, class Put>
bool sum_rows(Source& source, std::int32_t* residuals, const Sums& sums, const Put& to) {
  const std::size_t row = sums.extent.x, pitch = (row + 15) / 16 * 16;
  std::int32_t *const line = sums.room, *const planes = sums.room + pitch;
  std::size_t wanted = 0;
  for (std::size_t z = 0; z < sums.extent.z; ++z)
    for (std::size_t y = 0; y < sums.extent.y; ++y, residuals += row) {
      ask_ahead<Put::itemsize>(sums, z, y);
      if (!source.reach(wanted += row)) return false;
      add_origin(residuals, sums, z, y);
      std::int32_t* const plane = sums.axes & 4 ? planes + y * pitch : nullptr;
      std::byte* const out = sums.out.at(z, y);
      sum_row(residuals, row, sums.axes & 1, (sums.axes & 2) && y > 0, line, plane, z > 0, to, out);
      put_end(plane != nullptr ? plane : line, row, sums.how, to, out);
    }
  return true;
}

template <class Source>
bool lorenzo_of(Source source, std::int32_t* residuals, const Sums& sums) {
  if (sums.how.quanta == Quanta::real && sums.how.itemsize == 4)
    return sum_rows(source, residuals, sums, Reals(sums.how));
  if (sums.how.cast && sums.how.number <= Number::int32) return sum_rows(source, residuals, sums, Counts(sums.how));
  if (sums.how.quanta == Quanta::integer && sums.how.itemsize == 2)
    return sum_rows(source, residuals, sums, Shorts(sums.how));
  return sum_rows(source, residuals, sums, Later());
}

void lorenzo(std::int32_t* residuals, const Sums& sums) {
  struct There {
    bool reach(std::size_t) { return true; }
  };
  if (sums.extent.x >= 16) {
    lorenzo_of(There(), residuals, sums);
    return;
  }
  const std::size_t row = sums.extent.x;
  for (std::size_t z = 0; z < sums.extent.z; ++z)
    for (std::size_t y = 0; y < sums.extent.y; ++y) add_origin(residuals + (z * sums.extent.y + y) * row, sums, z, y);
  lorenzo_short(residuals, sums.extent, sums.axes);
  for (std::size_t z = 0; z < sums.extent.z; ++z)
    for (std::size_t y = 0; y < sums.extent.y; ++y, residuals += row)
      restore(residuals, row, sums.how, sums.out.at(z, y));
}

// Words of a block that may end too close to the chunk's end to be read in whole vectors.
struct Near {
  const std::byte* words(const std::byte* from, const std::byte* end, unsigned width) {
    if (static_cast<std::size_t>(end - from) >= sizeof copy) return from;
    std::memcpy(copy, from, 4 * width);
    return copy;
  }
  std::byte copy[192] = {};
};

std::int32_t half_of(unsigned width) { return width == 0 ? 0 : static_cast<std::int32_t>(1u << (width - 1)); }

void unpack(const std::byte* words, const std::byte* end, const std::uint8_t* widths, std::size_t blocks,
            std::int32_t* out) {
  Near near;
  for (std::size_t b = 0; b < blocks; ++b, out += block) {
    const unsigned width = widths[b];
    fields(near.words(words, end, width), width, out, half_of(width));
    words += 4 * width;
  }
}

void symbols(Lanes& of, const std::uint32_t* places, std::size_t steps, std::int8_t* out) {
  Wide wide(of);
  alignas(64) std::int32_t got[lanes];
  for (std::size_t s = 0; s < steps; ++s) {
    wide.step(places, got);
    for (const std::int32_t symbol : got) *out++ = static_cast<std::int8_t>(symbol);
  }
  wide.put(of);
}

// Residuals of a tile, decoded as far as they are asked for. Escapes are rare: they are looked for in groups of blocks
// that have any.
class Decoded {
 public:
  Decoded(const Lanes& of, const Residuals& from, std::int32_t* out)
      : wide_(of), from_(from), low_(from.low), out_(out) {}

  // Decodes the first `count` and some more; false when there are more escapes than were stored.
  bool reach(std::size_t count) {
    while (done_ * block < count)
      if (!group()) return false;
    return true;
  }

 private:
  bool group() {
    const std::size_t first = done_, end = first + 8 < from_.blocks ? first + 8 : from_.blocks;
    Wide wide = wide_;  // a local one stays in registers
    for (; done_ < end; ++done_) {
      std::int32_t* const out = out_ + done_ * lanes;
      wide.step(from_.places + table_of(from_.classes[done_]) * table_size, out);
      if (const int bits = low_bits_of(from_.classes[done_]); bits > 0) {
        const auto width = static_cast<unsigned>(bits);
        add_low(near_.words(low_, from_.low_end, width), width, out);
        low_ += 4 * width;
      }
    }
    const bool escaped = wide.escaped();
    wide_ = wide;
    if (escaped) [[unlikely]]
      for (std::size_t b = first; b < end; ++b)
        if (!put_escapes(low_bits_of(from_.classes[b]), out_ + b * lanes)) return false;
    return true;
  }

  // In place of each escape, the value stored: with its lowest bits added, no other symbol looks like one.
  bool put_escapes(int bits, std::int32_t* out) {
    for (std::size_t i = 0; i < lanes; ++i) {
      if (out[i] >> bits != escape) continue;
      if (escapes_ == from_.escape_count) return false;
      std::memcpy(out + i, from_.escapes + 4 * escapes_++, 4);
    }
    return true;
  }

  Wide wide_;
  Near near_;
  const Residuals& from_;
  const std::byte* low_;
  std::int32_t* out_;
  std::size_t done_ = 0, escapes_ = 0;
};

bool residuals(Lanes& of, const Residuals& from, std::int32_t* out) {
  return Decoded(of, from, out).reach(from.blocks * block);
}

bool dense_lorenzo(Lanes& of, const Residuals& from, std::int32_t* residuals, const Sums& sums) {
  return lorenzo_of(Decoded(of, from, residuals), residuals, sums);
}

constexpr Kernels decoding_set{unpack,  symbols, residuals,   dense_lorenzo,
                               to_rows, lorenzo, interpolate, restore};
