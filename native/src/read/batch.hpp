// The rows of one submit, and the plan of how they come: Pieces in file order, cut into units of work.
//
// begin() and plan() are called by one thread; afterwards a Batch is read by any number of threads, which write
// disjoint parts of `out`. Its vectors are used again by the next begin(). A plan is pure: no file is touched.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "grid.hpp"
#include "solar/reader.hpp"

namespace solar::read {

// No piece that needs no decoding is longer, so that a few large rows are shared by all threads.
inline constexpr std::uint64_t piece_limit = 512 << 10;

struct Row {
  std::int64_t row = 0;
  std::uint64_t slot = 0;  // position in `out`
};

// Rows of the batch that lie in one line of chunks of one part.
struct Group {
  std::size_t part = 0;
  std::uint32_t grid = 0;
  std::int64_t first = 0;  // first row (of the source) of that line of chunks
  std::uint64_t chunk_rows = 0;
};

enum class How : std::uint8_t {
  direct,  // bytes go as they are to `out` at `to`
  tile,    // tile `to` of one row, copied into place
  chunk,   // a filtered chunk: tile `to` of `rows` rows
  fill,    // no bytes stored: `nbytes` tiles from tile `to` get the fill value
};

struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t to = 0;
  std::uint32_t group = 0;
  std::uint32_t first = 0;  // Batch::rows[first, first + rows); equal rows unless How::chunk or How::fill
  std::uint32_t rows = 1;
  std::uint32_t mask = 0;
  How how = How::direct;
};

class Batch {
 public:
  // Copies and checks the rows: std::out_of_range, or std::invalid_argument when `out` or the positions in it do not fit.
  void begin(std::shared_ptr<const Source> from, std::span<const std::int64_t> wanted, MutableBytes into,
             const Reader::Positions& positions = {});
  void plan(unsigned threads);
  std::shared_ptr<const Source> release() noexcept { return std::move(source); }
  // What a large batch leaves behind, for the caller to destroy; small vectors stay, to be used again.
  struct Remains {
    std::vector<Row> rows;
    std::vector<Group> groups;
    std::vector<Piece> pieces;
    std::vector<bool> taken;
  };
  Remains release_large() noexcept;

  std::size_t units() const noexcept { return unit_begin.empty() ? 0 : unit_begin.size() - 1; }
  std::byte* slot(const Row& row) const noexcept { return out.data() + row.slot * row_nbytes; }
  const Form& form(const Piece& piece) const;
  const SourceFile& file(const Piece& piece) const;
  std::size_t file_index(const Piece& piece) const noexcept {
    return static_cast<std::size_t>(source->part_file[groups[piece.group].part]);
  }
  // "file: dataset, sample 17, offset 123" for byte `at` of a piece; no offset where nothing is stored.
  std::string where(const Piece& piece, std::uint64_t at) const;

  std::shared_ptr<const Source> source;
  MutableBytes out;
  std::uint64_t row_nbytes = 0;
  std::vector<Row> rows;  // sorted by plan()
  std::vector<Group> groups;
  std::vector<Grid> grids;
  std::vector<Piece> pieces;
  std::vector<std::uint32_t> unit_begin;  // unit u is pieces [unit_begin[u], unit_begin[u + 1])

 private:
  void check_fit(const Source& from, std::size_t wanted, std::size_t nbytes, const Reader::Positions& positions);
  std::uint32_t plan_group(std::uint32_t begin);
  void plan_tiles(std::uint32_t begin, std::uint32_t end, std::uint64_t line);
  void plan_stored(std::size_t chunk, std::uint64_t tile, std::uint32_t begin, std::uint32_t end);
  void plan_fill(std::uint64_t tile, std::uint64_t tiles, std::uint32_t begin, std::uint32_t end);
  void add(const Piece& piece);
  void add_direct(Piece piece);
  bool before(const Piece& a, const Piece& b) const noexcept;
  std::uint64_t cost(const Piece& piece) const;
  void cut(unsigned threads);

  std::vector<bool> taken_;    // slots of `out`, where rows have positions
  std::size_t grid_form_ = 0;  // form of grids.back()
  std::uint64_t longest_ = 0;  // piece_limit in whole elements
  bool ordered_ = true;
};

}  // namespace solar::read
