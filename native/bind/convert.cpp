// convert: what Field does with a batch. Conversion: what it does with all of them.

#include "solar/convert.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bound.hpp"
#include "solar/converter.hpp"

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
  std::size_t nbytes() const { return static_cast<std::size_t>(buffer_.len); }
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

// What is to be done, and the arrays whose memory that is about.
struct Wanted {
  Wanted(nb::handle source_array, nb::handle out_array, nb::handle mean_array, nb::handle std_array,
         const std::optional<nb::tuple>& packed)
      : source(source_array, 0), out(out_array, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS), view(strided(source)) {
    check_shapes(source, out);
    if (mean_array.is_none() && std_array.is_none() && !packed && source.format() == out.format()) {
      if (source.itemsize() == 0) throw nb::value_error("items of no bytes");
      rearranged = source.itemsize();
      return;
    }
    const std::optional<Number> own = number_if_known(source),
                                made = is_bfloat16(out) ? Number::bfloat16 : number_if_known(out);
    const bool halves = made == Number::float16 && own != Number::float64 && mean_array.is_none() &&
                        std_array.is_none() && !packed;
    const bool known = made == Number::float32 || made == Number::float64 || made == Number::bfloat16 || halves;
    if (!own || !known || !out.aligned())
      throw nb::type_error(("cannot convert items of format " + std::string(source.format()) + " to " +
                            std::string(out.format()))
                               .c_str());
    from = *own, to = *made;
    const std::string_view terms = to == Number::bfloat16 ? "f" : out.format();
    if (!mean_array.is_none()) mean = term(mean_held.emplace(mean_array, PyBUF_C_CONTIGUOUS), source, terms, "mean");
    if (!std_array.is_none()) deviation = term(std_held.emplace(std_array, PyBUF_C_CONTIGUOUS), source, terms, "std");
    if (packed) packing = packing_of(*packed);
  }

  const Borrowed source, out;
  const solar::Strided view;
  std::size_t rearranged = 0;
  Number from = Number::uint8, to = Number::float32;
  std::optional<Borrowed> mean_held, std_held;
  solar::Term mean, deviation;
  std::optional<solar::Packing> packing;
};

void convert(nb::handle source, nb::handle out, nb::handle mean, nb::handle std,
             const std::optional<nb::tuple>& packed) {
  const Wanted wanted(source, out, mean, std, packed);
  nb::gil_scoped_release released;
  if (wanted.rearranged != 0) return solar::rearrange(wanted.view, wanted.rearranged, wanted.out.bytes());
  solar::convert(wanted.view, wanted.from, wanted.out.bytes(), wanted.to, wanted.mean, wanted.deviation,
                 wanted.packing ? &*wanted.packing : nullptr);
}

// Of a batch of one sample, and the views of it and of what it becomes.
solar::bind::BoundConversion conversion(nb::handle batch, nb::handle source, nb::handle out, nb::handle mean,
                                        nb::handle std, const std::optional<nb::tuple>& packed) {
  const Wanted wanted(source, out, mean, std, packed);
  const Borrowed whole(batch, PyBUF_C_CONTIGUOUS);
  if (wanted.source.axes() == 0 || wanted.source.size(0) != 1) throw nb::value_error("a batch of one sample");
  auto made = std::make_shared<solar::Conversion>();
  made->sample_nbytes = whole.nbytes(), made->made_nbytes = wanted.out.nbytes();
  made->offset = wanted.source.bytes() - whole.bytes();
  const auto behind = [](const auto& all) { return std::vector(all.begin() + 1, all.end()); };
  made->sample = {nullptr, behind(wanted.view.shape), behind(wanted.view.strides)};
  made->from = wanted.from, made->to = wanted.to, made->rearranged = wanted.rearranged, made->packing = wanted.packing;
  const std::size_t of_mean = wanted.mean_held ? wanted.mean_held->nbytes() : 0;
  made->terms.resize(of_mean + (wanted.std_held ? wanted.std_held->nbytes() : 0));
  const auto own = [&](const solar::Term& term, const std::optional<Borrowed>& held, std::size_t at) {
    if (!held) return solar::Term{};
    std::byte* const values = made->terms.data() + at;
    std::copy_n(held->bytes(), held->nbytes(), values);
    return solar::Term{values, behind(term.strides)};
  };
  made->mean = own(wanted.mean, wanted.mean_held, 0);
  made->deviation = own(wanted.deviation, wanted.std_held, of_mean);
  return {std::move(made)};
}

class BoundConverter {
 public:
  BoundConverter(nb::object reader, nb::object from, const nb::sequence& conversions)
      : reader_(std::move(reader)), from_(std::move(from)) {
    solar::Converter::Conversions all;
    for (const nb::handle one : conversions)
      all.push_back(one.is_none() ? nullptr : nb::cast<solar::bind::BoundConversion&>(one).native);
    native_ = std::make_unique<solar::Converter>(solar::bind::native_reader(reader_), solar::bind::batch_pool(),
                                                 solar::bind::native_batches(from_), std::move(all));
  }
  ~BoundConverter() {
    nb::gil_scoped_release released;
    native_.reset();
  }
  BoundConverter(const BoundConverter&) = delete;
  BoundConverter& operator=(const BoundConverter&) = delete;

  void begin() { native_->begin(); }

  nb::object take(double seconds) {
    const std::chrono::nanoseconds limit = solar::bind::nanoseconds(seconds);
    solar::Batches::Batch batch;
    {
      nb::gil_scoped_release released;
      if (!native_->take(limit, batch)) return nb::none();
    }
    return solar::bind::tuple_of(std::move(batch));
  }

  std::uint64_t waited_ns() const { return native_->waited_ns(); }

  // The batches that are left, as they came; the error of the next is raised by failed().
  nb::list stop() {
    std::vector<solar::Batches::Batch> left;
    {
      nb::gil_scoped_release released;
      std::tie(left, error_) = native_->stop();
    }
    nb::list found;
    for (auto& batch : left) found.append(solar::bind::tuple_of(std::move(batch)));
    return found;
  }

  void failed() {
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  nb::object reader_, from_;  // go last
  std::unique_ptr<solar::Converter> native_;
  std::exception_ptr error_;
};

}  // namespace

void bind_convert(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<solar::bind::BoundConversion>(module, "Conversion");
  nb::class_<BoundConverter>(module, "Converter")
      .def(nb::init<nb::object, nb::object, const nb::sequence&>(), "reader"_a, "batches"_a, "conversions"_a)
      .def("begin", &BoundConverter::begin)
      .def("take", &BoundConverter::take, "seconds"_a)
      .def("waited_ns", &BoundConverter::waited_ns)
      .def("stop", &BoundConverter::stop)
      .def("failed", &BoundConverter::failed);
  module.def("conversion", &conversion, "batch"_a, "source"_a, "out"_a, "mean"_a.none(), "std"_a.none(),
             "packing"_a.none());
  module.def("convert", &convert, "source"_a, "out"_a, "mean"_a.none() = nb::none(), "std"_a.none() = nb::none(),
             "packing"_a.none() = nb::none());
}
