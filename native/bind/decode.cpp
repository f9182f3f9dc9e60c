// Binds the filter pipeline for one chunk at a time: what `solar.inspect` and the tests ask.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "filters.hpp"
#include "solar/filter.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::Filters;
using solar::bind::native_filters;

std::string unsupported(const Filters& filters, std::size_t itemsize) {
  return solar::Pipeline::unsupported(native_filters(filters), itemsize);
}

nb::bytes decode(const Filters& filters, std::size_t itemsize, std::size_t nbytes, std::uint32_t mask,
                 const nb::bytes& stored) {
  const solar::Pipeline pipeline(native_filters(filters), itemsize, nbytes);
  const solar::Bytes in(static_cast<const std::byte*>(stored.data()), stored.size());
  auto out = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes)));
  if (!out.is_valid()) nb::raise_python_error();
  {
    nb::gil_scoped_release released;
    solar::Scratch scratch;
    auto* begin = static_cast<std::byte*>(const_cast<void*>(out.data()));  // ours alone until returned
    pipeline.decode(in, mask, solar::MutableBytes(begin, nbytes), scratch);
  }
  return out;
}

}  // namespace

void bind_decode(nb::module_& module) {
  using namespace nb::literals;
  module.def("filter_name", &solar::Pipeline::name_of, "id"_a);
  module.def("zarr_filters",
             [] { return std::tuple(solar::gzip_filter, solar::crc32c_filter, solar::transpose_filter); });
  module.def("unsupported", &unsupported, "filters"_a, "itemsize"_a);
  module.def("decode", &decode, "filters"_a, "itemsize"_a, "nbytes"_a, "mask"_a, "stored"_a);
}
