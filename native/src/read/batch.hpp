// The rows of one submit, and the plan of how they come: Pieces in file order, cut into units of work.
//
// What it does with them the Task says (solar/reader.hpp). begin() and plan() are called by one thread; afterwards a
// ReadPlan is read by any number of threads, which write disjoint parts of memory. Its vectors are used again by the
// next begin(). A plan is pure: no file is touched.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "grid.hpp"
#include "lines.hpp"
#include "solar/boxes.hpp"
#include "solar/reader.hpp"

namespace solar::read {

// No piece that needs no decoding is longer, so that a few large rows are shared by all threads.
inline constexpr std::uint64_t piece_limit = 512 << 10;
inline constexpr std::uint64_t request_limit = 1 << 20;    // joining more than this saves nothing
inline constexpr std::uint32_t joined_limit = 128;         // pieces; with a gap each, still far from IOV_MAX
inline constexpr std::uint64_t gap_from_afar = 128 << 10;  // over which they are
// Of a stretch so much is read by one request, in so many parts of memory; the system takes 1,024.
inline constexpr std::uint64_t call_limit = 4 << 20;
inline constexpr std::uint64_t parts_limit = 900;
inline constexpr std::uint64_t hole_limit = 1 << 20;  // bytes of a hole that are one part

// An extent: so many rows one after another, in the file and in `out`. It lies in one line of chunks, and is a run of
// bytes of their rows where it has several.
struct Row {
  std::int64_t row = 0;
  std::uint64_t slot = 0;  // position in `out`; of a use by a box, the sample's place in ReadPlan::places
  std::uint64_t count = 1;
};

// Rows of the batch that lie in one line of chunks of one part, and in one file.
struct Group {
  std::size_t part = 0;
  std::uint32_t grid = 0;
  std::int64_t first = 0;  // first row (of the source) of that line of chunks
  std::uint64_t chunk_rows = 0;
  std::size_t line = 0;  // its number among all of the source, where a buffer keeps lines
  std::size_t file = 0;
};

enum class How : std::uint8_t {
  direct,  // bytes go as they are to memory at `to`
  tile,    // tile `to` of one row, copied into place; or the bytes of a block from `to` on, of which boxes have theirs
  chunk,   // a filtered chunk: tile `to` of `rows` rows, or what `rows` boxes have of it
  fill,    // no bytes stored: `nbytes` tiles from tile `to` get the fill value
  keep,    // bytes go to the pages of their line in the buffer, from byte `to` of it on
  pack,    // a row, which is encoded to its page
  gather,  // `nbytes` from byte `offset` of the buffer's page of their row
  unpack,  // the row that the buffer's page has encoded
};

struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t to = 0;
  std::uint32_t group = 0;
  std::uint32_t first = 0;  // ReadPlan::rows[first, first + rows); equal rows unless How::chunk or How::fill
  std::uint32_t rows = 1;
  std::uint32_t mask = 0;
  std::uint32_t page = 0;  // of its line, where a kept chunk begins
  How how = How::direct;
};

class ReadPlan {
 public:
  // Copies and checks the rows: std::out_of_range, or std::invalid_argument when `out` or the positions in it do not fit.
  void begin(const Work& work);
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
  // The end of the pieces that are read together with `begin`, as far as `end`, over holes up to `gap`. In stretches: all.
  std::uint32_t joined(std::uint32_t begin, std::uint32_t end, std::uint64_t gap) const noexcept;

