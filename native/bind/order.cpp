// alias_table, draw_by, shuffled, shuffled_of, study_order, mixed: what solar/orders asks of native/src/plan/order.cpp.

#include "solar/order.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "arrays.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::array;
using solar::bind::Array;
using solar::bind::view;

void check(bool right, const char* what) {
  if (!right) throw nb::value_error(what);
}

std::vector<std::int64_t> room(std::int64_t count) {
  check(count >= 0, "a number of positions is 0 or more");
  return std::vector<std::int64_t>(static_cast<std::size_t>(count));
}

nb::object py_alias_table(const Array<double>& weights) {
  const auto given = view(weights);
  check(!given.empty() && given.size() <= 0x7FFFFFFF, "an order takes 1 to 2^31 - 1 weights");
  double sum = 0;
  bool fit = true;
  for (const double one : given) fit = fit && one >= 0 && std::isfinite(one), sum += one;
  check(fit && sum > 0 && std::isfinite(sum), "weights must be finite, none negative, and some above 0");
  std::vector<std::uint64_t> table;
  {
    nb::gil_scoped_release released;
    table = solar::plan::alias_table(given);
  }
  return array(std::move(table));
}

nb::object py_draw_by(const Array<std::uint64_t>& table, std::uint64_t seed, std::int64_t epoch, std::int64_t begin,
                      std::int64_t count) {
  check(table.size() > 0, "a table has at least one sample");
  auto out = room(count);
  {
    nb::gil_scoped_release released;
    solar::plan::draw_by(view(table), seed, epoch, begin, out);
  }
  return array(std::move(out));
}

nb::object py_shuffled(std::uint64_t seed, std::int64_t size, std::int64_t begin, std::int64_t count) {
  check(size >= 1 && begin >= 0, "a shuffle has at least one sample, and begins at turn 0 or later");
  auto out = room(count);
  {
    nb::gil_scoped_release released;
    solar::plan::shuffled(seed, size, begin, out);
  }
  return array(std::move(out));
}

nb::object py_shuffled_of(std::uint64_t seed, const Array<std::int32_t>& sources, const Array<std::int64_t>& turns,
                          const Array<std::int64_t>& sizes, const Array<std::int64_t>& firsts) {
  const auto all = view(sources);
  const auto each = view(turns);
  const auto many = view(sizes);
  const auto count = static_cast<std::int64_t>(many.size());
  check(all.size() == each.size() && many.size() == firsts.size(), "these arrays do not fit each other");
  check(std::all_of(many.begin(), many.end(), [](std::int64_t n) { return n >= 1; }), "no source is empty");
  check(std::all_of(all.begin(), all.end(), [&](std::int32_t s) { return s >= 0 && s < count; }), "no such source");
  check(std::all_of(each.begin(), each.end(), [](std::int64_t t) { return t >= 0; }), "turns count from 0");
  std::vector<std::int64_t> out(all.size());
  {
    nb::gil_scoped_release released;
    solar::plan::shuffled_of(seed, all, each, many, view(firsts), out);
  }
  return array(std::move(out));
}

nb::object py_study_order(std::int64_t samples, std::uint64_t study, std::uint64_t seed, std::int64_t epoch,
                          std::int64_t length) {
  check(samples >= 0 && samples <= 0x7FFFFFFF, "an order takes up to 2^31 - 1 samples");
  check(epoch >= 0 && length >= 1, "epochs count from 0, and a stretch has at least one place");
  std::vector<std::int32_t> order;
  {
    nb::gil_scoped_release released;
    order = solar::plan::study_order(samples, study, seed, epoch, length);
  }
  return array(std::move(order));
}

nb::object py_mixed(const Array<std::int64_t>& shares, std::int64_t length, std::uint64_t seed) {
  constexpr std::int64_t most = 1 << 24;  // products of two stay far below 2^63
  const auto given = view(shares);
  std::int64_t sum = 0;
  bool fit = !given.empty();
  for (const std::int64_t share : given) {
    fit = fit && share >= 1 && share <= most && sum <= most;
    sum += fit ? share : 0;
  }
  check(fit && sum <= most && length >= 0 && length <= 2 * most && length % sum == 0,
        "shares are 1 or more, and their sum, up to 2^24, divides the length");
  std::vector<std::int32_t> order;
  {
    nb::gil_scoped_release released;
    order = solar::plan::mixed(given, length, seed);
  }
  return array(std::move(order));
}

nb::object py_seeds(const Array<std::uint32_t>& words, const Array<std::int64_t>& numbers) {
  const auto all = view(numbers);
  check(std::all_of(all.begin(), all.end(), [](std::int64_t number) { return number >= 0; }), "samples count from 0");
  std::vector<std::uint64_t> out(2 * all.size());
  solar::plan::seeds(view(words), all, out);
  return array(std::move(out));
}

}  // namespace

void bind_order(nb::module_& module) {
  module.def("alias_table", py_alias_table, nb::arg("weights"));
  module.def("draw_by", py_draw_by, nb::arg("table"), nb::arg("seed"), nb::arg("epoch"), nb::arg("begin"),
             nb::arg("count"));
  module.def("shuffled", py_shuffled, nb::arg("seed"), nb::arg("size"), nb::arg("begin"), nb::arg("count"));
  module.def("shuffled_of", py_shuffled_of, nb::arg("seed"), nb::arg("sources"), nb::arg("turns"), nb::arg("sizes"),
             nb::arg("firsts"));
  module.def("study_order", py_study_order, nb::arg("samples"), nb::arg("study"), nb::arg("seed"), nb::arg("epoch"),
             nb::arg("length"));
  module.def("mixed", py_mixed, nb::arg("shares"), nb::arg("length"), nb::arg("seed"));
  module.def("seeds", py_seeds, nb::arg("words"), nb::arg("numbers"));
}
