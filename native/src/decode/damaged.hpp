// Refuses a chunk whose bytes are not what its filter writes.
#pragma once

#include "solar/error.hpp"

namespace solar {

// Kept out of line, so that loops that never fail stay small.
[[noreturn, gnu::cold, gnu::noinline]] inline void damaged(const char* what) { throw Error(Kind::codec, what); }

}  // namespace solar
