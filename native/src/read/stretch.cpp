// The plans of a ReadPlan that reads in stretches, or takes from a buffer.
#include <algorithm>
#include <stdexcept>

#include "batch.hpp"

namespace solar::read {

// Whether rows can only be had by reading the whole line of chunks. The planner's units are the same.
bool ReadPlan::whole_lines(const Grid& grid) const {
  return !source->forms[grid_form_].pipeline.empty() || grid.tiles() != 1 || grid.chunk_row_nbytes() != row_nbytes;
}

void ReadPlan::sort(std::size_t from, std::size_t to) {
  const auto begin = pieces.begin();
  std::sort(begin + static_cast<std::ptrdiff_t>(from), begin + static_cast<std::ptrdiff_t>(to),
            [this](const Piece& a, const Piece& b) { return before(a, b); });
}

// Groups stay in the order of the rows: that of storage, but that it may begin anew. Where it does not, pieces are in
// order, though chunks of neighbouring lines may lie among one another.
void ReadPlan::plan_in_order() {
  std::size_t run = 0, last = 0;  // the first piece since it began anew, and of the group before
  for (std::uint32_t i = 0; i < rows.size();) {
    const std::size_t begin = pieces.size();
    i = plan_group(i);
    set_fills_aside(begin);
    if (pieces.size() == begin) continue;
    sort(begin, pieces.size());
    if (begin > run && before(pieces[begin], pieces[last])) {
      sort(run, begin);
      run = begin;
    }
    last = begin;
  }
  sort(run, pieces.size());
  cut_stretches();
  end_after();
}

// Where the last piece that is read ends: there the next work may go on.
void ReadPlan::end_after() {
  const auto last = std::find_if(pieces.rbegin(), pieces.rend(), [](const Piece& p) { return p.how != How::fill; });
  if (last != pieces.rend()) end = {file_index(*last), last->offset + last->nbytes};
}

void ReadPlan::set_fills_aside(std::size_t from) {
  const auto begin = pieces.begin() + static_cast<std::ptrdiff_t>(from);
  const auto fills = std::stable_partition(begin, pieces.end(), [](const Piece& p) { return p.how != How::fill; });
  fills_.insert(fills_.end(), fills, pieces.end());
  pieces.erase(fills, pieces.end());
}

void ReadPlan::plan_kept(std::size_t chunk, std::uint32_t begin, std::uint32_t end) {
  const auto group = static_cast<std::uint32_t>(groups.size() - 1);
  const std::uint64_t nbytes = source->chunk_nbytes[chunk], to = page_ * buffer->page_nbytes();
  const std::uint64_t longest = std::min<std::uint64_t>(piece_limit, (parts_limit - 2) * buffer->page_nbytes());
  for (std::uint64_t at = 0; at < nbytes; at += longest) {
    const std::uint64_t here = std::min(longest, nbytes - at);
    add({source->chunk_offset[chunk] + at, here, to + at, group, begin, end - begin, 0, page_, How::keep});
  }
  page_ += pages_of(nbytes, buffer->page_nbytes());
}

void ReadPlan::plan_gathered() {
  pieces.reserve(rows.size());
  const bool whole = task == Task::unpack;
  for (std::uint32_t i = 0; i < rows.size(); ++i) {
    if (boxes != nullptr) {
      const std::uint64_t most = boxes->runs() ? row_nbytes : std::min(row_nbytes, slot_nbytes);
      pieces.push_back({0, most, 0, 0, i, 1, 0, 0, How::gather});
      continue;
    }
    if (whole) pieces.push_back({0, row_nbytes, rows[i].slot * row_nbytes, 0, i, 1, 0, 0, How::unpack});
    for (std::uint64_t at = 0; !whole && at < row_nbytes; at += piece_limit) {
      const std::uint64_t here = std::min(piece_limit, row_nbytes - at);
      pieces.push_back({at, here, rows[i].slot * row_nbytes + at, 0, i, 1, 0, 0, How::gather});
    }
  }
}

bool ReadPlan::near(std::uint64_t end, std::uint64_t offset) const noexcept {
  return offset == end || (offset > end && offset - end < gap);
}

bool ReadPlan::goes_on(std::size_t i) const noexcept {
  const Piece &before = pieces[i - 1], &here = pieces[i];
  if (here.how == How::fill) return false;
  if (before.group != here.group && file_index(before) != file_index(here)) return false;
  return near(before.offset + before.nbytes, here.offset);
}

bool ReadPlan::begins(std::size_t i) const noexcept {
  if (i == 0) return !goes_on_from_;
  if (in_stretches()) return !goes_on(i);
  const Piece &before = pieces[i - 1], &here = pieces[i];
  if (before.how == How::fill || before.offset + before.nbytes != here.offset) return true;
  return before.group != here.group && file_index(before) != file_index(here);
}

std::uint64_t ReadPlan::end_of(std::uint32_t to) const noexcept {
  if (in_stretches() && to < pieces.size() && goes_on(to)) return pieces[to].offset;
  return pieces[to - 1].offset + pieces[to - 1].nbytes;
}

// The parts of memory that a piece, and the hole before it, make of a request.
std::uint64_t ReadPlan::parts_of(std::size_t i) const noexcept {
  const std::uint64_t own = pieces[i].how == How::keep ? pieces[i].nbytes / buffer->page_nbytes() + 2 : 1;
  if (i == 0) return own + (pieces[0].offset - begin_of(0)) / hole_limit + 1;
  return own + (goes_on(i) ? (pieces[i].offset - pieces[i - 1].offset - pieces[i - 1].nbytes) / hole_limit + 1 : 0);
}

std::uint32_t ReadPlan::joined(std::uint32_t begin, std::uint32_t end, std::uint64_t gap) const noexcept {
  if (in_stretches()) return end;  // a unit is a request
  const Piece& first = pieces[begin];
  std::uint64_t at = first.offset + first.nbytes;
  std::uint32_t i = begin + 1;
  for (; i < end && i - begin < joined_limit; ++i) {
    const Piece& piece = pieces[i];
    if (piece.how == How::fill || piece.offset < at || piece.offset - at > gap) break;
    if (piece.offset + piece.nbytes - first.offset > request_limit) break;
    if (piece.group != first.group && file_index(piece) != file_index(first)) break;
    at = piece.offset + piece.nbytes;
  }
  return i;
}

// What is decoded or encoded passes through scratch, of which several requests have a share.
std::uint64_t ReadPlan::call_limit_of(const Piece& piece) const noexcept {
  return piece.how == How::chunk || piece.how == How::tile || piece.how == How::pack ? std::min(call_limit, scratch / 4)
                                                                                     : call_limit;
}

// A unit is a request. All that is only filled comes last.
void ReadPlan::cut_stretches() {
  if (pieces.size() + fills_.size() > UINT32_MAX)
    throw std::length_error(source->name + ": too many chunks for one batch");
  if (!pieces.empty()) goes_on_from_ = file_index(pieces[0]) == after.file && near(after.offset, pieces[0].offset);
  std::uint64_t begin = 0, parts = 0;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    const bool on = i > 0 && goes_on(i);
    const std::uint64_t more = parts_of(i);
    if (!on || pieces[i].offset + pieces[i].nbytes - begin > call_limit_of(pieces[i]) || parts + more > parts_limit) {
      unit_begin.push_back(i);
      begin = pieces[i].offset;
      parts = 0;
    }
    parts += more;
  }
  unit_begin.push_back(static_cast<std::uint32_t>(pieces.size()));
  if (fills_.empty()) return;
  pieces.insert(pieces.end(), fills_.begin(), fills_.end());
  fills_.clear();
  unit_begin.push_back(static_cast<std::uint32_t>(pieces.size()));
}

}  // namespace solar::read
