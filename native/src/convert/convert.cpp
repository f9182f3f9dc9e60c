// Walks the batch: rows that are dense in the source one after another, others in tiles.
#include "solar/convert.hpp"

#include <algorithm>
#include <array>

#include "convert/axes.hpp"
#include "convert/cast.hpp"
#include "convert/terms.hpp"
#include "convert/transpose.hpp"
#include "convert/unpack.hpp"

namespace solar {
namespace {

using namespace converting;

// Rows are cast and normalised in parts of this size, so that what was cast is still in the first cache.
constexpr std::size_t near_nbytes = 16 << 10;
constexpr std::size_t tile_side = 64;          // items: at least a cache line

struct Pair {  // 16 bytes, whatever they mean
  std::uint64_t low, high;
};

// What is subtracted and divided by, nullptr where nothing is; and what takes the place of NaN.
template <class To>
struct Terms {
  const To* mean;
  const To* deviation;
  std::optional<To> instead;

  Terms(const Term& m, const Term& d, const std::optional<double>& of_nan)
      : mean(static_cast<const To*>(m.values)), deviation(static_cast<const To*>(d.values)) {
    if constexpr (std::is_floating_point_v<To>)
      if (of_nan) instead = static_cast<To>(*of_nan);
  }

  // From a place on, along an axis with these steps.
  void normalise(To* row, std::size_t items, const Offsets& from, const Offsets& step) const {
    converting::normalise<To>(row, items, {mean == nullptr ? nullptr : mean + from.mean, step.mean},
                              {deviation == nullptr ? nullptr : deviation + from.deviation, step.deviation});
    if constexpr (std::is_floating_point_v<To>)
      if (instead) replace_nan(row, items, *instead);
  }
};

// How items of one kind become floating-point numbers.
struct Kernel {
  std::size_t itemsize;
  Load<float> as_float32;
  Load<double> as_float64;
};

// A stretch of the source, cast, or unpacked. A function for each kind of source is called by its address: the walks
// below are compiled once for each type that is written, not for each pair.
template <class To>
struct Make {
  Load<To> load;
  const Kernel* kernel = nullptr;    // for what is unpacked
  const Packing* packing = nullptr;  // nullptr: nothing is
  Narrow narrow = nullptr;           // where what is written is narrower than To

