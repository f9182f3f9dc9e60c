// Digests tell plans apart: one number over all that the ranks of a node must carry out alike.
//
// Both functions are pure; any thread may call them. Equal plans have equal digests on every machine. Different plans
// have equal ones with a probability of about 2^-64, unless somebody makes them so: ranks trust each other.
#pragma once

#include <cstdint>

#include "part.hpp"

namespace solar::run {

// Of so many steps of these parts. A part that keeps nothing is its rank's own; so are positions, and sizes of batches.
std::uint64_t digest(std::size_t steps, const std::deque<PartRun>& parts, const std::vector<Run::Epoch>& epochs);

// Of one plan after another.
std::uint64_t chained(std::uint64_t before, std::uint64_t digest) noexcept;

}  // namespace solar::run
