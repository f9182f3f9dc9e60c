// convert: what Field does with a batch.

#include "solar/convert.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace nb = nanobind;

namespace {

using solar::Number;

// The memory, shape and format that an array lends for the time of the call.
class Borrowed {
 public:
  Borrowed(nb::handle array, int flags) {
    if (PyObject_GetBuffer(array.ptr(), &buffer_, flags | PyBUF_STRIDES | PyBUF_FORMAT) != 0) nb::raise_python_error();
  }
  ~Borrowed() { PyBuffer_Release(&buffer_); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  std::string_view format() const { return buffer_.format; }
  std::size_t itemsize() const { return static_cast<std::size_t>(buffer_.itemsize); }
  std::size_t axes() const { return static_cast<std::size_t>(buffer_.ndim); }
  std::size_t size(std::size_t axis) const { return static_cast<std::size_t>(buffer_.shape[axis]); }
  std::ptrdiff_t stride(std::size_t axis) const { return buffer_.strides[axis]; }
  std::byte* bytes() const { return static_cast<std::byte*>(buffer_.buf); }
  bool aligned() const { return reinterpret_cast<std::uintptr_t>(buffer_.buf) % itemsize() == 0; }

 private:
  Py_buffer buffer_;
};

// Of the machine's own numbers alone.
std::optional<Number> number_if_known(const Borrowed& array) {
  std::string_view format = array.format();
  if (format.size() == 2 && (format[0] == '@' || format[0] == '=' || format[0] == '<')) format.remove_prefix(1);
  if (format.size() != 1) return std::nullopt;
  const auto among = [&](std::string_view letters) { return letters.find(format[0]) != std::string_view::npos; };
  const auto sized = [&](Number one, Number two, Number four, Number eight) -> std::optional<Number> {
    switch (array.itemsize()) {
      case 1: return one;
      case 2: return two;
      case 4: return four;
      case 8: return eight;
    }
    return std::nullopt;
  };
  if (format == "?") return Number::boolean;
  if (among("bhilq")) return sized(Number::int8, Number::int16, Number::int32, Number::int64);
  if (among("BHILQ")) return sized(Number::uint8, Number::uint16, Number::uint32, Number::uint64);
  if (format == "e") return Number::float16;
  if (format == "f") return Number::float32;
  if (format == "d") return Number::float64;
  return std::nullopt;
}

// numpy has no bfloat16: its items are structures of one member, which is called so.
bool is_bfloat16(const Borrowed& array) {
  return array.format() == "T{H:bfloat16:}" || array.format() == "T{<H:bfloat16:}";
}

// (in float64, wide, missing, scale, offset, instead) of a Packing; the last three may be None.
solar::Packing packing_of(const nb::tuple& given) {
  const auto number = [&](std::size_t i) {
    return given[i].is_none() ? std::optional<double>{} : nb::cast<double>(given[i]);
  };
  if (given.size() != 6) throw nb::value_error("a packing has six parts");
  solar::Packing packing;
  packing.in = nb::cast<bool>(given[0]) ? Number::float64 : Number::float32;
  packing.wide = nb::cast<bool>(given[1]);
  for (const nb::handle one : nb::tuple(given[2])) packing.missing.push_back(nb::cast<double>(one));
  packing.scale = number(3), packing.offset = number(4), packing.instead = number(5);
  return packing;
}

solar::Strided strided(const Borrowed& array) {
  solar::Strided view{array.bytes(), {}, {}};
  for (std::size_t i = 0; i < array.axes(); ++i) {
    view.shape.push_back(array.size(i));
    view.strides.push_back(array.stride(i));
  }
  return view;
}

// A term broadcast to the shape of the source.
solar::Term term(const Borrowed& array, const Borrowed& source, std::string_view format, const char* name) {
  const auto refuse = [&](const char* why) { throw nb::value_error((std::string(name) + why).c_str()); };
  if (array.format() != format || !array.aligned()) refuse(" must have the type of the output");
  if (array.axes() > source.axes()) refuse(" has more axes than the source");
  solar::Term made{array.bytes(), std::vector<std::ptrdiff_t>(source.axes())};
  const std::size_t missing = source.axes() - array.axes();
  for (std::size_t i = 0; i < array.axes(); ++i) {
    if (array.size(i) == 1) continue;
    if (array.size(i) != source.size(missing + i)) refuse(" does not broadcast against the source");
    made.strides[missing + i] = array.stride(i) / static_cast<std::ptrdiff_t>(array.itemsize());
  }
  return made;
}

void check_shapes(const Borrowed& source, const Borrowed& out) {
  bool same = source.axes() == out.axes();
  for (std::size_t i = 0; same && i < source.axes(); ++i) same = source.size(i) == out.size(i);
  if (!same) throw nb::value_error("source and out must have the same shape");
}

void convert(nb::handle source_array, nb::handle out_array, nb::handle mean_array, nb::handle std_array,
             const std::optional<nb::tuple>& packed) {
  const Borrowed source(source_array, 0), out(out_array, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
  check_shapes(source, out);
  const solar::Strided view = strided(source);
  if (mean_array.is_none() && std_array.is_none() && !packed && source.format() == out.format()) {
    if (source.itemsize() == 0) throw nb::value_error("items of no bytes");
    nb::gil_scoped_release released;
    return solar::rearrange(view, source.itemsize(), out.bytes());
  }
  const std::optional<Number> from = number_if_known(source),
                              to = is_bfloat16(out) ? Number::bfloat16 : number_if_known(out);
  const bool known = to == Number::float32 || to == Number::float64 || to == Number::bfloat16;
  if (!from || !known || !out.aligned())
    throw nb::type_error(("cannot convert items of format " + std::string(source.format()) + " to " +
                          std::string(out.format()))
                             .c_str());
  std::optional<Borrowed> mean_held, std_held;
  const std::string_view terms = to == Number::bfloat16 ? "f" : out.format();
  solar::Term mean, deviation;
  if (!mean_array.is_none()) mean = term(mean_held.emplace(mean_array, PyBUF_C_CONTIGUOUS), source, terms, "mean");
  if (!std_array.is_none()) deviation = term(std_held.emplace(std_array, PyBUF_C_CONTIGUOUS), source, terms, "std");
  const std::optional<solar::Packing> packing = packed ? std::optional(packing_of(*packed)) : std::nullopt;
  nb::gil_scoped_release released;
  solar::convert(view, *from, out.bytes(), *to, mean, deviation, packing ? &*packing : nullptr);
}

}  // namespace

void bind_convert(nb::module_& module) {
  using namespace nb::literals;
  module.def("convert", &convert, "source"_a, "out"_a, "mean"_a.none() = nb::none(), "std"_a.none() = nb::none(),
             "packing"_a.none() = nb::none());
}
