// xxHash-64 with seed 0, whose low half ends a zstd frame.
#pragma once

#include "solar/bytes.hpp"

namespace solar::zstd {

std::uint64_t xxhash64(Bytes bytes) noexcept;

}  // namespace solar::zstd
