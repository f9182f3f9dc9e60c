// Sequences: how many literals, then which bytes again (RFC 8878, 3.1.1.3.2).
//
// Carries out a block's sequences. The history is the frame's output so far, which lies in one piece before `out`.
#pragma once

#include <array>

#include "zstd_fse.hpp"

namespace solar::zstd {

inline constexpr std::size_t kBlockMax = 128 * 1024;
inline constexpr std::size_t kSlack = 32;  // bytes behind a copy's end that may be written or read, where they exist

// From this state: a value is base + `extra` bits, the next state is next + `bits` bits.
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

// What a frame carries from block to block.
struct SequenceTables {
  SequenceTable own[3];             // literal lengths, offsets, match lengths
  const SequenceTable* current[3];  // own, predefined, or null before the first block with sequences
  std::array<std::size_t, 3> repeats;

  void reset();
};

struct Literals {
  const std::byte* at;
  const std::byte* end;
  const std::byte* readable;  // >= end: how far wide copies may read
};

struct Output {
  std::byte* begin;  // of the frame
  std::byte* at;
  std::byte* end;
};

// Decodes the sequences section `in` and writes the block behind `out.at`.
void decode_sequences(Bytes in, Literals literals, SequenceTables& tables, Output& out);

// Appends n bytes; Error when they don't fit.
void append(Output& out, const std::byte* from, std::size_t n);

}  // namespace solar::zstd
