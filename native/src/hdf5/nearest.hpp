// The name a user may have meant.
#pragma once

#include <string>
#include <vector>

#include "hdf5/group.hpp"

namespace solar::hdf5 {

// The link whose name is most like `name`, or "" when none is like it.
std::string nearest_name(const std::string& name, const std::vector<Link>& links);

}  // namespace solar::hdf5
