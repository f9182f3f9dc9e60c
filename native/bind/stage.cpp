// Stage, staged.

#include "solar/stage.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bound.hpp"
#include "text.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::BoundSource;

struct BoundStage {
  std::shared_ptr<solar::Stage> native;
};

BoundSource staged(const BoundSource& source, const std::vector<std::optional<std::pair<BoundStage, std::uint64_t>>>& files) {
  auto made = std::make_shared<solar::Source>(*source.native);
  if (files.size() != made->files.size()) throw nb::value_error("every file has a stage, or None");
  made->mappings = nullptr;  // what is copied from a mapped file would not come from the stage
  for (const auto& one : files) {
    made->staged.push_back(one ? solar::Staged{one->first.native, one->second} : solar::Staged());
  }
  return {std::move(made)};
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
  module.def("staged", &staged, "source"_a, "files"_a);
}