  std::size_t units() const noexcept { return unit_begin.empty() ? 0 : unit_begin.size() - 1; }
  std::byte* slot(const Row& row) const noexcept {
    if (boxes != nullptr) return out.data() + places[row.slot] * slot_nbytes;
    return loads() ? buffer->page(static_cast<std::size_t>(row.row), 0) : out.data() + row.slot * row_nbytes;
  }
  // Where the bytes of a How::direct piece go: its own row's memory, in a buffer; else `to` counts from the beginning.
  std::byte* memory(const Piece& piece) const noexcept {
    return task == Task::load ? slot(rows[piece.first]) + piece.to : out.data() + piece.to;
  }
  // Calls function(memory, nbytes) for the pages that a How::keep piece goes to.
  template <class Function>
  void each_page(const Piece& piece, Function&& function) const {
    buffer->each_run(groups[piece.group].line, piece.to, piece.nbytes, function);
  }
  bool loads() const noexcept { return task == Task::load || task == Task::pack; }  // rows, to pages of the buffer
  bool in_stretches() const noexcept { return task == Task::fetch || loads() || task == Task::keep; }
  bool delivers() const noexcept { return !loads() && task != Task::keep; }  // to `out`
  bool from_buffer() const noexcept { return task == Task::gather || task == Task::unpack || task == Task::decode; }
  // Whether piece i goes on with the stretch of the one before it. REQUIRES: in_stretches(), 0 < i < pieces.size().
  bool goes_on(std::size_t i) const noexcept;
  // Whether what is read from piece i on is another request than what is read before it.
  bool begins(std::size_t i) const noexcept;
  // Where the request of the pieces [from, to) ends: with them, or where the next begins if that goes on.
  std::uint64_t end_of(std::uint32_t to) const noexcept;
  // Where the request that begins with piece i does: with it, or where the stretch goes on.
  std::uint64_t begin_of(std::uint32_t i) const noexcept {
    return i == 0 && goes_on_from_ ? after.offset : pieces[i].offset;
  }
  const Form& form(const Piece& piece) const;
  const SourceFile& file(const Piece& piece) const;
  std::size_t file_index(const Piece& piece) const noexcept {
    return groups[piece.group].file;
  }
  Boxes::Corner corner(std::uint64_t sample) const noexcept {
    return Boxes::Corner(corners).subspan(sample * boxes->corner_size(), boxes->corner_size());
  }
  // The number of the sample that the row is, or is a block of.
  std::int64_t sample(const Row& row) const noexcept { return boxes == nullptr ? row.row : numbers[row.slot]; }
  std::string unit() const { return boxes == nullptr ? source->unit : "sample"; }  // what that numbers
  // "file: dataset, sample 17, offset 123" for byte `at` of a piece; no offset where nothing is stored.
  std::string where(const Piece& piece, std::uint64_t at) const;

  Task task = Task::read;
  std::shared_ptr<const Source> source;
  MutableBytes out;
  std::size_t asked = 0;  // rows, or extents of them
  Buffer* buffer = nullptr;
  const Lines* lines = nullptr;
  std::optional<Pack> pack;
  std::uint64_t gap = 0;
  std::uint64_t scratch = UINT64_MAX;
  FileOffset after,
      end;  // where the stretch before these ended, and, once they are planned by load or keep, where these do
  std::uint64_t row_nbytes = 0;
  std::uint64_t slot_nbytes = 0;       // of a sample in `out`
  std::shared_ptr<const Boxes> boxes;  // null: a sample is a row. Else of each sample:
  std::vector<std::int64_t> numbers, corners;
  std::vector<std::uint64_t> places;  // in `out`
  std::vector<Row> rows;              // sorted by plan()
  std::vector<Group> groups;
  std::vector<Grid> grids;
  std::vector<Piece> pieces;
  std::vector<std::uint32_t> unit_begin;  // unit u is pieces [unit_begin[u], unit_begin[u + 1])

 private:
  void check_fit(const Work& work);
  void check_apart(const Work& work, std::uint64_t slots);
  void cut_extents(const Source& from);
  void take_rows(const Work& work);
  void take_boxes(const Work& work);
  void plan_cuts(std::uint64_t offset, std::uint32_t begin, std::uint32_t end);
  std::uint32_t plan_group(std::uint32_t begin);
  void plan_tiles(std::uint32_t begin, std::uint32_t end, std::uint64_t line);
  void plan_stored(std::size_t chunk, std::uint64_t tile, std::uint32_t begin, std::uint32_t end);
  void plan_fill(std::uint64_t tile, std::uint64_t tiles, std::uint32_t begin, std::uint32_t end);
  void add(const Piece& piece);
  void add_direct(Piece piece);
  bool before(const Piece& a, const Piece& b) const noexcept;
  std::uint64_t cost(const Piece& piece) const;
  void cut(unsigned threads);
  bool whole_lines(const Grid& grid) const;
  void plan_in_order();
  void plan_kept(std::size_t chunk, std::uint32_t begin, std::uint32_t end);
  void sort(std::size_t from, std::size_t to);
  void plan_gathered();
  bool near(std::uint64_t end, std::uint64_t offset) const noexcept;
  void set_fills_aside(std::size_t from);
  void end_after();
  void cut_stretches();
  std::uint64_t parts_of(std::size_t i) const noexcept;
  std::uint64_t call_limit_of(const Piece& piece) const noexcept;

  std::vector<bool> taken_;    // slots of `out`, where rows have positions
  std::size_t grid_form_ = 0;  // form of grids.back()
  std::uint64_t longest_ = 0;  // piece_limit in whole elements
  std::vector<Piece> fills_;   // that wait for the pieces that are read
  bool ordered_ = true;
  bool goes_on_from_ = false;  // the first piece goes on with the stretch before
  std::uint32_t page_ = 0;     // of the line being planned, where its next chunk is kept
};

}  // namespace solar::read
