#include "batch.hpp"

#include <algorithm>
#include <stdexcept>

namespace solar::read {

namespace {

// Work in bytes of a plain read from memory: what a request costs beside its bytes, and what decoding costs a byte.
constexpr std::uint64_t request_cost = 8 << 10;
constexpr std::uint64_t copy_cost = 512;
constexpr std::uint64_t decode_cost = 8;
constexpr std::uint64_t least_unit = 64 << 10;
constexpr std::uint64_t most_unit = 1 << 20;
constexpr std::uint64_t units_per_thread = 8;
constexpr std::size_t most_kept = 1 << 20;  // bytes of each vector

bool unfiltered(const Form& form, std::uint32_t mask) {
  const std::size_t filters = form.pipeline.size();
  const std::uint32_t all = filters >= 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << filters) - 1;
  return (mask & all) == all;
}

}  // namespace

void ReadPlan::begin(const Work& work) {
  const Source& from = *work.source;
  row_nbytes = from.row_nbytes();
  boxes = work.boxes;
  slot_nbytes = boxes == nullptr ? row_nbytes : boxes->nbytes(from.itemsize);
  asked = work.rows.size();
  if (work.task == Task::read) check_fit(work);
  rows.clear();
  boxes == nullptr ? take_rows(work) : take_boxes(work);
  groups.clear();
  grids.clear();
  pieces.clear();
  fills_.clear();
  unit_begin.clear();
  ordered_ = true;
  longest_ = std::max(piece_limit - piece_limit % from.itemsize, from.itemsize);
  task = work.task;
  out = work.out;
  buffer = work.buffer;
  lines = work.lines;
  pack = work.pack;
  gap = work.gap;
  scratch = work.scratch;
  after = end = work.after == nullptr ? FileOffset() : *work.after;
  goes_on_from_ = false;
  source = work.source;
}

void ReadPlan::take_rows(const Work& work) {
  const std::int64_t all = work.source->part_first.back();
  rows.reserve(work.rows.size());
  std::uint64_t slot = 0;
  for (std::size_t i = 0; i < work.rows.size(); ++i) {
    const std::int64_t row = work.rows[i], count = work.counts ? (*work.counts)[i] : 1;
    if (count == 0) continue;
    if (row < 0 || row > all - count) {
      const std::string to = work.counts ? " and " + std::to_string(count - 1) + " after it" : "";
      throw std::out_of_range(work.source->name + ": row " + std::to_string(row) + to + " of " + std::to_string(all));
    }
    const std::uint64_t at = work.positions ? static_cast<std::uint64_t>((*work.positions)[i]) : slot;
    rows.push_back({row, at, static_cast<std::uint64_t>(count)});
    slot += static_cast<std::uint64_t>(count);
  }
  if (work.counts && row_nbytes > 0) cut_extents(*work.source);
}

// Cuts extents where a line of chunks ends; into single rows where these are not runs of bytes of the chunks' rows.
void ReadPlan::cut_extents(const Source& from) {
  std::vector<bool> runs;
  for (const Form& form : from.forms) {
    const Grid grid(from, form);
    runs.push_back(grid.tiles() == 1 && grid.chunk_row_nbytes() == from.row_nbytes());
  }
  const std::span<const std::int64_t> first = from.part_first;
  std::size_t part = first.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {  // what is cut off comes later
    const std::int64_t row = rows[i].row;
    if (part == first.size() || row < first[part] || row >= first[part + 1]) {
      part = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), row) - first.begin()) - 1;
    }
    const auto form = static_cast<std::size_t>(from.part_form[part]);
    const auto behind = static_cast<std::uint64_t>(first[part + 1] - row), of_line = from.forms[form].chunk[0];
    const std::uint64_t left =
        of_line == 0 ? behind : std::min(behind, of_line - static_cast<std::uint64_t>(row - first[part]) % of_line);
    const std::uint64_t most = runs[form] ? left : 1;
    if (rows[i].count <= most) continue;
    rows.push_back({row + static_cast<std::int64_t>(most), rows[i].slot + most, rows[i].count - most});
    rows[i].count = most;
  }
  if (rows.size() > UINT32_MAX) throw std::length_error(from.name + ": too many chunks for one batch");
}

