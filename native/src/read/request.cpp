#include "request.hpp"

#include <algorithm>
#include <cstring>

namespace solar::read {

void Request::start(Job& of, std::uint32_t from, std::uint32_t to) {
  job = &of;
  begins = of.batch.begins(from);
  begin = from;
  end = to;
  offset = from_ = of.batch.begin_of(from);
  left = of.batch.end_of(to) - offset;
  parts.clear();
  part = 0;
  window = {};
  lead = 0;
  way = Way::plain;
  staged = nullptr;
}

// Whole pages in memory: after a fork, on older kernels, a page that is written to while the storage fills it is lost.
bool Request::aligned(std::size_t alignment) const noexcept {
  const ReadPlan& batch = job->batch;
  const std::size_t page = std::max(alignment, page_nbytes);
  if (left % alignment != 0) return false;
  return std::all_of(&batch.pieces[begin], batch.pieces.data() + end, [&](const Piece& piece) {
    return piece.how == How::direct && piece.offset % alignment == 0 && piece.nbytes % page == 0 &&
           reinterpret_cast<std::uintptr_t>(batch.memory(piece)) % page == 0;
  });
}

std::uint64_t Request::stored_nbytes() const noexcept {
  std::uint64_t nbytes = 0;
  for (std::uint32_t i = begin; i < end; ++i) {
    const Piece& piece = job->batch.pieces[i];
    if (piece.how != How::direct && piece.how != How::keep) nbytes += piece.nbytes;
  }
  return nbytes;
}

void Request::lay_out(std::byte* scrap) {
  const ReadPlan& batch = job->batch;
  std::byte* stored = scratch.data();
  std::uint64_t at = offset;
  for (std::uint32_t i = begin; i < end; ++i) {
    const Piece& piece = batch.pieces[i];
    skip(scrap, piece.offset - at);
    at = piece.offset + piece.nbytes;
    if (piece.how == How::direct) {
      append(batch.memory(piece), piece.nbytes);
    } else if (piece.how == How::keep) {
      batch.each_page(piece, [this](std::byte* page, std::uint64_t nbytes) { append(page, nbytes); });
    } else {
      append(stored, piece.nbytes);
      stored += piece.nbytes;
    }
  }
  skip(scrap, offset + left - at);
}

std::uint64_t Request::window_nbytes(std::size_t alignment) const noexcept {
  const std::uint64_t end_of_window = (offset + left + alignment - 1) / alignment * alignment;
  return end_of_window - offset / alignment * alignment;
}

void Request::lay_out_window(std::byte* memory, std::size_t alignment) {
  window = {memory, window_nbytes(alignment)};
  lead = offset % alignment;
  append(memory + lead, left);
}

void Request::lay_out_whole(std::byte* memory, std::size_t alignment, std::uint64_t file_nbytes) {
  window = {memory, window_nbytes(alignment)};
  lead = offset % alignment;
  offset -= lead;
  window.iov_len = left = std::min<std::uint64_t>(window.iov_len, file_nbytes - offset);
  append(memory, left);
}

// A hole, read to nowhere.
void Request::skip(std::byte* scrap, std::uint64_t nbytes) {
  for (; nbytes > hole_limit; nbytes -= hole_limit) append(scrap, hole_limit);
  if (nbytes > 0) append(scrap, nbytes);
}

void Request::append(std::byte* to, std::uint64_t nbytes) {
  if (!parts.empty() && static_cast<std::byte*>(parts.back().iov_base) + parts.back().iov_len == to) {
    parts.back().iov_len += nbytes;
  } else {
    parts.push_back({to, nbytes});
  }
}

void Request::advance(std::uint64_t nbytes) noexcept {
  offset += nbytes;
  left -= nbytes;
  while (nbytes > 0) {
    iovec& here = parts[part];
    const std::uint64_t n = std::min<std::uint64_t>(nbytes, here.iov_len);
    here.iov_base = static_cast<std::byte*>(here.iov_base) + n;
    here.iov_len -= n;
    nbytes -= n;
    if (here.iov_len == 0) ++part;
  }
}

void Request::deliver(Bench& bench) const {
  const ReadPlan& batch = job->batch;
  const std::byte* const whole = static_cast<const std::byte*>(window.iov_base) + lead;
  const std::byte* stored = scratch.data();
  for (std::uint32_t i = begin; i < end; ++i) {
    const Piece& piece = batch.pieces[i];
    if (windowed()) stored = whole + (piece.offset - from_);
    if (piece.how == How::keep) {
      if (!windowed()) continue;
      batch.each_page(piece, [&stored](std::byte* page, std::uint64_t nbytes) {
        std::memcpy(page, stored, nbytes);
        stored += nbytes;
      });
    } else if (piece.how == How::direct) {
      if (windowed()) std::memcpy(batch.memory(piece), stored, piece.nbytes);
      read::deliver(batch, piece, {}, bench);
    } else {
      read::deliver(batch, piece, {stored, piece.nbytes}, bench);
      stored += piece.nbytes;
    }
  }
}

}  // namespace solar::read
