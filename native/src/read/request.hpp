// Pieces of one Job that are read together, and where their bytes go.
//
// A read through the page cache lands where the pieces want it: in `out`, or in scratch for those that are decoded or
// copied. A read past it needs offsets, sizes and addresses that are multiples of the file's alignment: where the
// pieces are not, a window around them is read, and they are delivered from there.
#pragma once

#include <memory>
#include <sys/uio.h>
#include <vector>

#include "deliver.hpp"
#include "job.hpp"
#include "solar/file.hpp"

namespace solar::read {

// Where a request's bytes come from.
enum class Way : std::uint8_t {
  plain,  // its file
  put,    // its file, in whole blocks, which are then written to the file's stage
  check,  // the stage, in whole blocks, which are then checked
  near,   // the stage
};

struct Request {
  Job* job = nullptr;
  bool begins = false;               // a stretch, which is not counted yet
  std::uint32_t begin = 0, end = 0;  // pieces
  std::shared_ptr<const File> file;
  Way way = Way::plain;
  const Staged* staged = nullptr;  // of its file, if that has a stage: the Source's
  std::vector<iovec> parts;
  std::size_t part = 0;      // first one with room left
  std::uint64_t offset = 0;  // where the next byte comes from
  std::uint64_t left = 0;
  iovec window{};          // of a read past the page cache, or of whole blocks, where one is needed
  std::uint64_t lead = 0;  // bytes of the window before the first piece
  Workspace scratch;
  std::uint64_t scratch_nbytes = 0;  // in use

  const Piece& first() const { return job->batch.pieces[begin]; }
  bool windowed() const noexcept { return window.iov_len > 0; }

  // Makes it the pieces [from, to) of `of`, with nothing laid out yet.
  void start(Job& of, std::uint32_t from, std::uint32_t to);
  // True when all its pieces go straight to `out` and may be read there past the page cache.
  bool aligned(std::size_t alignment) const noexcept;
  // What lay_out needs of scratch.
  std::uint64_t stored_nbytes() const noexcept;
  // Straight to its memory, to scratch, or (holes) to scrap of hole_limit. REQUIRES: scratch of stored_nbytes().
  void lay_out(std::byte* scrap);
  std::uint64_t window_nbytes(std::size_t alignment) const noexcept;
  // REQUIRES: window_nbytes() at `memory`, which begins a page.
  void lay_out_window(std::byte* memory, std::size_t alignment);
  // The same, and all of the window is what is asked for, as far as a file of so many bytes has it.
  void lay_out_whole(std::byte* memory, std::size_t alignment, std::uint64_t file_nbytes);
  // The blocks that a piece touches.
  Stage::Blocks blocks(std::uint32_t i) const noexcept {
    return Stage::Blocks::of(job->batch.pieces[i].offset, job->batch.pieces[i].nbytes);
  }
  // `nbytes` more are there.
  void advance(std::uint64_t nbytes) noexcept;
  // All bytes are there: puts every piece into place.
  void deliver(Bench& bench) const;

 private:
  std::uint64_t from_ = 0;  // where its first byte comes from

  void append(std::byte* to, std::uint64_t nbytes);
  void skip(std::byte* scrap, std::uint64_t nbytes);
};

}  // namespace solar::read
