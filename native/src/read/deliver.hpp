// From stored bytes to the rows of a Batch: copied, decoded, filled and byte-swapped into place.
#pragma once

#include "batch.hpp"
#include "recent.hpp"
#include "workspace.hpp"

namespace solar::read {

// What one thread needs to decode with, and what it counts.
struct Bench {
  Scratch filters;
  Workspace raw;
  Workspace kept;  // stored bytes of a chunk that lies on several pages
  Recent* recent = nullptr;  // the Reader's
  std::uint64_t chunks_decoded = 0;
  std::uint64_t bytes_decoded = 0;
  std::uint64_t decode_ns = 0;
};

// Puts one piece into place. `stored` are its bytes; those of a How::direct piece are in `out` already.
// A damaged chunk is an Error that says where it lies.
void deliver(const Batch& batch, const Piece& piece, Bytes stored, Bench& bench);

// Puts a piece that the buffer holds into place. REQUIRES: batch.from_buffer().
void deliver_held(const Batch& batch, const Piece& piece, Bench& bench);

// Puts the fill value where nothing is stored. REQUIRES: piece.how == How::fill.
void fill(const Batch& batch, const Piece& piece);

}  // namespace solar::read