  void operator()(To* out, const std::byte* source, std::ptrdiff_t step, std::size_t items) const {
    if constexpr (std::is_floating_point_v<To>) {
      if (packing != nullptr)
        return packing->in == Number::float32
                   ? load_unpacked<float>(kernel->as_float32, *packing, out, source, step, items)
                   : load_unpacked<double>(kernel->as_float64, *packing, out, source, step, items);
    }
    load(out, source, step, items);
  }
};

// As many whole periods of a term as `items` are.
template <class To>
std::vector<To> repeated(const To* values, std::ptrdiff_t step, std::size_t period, std::size_t items) {
  std::vector<To> all(values == nullptr ? 0 : items);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = values[static_cast<std::ptrdiff_t>(i % period) * step];
  return all;
}

// Where Out is another type than To, what is made is narrowed to it at last.
template <class Out, class To>
void convert_rows(const Walk& walk, const std::byte* source, Out* out, Terms<To> terms, const Make<To>& make) {
  constexpr bool narrows = !std::is_same_v<Out, To>;
  std::array<To, narrows ? near_nbytes / sizeof(To) : 1> near;
  const Axis& row = walk.along;
  std::size_t block = near_nbytes / sizeof(To);
  Offsets step = row.step;
  std::vector<To> mean, deviation;
  // The terms are the same in each block of `period` items, and change nowhere else.
  if (walk.period > 0) {
    block -= block % walk.period;
    mean = repeated(terms.mean, step.mean, walk.period, block);
    deviation = repeated(terms.deviation, step.deviation, walk.period, block);
    if (!mean.empty()) terms.mean = mean.data();
    if (!deviation.empty()) terms.deviation = deviation.data();
    step.mean = step.deviation = 1;
  }
  walk_axes(std::span(walk.outer), {}, [&](const Offsets& begin) {
    for (std::size_t done = 0; done < row.size; done += block) {
      const std::size_t items = std::min(block, row.size - done);
      const Offsets place = begin.after(row.step, done);
      To* made = near.data();
      if constexpr (!narrows) made = out + place.out;
      make(made, source + place.source, row.step.source, items);
      terms.normalise(made, items, walk.period > 0 ? Offsets{} : place, step);
      if constexpr (narrows) make.narrow(out + place.out, made, items);
    }
  });
}

template <class To>
using Near = std::array<To, near_nbytes / sizeof(To)>;

// The tile at `place`: cast into `near`, with `across` innermost, and written out turned round. It is normalised along
// its longer axis, before or after; before, where it is then narrowed.
template <class Out, class To>
void convert_tile(const Axis& across, const Axis& along, const Offsets& place, const std::byte* source, Out* out,
                  const Terms<To>& terms, const Make<To>& make, Near<To>& near) {
  constexpr bool narrows = !std::is_same_v<Out, To>;
  source += place.source;
  if (along.step.source == Offsets{}.after(across.step, across.size).source) {
    make(near.data(), source, across.step.source, across.size * along.size);
  } else {
    for (std::size_t i = 0; i < along.size; ++i)
      make(near.data() + i * across.size, source + Offsets{}.after(along.step, i).source, across.step.source,
           across.size);
  }
  const bool before = narrows || along.size < across.size;
  for (std::size_t i = 0; before && i < along.size; ++i)
    terms.normalise(near.data() + i * across.size, across.size, place.after(along.step, i), across.step);
  const auto turn = [&](const auto* made) {
    transpose(made, across.size, out + place.out, static_cast<std::size_t>(across.step.out), along.size, across.size);
  };
  if constexpr (narrows) {
    std::array<Out, std::tuple_size_v<Near<To>>> narrowed;
    make.narrow(narrowed.data(), near.data(), across.size * along.size);
    turn(narrowed.data());
  } else {
    turn(near.data());
    for (std::size_t i = 0; !before && i < across.size; ++i) {
      const Offsets row = place.after(across.step, i);
      terms.normalise(out + row.out, along.size, row, along.step);
    }
  }
}

template <class Out, class To>
void convert_tiles(const Walk& walk, const std::byte* source, Out* out, const Terms<To>& terms, const Make<To>& make) {
  Near<To> near;
  const std::size_t short_side = std::min({walk.across.size, walk.along.size, tile_side});
  const bool narrow = walk.across.size == short_side;
  const std::size_t most_across = narrow ? short_side : std::min(walk.across.size, near.size() / short_side);
  const std::size_t most_along = narrow ? near.size() / short_side : short_side;
  walk_axes(std::span(walk.outer), {}, [&](const Offsets& begin) {
    for (std::size_t i = 0; i < walk.across.size; i += most_across)
      for (std::size_t j = 0; j < walk.along.size; j += most_along) {
        const Offsets place = begin.after(walk.across.step, i).after(walk.along.step, j);
        convert_tile({std::min(most_across, walk.across.size - i), walk.across.step},
                     {std::min(most_along, walk.along.size - j), walk.along.step}, place, source, out, terms, make,
                     near);
      }
  });
}

template <class Out, class To>
void convert_walk(const Walk& walk, const std::byte* source, std::byte* out, const Terms<To>& terms,
                  const Make<To>& make) {
  auto* const values = reinterpret_cast<Out*>(out);
  if (walk.across.size > 1) {
    convert_tiles(walk, source, values, terms, make);
  } else {
    convert_rows(walk, source, values, terms, make);
  }
}

template <class From>
constexpr Kernel kernel{sizeof(From), &load<From, float>, &load<From, double>};

// In the order of Number.
constexpr std::array kernels{
    kernel<Boolean>,       kernel<std::int8_t>,  kernel<std::uint8_t>,  kernel<std::int16_t>,
    kernel<std::uint16_t>, kernel<std::int32_t>, kernel<std::uint32_t>, kernel<std::int64_t>,
    kernel<std::uint64_t>, kernel<Half>,         kernel<float>,         kernel<double>};
static_assert(kernels.size() == static_cast<std::size_t>(Number::float64) + 1);

// Moved as they are.
template <class Item>
void rearrange_items(const Walk& walk, const std::byte* source, std::byte* out) {
  convert_walk<Item>(walk, source, out, Terms<Item>({}, {}, {}), Make<Item>{&load<Item, Item>});
}

}  // namespace

void convert(const Strided& source, Number from, std::byte* out, Number to, const Term& mean, const Term& deviation,
             const Packing* packing) {
  const Kernel& kernel = kernels[static_cast<std::size_t>(from)];
  const Walk walk = plan(source, kernel.itemsize, mean, deviation);
  if (walk.empty) return;
  const std::optional<double> instead = packing == nullptr ? std::nullopt : packing->instead;
  if (to == Number::float64)
    return convert_walk<double>(walk, source.bytes, out, Terms<double>(mean, deviation, instead),
                                Make<double>{kernel.as_float64, &kernel, packing});
  const Terms<float> terms(mean, deviation, instead);
  const Narrow narrowest = to == Number::float16 ? to_float16 : to_bfloat16;
  const Make<float> make{kernel.as_float32, &kernel, packing, narrowest};
  if (to == Number::float32) return convert_walk<float>(walk, source.bytes, out, terms, make);
  convert_walk<std::uint16_t>(walk, source.bytes, out, terms, make);
}

void rearrange(const Strided& source, std::size_t itemsize, std::byte* out) {
  const Walk walk = plan(source, itemsize, {}, {});
  if (walk.empty) return;
  switch (itemsize) {
    case 1: return rearrange_items<std::uint8_t>(walk, source.bytes, out);
    case 2: return rearrange_items<std::uint16_t>(walk, source.bytes, out);
    case 4: return rearrange_items<std::uint32_t>(walk, source.bytes, out);
    case 8: return rearrange_items<std::uint64_t>(walk, source.bytes, out);
    case 16: return rearrange_items<Pair>(walk, source.bytes, out);
  }
  // Of another size: an item is an axis of bytes.
  Strided bytes = source;
  bytes.shape.push_back(itemsize);
  bytes.strides.push_back(1);
  rearrange(bytes, 1, out);
}

void Conversion::operator()(const std::byte* samples, std::size_t count, std::byte* out) const {
  Strided all{samples + offset, {count}, {static_cast<std::ptrdiff_t>(sample_nbytes)}};
  all.shape.insert(all.shape.end(), sample.shape.begin(), sample.shape.end());
  all.strides.insert(all.strides.end(), sample.strides.begin(), sample.strides.end());
  if (rearranged != 0) return rearrange(all, rearranged, out);
  const auto of_all = [](const Term& term) {
    Term made{term.values, {}};
    if (term.values == nullptr) return made;
    made.strides.assign(1, 0);
    made.strides.insert(made.strides.end(), term.strides.begin(), term.strides.end());
    return made;
  };
  convert(all, from, out, to, of_all(mean), of_all(deviation), packing ? &*packing : nullptr);
}

}  // namespace solar
