// The superblock: where the file's addresses start and end, how wide they are, and where its root group is.
#pragma once

#include "hdf5/image.hpp"

namespace solar::hdf5 {

// Fills image.facts and the sizes of old group nodes; returns the address of the root group's header.
// Error(layout) for what libhdf5 refuses too: no HDF5, truncated, open for writing, one part of several files.
std::uint64_t read_superblock(Image& image);

}  // namespace solar::hdf5
