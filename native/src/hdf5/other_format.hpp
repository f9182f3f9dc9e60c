// What a file is that is no HDF5 file: people give the wrong one, or one of which only the name has arrived.
#pragma once

#include <string>

#include "solar/bytes.hpp"

namespace solar::hdf5 {

inline constexpr std::size_t telling_nbytes = 512;  // of a file's beginning, by which it is known

// In words, with what to do; empty when `head`, a file's first bytes (all of a shorter file), is of nothing known here.
std::string other_format(Bytes head);

}  // namespace solar::hdf5
