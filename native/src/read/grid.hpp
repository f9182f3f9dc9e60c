// How the rows of a part are cut: a row crosses `tiles` chunks, tile t of it lies in column t of the grid of chunks.
//
// Dimensions are folded where a chunk spans them, so most grids have one or two, the last one counted in bytes.
// A Grid is a value made from a Form; making it checks that its products fit 63 bits: Error(layout) otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "solar/source.hpp"

namespace solar::read {

// HDF5's 32 dimensions, and one more where a sample is a whole dataset.
inline constexpr std::size_t max_rank = 33;

// One tile: `nbytes` from its first to its last byte in a row of the chunk.
struct Tile {
  std::uint64_t at = 0;      // where it begins in the row
  std::uint64_t nbytes = 0;  // bytes of the chunk's row that hold it
  bool whole = false;        // it is one run of bytes in the row too
};

class Grid {
 public:
  Grid(const Source& source, const Form& form);

  std::uint64_t tiles() const noexcept { return tiles_; }  // chunks that a row crosses; 0 when rows have no bytes
  std::uint64_t chunk_row_nbytes() const noexcept { return chunk_row_nbytes_; }
  Tile tile(std::uint64_t t) const;

  // Calls function(at in the chunk's row, at in the row, nbytes) for each run of bytes of tile t.
  template <class Function>
  void each_run(std::uint64_t t, Function&& function) const;

 private:
  struct Dim {
    std::uint64_t shape, chunk, tiles;
    std::uint64_t row_stride, chunk_stride;  // bytes
  };
  struct Box {
    std::uint64_t row_at = 0;
    std::array<std::uint64_t, max_rank> extent;  // dims_ long
  };
  Box box(std::uint64_t t) const;

  std::array<Dim, max_rank> dims_;  // rank_ long; the last one's strides are 1
  std::size_t rank_ = 0;
  std::uint64_t tiles_ = 0;
  std::uint64_t chunk_row_nbytes_ = 0;
};

template <class Function>
void Grid::each_run(std::uint64_t t, Function&& function) const {
  const Box b = box(t);
  const std::size_t last = rank_ - 1;
  if (last == 0) return function(std::uint64_t{0}, b.row_at, b.extent[0]);
  std::array<std::uint64_t, max_rank> step;  // counts through all dimensions but the last two
  std::fill_n(step.begin(), last, 0);
  std::uint64_t from = 0;
  std::uint64_t to = b.row_at;
  const Dim& lines = dims_[last - 1];
  for (;;) {
    for (std::uint64_t i = 0; i < b.extent[last - 1]; ++i) {
      function(from + i * lines.chunk_stride, to + i * lines.row_stride, b.extent[last]);
    }
    std::size_t d = last - 1;
    while (d > 0) {
      --d;
      from += dims_[d].chunk_stride;
      to += dims_[d].row_stride;
      if (++step[d] < b.extent[d]) break;
      from -= step[d] * dims_[d].chunk_stride;
      to -= step[d] * dims_[d].row_stride;
      step[d] = 0;
      if (d == 0) return;
    }
    if (last == 1) return;
  }
}

}  // namespace solar::read