// Whether the rows fit the output, each at a position of its own.
void ReadPlan::check_fit(const Work& work) {
  const Source& from = *work.source;
  const std::size_t wanted = work.rows.size(), nbytes = work.out.size();
  const Reader::Positions& positions = work.positions;
  const std::uint64_t row = slot_nbytes;
  const auto refuse = [&](const std::string& what) { throw std::invalid_argument(from.name + ": " + what); };
  std::uint64_t total = 0, slots_wanted = wanted;
  bool fits = wanted <= UINT32_MAX;
  if (work.counts) {
    if (work.counts->size() != wanted) {
      refuse(std::to_string(work.counts->size()) + " counts for " + std::to_string(wanted) + " rows");
    }
    slots_wanted = 0;
    for (const std::int64_t count : *work.counts) {
      fits =
          fits && count >= 0 && !__builtin_add_overflow(slots_wanted, static_cast<std::uint64_t>(count), &slots_wanted);
    }
  }
  fits = fits && !__builtin_mul_overflow(row, slots_wanted, &total);
  fits = fits && (positions && row > 0 ? nbytes % row == 0 : total == nbytes);
  if (!fits) {
    refuse(std::to_string(slots_wanted) + " rows of " + std::to_string(row) + " bytes do not fit an output of " +
           std::to_string(nbytes) + " bytes");
  }
  if (!positions) return;
  if (positions->size() != wanted) {
    refuse(std::to_string(positions->size()) + " positions for " + std::to_string(wanted) + " rows");
  }
  if (row > 0) check_apart(work, nbytes / row);
}

// Whether all positions lie in so many slots, and no two rows go to one. REQUIRES: positions.
void ReadPlan::check_apart(const Work& work, std::uint64_t slots) {
  const auto refuse = [&](const std::string& what) { throw std::invalid_argument(work.source->name + ": " + what); };
  const std::span<const std::int64_t> positions = *work.positions;
  if (work.counts) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // from, to
    taken.reserve(positions.size());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto from = static_cast<std::uint64_t>(positions[i]), count = static_cast<std::uint64_t>((*work.counts)[i]);
      if (count == 0) continue;
      if (count > slots || from > slots - count) {
        refuse("position " + std::to_string(positions[i]) + " of " + std::to_string(count) + " rows in an output of " +
               std::to_string(slots) + " rows");
      }
      taken.emplace_back(from, from + count);
    }
    if (!std::is_sorted(taken.begin(), taken.end())) std::sort(taken.begin(), taken.end());
    for (std::size_t i = 1; i < taken.size(); ++i) {
      if (taken[i].first < taken[i - 1].second)
        refuse("position " + std::to_string(taken[i].first) + " is given twice");
    }
    return;
  }
  taken_.assign(slots, false);
  for (const std::int64_t position : positions) {
    const auto slot = static_cast<std::uint64_t>(position);  // of a negative one: far too large
    if (slot >= slots) {
      refuse("position " + std::to_string(position) + " in an output of " + std::to_string(slots) + " rows");
    }
    if (taken_[slot]) refuse("position " + std::to_string(position) + " is given twice");
    taken_[slot] = true;
  }
}

void ReadPlan::plan(unsigned threads) {
  if (row_nbytes == 0) return;
  if (loads() || task == Task::keep) return plan_in_order();
  if (task == Task::gather || task == Task::unpack) {
    plan_gathered();
    return cut(threads);
  }
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.row != b.row ? a.row < b.row : a.slot < b.slot; });
  for (std::uint32_t i = 0; i < rows.size();) i = plan_group(i);
  if (!ordered_) {
    sort(0, pieces.size());
  }
  if (task != Task::fetch) return cut(threads);
  set_fills_aside(0);
  cut_stretches();
}

ReadPlan::Remains ReadPlan::release_large() noexcept {
  Remains remains;
  const auto release = [](auto& from, auto& to) {
    if (from.capacity() * sizeof from.front() > most_kept) to.swap(from);
  };
  if (taken_.capacity() > 8 * most_kept) remains.taken.swap(taken_);
  release(rows, remains.rows);
  release(groups, remains.groups);
  release(pieces, remains.pieces);
  return remains;
}

