// Filters of HDF5 as Python gives them: number, flags, values.
#pragma once

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "solar/filter.hpp"

namespace solar::bind {

using Filters = std::vector<std::tuple<std::uint16_t, std::uint16_t, std::vector<std::uint32_t>>>;

inline std::vector<Filter> native_filters(const Filters& filters) {
  std::vector<Filter> native;
  for (const auto& [id, flags, values] : filters) native.push_back({id, flags, values});
  return native;
}

}  // namespace solar::bind
