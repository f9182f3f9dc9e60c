// _inject_faults: for tests. It is no part of the boundary, and not in its stub.

#include "solar/faults.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <utility>

#include "bound.hpp"

namespace nb = nanobind;

namespace {

using solar::faults::Call;
using solar::faults::Fault;

// call, end of the path, first byte, end, calls that go well before, calls that do not, errno, bytes at most, delay
using BoundFault = std::tuple<std::string, std::string, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, int,
                              std::uint64_t, double>;

constexpr std::array<std::pair<const char*, Call>, 7> calls{{{"open", Call::open},
                                                             {"read", Call::read},
                                                             {"ring", Call::ring},
                                                             {"map", Call::map},
                                                             {"memory", Call::memory},
                                                             {"write", Call::write},
                                                             {"look", Call::look}}};

Call call_of(const std::string& word) {
  for (const auto& [name, call] : calls) {
    if (word == name) return call;
  }
  throw nb::value_error(("no call \"" + word + "\"").c_str());
}

void inject(const std::vector<BoundFault>& bound) {
  std::vector<Fault> faults;
  for (const auto& [call, path, begin, end, after, times, code, most, delay] : bound) {
    faults.push_back({call_of(call), path, begin, end, after, times, code, most, solar::bind::nanoseconds(delay)});
  }
  solar::faults::inject(std::move(faults));
}

}  // namespace

void bind_faults(nb::module_& module) {
  module.def("_inject_faults", &inject);
}