// Plans the rows from `begin` on that share a line of chunks; returns the first row that does not.
std::uint32_t ReadPlan::plan_group(std::uint32_t begin) {
  const std::int64_t row = rows[begin].row;
  const std::span<const std::int64_t> first = source->part_first;
  std::size_t part = groups.empty() ? first.size() : groups.back().part;
  if (part == first.size() || row < first[part] || row >= first[part + 1]) {
    part = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), row) - first.begin()) - 1;
  }
  const auto form_index = static_cast<std::size_t>(source->part_form[part]);
  const Form& form = source->forms[form_index];
  if (grids.empty() || grid_form_ != form_index) {
    grids.emplace_back(*source, form);
    grid_form_ = form_index;
  }
  const auto part_rows = static_cast<std::uint64_t>(first[part + 1] - first[part]);
  const std::uint64_t chunk_rows = form.chunk[0] == 0 ? part_rows : form.chunk[0];
  const auto row_of_part = static_cast<std::uint64_t>(row - first[part]);
  const std::uint64_t line = row_of_part / chunk_rows;
  const std::uint64_t left = std::min(chunk_rows - row_of_part % chunk_rows, part_rows - row_of_part);
  const std::int64_t limit = row + static_cast<std::int64_t>(left);
  std::uint32_t end = begin + 1;
  while (end < rows.size() && rows[end].row < limit && rows[end].row >= row) ++end;
  groups.push_back({part, static_cast<std::uint32_t>(grids.size() - 1),
                    first[part] + static_cast<std::int64_t>(line * chunk_rows), chunk_rows,
                    lines == nullptr ? 0 : lines->number(row), static_cast<std::size_t>(source->part_file[part])});
  page_ = 0;
  plan_tiles(begin, end, line);
  return end;
}

// Looks up the chunks of line `line` of the newest group: stored ones become reads, runs of missing ones are filled.
void ReadPlan::plan_tiles(std::uint32_t begin, std::uint32_t end, std::uint64_t line) {
  const Group group = groups.back();
  const std::uint64_t tiles = grids[group.grid].tiles();
  const std::uint64_t index = line * tiles;  // of the line's first chunk in the part's grid
  const auto chunks_begin = static_cast<std::size_t>(source->part_chunks[group.part]);
  const auto chunks_end = static_cast<std::size_t>(source->part_chunks[group.part + 1]);
  const std::span<const std::uint64_t> sparse = source->chunk_index;
  if (sparse.empty()) {
    const std::uint64_t stored = chunks_end - chunks_begin;
    const std::uint64_t here = stored > index ? std::min(tiles, stored - index) : 0;
    for (std::uint64_t t = 0; t < here; ++t) plan_stored(chunks_begin + index + t, t, begin, end);
    if (here < tiles) plan_fill(here, tiles - here, begin, end);
    return;
  }
  const auto from = sparse.begin() + static_cast<std::ptrdiff_t>(chunks_begin);
  const auto to = sparse.begin() + static_cast<std::ptrdiff_t>(chunks_end);
  auto k = std::lower_bound(from, to, index);
  for (std::uint64_t t = 0; t < tiles;) {
    const std::uint64_t next = k != to ? std::min(tiles, *k - index) : tiles;
    if (next > t) plan_fill(t, next - t, begin, end);
    t = next;
    if (t == tiles) break;
    plan_stored(static_cast<std::size_t>(k - sparse.begin()), t, begin, end);
    ++k;
    ++t;
  }
}

void ReadPlan::plan_stored(std::size_t chunk, std::uint64_t tile_index, std::uint32_t begin, std::uint32_t end) {
  if (const std::size_t file = source->file_of(groups.back().part, chunk); file != groups.back().file) {
    groups.push_back(groups.back());  // pieces that share a group share their file
    groups.back().file = file;
  }
  const auto group_index = static_cast<std::uint32_t>(groups.size() - 1);
  const Group& group = groups.back();
  const Grid& grid = grids[group.grid];
  const std::uint32_t mask = source->chunk_mask[chunk];
  const std::uint64_t offset = source->chunk_offset[chunk];
  if (task == Task::keep) return plan_kept(chunk, begin, end);
  const bool whole = task == Task::decode || (task != Task::read && whole_lines(grid));
  if (whole || !unfiltered(source->forms[grid_form_], mask)) {
    add({offset, source->chunk_nbytes[chunk], tile_index, group_index, begin, end - begin, mask, page_, How::chunk});
    if (task == Task::decode) page_ += pages_of(source->chunk_nbytes[chunk], buffer->page_nbytes());
    return;
  }
  if (boxes != nullptr) return plan_cuts(offset, begin, end);
  const Tile tile = grid.tile(tile_index);
  const How alone = task == Task::pack ? How::pack : How::tile;
  for (std::uint32_t i = begin; i < end;) {
    std::uint32_t same = 1;
    while (i + same < end && rows[i + same].row == rows[i].row && rows[i + same].count == rows[i].count) ++same;
    const std::uint64_t at = static_cast<std::uint64_t>(rows[i].row - group.first) * grid.chunk_row_nbytes();
    if (tile.whole && alone == How::tile) {
      const std::uint64_t to = task == Task::load ? tile.at : rows[i].slot * row_nbytes + tile.at;
      add_direct({offset + at, tile.nbytes * rows[i].count, to, group_index, i, same, 0, 0, How::direct});
    } else {
      add({offset + at, tile.nbytes, tile_index, group_index, i, same, 0, 0, alone});
    }
    i += same;
  }
}

