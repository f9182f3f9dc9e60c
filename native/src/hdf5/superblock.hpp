// The superblock: where the file's addresses start and end, how wide they are, and where its root group is.
//
// It is the first thing that is read of a file, so nothing is known yet: it is looked for where libhdf5 looks, and
// every width is checked before another field is read by it. One thread at a time uses an Image.
#pragma once

#include "hdf5/image.hpp"

namespace solar::hdf5 {

// Fills image.facts and the sizes of old group nodes; returns the address of the root group's header.
// Error(layout) for what libhdf5 refuses too: no HDF5, truncated, open for writing, one part of several files.
std::uint64_t read_superblock(Image& image);

}  // namespace solar::hdf5
