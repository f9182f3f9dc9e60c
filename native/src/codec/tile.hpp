// Decoding goes from tile to tile; Work is what it hands on, and TileOutput is where the values go.
//
// Both refer to memory of the caller (the chunk, the output, the thread's Scratch) and last for one chunk. They belong
// to one thread. The chunk was checked (format.hpp) before a tile is decoded; what only decoding shows to be damaged is
// Error(codec), and nothing is written outside of the output.
#pragma once

#include "codec/kernels.hpp"
#include "solar/filter.hpp"

namespace solar::codec {

// Memory and loops, the same for all tiles of a chunk.
struct Work {
  const Kernels& kernels;
  Coding& coding;
  bool tabled;  // coding has the tables this chunk asks for
  Restore restore;
  std::int32_t* integers;  // three tiles of them, each with slack
  const std::byte* end;    // of the chunk
};

// Where the array goes, and what its values are made of.
struct TileOutput {
  std::byte* first;
  std::size_t itemsize;
  const Grid& grid;
  const Restore& how;

  std::byte* row(const Grid::PlacedTile& place, std::size_t y) const;  // y counts over the planes
  bool is_in(const Wanted& wanted, const Grid::PlacedTile& place) const;
  // Values as the chunk stores them, as the array has them.
  void put(const std::byte* stored, std::size_t count, std::byte* to) const;
};

void check_predictor(const Entry& entry, Quanta quanta);
Restore restore_of(const Header& header, bool cast);
// `cast`: whole numbers become float32.
void decode_checked(const Checked& chunk, MutableBytes out, Bytes tables, Scratch& scratch, const Kernels& kernels,
                    Wanted* wanted, bool cast = false);

}  // namespace solar::codec
