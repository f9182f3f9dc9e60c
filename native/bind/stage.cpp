// Stage, DecodedFile, staged.

#include "solar/stage.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bound.hpp"
#include "filters.hpp"
#include "text.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::Array;
using solar::bind::BoundDecodedFile;
using solar::bind::BoundSource;
using solar::bind::BoundStage;
using solar::bind::Filters;
using solar::bind::native_filters;
using solar::bind::view;

BoundSource staged(const BoundSource& source, const std::vector<std::optional<std::pair<BoundStage, std::uint64_t>>>& files) {
  auto made = std::make_shared<solar::Source>(*source.native);
  if (files.size() != made->files.size()) throw nb::value_error("every file has a stage, or None");
  made->mappings = nullptr;  // what is copied from a mapped file would not come from the stage
  for (const auto& one : files) {
    made->staged.push_back(one ? solar::Staged{one->first.native, one->second} : solar::Staged());
  }
  return {std::move(made)};
}

using Numbers = Array<std::uint64_t>;
// Filters, and of a chunk: the bytes of an element, those that come out of the filters, and those of its blocks.
using DecodedForm = std::tuple<Filters, std::uint64_t, std::uint64_t, std::uint64_t>;

void make_decoded(BoundDecodedFile* self, std::uint64_t nbytes, const std::vector<DecodedForm>& forms, Numbers begin,
                  Numbers offset, Numbers stored, Array<std::uint32_t> mask, Array<std::int32_t> form,
                  std::uint64_t file_nbytes) {
  auto made = std::make_shared<solar::DecodedFile>();
  made->nbytes = nbytes;
  for (const auto& [filters, itemsize, decodes, blocks] : forms) {
    made->forms.push_back({solar::Pipeline(native_filters(filters), itemsize, decodes), blocks, decodes});
  }
  made->begin = view(begin);
  made->offset = view(offset);
  made->stored = view(stored);
  made->mask = view(mask);
  made->form = view(form);
  using Held = std::tuple<Numbers, Numbers, Numbers, Array<std::uint32_t>, Array<std::int32_t>>;
  // The last owner may be a thread without the GIL, or outlive the interpreter.
  made->keep = std::shared_ptr<const Held>(new Held(begin, offset, stored, mask, form), [](const Held* held) {
    if (!nb::is_alive()) return;
    nb::gil_scoped_acquire gil;
    delete held;
  });
  made->check(solar::Stage::block_nbytes, file_nbytes);
  new (self) BoundDecodedFile{std::move(made)};
}

}  // namespace

void bind_stage(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<BoundStage>(module, "Stage")
      .def(
          "__init__",
          [](BoundStage* self, nb::str path, nb::bytes token, std::uint64_t nbytes) {
            if (token.size() != 16) throw nb::value_error("a token has 16 bytes");
            const std::string own(token.c_str(), token.size());
            new (self) BoundStage{std::make_shared<solar::Stage>(solar::bind::bytes_of(path), own, nbytes)};
          },
          "path"_a, "token"_a, "nbytes"_a)
      .def_prop_ro("lost", [](const BoundStage& stage) { return stage.native->lost(); })
      .def_prop_ro("stopped", [](const BoundStage& stage) { return stage.native->stopped(); })
      .def_prop_ro("dropped", [](const BoundStage& stage) { return stage.native->dropped(); });
  nb::class_<BoundDecodedFile>(module, "DecodedFile")
      .def("__init__", &make_decoded, "nbytes"_a, "forms"_a, "begin"_a, "offset"_a, "stored"_a, "mask"_a, "form"_a,
           "file_nbytes"_a);
  module.def("staged", &staged, "source"_a, "files"_a);
}
