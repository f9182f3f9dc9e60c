// Walks the batch: rows that are dense in the source one after another, others in tiles.
#include "solar/convert.hpp"

#include <algorithm>
#include <array>

#include "convert/axes.hpp"
#include "convert/cast.hpp"
#include "convert/terms.hpp"
#include "convert/transpose.hpp"

namespace solar {
namespace {

using namespace converting;

constexpr std::size_t near_nbytes = 16 << 10;  // what is cast, then normalised, has not left the first cache by then
constexpr std::size_t tile_side = 64;          // items: at least a cache line

struct Pair {  // 16 bytes, whatever they mean
  std::uint64_t low, high;
};

// What is subtracted and divided by, nullptr where nothing is.
template <class To>
struct Terms {
  const To* mean;
  const To* deviation;

  Terms(const Term& m, const Term& d)
      : mean(static_cast<const To*>(m.values)), deviation(static_cast<const To*>(d.values)) {}

  // From a place on, along an axis with these steps.
  void normalise(To* row, std::size_t items, const Place& from, const Place& step) const {
    converting::normalise<To>(row, items, {mean == nullptr ? nullptr : mean + from.mean, step.mean},
                              {deviation == nullptr ? nullptr : deviation + from.deviation, step.deviation});
  }
};

// As many whole periods of a term as `items` are.
template <class To>
std::vector<To> repeated(const To* values, std::ptrdiff_t step, std::size_t period, std::size_t items) {
  std::vector<To> all(values == nullptr ? 0 : items);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = values[static_cast<std::ptrdiff_t>(i % period) * step];
  return all;
}

template <class From, class To>
void convert_rows(const Walk& walk, const std::byte* source, To* out, Terms<To> terms) {
  const Axis& row = walk.along;
  std::size_t block = near_nbytes / sizeof(To);
  Place step = row.step;
  std::vector<To> mean, deviation;
  if (walk.period > 0) {  // the terms are the same in every block, and nowhere else do they change
    block -= block % walk.period;
    mean = repeated(terms.mean, step.mean, walk.period, block);
    deviation = repeated(terms.deviation, step.deviation, walk.period, block);
    if (!mean.empty()) terms.mean = mean.data();
    if (!deviation.empty()) terms.deviation = deviation.data();
    step.mean = step.deviation = 1;
  }
  walk_axes(std::span(walk.outer), {}, [&](const Place& begin) {
    for (std::size_t done = 0; done < row.size; done += block) {
      const std::size_t items = std::min(block, row.size - done);
      const Place place = begin.after(row.step, done);
      load<From>(out + place.out, source + place.source, row.step.source, items);
      terms.normalise(out + place.out, items, walk.period > 0 ? Place{} : place, step);
    }
  });
}

// The tile at `place`: cast into `near`, with `across` innermost, and written out turned round. It is normalised along
// its longer axis, before or after.
template <class From, class To>
void convert_tile(const Axis& across, const Axis& along, const Place& place, const std::byte* source, To* out,
                  const Terms<To>& terms, To* near) {
  source += place.source;
  if (along.step.source == Place{}.after(across.step, across.size).source) {
    load<From>(near, source, across.step.source, across.size * along.size);
  } else {
    for (std::size_t i = 0; i < along.size; ++i)
      load<From>(near + i * across.size, source + Place{}.after(along.step, i).source, across.step.source, across.size);
  }
  const bool before = along.size < across.size;
  for (std::size_t i = 0; before && i < along.size; ++i)
    terms.normalise(near + i * across.size, across.size, place.after(along.step, i), across.step);
  transpose(near, across.size, out + place.out, static_cast<std::size_t>(across.step.out), along.size, across.size);
  for (std::size_t i = 0; !before && i < across.size; ++i) {
    const Place row = place.after(across.step, i);
    terms.normalise(out + row.out, along.size, row, along.step);
  }
}

template <class From, class To>
void convert_tiles(const Walk& walk, const std::byte* source, To* out, const Terms<To>& terms) {
  std::array<To, near_nbytes / sizeof(To)> near;
  const std::size_t short_side = std::min({walk.across.size, walk.along.size, tile_side});
  const bool narrow = walk.across.size == short_side;
  const std::size_t most_across = narrow ? short_side : std::min(walk.across.size, near.size() / short_side);
  const std::size_t most_along = narrow ? near.size() / short_side : short_side;
  walk_axes(std::span(walk.outer), {}, [&](const Place& begin) {
    for (std::size_t i = 0; i < walk.across.size; i += most_across)
      for (std::size_t j = 0; j < walk.along.size; j += most_along) {
        const Place place = begin.after(walk.across.step, i).after(walk.along.step, j);
        convert_tile<From>({std::min(most_across, walk.across.size - i), walk.across.step},
                           {std::min(most_along, walk.along.size - j), walk.along.step}, place, source, out, terms,
                           near.data());
      }
  });
}

template <class From, class To>
void convert_walk(const Walk& walk, const std::byte* source, std::byte* out, const Term& mean, const Term& deviation) {
  auto* const values = reinterpret_cast<To*>(out);
  const Terms<To> terms(mean, deviation);
  if (walk.across.size > 1) {
    convert_tiles<From>(walk, source, values, terms);
  } else {
    convert_rows<From>(walk, source, values, terms);
  }
}

using Convert = void (*)(const Walk&, const std::byte*, std::byte*, const Term&, const Term&);

struct Kernel {
  std::size_t itemsize;
  Convert to_float32, to_float64;
};

template <class From>
constexpr Kernel kernel{sizeof(From), &convert_walk<From, float>, &convert_walk<From, double>};

// In the order of Number.
constexpr std::array kernels{
    kernel<Boolean>,       kernel<std::int8_t>,  kernel<std::uint8_t>,  kernel<std::int16_t>,
    kernel<std::uint16_t>, kernel<std::int32_t>, kernel<std::uint32_t>, kernel<std::int64_t>,
    kernel<std::uint64_t>, kernel<Half>,         kernel<float>,         kernel<double>};
static_assert(kernels.size() == static_cast<std::size_t>(Number::float64) + 1);

}  // namespace

void convert(const Strided& source, Number from, std::byte* out, Number to, const Term& mean, const Term& deviation) {
  const Kernel& kernel = kernels[static_cast<std::size_t>(from)];
  const Walk walk = plan(source, kernel.itemsize, mean, deviation);
  if (walk.empty) return;
  (to == Number::float32 ? kernel.to_float32 : kernel.to_float64)(walk, source.bytes, out, mean, deviation);
}

void rearrange(const Strided& source, std::size_t itemsize, std::byte* out) {
  const Walk walk = plan(source, itemsize, {}, {});
  if (walk.empty) return;
  switch (itemsize) {
    case 1: return convert_walk<std::uint8_t, std::uint8_t>(walk, source.bytes, out, {}, {});
    case 2: return convert_walk<std::uint16_t, std::uint16_t>(walk, source.bytes, out, {}, {});
    case 4: return convert_walk<std::uint32_t, std::uint32_t>(walk, source.bytes, out, {}, {});
    case 8: return convert_walk<std::uint64_t, std::uint64_t>(walk, source.bytes, out, {}, {});
    case 16: return convert_walk<Pair, Pair>(walk, source.bytes, out, {}, {});
  }
  // Of another size: an item is an axis of bytes.
  Strided bytes = source;
  bytes.shape.push_back(itemsize);
  bytes.strides.push_back(1);
  rearrange(bytes, 1, out);
}

}  // namespace solar
