// The three tables of a sequences section: what a state says, and where its distribution comes from.
#pragma once

#include <array>

#include "zstd_fse.hpp"

namespace solar::zstd {

// In this state a value is base + `extra` bits, and the next state is next + `bits` bits.
struct SequenceCell {
  std::uint16_t next;
  std::uint8_t bits;
  std::uint8_t extra;
  std::uint32_t base;
};

struct SequenceTable {
  std::array<SequenceCell, 1u << kMaxFseLog> cells;
  unsigned log = 0;
};

// What a frame carries from block to block. The order of three is always literal length, offset, match length. All lie
// in one place: so the loop over sequences needs one register for them.
struct SequenceTables {
  std::array<SequenceTable, 3> current;
  std::array<bool, 3> known;           // false before the first block with sequences
  std::array<std::size_t, 3> repeats;  // the last offsets, latest first

  void begin_frame();
  // Reads the tables that `modes` announces and advances `in` behind them.
  void read(Bytes& in, unsigned modes);
};

}  // namespace solar::zstd
