// Samples that are cut out of blocks: boxes of volumes, and runs of rows.

#include "solar/boxes.hpp"

#include <nanobind/stl/vector.h>

#include "bound.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::Array;
using solar::bind::BoundBoxes;
using solar::bind::BoundSource;
using solar::bind::view;
using solar::bind::Writable;

void put_together(const BoundBoxes& boxes, const Array<std::int64_t>& corners, const Array<std::int64_t>& places,
                  const Array<std::int32_t>& rows, const Array<std::uint8_t>& blocks, const Writable& out) {
  const solar::Bytes from = std::as_bytes(view(blocks));
  const solar::MutableBytes to = std::as_writable_bytes(std::span(out.data(), out.size()));
  const nb::gil_scoped_release released;
  boxes.native->put_together(*boxes.source, view(corners), view(places), view(rows), from, to);
}

}  // namespace

void bind_boxes(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<BoundBoxes>(module, "Boxes")
      .def(nb::init<const BoundSource&, std::vector<std::uint64_t>, std::vector<std::uint64_t>,
                    std::vector<std::uint64_t>, std::vector<std::int64_t>>(),
           "source"_a, "block"_a, "box"_a, "shape"_a, "lengths"_a)
      .def(nb::init<const BoundSource&>(), "source"_a)
      .def("put_together", &put_together, "corners"_a.noconvert(), "places"_a.noconvert(), "rows"_a.noconvert(),
           "blocks"_a.noconvert(), "out"_a);
}
