// Where the arrays of HDF5's variable-length type lie: in global heaps, anywhere in the file.
//
// The laws of solar/metadata.hpp hold: the file is hostile, everything is checked against it and bounded. Nothing is
// kept between calls, and results are the caller's own; any thread may read, also from one File at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "solar/file.hpp"

namespace solar {

struct VaryingPlaces {
  std::vector<std::uint64_t> offset;  // absolute, of each sample's values; 0 of one without any
  std::vector<std::uint64_t> length;  // how many values it has
  Identity identity;
};

// `references`: what the dataset holds for its samples, one after another. `itemsize`: of a value, at most 32 bytes.
// Error(layout) names the sample whose values are not where it says.
VaryingPlaces varying_places(const File& file, Bytes references, std::uint64_t itemsize);

}  // namespace solar
