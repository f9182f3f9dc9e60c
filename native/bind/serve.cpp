// What a service and its jobs share.

#include "solar/serve.hpp"

#include <nanobind/stl/vector.h>

#include "bound.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::Array;
using solar::bind::BoundPool;
using solar::bind::nanoseconds;
using solar::bind::view;
using solar::bind::Writable;

const char* word_of_arrival(solar::Guest::Came came) {
  switch (came) {
    case solar::Guest::Came::here: return "here";
    case solar::Guest::Came::not_held: return "not held";
    default: return "gone";
  }
}

}  // namespace

void bind_serve(nb::module_& module) {
  using namespace nb::literals;
  using solar::Guest;
  using solar::Ledger;
  nb::class_<BoundPool>(module, "SharedPool")
      .def(
          "__init__",
          [](BoundPool* self, std::size_t nbytes) { new (self) BoundPool{solar::SharedPool::make(nbytes)}; },
          "nbytes"_a)
      .def_prop_ro("descriptor", [](const BoundPool& pool) { return pool.native->descriptor(); })
      .def_prop_ro("in_use", [](const BoundPool& pool) { return pool.native->in_use(); })
      .def_prop_ro("waited",
                   [](const BoundPool& pool) { return std::chrono::duration<double>(pool.native->waited()).count(); })
      .def(
          "offset", [](const BoundPool& pool, const Array<std::uint8_t>& of) { return pool.native->offset(of.data()); },
          "array"_a)
      .def(
          "use", [](const BoundPool& pool, std::size_t nbytes) { pool.native->use(nbytes); }, "nbytes"_a)
      .def("close", [](const BoundPool& pool) { pool.native->close(); });
  nb::class_<Ledger>(module, "Ledger")
      .def(nb::init<std::size_t, std::size_t, std::size_t>(), "entries"_a, "fields"_a, "most"_a)
      .def_prop_ro("descriptor", &Ledger::descriptor)
      .def_prop_ro("line", &Ledger::line_descriptor)
      .def_prop_ro("made", &Ledger::made)
      .def_prop_ro("waits", &Ledger::waits)
      .def_prop_ro("waited",
                   [](const Ledger& ledger) { return std::chrono::duration<double>(ledger.waited()).count(); })
      .def(
          "announce",
          [](Ledger& ledger, std::uint64_t number, const std::vector<std::uint64_t>& offsets,
             const Array<std::uint32_t>& places,
             std::uint64_t samples) { ledger.announce(number, offsets, view(places), samples); },
          "number"_a, "offsets"_a, "places"_a, "samples"_a)
      .def("gone", &Ledger::gone, "number"_a);
  nb::class_<Guest>(module, "Guest")
      .def(nb::init<int, int, int, int, std::vector<std::vector<std::uint64_t>>, std::size_t>(), "ledger"_a, "line"_a,
           "pool"_a, "bell"_a, "fields"_a, "most"_a)
      .def(
          "wait",
          [](const Guest& guest, std::uint64_t number, double seconds) {
            const std::chrono::nanoseconds limit = nanoseconds(seconds);
            nb::gil_scoped_release released;
            return guest.wait(number, limit);
          },
          "number"_a, "seconds"_a)
      .def(
          "copy",
          [](const Guest& guest, std::uint64_t number, std::size_t samples, const std::vector<Writable>& out,
             const std::vector<std::size_t>& each) {
            std::vector<solar::MutableBytes> fields;
            for (const Writable& one : out) fields.emplace_back(reinterpret_cast<std::byte*>(one.data()), one.size());
            solar::Guest::Came came{};
            {
              nb::gil_scoped_release released;
              came = guest.copy(number, samples, fields, each);
            }
            return word_of_arrival(came);
          },
          "number"_a, "samples"_a, "out"_a, "each"_a = std::vector<std::size_t>())
      .def("wants", &Guest::wants, "number"_a)
      .def("has_made", &Guest::has_made, "number"_a)
      .def("is_gone", &Guest::is_gone, "number"_a)
      .def_prop_ro("there", &Guest::there);
}
