#include "chunk_array.hpp"

#include <algorithm>
#include <numeric>

namespace solar {

ChunkArray::ChunkArray(ChunkWalk& walk, std::uint64_t element_nbytes, std::uint64_t address)
    : walk_(walk), element_nbytes_(element_nbytes), axes_(walk.rank()), strides_(walk.rank()), at_(walk.rank()) {
  if (element_nbytes < walk.facts().offset_width || !walk.entry_fits(element_nbytes)) {
    walk.fail(address, "elements that do not fit the dataset");
  }
  std::iota(axes_.begin(), axes_.end(), std::size_t{0});
  const auto most = walk.most();
  const auto unlimited = std::find(most.begin(), most.end(), std::uint64_t{0});
  endless_ = unlimited != most.end();
  if (endless_) {
    const auto slowest = axes_.begin() + (unlimited - most.begin());
    std::rotate(axes_.begin(), slowest, slowest + 1);
  }

  std::uint64_t stride = 1;
  std::uint64_t last = 0;  // place of the grid's last chunk
  for (std::size_t i = axes_.size(); i-- > 0;) {
    strides_[i] = stride;
    const std::size_t axis = axes_[i];
    std::uint64_t part = 0;
    if (__builtin_mul_overflow(stride, walk.counts()[axis] - 1, &part) || __builtin_add_overflow(last, part, &last)) {
      walk.fail(address, "more chunks than 64 bits can count");
    }
    if (i == 0) break;
    if (walk.most()[axis] < walk.counts()[axis])
      walk.fail(address, "an extent beyond its maximum, or a second one without end");
    if (__builtin_mul_overflow(stride, walk.most()[axis], &stride))
      walk.fail(address, "more chunks than 64 bits can count");
  }
  if (last == ~std::uint64_t{0}) walk.fail(address, "more chunks than 64 bits can count");
  limit_ = last + 1;
}

void ChunkArray::add(Bytes elements, std::uint64_t first, std::uint64_t limit) {
  if (first >= limit) return;
  const std::uint64_t count = std::min<std::uint64_t>(elements.size() / element_nbytes_, limit - first);
  Cursor cursor(elements, Kind::layout, "chunk array");
  for (std::uint64_t place = first; place < first + count; ++place) {
    const ChunkWalk::Chunk chunk = walk_.take_chunk(cursor, element_nbytes_);
    if (chunk.offset == undefined_address) continue;
    std::uint64_t rest = place;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      at_[axes_[i]] = rest / strides_[i];
      rest %= strides_[i];
    }
    walk_.add(at_, chunk);
  }
}

}  // namespace solar
