// Sweep, direct, randperm, select, merge_ranges, assign: what solar/planner asks of native/src/plan.

#include "solar/plan.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "arrays.hpp"

namespace nb = nanobind;

namespace {

using namespace solar::plan;
using solar::bind::array;
using solar::bind::Array;
using solar::bind::view;

template <class T>
std::vector<T> copy(const std::optional<Array<T>>& array) {
  return array ? std::vector<T>(array->data(), array->data() + array->size()) : std::vector<T>();
}

nb::tuple numbers(const Counts& counts) {
  return nb::make_tuple(counts.reads, counts.visits, counts.requests, counts.bytes,
                        counts.decoded, counts.sweeps, counts.peak);
}

void check_starts(std::span<const std::int64_t> starts, std::size_t uses) {
  const bool fit = !starts.empty() && starts.front() >= 0 && std::is_sorted(starts.begin(), starts.end()) &&
                   static_cast<std::size_t>(starts.back()) <= uses;
  if (!fit) throw nb::value_error("starts must ascend from 0 or more to at most the number of uses");
}

void check_items(std::span<const Item> items, std::int64_t end) {
  for (const Item item : items) {
    if (item < 0 || item >= end) throw nb::index_error("an item is not one of the units'");
  }
}

void check_samples(std::int64_t n) {
  if (n < 1 || n > 0x7FFFFFFF) throw nb::value_error("a plan takes 1 to 2^31 - 1 samples");
}

using Column = std::optional<Array<std::int64_t>>;

Units units_of(std::int64_t items, std::int64_t per_unit, std::int64_t stored, std::int64_t held, const Column& first,
               const Column& offset, const Column& nbytes, const Column& weight, const Column& chunk_first,
               const Column& chunk_offset, const Column& chunk_nbytes) {
  Units units{items,        per_unit,     stored,            held,               copy(first),       copy(offset),
              copy(nbytes), copy(weight), copy(chunk_first), copy(chunk_offset), copy(chunk_nbytes)};
  const std::size_t count = units.offset.size(), chunks = units.chunk_offset.size();
  const auto go_to = [&](const std::vector<std::int64_t>& ends, std::int64_t all) {
    const bool fits = ends.size() == count + 1 && ends.front() == 0 && ends.back() == all;
    return fits && std::is_sorted(ends.begin(), ends.end());
  };
  const bool each = units.first.empty() && per_unit == 1 && static_cast<std::int64_t>(count) == items;
  const bool in_chunks = (units.chunk_first.empty() && chunks == 0) ||
                         go_to(units.chunk_first, static_cast<std::int64_t>(chunks));
  const bool listed = count > 0 && (each || go_to(units.first, items)) && units.nbytes.size() == count &&
                      (units.weight.empty() || units.weight.size() == count) && in_chunks;
  const bool alike = count == 0 && units.first.empty() && units.nbytes.empty() && units.weight.empty() &&
                     units.chunk_first.empty() && chunks == 0;
  const bool fit = (listed || alike) && units.chunk_nbytes.size() == chunks;
  if (items < 1 || per_unit < 1 || stored < 0 || held < 0 || !fit) {
    throw nb::value_error("the arrays of these units do not fit each other");
  }
  return units;
}

nb::object py_randperm(std::int64_t n, std::uint64_t seed, std::uint64_t skipped) {
  check_samples(n);
  std::vector<Item> order;
  {
    nb::gil_scoped_release released;
    order = randperm(n, seed, skipped);
  }
  return array(std::move(order));
}

nb::tuple py_select(Array<Item> order, Array<std::int64_t> starts, Item begin, Item end) {
  check_starts(view(starts), order.size());
  if (begin > end) throw nb::value_error("begin must not be after end");
  Uses uses;
  {
    nb::gil_scoped_release released;
    uses = select(view(order), view(starts), begin, end);
  }
  return nb::make_tuple(array(std::move(uses.items)), array(std::move(uses.starts)));
}

nb::tuple py_merge_ranges(Array<std::int64_t> first, Array<std::int64_t> last, Array<std::int64_t> starts, Item items) {
  check_starts(view(starts), first.size());
  if (first.size() != last.size()) throw nb::value_error("each range has a first item and a last one");
  for (std::size_t r = 0; r < first.size(); ++r) {
    const std::int64_t from = view(first)[r], to = view(last)[r];
    if (from <= to && (from < 0 || to >= items)) throw nb::index_error("a range has items that there are not");
  }
  Uses uses;
  {
    nb::gil_scoped_release released;
    uses = merge_ranges(view(first), view(last), view(starts));
  }
  return nb::make_tuple(array(std::move(uses.items)), array(std::move(uses.starts)));
}

nb::object py_assign(Array<Item> order, Array<std::int64_t> starts, Array<std::int64_t> homes,
                     std::int32_t ranks_per_node) {
  check_starts(view(starts), order.size());
  const auto bounds = view(homes);
  if (bounds.size() < 2 || bounds.front() != 0 || !std::is_sorted(bounds.begin(), bounds.end()) || ranks_per_node < 1) {
    throw nb::value_error("homes must ascend from 0, with one more than there are ranks");
  }
  check_items(view(order), bounds.back());
  std::vector<std::int32_t> takers;
  {
    nb::gil_scoped_release released;
    takers = assign(view(order), view(starts), bounds, ranks_per_node);
  }
  return array(std::move(takers));
}

nb::tuple back(Sweep& sweep, Array<Item> items, Array<std::int64_t> starts, bool record, bool goes_on) {
  check_starts(view(starts), items.size());
  check_items(view(items), sweep.items());
  Record written;
  Counts counts;
  {
    nb::gil_scoped_release released;
    counts = sweep.back(view(items), view(starts), record ? &written : nullptr, goes_on);
  }
  if (!record) return nb::make_tuple(numbers(counts), nb::none());
  return nb::make_tuple(numbers(counts), nb::make_tuple(array(std::move(written.loads)), array(std::move(written.ends)),
                                                        array(std::move(written.last))));
}

nb::tuple residents(const Sweep& sweep) {
  Counts rest;
  std::vector<Item> items = sweep.residents(rest);
  return nb::make_tuple(numbers(rest), array(std::move(items)));
}

}  // namespace

