#include "deliver.hpp"

#include <chrono>

namespace solar::read {

namespace {

template <class T, class Swap>
void swap_all(std::byte* at, std::uint64_t nbytes, Swap swap) {
  for (std::uint64_t i = 0; i < nbytes; i += sizeof(T)) {
    const T value = swap(load_le<T>(at + i));
    std::memcpy(at + i, &value, sizeof value);
  }
}

}  // namespace

void reverse(std::byte* at, std::uint64_t nbytes, std::uint32_t width) {
  switch (width) {
    case 0:
    case 1: return;
    case 2: return swap_all<std::uint16_t>(at, nbytes, [](std::uint16_t v) { return __builtin_bswap16(v); });
    case 4: return swap_all<std::uint32_t>(at, nbytes, [](std::uint32_t v) { return __builtin_bswap32(v); });
    case 8: return swap_all<std::uint64_t>(at, nbytes, [](std::uint64_t v) { return __builtin_bswap64(v); });
    default:
      for (std::uint64_t i = 0; i < nbytes; i += width) std::reverse(at + i, at + i + width);
  }
}

void repeat(Bytes item, std::byte* to, std::uint64_t nbytes) {
  if (item.empty()) {
    std::memset(to, 0, nbytes);
    return;
  }
  std::uint64_t done = std::min<std::uint64_t>(item.size(), nbytes);
  std::memcpy(to, item.data(), done);
  while (done < nbytes) {  // doubling what is there
    const std::uint64_t more = std::min(done, nbytes - done);
    std::memcpy(to + done, to, more);
    done += more;
  }
}

namespace {

// Copies tile t from a row of a chunk to a row of `out`.
void place(const ReadPlan& batch, const Grid& grid, std::uint64_t t, const std::byte* chunk_row, std::byte* row) {
  const std::uint32_t swap = batch.source->swap;
  grid.each_run(t, [=](std::uint64_t from, std::uint64_t to, std::uint64_t nbytes) {
    std::memcpy(row + to, chunk_row + from, nbytes);
    reverse(row + to, nbytes, swap);
  });
}

void decode(const ReadPlan& batch, const Piece& piece, Bytes stored, MutableBytes raw, Bench& bench,
            Wanted* wanted = nullptr) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    const Form& form = batch.form(piece);
    if (form.nbytes != 0) raw = raw.first(form.nbytes);  // behind these nobody looks
    form.pipeline.decode(stored, piece.mask, raw, bench.filters, wanted);
  } catch (const Error& error) {
    throw Error(error.kind(), batch.where(piece, 0) + ": " + error.what(), error.code());
  }
  bench.decode_ns += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
  bench.chunks_decoded += 1;
  bench.bytes_decoded += wanted == nullptr ? raw.size() : wanted->nbytes;
}

void place_rows(const ReadPlan& batch, const Piece& piece, const std::byte* raw) {
  const Group& group = batch.groups[piece.group];
  const Grid& grid = batch.grids[group.grid];
  const Row* rows = &batch.rows[piece.first];
  for (std::uint32_t i = 0; i < piece.rows; ++i) {
    const auto row_of_chunk = static_cast<std::uint64_t>(rows[i].row - group.first);
    const std::byte* from = raw + row_of_chunk * grid.chunk_row_nbytes();
    std::byte* to = batch.slot(rows[i]);
    if (rows[i].count == 1) {
      place(batch, grid, piece.to, from, to);
      continue;
    }
    std::memcpy(to, from, rows[i].count * batch.row_nbytes);
    reverse(to, rows[i].count * batch.row_nbytes, batch.source->swap);
  }
}

// Whether other rows of the chunk may be wanted soon: what a buffer wants of it, its plan says.
bool may_come_again(const ReadPlan& batch, const Piece& piece) {
  std::uint64_t wanted = 0;
  for (std::uint32_t i = 0; i < piece.rows; ++i) wanted += batch.rows[piece.first + i].count;
  return batch.task == Task::read && wanted < batch.groups[piece.group].chunk_rows;
}

// A chunk that no plan counts, for boxes. Where tiles or blocks can be decoded alone, and few are wanted, these are; else,
// or if it comes again soon, it stays for the batches to come.
void deliver_cuts(const ReadPlan& batch, const Piece& piece, Bytes stored, std::uint64_t nbytes, Bench& bench) {
  const Recent::Key key{batch.source, batch.groups[piece.group].first, piece.to};
  bench.wanted.clear();
  if (batch.form(piece).pipeline.decodes_parts()) find_wanted(batch, piece, nbytes, bench.wanted);
  if (!bench.wanted.empty()) {
    if (const auto held = bench.recent->find(key)) return place_cuts(batch, piece, held->data(), 0, nbytes);
  }
  if (!bench.wanted.empty() && !bench.recent->comes_again(key, nbytes)) {
    const MutableBytes raw = bench.raw.fit(nbytes);
    Wanted wanted{bench.wanted};
    decode(batch, piece, stored, raw, bench, &wanted);
    return place_cuts(batch, piece, raw.data(), 0, nbytes);
  }
  const auto held = bench.recent->get(key, nbytes, [&](MutableBytes raw) { decode(batch, piece, stored, raw, bench); });
  place_cuts(batch, piece, held.data(), 0, nbytes);
}

