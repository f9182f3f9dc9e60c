// Rows of a buffer that holds them encoded: the bytes that one takes, and behind them its chunk of the bounded codec.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "codec/format.hpp"
#include "deliver.hpp"

namespace solar {

namespace {

using Length = std::uint64_t;  // of the chunk; 0: the row takes more than its page has

}  // namespace

bool Pack::fits(const std::byte* page) noexcept {
  Length nbytes;
  std::memcpy(&nbytes, page, sizeof nbytes);
  return nbytes > 0;
}

// The row in the right order of bytes, and twice its chunk, which is no larger: in parts and whole. And what one tile takes.
std::uint64_t Pack::scratch(std::uint64_t row_nbytes, std::uint64_t itemsize) noexcept {
  constexpr std::uint64_t of_value = 32;
  return 3 * row_nbytes + of_value * std::min<std::uint64_t>(codec::most_values, row_nbytes / itemsize);
}

namespace read {

void pack(const ReadPlan& batch, const Row& row, Bytes values, Bench& bench) {
  const auto begin = std::chrono::steady_clock::now();
  const Source& source = *batch.source;
  const bool aligned = reinterpret_cast<std::uintptr_t>(values.data()) % source.itemsize == 0;
  if (source.swap != 0 || !aligned) {
    const MutableBytes raw = bench.raw.fit(values.size());
    std::memcpy(raw.data(), values.data(), values.size());
    reverse(raw.data(), raw.size(), source.swap);
    values = raw;
  }
  const Array array{values.data(), batch.pack->number, {source.row_shape.begin(), source.row_shape.end()}};
  const std::vector<std::byte> chunk = encode(array, 0, Coder::pack, batch.pack->predictor);
  std::byte* const page = batch.slot(row);
  const Length nbytes = chunk.size() <= batch.buffer->page_nbytes() - sizeof(Length) ? chunk.size() : 0;
  std::memcpy(page, &nbytes, sizeof nbytes);
  std::memcpy(page + sizeof nbytes, chunk.data(), nbytes);
  bench.decode_ns += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
}

void pack_fill(const ReadPlan& batch, const Piece& piece, Bench& bench) {
  std::vector<std::byte> row(batch.row_nbytes);
  repeat(batch.form(piece).fill, row.data(), row.size());
  for (std::uint32_t i = 0; i < piece.rows; ++i) pack(batch, batch.rows[piece.first + i], row, bench);
}

void unpack(const ReadPlan& batch, const Piece& piece, Bench& bench) {
  const auto begin = std::chrono::steady_clock::now();
  const std::byte* const page = batch.buffer->page(static_cast<std::size_t>(batch.rows[piece.first].row), 0);
  Length nbytes;
  std::memcpy(&nbytes, page, sizeof nbytes);
  const MutableBytes out{batch.out.data() + piece.to, piece.nbytes};
  static const Path fastest = codec_paths().back();
  try {
    decode_codec({page + sizeof nbytes, nbytes}, out, Bytes(), bench.filters, fastest);
  } catch (const Error& error) {  // it was written here: memory has changed
    throw Error(error.kind(), batch.where(piece, 0) + ": " + error.what(), error.code());
  }
  bench.decode_ns += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
  bench.chunks_decoded += 1;
  bench.bytes_decoded += piece.nbytes;
}

}  // namespace read

}  // namespace solar
