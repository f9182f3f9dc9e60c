// The groups of a file that hold the same datasets: where the values of each lie, as columns, for millions of them.
//
// The laws of solar/metadata.hpp hold: the file is hostile, everything is checked against it and bounded. What is wrong
// with one group is an Error(layout) that names it: samples are not left out behind anybody's back.
//
// Nothing is kept between calls, and results are the caller's own; any thread may read, also from one File at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "solar/metadata.hpp"

namespace solar {

// One dataset in all groups.
struct GroupColumn {
  std::vector<Dataset> kinds;        // the first of each way of storing it: type, chunk shape, filters, fill value
  std::vector<std::int32_t> kind;    // of each group
  std::size_t rank = 0;              // the same in all groups
  std::vector<std::uint64_t> shape;  // `rank` numbers for each group
  // Where its chunks lie: groups + 1 numbers, and the entries of a ChunkTable. Without chunks it is one entry, or none
  // where nothing was written.
  std::vector<std::int64_t> first{0};
  ChunkTable chunks;
};

struct GroupTable {
  Identity identity;
  std::string names;                  // of all groups, one after another
  std::vector<std::uint64_t> begins;  // groups + 1: where each one's name begins
  std::vector<GroupColumn> columns;   // in the order that was asked for
};

// The groups whose names fit `pattern`, "/molecules/*": of each part between slashes a star stands for any characters.
// Empty: every group, however deep, that has one of the datasets. Each must have all of them. In order of name, level by
// level, as h5py's visititems. `wanted`: names in a group, which may have slashes in them.
GroupTable read_groups(const File& file, const std::string& pattern, const std::vector<std::string>& wanted);

}  // namespace solar