void deliver_chunk(const ReadPlan& batch, const Piece& piece, Bytes stored, Bench& bench) {
  const Group& group = batch.groups[piece.group];
  const Grid& grid = batch.grids[group.grid];
  const Row* rows = &batch.rows[piece.first];
  const std::uint64_t nbytes = group.chunk_rows * grid.chunk_row_nbytes();
  if (batch.boxes != nullptr && batch.task == Task::read) return deliver_cuts(batch, piece, stored, nbytes, bench);
  if (batch.task == Task::pack) {
    const MutableBytes raw = bench.kept.fit(nbytes);  // a row is turned round in the other one
    decode(batch, piece, stored, raw, bench);
    for (std::uint32_t i = 0; i < piece.rows; ++i) {
      const auto at = static_cast<std::uint64_t>(rows[i].row - group.first) * grid.chunk_row_nbytes();
      pack(batch, rows[i], raw.subspan(at, batch.row_nbytes), bench);
    }
    return;
  }
  const Tile tile = grid.tile(piece.to);
  const bool exact = piece.rows == 1 && tile.whole && tile.nbytes * rows[0].count == nbytes;
  if (exact && batch.boxes == nullptr) {  // the chunk is exactly this tile of these
    std::byte* to = batch.slot(rows[0]) + tile.at;
    decode(batch, piece, stored, {to, nbytes}, bench);
    reverse(to, nbytes, batch.source->swap);
    return;
  }
  if (may_come_again(batch, piece)) {
    const Recent::Key key{batch.source, group.first, piece.to};
    const auto held =
        bench.recent->get(key, nbytes, [&](MutableBytes raw) { decode(batch, piece, stored, raw, bench); });
    return place_rows(batch, piece, held.data());
  }
  const MutableBytes raw = bench.raw.fit(nbytes);
  decode(batch, piece, stored, raw, bench);
  if (batch.boxes != nullptr) {
    const auto block = static_cast<std::uint64_t>(rows[0].row - group.first);
    return place_cuts(batch, piece, raw.data() + block * batch.row_nbytes, 0, batch.row_nbytes);
  }
  place_rows(batch, piece, raw.data());
}

}  // namespace

void deliver(const ReadPlan& batch, const Piece& piece, Bytes stored, Bench& bench) {
  const Row* rows = &batch.rows[piece.first];
  switch (piece.how) {
    case How::direct: {
      std::byte* to = batch.memory(piece);
      reverse(to, piece.nbytes, batch.source->swap);
      const std::uint64_t at = batch.task == Task::load ? piece.to : piece.to - rows[0].slot * batch.row_nbytes;
      for (std::uint32_t i = 1; i < piece.rows; ++i) std::memcpy(batch.slot(rows[i]) + at, to, piece.nbytes);
      return;
    }
    case How::tile: {
      if (batch.boxes != nullptr) return place_cuts(batch, piece, stored.data(), piece.to, piece.nbytes);
      const Grid& grid = batch.grids[batch.groups[piece.group].grid];
      for (std::uint32_t i = 0; i < piece.rows; ++i) {
        place(batch, grid, piece.to, stored.data(), batch.slot(rows[i]));
      }
      return;
    }
    case How::chunk: return deliver_chunk(batch, piece, stored, bench);
    case How::fill: return batch.task == Task::pack ? pack_fill(batch, piece, bench) : fill(batch, piece);
    case How::pack: return pack(batch, rows[0], stored, bench);
    case How::keep:
    case How::unpack:
    case How::gather: return;  // they are where they go, or come from a buffer
  }
}

void deliver_held(const ReadPlan& batch, const Piece& piece, Bench& bench) {
  if (piece.how == How::unpack) return unpack(batch, piece, bench);
  if (piece.how == How::gather) {
    const std::byte* page = batch.buffer->page(static_cast<std::size_t>(batch.rows[piece.first].row), 0);
    if (batch.boxes != nullptr) return place_cuts(batch, piece, page, 0, batch.row_nbytes);
    std::memcpy(batch.out.data() + piece.to, page + piece.offset, piece.nbytes);
    return;
  }
  const std::size_t line = batch.groups[piece.group].line;
  const std::uint64_t page_nbytes = batch.buffer->page_nbytes();
  if (piece.nbytes <= page_nbytes) {
    return deliver(batch, piece, {batch.buffer->page(line, piece.page), piece.nbytes}, bench);
  }
  const MutableBytes stored = bench.kept.fit(piece.nbytes);
  std::byte* to = stored.data();
  batch.buffer->each_run(line, piece.page * page_nbytes, piece.nbytes, [&to](const std::byte* page, std::uint64_t n) {
    std::memcpy(to, page, n);
    to += n;
  });
  deliver(batch, piece, stored, bench);
}

void fill(const ReadPlan& batch, const Piece& piece) {
  if (batch.boxes != nullptr) return fill_cuts(batch, piece);
  const Grid& grid = batch.grids[batch.groups[piece.group].grid];
  const Bytes item = batch.form(piece).fill;
  const std::uint32_t swap = batch.source->swap;
  for (std::uint32_t i = 0; i < piece.rows; ++i) {
    std::byte* row = batch.slot(batch.rows[piece.first + i]);
    const auto write = [=](std::uint64_t, std::uint64_t to, std::uint64_t nbytes) {
      repeat(item, row + to, nbytes);
      if (!item.empty()) reverse(row + to, nbytes, swap);
    };
    if (piece.nbytes == grid.tiles()) {
      write(0, 0, batch.row_nbytes * batch.rows[piece.first + i].count);
    } else {
      for (std::uint64_t t = 0; t < piece.nbytes; ++t) grid.each_run(piece.to + t, write);
    }
  }
}

}  // namespace solar::read
