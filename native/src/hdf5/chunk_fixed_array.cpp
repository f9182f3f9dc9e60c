// The fixed array of chunks: a header and one data block, in pages when it is long. Pages never written hold no chunk;
// a bitmap before the pages tells which they are.
#include <algorithm>

#include "chunk_array.hpp"

namespace solar {

namespace {

constexpr std::uint64_t together = 4 << 20;  // bytes of pages that are expected at once

}  // namespace

void walk_fixed_array(ChunkWalk& walk) {
  const std::uint64_t header = walk.dataset().index_address;
  const auto& facts = walk.facts();
  const std::size_t header_nbytes = 4 + 4 + std::size_t{facts.length_width} + facts.offset_width + 4;
  Cursor cursor(walk.read_structure(header, header_nbytes, "FAHD"), Kind::layout, "fixed array header");
  const std::uint8_t client = cursor.u8();
  const std::uint64_t element_nbytes = cursor.u8();
  const std::uint8_t page_bits = cursor.u8();
  const std::uint64_t elements = cursor.uint(facts.length_width);
  const std::uint64_t block = walk.take_address(cursor);

  ChunkArray array(walk, element_nbytes, header);
  if (client != (walk.filtered() ? 1 : 0) || array.endless() || elements < array.limit() || page_bits > 32) {
    walk.fail(header, "an array that does not fit the dataset");
  }
  if (block == undefined_address) return;
  // What a block of `elements` takes must be in the file: this bounds all that follows.
  std::uint64_t all_nbytes = 0;
  if (__builtin_mul_overflow(elements, element_nbytes, &all_nbytes) || all_nbytes > facts.end) {
    walk.fail(header, std::to_string(elements) + " elements in a file of " + std::to_string(facts.end) + " bytes");
  }

  const std::uint64_t page = std::uint64_t{1} << page_bits;
  const std::uint64_t head_nbytes = 4 + 2 + std::uint64_t{facts.offset_width};  // with signature and version
  const bool paged = elements > page;
  const std::uint64_t pages = paged ? (elements - 1) / page + 1 : 0;
  const std::uint64_t inside = paged ? (pages - 1) / 8 + 1 : all_nbytes;
  Cursor body(walk.read_structure(block, head_nbytes + inside + 4, "FADB"), Kind::layout, "fixed array block");
  if (body.u8() != client || walk.take_address(body) != header) walk.fail(block, "a block of another array");
  if (!paged) return array.add(body.take(inside), 0, array.limit());

  const Bytes view = body.take(inside);
  const std::vector<std::byte> written(view.begin(), view.end());
  std::uint64_t at = block + head_nbytes + inside + 4, foreseen = at;
  const std::uint64_t end = at + all_nbytes + 4 * pages;
  for (std::uint64_t i = 0; i < pages && i * page < array.limit(); ++i) {
    const std::uint64_t nbytes = std::min(page, elements - i * page) * element_nbytes + 4;
    if (walk.far() && at + nbytes > foreseen) {
      walk.expect(foreseen, std::min(together, end - foreseen));
      foreseen += together;
    }
    if ((written[i / 8] & (std::byte{0x80} >> (i % 8))) != std::byte{0}) {
      array.add(walk.read_summed(at, nbytes).first(nbytes - 4), i * page, array.limit());
    }
    at += nbytes;
  }
}

}  // namespace solar
