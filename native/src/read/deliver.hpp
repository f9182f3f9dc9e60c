// These functions bring stored bytes to the rows of a ReadPlan: they copy, decode, fill and swap bytes into place.
//
// A ReadPlan is only read here, and each piece writes bytes of its own: any number of threads may deliver pieces of one
// plan at a time, each with a Bench of its own. The stored bytes and the output stay the caller's. Damaged chunks are
// Error(codec) with the file, the sample and the offset in the message; what the piece should have written is then
// undefined. Nothing is written outside of the piece's own bytes, whatever a chunk says.
#pragma once

#include "batch.hpp"
#include "recent.hpp"
#include "workspace.hpp"

namespace solar::read {

// The memory that one thread decodes with, and its counts. It belongs to that thread and is used again for each piece.
struct Bench {
  Scratch filters;
  Workspace raw;
  Workspace kept;  // stored bytes of a chunk that lies on several pages
  std::vector<Wanted::Range> wanted;
  Recent* recent = nullptr;  // the Reader's
  std::uint64_t chunks_decoded = 0;
  std::uint64_t bytes_decoded = 0;
  std::uint64_t decode_ns = 0;

  // Lets go of memory if there is more of it than so much: what it is used for next asks for it anew.
  void keep(std::uint64_t most) noexcept {
    const std::uint64_t has = filters.a.capacity() + filters.b.capacity() + filters.c.capacity() + raw.size() + kept.size();
    if (has <= most) return;
    for (auto* const one : {&filters.a, &filters.b, &filters.c}) std::vector<std::byte>().swap(*one);
    raw.keep(0);
    kept.keep(0);
  }
};

// Puts one piece into place. `stored` are its bytes; those of a How::direct piece are in `out` already.
// A damaged chunk is an Error that says where it lies.
void deliver(const ReadPlan& batch, const Piece& piece, Bytes stored, Bench& bench);

// Puts a piece that the buffer holds into place. REQUIRES: batch.from_buffer().
void deliver_held(const ReadPlan& batch, const Piece& piece, Bench& bench);

// Of a buffer whose rows are encoded: a row to its page, and back to its place; or the fill value, to the pages of rows.
void pack(const ReadPlan& batch, const Row& row, Bytes values, Bench& bench);
void pack_fill(const ReadPlan& batch, const Piece& piece, Bench& bench);
void unpack(const ReadPlan& batch, const Piece& piece, Bench& bench);

// What boxes have of the bytes of their block from `at` on: uses of that block by the samples of a piece.
void place_cuts(const ReadPlan& batch, const Piece& piece, const std::byte* block, std::uint64_t at,
                std::uint64_t nbytes);
void fill_cuts(const ReadPlan& batch, const Piece& piece);
// The bytes that boxes want of their chunk; none where these are much of it, or in so many runs that looking for them
// takes longer than decoding the others.
void find_wanted(const ReadPlan& batch, const Piece& piece, std::uint64_t nbytes, std::vector<Wanted::Range>& found);

// Reverses every `width` bytes; nbytes is a multiple of it.
void reverse(std::byte* at, std::uint64_t nbytes, std::uint32_t width);
// Writes the item, or zeros where it has no bytes, as often as there is room.
void repeat(Bytes item, std::byte* to, std::uint64_t nbytes);

// Puts the fill value where nothing is stored. REQUIRES: piece.how == How::fill.
void fill(const ReadPlan& batch, const Piece& piece);

}  // namespace solar::read
