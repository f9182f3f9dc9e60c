// convert and rearrange against the obvious loop over every item, on random strides.
#include "solar/convert.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

namespace {

using solar::Number;
using solar::Strided;
using solar::Term;

// A view into its own memory with axes in any order, steps and directions. The memory ends where the view does.
struct Made {
  std::vector<std::byte> memory;
  Strided view;
  std::size_t items = 1;
};

Made make(std::mt19937& random, std::size_t itemsize) {
  const auto up_to = [&](std::size_t n) { return static_cast<std::size_t>(random() % (n + 1)); };
  Made made;
  const std::size_t axes = up_to(4);
  for (std::size_t i = 0; i < axes; ++i) made.view.shape.push_back(random() % 3 ? 1 + up_to(8) : 1 + up_to(90));
  made.view.strides.resize(axes);
  std::vector<std::size_t> order(axes);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::size_t nbytes = itemsize;
  std::ptrdiff_t first = 0;
  for (const std::size_t axis : order) {
    const std::size_t size = made.view.shape[axis], step = random() % 3 ? 1 : 2;
    const auto stride = static_cast<std::ptrdiff_t>(nbytes * step);
    made.view.strides[axis] = random() % 4 ? stride : -stride;
    if (made.view.strides[axis] < 0) first += stride * static_cast<std::ptrdiff_t>(size - 1);
    nbytes += static_cast<std::size_t>(stride) * (size - 1);
    made.items *= size;
  }
  made.memory.resize(nbytes);
  for (std::byte& byte : made.memory) byte = static_cast<std::byte>(random());
  made.view.bytes = made.memory.data() + first;
  return made;
}

// Calls see(place of the item in the source in bytes, index along each axis) in C order.
template <class See>
void each_item(const Strided& view, const See& see) {
  std::vector<std::size_t> index(view.shape.size());
  for (;;) {
    std::ptrdiff_t place = 0;
    for (std::size_t i = 0; i < index.size(); ++i) place += static_cast<std::ptrdiff_t>(index[i]) * view.strides[i];
    see(view.bytes + place, index);
    std::size_t axis = index.size();
    while (axis > 0 && ++index[axis - 1] == view.shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

// Values that vary along some of the axes, in C order.
template <class To>
struct MadeTerm {
  std::vector<To> values{1};
  Term term;

  MadeTerm(std::mt19937& random, const Strided& view, To smallest)
      : term{nullptr, std::vector<std::ptrdiff_t>(view.shape.size())} {
    std::size_t count = 1;
    for (std::size_t i = view.shape.size(); i-- > 0;) {
      if (random() % 2 || view.shape[i] == 1) continue;
      term.strides[i] = static_cast<std::ptrdiff_t>(count);
      count *= view.shape[i];
    }
    values.resize(count);
    for (To& value : values) value = smallest + static_cast<To>(random() % 1000) / 7;
    if (random() % 3) term.values = values.data();
  }
  To at(const std::vector<std::size_t>& index) const {
    std::ptrdiff_t place = 0;
    for (std::size_t i = 0; i < index.size(); ++i) place += static_cast<std::ptrdiff_t>(index[i]) * term.strides[i];
    return values[static_cast<std::size_t>(place)];
  }
};

template <class From, class To>
void check_cast(std::mt19937& random, Number from, Number to) {
  const Made made = make(random, sizeof(From));
  const MadeTerm<To> mean(random, made.view, -70), deviation(random, made.view, To(0.5));
  std::vector<To> out(made.items), wanted;
  each_item(made.view, [&](const std::byte* item, const std::vector<std::size_t>& index) {
    From stored;
    std::memcpy(&stored, item, sizeof stored);
    To value = static_cast<To>(stored);
    if (mean.term.values != nullptr) value -= mean.at(index);
    if (deviation.term.values != nullptr) value /= deviation.at(index);
    wanted.push_back(value);
  });
  solar::convert(made.view, from, reinterpret_cast<std::byte*>(out.data()), to, mean.term, deviation.term);
  REQUIRE(std::memcmp(out.data(), wanted.data(), out.size() * sizeof(To)) == 0);
}

template <class From>
void check_number(std::mt19937& random, Number from) {
  for (int i = 0; i < 60; ++i) {
    check_cast<From, float>(random, from, Number::float32);
    check_cast<From, double>(random, from, Number::float64);
  }
}

// Item by item: masked, scaled and shifted in In, each step in Wide, then cast to To and normalised.
template <class From, class In, class Wide, class To>
void check_packed(std::mt19937& random, Number from, Number to, solar::Packing packing) {
  const Made made = make(random, sizeof(From));
  const MadeTerm<To> mean(random, made.view, -70), deviation(random, made.view, To(0.5));
  std::vector<To> out(made.items), wanted;
  each_item(made.view, [&](const std::byte* item, const std::vector<std::size_t>& index) {
    From stored;
    std::memcpy(&stored, item, sizeof stored);
    volatile In value = static_cast<In>(stored);  // volatile: rounded after each step
    for (const double missing : packing.missing)
      if (value == static_cast<In>(missing)) value = std::numeric_limits<In>::quiet_NaN();
    if (packing.scale) value = static_cast<In>(static_cast<Wide>(value) * static_cast<Wide>(*packing.scale));
    if (packing.offset) value = static_cast<In>(static_cast<Wide>(value) + static_cast<Wide>(*packing.offset));
    To made_of = static_cast<To>(value);
    if (mean.term.values != nullptr) made_of -= mean.at(index);
    if (deviation.term.values != nullptr) made_of /= deviation.at(index);
    if (packing.instead && std::isnan(made_of)) made_of = static_cast<To>(*packing.instead);
    wanted.push_back(made_of);
  });
  packing.in = sizeof(In) == 4 ? Number::float32 : Number::float64;
  packing.wide = sizeof(Wide) > sizeof(In);
  solar::convert(made.view, from, reinterpret_cast<std::byte*>(out.data()), to, mean.term, deviation.term, &packing);
  REQUIRE(std::memcmp(out.data(), wanted.data(), out.size() * sizeof(To)) == 0);
  if constexpr (sizeof(To) == 4) {  // bfloat16 is float32, rounded
    std::vector<std::uint16_t> halves(made.items);
    solar::convert(made.view, from, reinterpret_cast<std::byte*>(halves.data()), Number::bfloat16, mean.term,
                   deviation.term, &packing);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(wanted[i]);
      const auto rounded = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      REQUIRE(halves[i] == (std::isnan(wanted[i]) ? 0xffff : rounded));
    }
  }
}

template <class From>
void check_packings(std::mt19937& random, Number from) {
  for (int i = 0; i < 40; ++i) {
    solar::Packing packing;
    for (std::size_t n = random() % 3; n > 0; --n) packing.missing.push_back(static_cast<std::int8_t>(random()));
    if (random() % 2) packing.scale = static_cast<float>(random() % 1000) / 7;
    if (random() % 2) packing.offset = static_cast<float>(random() % 1000) / -3;
    if (random() % 2) packing.instead = 5;
    check_packed<From, float, float, float>(random, from, Number::float32, packing);
    check_packed<From, float, double, float>(random, from, Number::float32, packing);
    check_packed<From, float, float, double>(random, from, Number::float64, packing);
    check_packed<From, double, double, float>(random, from, Number::float32, packing);
    check_packed<From, double, double, double>(random, from, Number::float64, packing);
  }
}

template <class To>
To one(Number from, Number to, auto stored) {
  To out;
  const Strided view{reinterpret_cast<const std::byte*>(&stored), {}, {}};
  solar::convert(view, from, reinterpret_cast<std::byte*>(&out), to, {}, {});
  return out;
}

}  // namespace

TEST_CASE("any strides, casts and terms give what the loop over the items gives") {
  std::mt19937 random(1);
  check_number<std::int8_t>(random, Number::int8);
  check_number<std::uint8_t>(random, Number::uint8);
  check_number<std::int16_t>(random, Number::int16);
  check_number<std::uint16_t>(random, Number::uint16);
  check_number<std::int32_t>(random, Number::int32);
  check_number<std::uint32_t>(random, Number::uint32);
  check_number<std::int64_t>(random, Number::int64);
  check_number<std::uint64_t>(random, Number::uint64);
  check_number<float>(random, Number::float32);
  check_number<double>(random, Number::float64);
}

TEST_CASE("packed numbers are unpacked as the loop over the items does") {
  std::mt19937 random(3);
  check_packings<std::int8_t>(random, Number::int8);
  check_packings<std::uint8_t>(random, Number::uint8);
  check_packings<std::int16_t>(random, Number::int16);
  check_packings<std::int32_t>(random, Number::int32);
  check_packings<std::uint64_t>(random, Number::uint64);
}

TEST_CASE("numbers are rounded to bfloat16 without a packing too") {
  const auto half = [](float value) { return one<std::uint16_t>(Number::float32, Number::bfloat16, value); };
  CHECK(half(1.0f) == 0x3f80);
  CHECK(half(std::bit_cast<float>(0x3f808000)) == 0x3f80);  // ties go to even
  CHECK(half(std::bit_cast<float>(0x3f818000)) == 0x3f82);
  CHECK(half(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(half(-std::numeric_limits<float>::infinity()) == 0xff80);
  CHECK(half(std::bit_cast<float>(0x7f800001)) == 0xffff);
  CHECK(one<std::uint16_t>(Number::uint16, Number::bfloat16, std::uint16_t{257}) == 0x4380);
}

TEST_CASE("items of any size are moved as they are") {
  std::mt19937 random(2);
  for (const std::size_t itemsize : {1, 2, 3, 4, 7, 8, 12, 16, 40})
    for (int i = 0; i < 60; ++i) {
      const Made made = make(random, itemsize);
      std::vector<std::byte> out(made.items * itemsize), wanted;
      each_item(made.view,
                [&](const std::byte* item, const auto&) { wanted.insert(wanted.end(), item, item + itemsize); });
      solar::rearrange(made.view, itemsize, out.data());
      REQUIRE(out == wanted);
    }
}

TEST_CASE("large matrices, planes and pixels are turned round whole") {
  const auto turned = [](std::size_t rows, std::size_t columns) {
    std::vector<std::uint32_t> in(rows * columns), out(in.size()), wanted(in.size());
    std::iota(in.begin(), in.end(), 0);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) wanted[j * rows + i] = in[i * columns + j];
    const auto row = static_cast<std::ptrdiff_t>(columns * 4);
    solar::rearrange({reinterpret_cast<const std::byte*>(in.data()), {columns, rows}, {4, row}}, 4,
                     reinterpret_cast<std::byte*>(out.data()));
    return out == wanted;
  };
  for (const std::size_t n : {1, 2, 3, 4, 5, 63, 64, 65, 200})
    for (const std::size_t m : {1, 2, 3, 4, 5, 64, 130, 5000}) {
      CAPTURE(n);
      CAPTURE(m);
      CHECK(turned(n, m));
      CHECK(turned(m, n));
    }
}

TEST_CASE("terms that differ only from colour to colour repeat over all pixels") {
  constexpr std::size_t pixels = 3000, colours = 3;
  std::vector<std::uint8_t> in(pixels * colours);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint8_t>(i * 37);
  const float mean[colours] = {1, 20, 300}, deviation[colours] = {3, 5, 7};
  std::vector<float> out(in.size());
  solar::convert({reinterpret_cast<const std::byte*>(in.data()), {pixels, colours}, {3, 1}}, Number::uint8,
                 reinterpret_cast<std::byte*>(out.data()), Number::float32, {mean, {0, 1}}, {deviation, {0, 1}});
  for (std::size_t i = 0; i < in.size(); ++i) REQUIRE(out[i] == (in[i] - mean[i % colours]) / deviation[i % colours]);
}

TEST_CASE("halves of every kind are widened exactly") {
  const auto half = [](unsigned bits) { return one<float>(Number::float16, Number::float32, std::uint16_t(bits)); };
  CHECK(half(0x3c00) == 1.0f);
  CHECK(half(0xc500) == -5.0f);
  CHECK(half(0x7bff) == 65504.0f);
  CHECK(half(0x0400) == std::ldexp(1.0f, -14));
  CHECK(half(0x0001) == std::ldexp(1.0f, -24));
  CHECK(half(0x83ff) == -1023 * std::ldexp(1.0f, -24));
  CHECK((half(0x8000) == 0 && std::signbit(half(0x8000))));
  CHECK(half(0xfc00) == -std::numeric_limits<float>::infinity());
  CHECK(std::bit_cast<std::uint32_t>(half(0x7e01)) == 0x7fc02000);
  CHECK(one<double>(Number::float16, Number::float64, std::uint16_t{1}) == std::ldexp(1.0, -24));
}

TEST_CASE("booleans are true whatever byte is not zero") {
  for (const int byte : {0, 1, 2, 255})
    CHECK(one<float>(Number::boolean, Number::float32, std::uint8_t(byte)) == (byte == 0 ? 0.0f : 1.0f));
}

TEST_CASE("nothing is written where there are no items") {
  std::byte out{7};
  const Strided none{&out, {3, 0, 2}, {1, 1, 1}};
  solar::rearrange(none, 1, &out);
  solar::convert(none, Number::uint8, &out, Number::float32, {}, {});
  CHECK(out == std::byte{7});
}

TEST_CASE("a conversion does to each sample of a batch what convert() does to one") {
  const std::size_t count = 5, rows = 3, columns = 4;
  std::vector<std::int16_t> samples(count * rows * columns);
  std::iota(samples.begin(), samples.end(), std::int16_t{-20});
  solar::Conversion turned;  // transposed, from the last row back, minus a mean for each column
  turned.sample_nbytes = rows * columns * 2, turned.made_nbytes = rows * columns * 4;
  turned.offset = (rows - 1) * columns * 2;
  turned.sample = {nullptr, {columns, rows}, {2, -static_cast<std::ptrdiff_t>(columns) * 2}};
  turned.from = Number::int16, turned.to = Number::float32;
  const std::vector<float> mean{1, 2, 3, 4};
  turned.terms.resize(mean.size() * sizeof(float));
  std::memcpy(turned.terms.data(), mean.data(), turned.terms.size());
  turned.mean = {turned.terms.data(), {1, 0}};
  std::vector<float> made(samples.size());
  turned(reinterpret_cast<const std::byte*>(samples.data()), count, reinterpret_cast<std::byte*>(made.data()));
  for (std::size_t s = 0; s < count; ++s) {
    for (std::size_t c = 0; c < columns; ++c) {
      for (std::size_t r = 0; r < rows; ++r) {
        const auto stored = static_cast<float>(samples[(s * rows + rows - 1 - r) * columns + c]);
        REQUIRE(made[(s * columns + c) * rows + r] == stored - mean[c]);
      }
    }
  }
  turned.rearranged = 2, turned.made_nbytes = rows * columns * 2;
  std::vector<std::int16_t> moved(samples.size());
  turned(reinterpret_cast<const std::byte*>(samples.data()), count, reinterpret_cast<std::byte*>(moved.data()));
  CHECK(moved[0] == samples[(rows - 1) * columns]);
  CHECK(moved.back() == samples[(count - 1) * rows * columns + columns - 1]);
}