void ReadPlan::plan_fill(std::uint64_t tile, std::uint64_t tiles, std::uint32_t begin, std::uint32_t end) {
  if (task == Task::keep) return;
  const auto group_index = static_cast<std::uint32_t>(groups.size() - 1);
  const auto step = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(piece_limit / row_nbytes, 1, UINT32_MAX));
  for (std::uint32_t i = begin; i < end;) {
    const std::uint32_t n = std::min(step, end - i);
    add({pieces.empty() ? 0 : pieces.back().offset, tiles, tile, group_index, i, n, 0, 0, How::fill});
    i += n;
  }
}

void ReadPlan::add(const Piece& piece) {
  if (ordered_ && !pieces.empty() && before(piece, pieces.back())) ordered_ = false;
  pieces.push_back(piece);
}

// Joins the piece to the last one when they meet both in the file and in `out`, and cuts what is too long.
void ReadPlan::add_direct(Piece piece) {
  if (!pieces.empty()) {
    Piece& last = pieces.back();
    if (task != Task::load && last.how == How::direct && last.group == piece.group && last.rows == 1 &&
        piece.rows == 1 && last.offset + last.nbytes == piece.offset && last.to + last.nbytes == piece.to) {
      const std::uint64_t more = std::min(piece.nbytes, longest_ - last.nbytes);
      last.nbytes += more;
      piece.offset += more;
      piece.to += more;
      piece.nbytes -= more;
    }
  }
  while (piece.nbytes > 0) {
    Piece head = piece;
    head.nbytes = std::min(piece.nbytes, longest_);
    add(head);
    piece.offset += head.nbytes;
    piece.to += head.nbytes;
    piece.nbytes -= head.nbytes;
  }
}

bool ReadPlan::before(const Piece& a, const Piece& b) const noexcept {
  const std::size_t file_a = a.group == b.group ? 0 : file_index(a);
  const std::size_t file_b = a.group == b.group ? 0 : file_index(b);
  return file_a != file_b ? file_a < file_b : a.offset < b.offset;
}

std::uint64_t ReadPlan::cost(const Piece& piece) const {
  if (piece.how == How::gather || piece.how == How::unpack) return copy_cost + piece.nbytes;
  const Group& group = groups[piece.group];
  switch (piece.how) {
    case How::fill: return request_cost + piece.rows * (row_nbytes / grids[group.grid].tiles() * piece.nbytes);
    case How::chunk:
      return request_cost + piece.nbytes + decode_cost * group.chunk_rows * grids[group.grid].chunk_row_nbytes();
    default: return request_cost + piece.nbytes * piece.rows;
  }
}

// Units small enough that no thread ends long after the others, large enough that taking one costs nothing.
void ReadPlan::cut(unsigned threads) {
  if (pieces.size() > UINT32_MAX) throw std::length_error(source->name + ": too many chunks for one batch");
  std::uint64_t total = 0;
  for (const Piece& piece : pieces) total += cost(piece);
  const std::uint64_t target = std::clamp(total / (threads * units_per_thread), least_unit, most_unit);
  std::uint64_t sum = target;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (sum >= target) {
      unit_begin.push_back(i);
      sum = 0;
    }
    sum += cost(pieces[i]);
  }
  unit_begin.push_back(static_cast<std::uint32_t>(pieces.size()));
}

const Form& ReadPlan::form(const Piece& piece) const {
  return source->forms[static_cast<std::size_t>(source->part_form[groups[piece.group].part])];
}

const SourceFile& ReadPlan::file(const Piece& piece) const { return source->files[file_index(piece)]; }

std::string ReadPlan::where(const Piece& piece, std::uint64_t at) const {
  const Row& row = rows[piece.first];
  const bool held = piece.how == How::gather || piece.how == How::unpack;
  const std::string what = source->name + ", " + unit() + " ";
  if (held) return what + std::to_string(sample(row)) + " in the buffer";
  std::int64_t sample = this->sample(row);
  // A joined piece goes on into the following rows.
  if (piece.how == How::direct && task != Task::load) {
    sample += static_cast<std::int64_t>((piece.to + at) / row_nbytes - row.slot);
  }
  const std::string offset = piece.how == How::fill ? "" : ", offset " + std::to_string(piece.offset + at);
  return file(piece).path + ": " + what + std::to_string(sample) + offset;
}

}  // namespace solar::read