void bind_plan(nb::module_& module) {
  using namespace nb::literals;
  module.def("randperm", &py_randperm, "n"_a, "seed"_a, "skipped"_a = 0);
  module.def("randperm_draws", &randperm_draws, "n"_a);
  module.def("select", &py_select, "order"_a, "starts"_a, "begin"_a, "end"_a);
  module.def("merge_ranges", &py_merge_ranges, "first"_a, "last"_a, "starts"_a, "items"_a);
  module.def("assign", &py_assign, "order"_a, "starts"_a, "homes"_a, "ranks_per_node"_a);
  nb::class_<Units>(module, "Units")
      .def("__init__",
           [](Units* made, std::int64_t items, std::int64_t per_unit, std::int64_t stored, std::int64_t held,
              Column first, Column offset, Column nbytes, Column weight, Column chunk_first, Column chunk_offset,
              Column chunk_nbytes) {
             new (made) Units(units_of(items, per_unit, stored, held, first, offset, nbytes, weight, chunk_first,
                                       chunk_offset, chunk_nbytes));
           },
           "items"_a, "per_unit"_a, "stored"_a, "held"_a, "first"_a.none() = nb::none(), "offset"_a.none() = nb::none(),
           "nbytes"_a.none() = nb::none(), "weight"_a.none() = nb::none(), "chunk_first"_a.none() = nb::none(),
           "chunk_offset"_a.none() = nb::none(), "chunk_nbytes"_a.none() = nb::none())
      .def_prop_ro("items", [](const Units& units) { return units.items; });
  nb::class_<Sweep>(module, "Sweep")
      .def("__init__",
           [](Sweep* made, const Units& units, std::int64_t room, std::int64_t burst, std::int64_t ahead,
              std::int64_t gap, bool lasting) {
             if (burst < 0 || ahead < 0 || gap < 0) throw nb::value_error("burst, ahead and gap must not be below 0");
             new (made) Sweep(std::make_shared<const Units>(units), room, burst, ahead, gap, lasting);
           },
           "units"_a, "room"_a, "burst"_a, "ahead"_a, "gap"_a, "lasting"_a = false)
      .def("back", &back, "items"_a, "starts"_a, "record"_a = false, "goes_on"_a = false)
      .def("residents", &residents)
      .def("copy", [](const Sweep& sweep) { return Sweep(sweep); });
  module.def(
      "direct",
      [](const Units& units, Array<Item> items, Array<std::int64_t> starts, std::int64_t gap) {
        check_starts(view(starts), items.size());
        check_items(view(items), units.items);
        Counts counts;
        {
          nb::gil_scoped_release released;
          counts = direct(units, view(items), view(starts), gap);
        }
        return numbers(counts);
      },
      "units"_a, "items"_a, "starts"_a, "gap"_a);
}
