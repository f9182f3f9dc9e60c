// Which parameters of the integer packers can be decoded exactly as libhdf5 does.
#pragma once

#include <string>

#include "solar/filter.hpp"

namespace solar {

// Empty, or why not.
std::string scaleoffset_problem(const Filter& filter);
std::string nbit_problem(const Filter& filter);

}  // namespace solar
