// Version 2 B-trees: all records of one.
//
// Each node is a level below the one that names it, and the Image bounds what is read in all: a tree that leads back to
// itself ends in an Error(layout). What `visit` throws passes through. One thread at a time uses an Image.
#pragma once

#include <functional>

#include "hdf5/image.hpp"

namespace solar::hdf5 {

// Calls `visit` with each record, in no order. Error(layout) when the tree is of another type or its records have
// another size.
void each_record(Image& image, std::uint64_t address, std::uint8_t type, std::uint16_t record_nbytes,
                 const std::function<void(Bytes)>& visit);

}  // namespace solar::hdf5
