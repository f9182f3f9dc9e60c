#include "chunk_walk.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <numeric>

#include "lookup3.hpp"

namespace solar {

namespace {

constexpr std::uint64_t shortest_window = 4 << 10;
constexpr std::uint64_t longest_window = 1 << 20;
constexpr std::uint64_t largest_structure = 256 << 20;  // far above what libhdf5 writes; bounds our memory
constexpr std::uint8_t raw_edges_flag = 1;              // layout message: chunks cut by the edge are not filtered

bool multiply(std::uint64_t& product, std::uint64_t factor) {
  return !__builtin_mul_overflow(product, factor, &product);
}

std::uint64_t divide_up(std::uint64_t n, std::uint64_t by) { return n / by + (n % by != 0); }

template <class T>
void permute(std::vector<T>& values, const std::vector<std::size_t>& order) {
  std::vector<T> result;
  result.reserve(values.size());
  for (std::size_t i : order) result.push_back(values[i]);
  values = std::move(result);
}

}  // namespace

bool before(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

ChunkWalk::ChunkWalk(const File& file, const FileFacts& facts, const Dataset& dataset, std::uint64_t budget)
    : file_(file), facts_(facts), dataset_(dataset), chunk_nbytes_(dataset.itemsize) {
  const unsigned width = facts.offset_width;
  if (width == 0 || width > 8 || facts.length_width == 0 || facts.length_width > 8) {
    fail(dataset.header_address, "addresses or lengths of impossible width");
  }
  end_ = std::min(facts.end, file.nbytes());
  // Twice: a node's head is read before the whole node.
  given_ = budget_ = std::min(budget, end_ > ~std::uint64_t{0} / 2 ? end_ : 2 * end_);
  const auto& shape = dataset.shape;
  const auto& most = dataset.maxshape.empty() ? shape : dataset.maxshape;
  if (shape.empty() || dataset.chunk.size() != shape.size() || most.size() != shape.size()) {
    fail(dataset.header_address, "the ranks of dataspace and chunk differ");
  }
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const std::uint64_t chunk = dataset.chunk[axis];
    if (chunk == 0 || !multiply(chunk_nbytes_, chunk)) fail(dataset.header_address, "impossible chunk shape");
    counts_.push_back(divide_up(shape[axis], chunk));
    most_.push_back(most[axis] == ~std::uint64_t{0} ? 0 : divide_up(most[axis], chunk));
    if (!multiply(chunks_, counts_.back())) fail(dataset.header_address, "more chunks than 64 bits can count");
  }
  if (chunk_nbytes_ == 0) fail(dataset.header_address, "chunks of no bytes");
}

void ChunkWalk::fail(std::uint64_t address, const std::string& why) const {
  throw Error(Kind::layout, file_.path() + ": dataset '" + dataset_.name + "': chunk index at byte " +
                                std::to_string(address) + ": " + why);
}

void ChunkWalk::expect(std::uint64_t address, std::uint64_t nbytes) const noexcept {
  // Close to what was read last, reading ahead is enough; from afar a request more costs less than to wait for one.
  if (address >= end_ || (!far() && address >= window_at_ && address - window_at_ <= longest_window)) return;
  file_.expect(address, nbytes);
}

Bytes ChunkWalk::read(std::uint64_t address, std::uint64_t nbytes) {
  if (address > end_ || nbytes > end_ - address) fail(address, "points outside the file");
  if (nbytes > largest_structure) fail(address, "a structure of " + std::to_string(nbytes) + " bytes");
  if (nbytes > budget_) fail(address, "its parts overlap or form a cycle");
  budget_ -= nbytes;

  if (address < window_at_ || address - window_at_ > window_.size() ||
      nbytes > window_.size() - (address - window_at_)) {
    const bool near = !far() && address >= window_at_ && address - window_at_ <= 2 * window_.size();
    ahead_ = near ? std::min(2 * ahead_, longest_window) : shortest_window;
    const std::uint64_t length = std::min(std::max(nbytes, ahead_), end_ - address);
    window_.resize(length);
    window_at_ = address;
    file_.read(address, window_);
  }
  return Bytes(window_).subspan(address - window_at_, nbytes);
}

Bytes ChunkWalk::read_summed(std::uint64_t address, std::uint64_t nbytes) {
  const Bytes all = read(address, nbytes);
  const Bytes body = all.first(all.size() - 4);
  if (!has_sum(body, load_le<std::uint32_t>(all.data() + body.size()))) fail(address, "wrong checksum");
  return body;
}

Bytes ChunkWalk::read_structure(std::uint64_t address, std::uint64_t nbytes, const char* signature) {
  // Before the sum, so that an address that leads elsewhere is told from damage.
  if (std::memcmp(read(address, 5).data(), signature, 4) != 0) fail(address, std::string("no ") + signature + " here");
  const Bytes body = read_summed(address, nbytes);
  if (body[4] != std::byte{0}) fail(address, std::string(signature) + " of an unknown version");
  return body.subspan(5);
}

std::uint64_t ChunkWalk::take_address(Cursor& cursor) const {
  const std::size_t at = cursor.position();
  const std::uint64_t stored = cursor.uint(facts_.offset_width);
  if (stored == undefined_address >> (64 - 8 * facts_.offset_width)) return undefined_address;
  std::uint64_t absolute = 0;
  if (__builtin_add_overflow(stored, facts_.base, &absolute) || absolute > end_) {
    fail(stored, "an address outside the file (" + std::to_string(at) + " bytes into its structure)");
  }
  return absolute;
}

bool ChunkWalk::entry_fits(std::uint64_t nbytes) const noexcept {
  const std::uint64_t rest = nbytes - facts_.offset_width;
  if (!filtered()) return rest == 0;
  // One byte more than the raw size needs, as filters may enlarge; version 5 of the layout message made it fixed.
  const std::uint64_t width = std::min<std::uint64_t>(8, 1 + (std::bit_width(chunk_nbytes_) + 7) / 8);
  return rest == width + 4 || (dataset_.layout_version >= 5 && rest == std::uint64_t{facts_.length_width} + 4);
}

ChunkWalk::Chunk ChunkWalk::take_chunk(Cursor& cursor, std::uint64_t nbytes) const {
  Chunk chunk{take_address(cursor), chunk_nbytes_, 0};
  if (filtered()) {
    chunk.nbytes = cursor.uint(nbytes - facts_.offset_width - 4);
    chunk.mask = cursor.u32();
  }
  return chunk;
}

bool ChunkWalk::partial(std::span<const std::uint64_t> at) const {
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    if (at[axis] == counts_[axis] - 1 && dataset_.shape[axis] % dataset_.chunk[axis] != 0) return true;
  }
  return false;
}

