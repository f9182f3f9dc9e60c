// Attributes of a dataset, or a group: numbers, and text, by name.
//
// The laws of solar/metadata.hpp hold: the file is hostile, everything is checked against it and bounded. What is wrong
// with one attribute is said with it, and costs neither the others nor the dataset.
//
// Nothing is kept between calls, and results are the caller's own; any thread may read, also from one File at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "solar/metadata.hpp"

namespace solar {

struct Attribute {
  std::string name;
  std::string problem;              // not empty: it cannot be read, and why; what follows is unset
  std::vector<std::byte> datatype;  // the message, decoded in io/hdf5/datatype.py
  std::uint64_t values = 0;         // how many there are; 0 of a null dataspace
  std::vector<std::byte> bytes;     // of all values, as stored; of text of variable length the text of the only one
};

// Those of the attributes `wanted` that the dataset of this name has, in no order; or the group, where a slash ends the
// name. Error(layout) as by read_metadata.
// With Dataset::header_address of an earlier call no group is read.
std::vector<Attribute> read_attributes(const File& file, const std::string& name,
                                       const std::vector<std::string>& wanted,
                                       std::uint64_t header_address = undefined_address);

}  // namespace solar
