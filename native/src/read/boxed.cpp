// Boxes of blocks: what they are, how a ReadPlan reads them, and how they are put into place.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cut.hpp"
#include "deliver.hpp"

namespace solar {

Boxes Boxes::runs_of(const Source& source) {
  Boxes made{source.row_shape, {}, {}, {0}};
  const std::uint64_t per = made.block.empty() ? 0 : made.block[0];
  if (__builtin_mul_overflow(source.part_first.back(), per, &made.lengths[0])) made.lengths[0] = -1;
  return made;
}

void Boxes::check(const Source& source) const {
  const auto refuse = [&](const char* what) { throw std::invalid_argument(source.name + ": " + what); };
  if (runs()) {
    const Boxes right = runs_of(source);
    const bool rows = rank() > 0 && block[0] > 0 && block[0] <= INT64_MAX && nbytes(source.itemsize) > 0;
    if (!rows || block != right.block || lengths != right.lengths || lengths[0] < 0)
      refuse("runs are of rows of blocks");
    for (const Form& form : source.forms) {
      const bool whole =
          form.chunk.size() == rank() + 1 && std::equal(block.begin(), block.end(), form.chunk.begin() + 1);
      if (!whole) refuse("a chunk has whole blocks");
    }
    return;
  }
  if (rank() == 0 || rank() >= read::max_rank || box.size() != rank() || shape.size() != rank()) {
    refuse("a block, a box and a volume have the same dimensions, at least one");
  }
  if (source.row_shape != block) refuse("the rows of boxes are blocks");
  for (const Form& form : source.forms) {
    if (form.chunk.size() != rank() + 1 || form.chunk[0] != 1 || !std::equal(block.begin(), block.end(), form.chunk.begin() + 1)) {
      refuse("a block is a chunk");
    }
  }
  std::uint64_t nbytes = source.itemsize;
  for (const std::uint64_t n : box) {
    if (n == 0 || __builtin_mul_overflow(nbytes, n, &nbytes) || nbytes > INT64_MAX) refuse("a box of no such size");
  }
  if (lengths.size() + 1 != source.part_first.size()) refuse("each part of boxes has a length");
  for (std::size_t part = 0; part < lengths.size(); ++part) {
    std::uint64_t blocks = 1;
    for (std::size_t d = 0; d < rank(); ++d) {
      if (block[d] == 0 || block[d] > INT64_MAX || extent(part, d) > INT64_MAX) refuse("a block or a volume of no such size");
      if (__builtin_mul_overflow(blocks, tiles(part, d), &blocks)) refuse("a volume of more blocks than can be counted");
    }
    if (blocks != static_cast<std::uint64_t>(source.part_first[part + 1] - source.part_first[part])) {
      refuse("the rows of a part are the blocks of its volume");
    }
  }
}

// Each within the blocks, no block in both, and places that can be counted.
void Boxes::check_runs(Corner corner) const {
  const std::int64_t all = lengths[0], per = static_cast<std::int64_t>(block[0]);
  bool fits = corner[4] >= 0;
  for (std::size_t run = 0; run < 4; run += 2) {
    fits =
        fits && corner[run] >= 0 && corner[run + 1] >= 0 && corner[run] <= all && corner[run + 1] <= all - corner[run];
  }
  if (fits && corner[1] > 0 && corner[3] > 0) {
    const auto first = [&](std::size_t run) { return corner[run] / per; };
    const auto last = [&](std::size_t run) { return (corner[run] + corner[run + 1] - 1) / per; };
    fits = last(0) < first(2) || last(2) < first(0);
  }
  std::int64_t rows = 0;  // no more than there are, twice
  fits = fits && !__builtin_add_overflow(corner[1], corner[3], &rows) && corner[4] <= INT64_MAX - rows;
  if (!fits) throw std::out_of_range("a run leaves the blocks");
}

void Boxes::check(Corner corner) const {
  if (runs()) return check_runs(corner);
  bool fits = corner[0] >= 0 && static_cast<std::uint64_t>(corner[0]) < lengths.size();
  for (std::size_t d = 0; fits && d < rank(); ++d) {
    const std::uint64_t extent = this->extent(static_cast<std::size_t>(corner[0]), d);
    fits = corner[1 + d] >= 0 && box[d] <= extent && static_cast<std::uint64_t>(corner[1 + d]) <= extent - box[d];
  }
  if (!fits) throw std::out_of_range("a box leaves its volume");
}

namespace read {

namespace {

constexpr std::uint64_t hole_in_block = 4 << 10;  // what reading over costs as much as another piece
constexpr std::uint64_t much_of_chunk = 2;        // boxes want one part of so many
constexpr std::uint64_t decoded_a_run = 128;      // bytes that are decoded in the time that a run is looked for

}  // namespace

// The rows that one of the two runs has of the block.
void Cut::cut_run(const Boxes& boxes, std::uint64_t row_nbytes, std::int64_t row, Boxes::Corner corner) {
  const auto per = static_cast<std::int64_t>(boxes.block[0]), block = row * per;
  std::int64_t before = 0;
  rank_ = 1;
  for (std::size_t run = 0; run < 4; run += 2) {
    const std::int64_t begin = std::max(corner[run], block), end = std::min(corner[run] + corner[run + 1], block + per);
    if (begin < end) {
      from_ = static_cast<std::uint64_t>(begin - block) * row_nbytes;
      to_ = static_cast<std::uint64_t>(before + begin - corner[run]) * row_nbytes;
      dims_[0] = {static_cast<std::uint64_t>(end - begin) * row_nbytes, 1, 1};
      return;
    }
    before += corner[run + 1];
  }
  dims_[0] = {0, 1, 1};
}

Cut::Cut(const Boxes& boxes, const Source& source, std::int64_t row, Boxes::Corner corner) {
  if (boxes.runs()) {
    cut_run(boxes, boxes.nbytes(source.itemsize), row, corner);
    return;
  }
  const auto part = static_cast<std::size_t>(corner[0]);
  auto left = static_cast<std::uint64_t>(row - source.part_first[part]);
  std::array<Dim, max_rank + 1> found;  // from the innermost outwards
  found[0] = {source.itemsize, 1, 1};
  rank_ = 1;
  std::uint64_t from = source.itemsize, to = source.itemsize;  // bytes from one element to the next
  for (std::size_t d = boxes.rank(); d-- > 0;) {
    const std::uint64_t tiles = boxes.tiles(part, d), begin = left % tiles * boxes.block[d];
    left /= tiles;
    const auto box = static_cast<std::uint64_t>(corner[1 + d]);
    const std::uint64_t first = std::max(box, begin);
    const std::uint64_t last = std::min(box + boxes.box[d], begin + boxes.block[d]);
    from_ += (first - begin) * from;
    to_ += (first - box) * to;
    const std::uint64_t extent = last - first;
    Dim& inner = found[rank_ - 1];
    if (inner.extent * inner.from == from && inner.extent * inner.to == to) {
      inner.extent *= extent;
    } else if (extent > 1) {
      found[rank_++] = {extent, from, to};
    }
    from *= boxes.block[d];
    to *= boxes.box[d];
  }
  for (std::size_t d = 0; d < rank_; ++d) dims_[d] = found[rank_ - 1 - d];
}

// The samples, as uses of blocks. Row::slot is the place of a sample among those asked for. One whose blocks come from two
// places is counted where its first comes from.
void ReadPlan::take_boxes(const Work& work) {
  const Boxes& of = *boxes;
  const std::size_t size = of.corner_size();
  const bool whole = work.task == Task::load || work.task == Task::keep;
  if (whole || work.corners.size() / size != work.rows.size() || work.corners.size() % size != 0) {
    throw std::invalid_argument(work.source->name + ": boxes are read, each at a corner of its own");
  }
  if (of.runs() && work.task == Task::read) {
    throw std::invalid_argument(work.source->name + ": runs are cut out of what a buffer wants");
  }
  numbers.assign(work.rows.begin(), work.rows.end());
  corners.assign(work.corners.begin(), work.corners.end());
  places.clear();
  for (std::uint64_t i = 0; i < numbers.size(); ++i) {
    of.check(corner(i));
    places.push_back(of.place(corner(i), work.positions ? static_cast<std::uint64_t>((*work.positions)[i]) : i));
    bool first = work.blocks.has_value();
    of.each_block(*work.source, corner(i), [&](std::int64_t row) {
      const bool wanted = !work.blocks || std::binary_search(work.blocks->begin(), work.blocks->end(), row);
      if (wanted) rows.push_back({row, i});
      if (std::exchange(first, false) && !wanted) --asked;
    });
    if (first) --asked;  // a run without rows comes from nowhere
  }
  if (rows.size() > UINT32_MAX) throw std::length_error(work.source->name + ": too many blocks for one batch");
}

// Of a block that needs no decoding only what its samples want is read: by each its own, unless reading once what lies
// between the first byte and the last is less. A plan counts whole ones.
void ReadPlan::plan_cuts(std::uint64_t offset, std::uint32_t begin, std::uint32_t end) {
  const auto group = static_cast<std::uint32_t>(groups.size() - 1);
  for (std::uint32_t i = begin, same = 1; task != Task::read && i < end; i += same) {
    for (same = 1; i + same < end && rows[i + same].row == rows[i].row;) ++same;
    const std::uint64_t at = static_cast<std::uint64_t>(rows[i].row - groups[group].first) * row_nbytes;
    add({offset + at, row_nbytes, 0, group, i, same, 0, 0, How::tile});
  }
  if (task != Task::read) return;
  std::uint64_t low = UINT64_MAX, high = 0, nbytes = 0;
  for (std::uint32_t i = begin; i < end; ++i) {
    const Cut cut(*boxes, *source, rows[i].row, corner(rows[i].slot));
    low = std::min(low, cut.begin());
    high = std::max(high, cut.end());
    cut.each_stretch(hole_in_block, [&](std::uint64_t, std::uint64_t here) { nbytes += here; });
  }
  if (end - begin > 1 && nbytes >= high - low) {
    return add({offset + low, high - low, low, group, begin, end - begin, 0, 0, How::tile});
  }
  for (std::uint32_t i = begin; i < end; ++i) {
    const Cut cut(*boxes, *source, rows[i].row, corner(rows[i].slot));
    cut.each_stretch(hole_in_block, [&](std::uint64_t at, std::uint64_t here) {
      add({offset + at, here, at, group, i, 1, 0, 0, How::tile});
    });
  }
}

namespace {

// Runs are often single elements, where the axis that is cut is the last.
template <class Item>
void copy_items(const Cut& cut, const std::byte* block, std::uint64_t at, std::uint64_t nbytes, std::byte* box) {
  cut.each_run(at, at + nbytes, [=](std::uint64_t from, std::uint64_t to, std::uint64_t) {
    std::memcpy(box + to, block + (from - at), sizeof(Item));
  });
}

void copy(const Cut& cut, const std::byte* block, std::uint64_t at, std::uint64_t nbytes, std::byte* box) {
  switch (cut.run_nbytes()) {
    case 1: return copy_items<std::uint8_t>(cut, block, at, nbytes, box);
    case 2: return copy_items<std::uint16_t>(cut, block, at, nbytes, box);
    case 4: return copy_items<std::uint32_t>(cut, block, at, nbytes, box);
    case 8: return copy_items<std::uint64_t>(cut, block, at, nbytes, box);
    default:
      cut.each_run(at, at + nbytes, [=](std::uint64_t from, std::uint64_t to, std::uint64_t n) {
        std::memcpy(box + to, block + (from - at), n);
      });
  }
}

}  // namespace

void place_cuts(const ReadPlan& batch, const Piece& piece, const std::byte* block, std::uint64_t at,
                std::uint64_t nbytes) {
  for (std::uint32_t i = piece.first; i < piece.first + piece.rows; ++i) {
    const Row& use = batch.rows[i];
    if (i > piece.first) block += static_cast<std::uint64_t>(use.row - batch.rows[i - 1].row) * batch.row_nbytes;
    const Cut cut(*batch.boxes, *batch.source, use.row, batch.corner(use.slot));
    std::byte* const box = batch.slot(use);
    copy(cut, block, at, nbytes, box);
    if (batch.source->swap < 2 || batch.task == Task::gather) continue;  // buffers of rows have them swapped already
    cut.each_run(at, at + nbytes, [&](std::uint64_t, std::uint64_t to, std::uint64_t n) {
      reverse(box + to, n, batch.source->swap);
    });
  }
}

void find_wanted(const ReadPlan& batch, const Piece& piece, std::uint64_t nbytes, std::vector<Wanted::Range>& found) {
  found.clear();
  std::uint64_t bytes = 0, runs = 0;
  for (std::uint32_t i = piece.first; i < piece.first + piece.rows; ++i) {
    const Cut cut(*batch.boxes, *batch.source, batch.rows[i].row, batch.corner(batch.rows[i].slot));
    bytes += cut.nbytes();
    runs += cut.nbytes() / cut.run_nbytes();
  }
  if (bytes > nbytes / much_of_chunk || runs > nbytes / decoded_a_run) return;
  for (std::uint32_t i = piece.first; i < piece.first + piece.rows; ++i) {
    const Cut cut(*batch.boxes, *batch.source, batch.rows[i].row, batch.corner(batch.rows[i].slot));
    cut.each_run([&found](std::uint64_t from, std::uint64_t, std::uint64_t n) { found.push_back({from, from + n}); });
  }
  std::sort(found.begin(), found.end(), [](Wanted::Range a, Wanted::Range b) { return a.begin < b.begin; });
  std::size_t last = 0;
  for (const Wanted::Range range : found) {
    if (range.begin > found[last].end) found[++last] = range;
    found[last].end = std::max(found[last].end, range.end);
  }
  found.resize(last + 1);
}

void fill_cuts(const ReadPlan& batch, const Piece& piece) {
  const Bytes item = batch.form(piece).fill;
  for (std::uint32_t i = piece.first; i < piece.first + piece.rows; ++i) {
    const Row& use = batch.rows[i];
    std::byte* const box = batch.slot(use);
    const Cut cut(*batch.boxes, *batch.source, use.row, batch.corner(use.slot));
    cut.each_run([&](std::uint64_t, std::uint64_t to, std::uint64_t n) {
      repeat(item, box + to, n);
      if (!item.empty()) reverse(box + to, n, batch.source->swap);
    });
  }
}

}  // namespace read

void Boxes::put_together(const Source& source, std::span<const std::int64_t> corners,
                         std::span<const std::int64_t> places, std::span<const std::int32_t> rows, Bytes blocks,
                         MutableBytes out) const {
  const std::size_t size = corner_size(), block_nbytes = source.row_nbytes(), box_nbytes = nbytes(source.itemsize);
  if (corners.size() != places.size() * size || blocks.size() / block_nbytes != rows.size()) {
    throw std::invalid_argument(source.name + ": each box has a corner and a place, and each block its row");
  }
  const std::uint64_t room = out.size() / box_nbytes;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Corner corner = corners.subspan(i * size, size);
    check(corner);
    const std::uint64_t begin = place(corner, static_cast<std::uint64_t>(places[i]));
    if (runs() ? end(corner) > room : begin >= room) throw std::out_of_range("a box without a place");
    std::byte* const to = out.data() + begin * box_nbytes;
    each_block(source, corner, [&](std::int64_t row) {
      const auto found = std::lower_bound(rows.begin(), rows.end(), row);
      if (found == rows.end() || *found != row) throw std::out_of_range("a box of a block that is not there");
      const std::byte* const from = blocks.data() + static_cast<std::size_t>(found - rows.begin()) * block_nbytes;
      read::copy(read::Cut(*this, source, row, corner), from, 0, block_nbytes, to);
    });
  }
}

}  // namespace solar
