// Elements of the fixed and the extensible array: element k is the chunk at place k of the grid of all chunks the
// dataset may grow to, with the axis without end (if any) counted slowest.
//
// A ChunkArray refers to the walk, which must outlive it, and gives the chunks to it. One thread at a time uses both.
// Error(layout) for elements too short for a chunk's address, and for a grid that 64 bits cannot count.
#pragma once

#include <vector>

#include "chunk_walk.hpp"

namespace solar {

class ChunkArray {
 public:
  // `address` of the array's header, for messages. Throws when a second axis is without end.
  ChunkArray(ChunkWalk& walk, std::uint64_t element_nbytes, std::uint64_t address);

  std::uint64_t element_nbytes() const noexcept { return element_nbytes_; }
  bool endless() const noexcept { return endless_; }  // an axis is without end
  // Elements from here on are outside the grid.
  std::uint64_t limit() const noexcept { return limit_; }
  // Adds the elements from place `first` on that `elements` holds, up to place `limit`.
  void add(Bytes elements, std::uint64_t first, std::uint64_t limit);

 private:
  ChunkWalk& walk_;
  std::uint64_t element_nbytes_;
  bool endless_ = false;
  std::uint64_t limit_ = 0;
  std::vector<std::size_t> axes_;       // slowest first
  std::vector<std::uint64_t> strides_;  // in places, along each of axes_
  std::vector<std::uint64_t> at_;
};

}  // namespace solar