void ChunkWalk::check_extent(const Chunk& chunk, bool raw) const {
  if (chunk.offset > end_ || chunk.nbytes > end_ - chunk.offset) {
    fail(chunk.offset, "a chunk of " + std::to_string(chunk.nbytes) + " bytes reaches beyond the end of the file");
  }
  if (chunk.nbytes == 0 || (raw && chunk.nbytes != chunk_nbytes_)) {
    fail(chunk.offset,
         "a chunk of " + std::to_string(chunk.nbytes) + " bytes instead of " + std::to_string(chunk_nbytes_));
  }
}

void ChunkWalk::add(std::span<const std::uint64_t> at, const Chunk& chunk) {
  if (chunk.offset == undefined_address) return;
  std::uint64_t index = 0;
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    if (at[axis] >= counts_[axis]) return;
    index = index * counts_[axis] + at[axis];
  }
  const bool raw_edge = filtered() && (dataset_.layout_flags & raw_edges_flag) != 0 && partial(at);
  check_extent(chunk, raw_edge || !filtered());
  table_.index.push_back(index);
  table_.offset.push_back(chunk.offset);
  table_.nbytes.push_back(chunk.nbytes);
  table_.mask.push_back(raw_edge ? ~std::uint32_t{0} : chunk.mask);
  if (told_ != nullptr) std::atomic_ref(*told_).store(table_.mask.size(), std::memory_order_relaxed);
}

void ChunkWalk::sort() {
  std::vector<std::size_t> order(table_.index.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return table_.index[a] < table_.index[b]; });
  permute(table_.index, order);
  permute(table_.offset, order);
  permute(table_.nbytes, order);
  permute(table_.mask, order);
}

ChunkTable ChunkWalk::finish() {
  if (!std::is_sorted(table_.index.begin(), table_.index.end())) sort();
  const auto twice = std::adjacent_find(table_.index.begin(), table_.index.end());
  if (twice != table_.index.end()) {
    fail(dataset_.index_address, "chunk " + std::to_string(*twice) + " is there twice");
  }
  return std::move(table_);
}

}  // namespace solar
