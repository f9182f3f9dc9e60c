// Samples that are cut out of blocks: boxes of volumes (solar/samples/boxes.py), or runs of rows
// (solar/samples/row_blocks.py).
//
// A value; any thread may use it. The rows of its Source are the blocks. Those of volumes are one chunk each, and a part
// is a volume: its blocks are in the order of their grid. A block at the end of a volume may reach beyond it.
//
// Runs are stretches of rows of a dataset, which differ in length. A block has `block[0]` rows, and rows are counted on
// from block to block. A sample is up to two runs of them, and has a place of its own in the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "solar/bytes.hpp"
#include "solar/source.hpp"

namespace solar {

struct Boxes {
  std::vector<std::uint64_t> block;  // shape
  std::vector<std::uint64_t> box;    // shape of a sample, in as many dimensions
  std::vector<std::uint64_t> shape;  // of each volume, but for axis 0, whose
  std::vector<std::int64_t> lengths;  // are those of each part

  // Where a sample lies: its part, and the first element of its box in that. Of runs: the first row and the number of
  // rows of one run, those of the other, and the row of the batch at which the sample begins.
  using Corner = std::span<const std::int64_t>;  // corner_size() numbers

  // Runs of the rows of these blocks.
  static Boxes runs_of(const Source& source);

  bool runs() const noexcept { return box.empty(); }
  std::size_t rank() const noexcept { return block.size(); }
  std::size_t corner_size() const noexcept { return runs() ? 5 : 1 + rank(); }
  std::uint64_t extent(std::size_t part, std::size_t d) const noexcept {
    return d == 0 ? static_cast<std::uint64_t>(lengths[part]) : shape[d];
  }
  std::uint64_t tiles(std::size_t part, std::size_t d) const noexcept { return (extent(part, d) + block[d] - 1) / block[d]; }
  // The bytes of what has a place of its own in a batch: of a sample; of runs, of a row.
  std::uint64_t nbytes(std::uint64_t itemsize) const noexcept {
    for (std::size_t d = 0; d < box.size(); ++d) itemsize *= box[d];
    for (std::size_t d = 1; runs() && d < rank(); ++d) itemsize *= block[d];
    return itemsize;
  }
  // Where the sample at this corner goes: sample i of those asked for, which may have a position.
  std::uint64_t place(Corner corner, std::uint64_t i) const noexcept {
    return runs() ? static_cast<std::uint64_t>(corner[4]) : i;
  }
  // The rows of a batch up to the end of this sample. REQUIRES: runs(), and a corner that was checked.
  static std::uint64_t end(Corner corner) noexcept {
    return static_cast<std::uint64_t>(corner[4] + corner[1] + corner[3]);
  }
  // Throws std::invalid_argument unless these are boxes of such blocks.
  void check(const Source& source) const;
  // Throws std::out_of_range unless the box at this corner lies within its volume, or the runs within the blocks.
  void check(Corner corner) const;

  // Puts boxes together that are at these corners, each in its place in `out`, of blocks that lie one after another in
  // memory: those of these rows of the Source, which ascend. Throws std::out_of_range where something of a box, or its
  // place, is not there, and then `out` has some of them.
  void put_together(const Source& source, std::span<const std::int64_t> corners, std::span<const std::int64_t> places,
                    std::span<const std::int32_t> rows, Bytes blocks, MutableBytes out) const;

  // Calls act(row of the Source) for each block that the sample at this corner touches.
  template <class Act>
  void each_block(const Source& source, Corner corner, const Act& act) const {
    if (runs()) {
      const auto per = static_cast<std::int64_t>(block[0]);
      for (std::size_t run = 0; run < 4; run += 2) {
        if (corner[run + 1] == 0) continue;
        for (std::int64_t at = corner[run] / per; at <= (corner[run] + corner[run + 1] - 1) / per; ++at) act(at);
      }
      return;
    }
    const auto part = static_cast<std::size_t>(corner[0]);
    each_block(part, corner, 0, 0, [&](std::uint64_t block) {
      act(source.part_first[part] + static_cast<std::int64_t>(block));
    });
  }

 private:
  void check_runs(Corner corner) const;

  template <class Act>
  void each_block(std::size_t part, Corner corner, std::size_t d, std::uint64_t before, const Act& act) const {
    if (d == rank()) return act(before);
    const auto begin = static_cast<std::uint64_t>(corner[1 + d]);
    before *= tiles(part, d);
    for (std::uint64_t at = begin / block[d]; at <= (begin + box[d] - 1) / block[d]; ++at) {
      each_block(part, corner, d + 1, before + at, act);
    }
  }
};

}  // namespace solar
