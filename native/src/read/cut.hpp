// What a sample has of a block: runs of bytes that lie in both.
//
// A value. Dimensions are folded where runs go on in both, so that most cuts have two or three, the last in bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "grid.hpp"
#include "solar/boxes.hpp"

namespace solar::read {

class Cut {
 public:
  // REQUIRES: the row is a block of the Source that the box at this corner touches.
  Cut(const Boxes& boxes, const Source& source, std::int64_t row, Boxes::Corner corner);

  // The bytes of the block from the first to the last that the box wants.
  std::uint64_t begin() const noexcept { return from_; }
  std::uint64_t end() const noexcept { return end_of(dims_[0].extent - 1); }

  // Calls read(begin, nbytes) for stretches of the block that have all of it: one, or one for each plane where the holes
  // between these are not worth reading over.
  template <class Read>
  void each_stretch(std::uint64_t hole, const Read& read) const {
    const std::uint64_t plane = end_of(0) - from_;
    if (rank_ == 1 || dims_[0].extent == 1 || dims_[0].from - plane < hole) return read(from_, end() - from_);
    for (std::uint64_t i = 0; i < dims_[0].extent; ++i) read(from_ + i * dims_[0].from, plane);
  }

  // Calls function(at in the block, at in the box, nbytes) for each run of bytes of the planes that a stretch [begin,
  // end) of the block has.
  template <class Function>
  void each_run(std::uint64_t begin, std::uint64_t end, const Function& function) const {
    const Dim& outer = dims_[0];
    const std::uint64_t first = begin <= from_ ? 0 : (begin - from_) / outer.from;
    const std::uint64_t last = end <= from_ ? 0 : std::min(outer.extent, (end - from_ - 1) / outer.from + 1);
    each_run(0, first, last, from_, to_, function);
  }
  template <class Function>
  void each_run(const Function& function) const {
    each_run(0, 0, dims_[0].extent, from_, to_, function);
  }
  // All its bytes.
  std::uint64_t nbytes() const noexcept {
    std::uint64_t all = 1;
    for (std::size_t d = 0; d < rank_; ++d) all *= dims_[d].extent;
    return all;
  }
  // The bytes of a run: all are equally long, but for those of a cut in one dimension.
  std::uint64_t run_nbytes() const noexcept { return dims_[rank_ - 1].extent; }

 private:
  void cut_run(const Boxes& boxes, std::uint64_t row_nbytes, std::int64_t row, Boxes::Corner corner);

  struct Dim {
    std::uint64_t extent, from, to;  // elements, and bytes from one to the next in the block and in the box
  };

  // Where the last wanted byte of plane i ends.
  std::uint64_t end_of(std::uint64_t i) const noexcept {
    std::uint64_t at = from_ + i * dims_[0].from + 1;
    for (std::size_t d = 1; d < rank_; ++d) at += (dims_[d].extent - 1) * dims_[d].from;
    return at;
  }
  template <class Function>
  void each_run(std::size_t d, std::uint64_t begin, std::uint64_t end, std::uint64_t from, std::uint64_t to,
                const Function& function) const {
    if (begin >= end) return;
    if (d + 1 == rank_) return function(from + begin, to + begin, end - begin);
    const Dim &here = dims_[d], &inner = dims_[d + 1];
    if (d + 2 == rank_) {
      for (std::uint64_t i = begin; i < end; ++i) function(from + i * here.from, to + i * here.to, inner.extent);
      return;
    }
    for (std::uint64_t i = begin; i < end; ++i) {
      each_run(d + 1, 0, inner.extent, from + i * here.from, to + i * here.to, function);
    }
  }

  std::array<Dim, max_rank + 1> dims_;  // rank_ long
  std::size_t rank_ = 0;
  std::uint64_t from_ = 0, to_ = 0;  // where the first run begins in the block, and in the box
};

}  // namespace solar::read
