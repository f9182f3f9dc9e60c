// The extensible array of chunks: an index block holds the first elements, the addresses of the first data blocks and
// of the super blocks, which hold the addresses of the other data blocks. Super block u (the first ones are implied in
// the index block) has 2^(u/2) data blocks of 2^((u+1)/2) times the smallest length. Long data blocks are in pages, and
// the super block has a bitmap of the pages written.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "chunk_array.hpp"

namespace solar {

namespace {

class ExtensibleArray {
 public:
  explicit ExtensibleArray(ChunkWalk& walk) : walk_(walk), header_(walk.dataset().index_address) {}

  void run() {
    const auto& facts = walk_.facts();
    const std::size_t nbytes = 4 + 8 + 6 * std::size_t{facts.length_width} + facts.offset_width + 4;
    Cursor cursor(walk_.read_structure(header_, nbytes, "EAHD"), Kind::layout, "extensible array header");
    client_ = cursor.u8();
    ChunkArray array(walk_, cursor.u8(), header_);
    array_ = &array;
    place_bits_ = cursor.u8();
    in_index_ = cursor.u8();
    smallest_ = cursor.u8();
    first_pointers_ = cursor.u8();
    const std::uint8_t page_bits = cursor.u8();
    cursor.skip(4 * std::size_t{facts.length_width});                   // counts of blocks
    limit_ = std::min(cursor.uint(facts.length_width), array.limit());  // elements set, so far
    cursor.skip(facts.length_width);
    const std::uint64_t index_block = walk_.take_address(cursor);

    if (client_ != (walk_.filtered() ? 1 : 0) || !array.endless() || !std::has_single_bit(smallest_) ||
        !std::has_single_bit(first_pointers_) || place_bits_ > 62 || page_bits > 32 ||
        std::bit_width(smallest_) - 1 > place_bits_) {
      walk_.fail(header_, "an array that does not fit the dataset");
    }
    page_ = std::uint64_t{1} << page_bits;
    if (index_block != undefined_address) visit_index_block(index_block);
  }

 private:
  static std::uint64_t blocks(std::size_t super) { return std::uint64_t{1} << super / 2; }
  std::uint64_t block_elements(std::size_t super) const { return smallest_ << (super + 1) / 2; }
  std::size_t place_nbytes() const { return (place_bits_ + 7u) / 8; }
  std::size_t head_nbytes() const { return 4 + 2 + std::size_t{walk_.facts().offset_width}; }
  std::uint64_t pages_of(std::size_t super) const {
    return block_elements(super) > page_ ? block_elements(super) / page_ : 0;
  }
  std::uint64_t bitmap_nbytes(std::size_t super) const { return blocks(super) * ((pages_of(super) + 7) / 8); }
  std::uint64_t super_nbytes(std::size_t super) const {
    return place_nbytes() + bitmap_nbytes(super) + blocks(super) * walk_.facts().offset_width;
  }

  // A block's bytes after its head, copied: reading the blocks below ends the view.
  std::vector<std::byte> read_block(std::uint64_t address, std::uint64_t nbytes, const char* signature) {
    Cursor body(walk_.read_structure(address, head_nbytes() + nbytes + 4, signature), Kind::layout, "array block");
    if (body.u8() != client_ || walk_.take_address(body) != header_) walk_.fail(address, "a block of another array");
    const Bytes rest = body.take(nbytes);
    return {rest.begin(), rest.end()};
  }

  void visit_index_block(std::uint64_t address) {
    // The first super blocks have no block of their own: 2 log2(first_pointers_) of them, 2 (first_pointers_ - 1) data
    // blocks.
    const std::size_t supers = 1u + place_bits_ - (std::bit_width(smallest_) - 1u);
    const std::size_t implied = 2 * (std::bit_width(first_pointers_) - 1u);
    if (supers < implied) walk_.fail(header_, "an array that does not fit the dataset");
    const std::uint64_t pointers = 2 * (first_pointers_ - 1) + (supers - implied);
    const std::uint64_t elements_nbytes = in_index_ * array_->element_nbytes();
    const auto body = read_block(address, elements_nbytes + pointers * walk_.facts().offset_width, "EAIB");
    Cursor cursor(body, Kind::layout, "array index block");
    array_->add(cursor.take(elements_nbytes), 0, limit_);
    if (walk_.far()) foresee(cursor, supers, implied);

    std::uint64_t place = in_index_;
    for (std::size_t super = 0; super < supers && place < limit_; ++super) {
      if (super < implied) {
        visit_blocks(cursor, super, place, {});
      } else {
        const std::uint64_t block = walk_.take_address(cursor);
        if (block != undefined_address) visit_super_block(block, super, place);
      }
      place += blocks(super) * block_elements(super);
    }
  }

  // Expects all data blocks, once the super blocks have come, which are expected together: in two round trips.
  void foresee(Cursor addresses, std::size_t supers, std::size_t implied) {
    std::uint64_t place = in_index_;
    std::vector<std::pair<std::uint64_t, std::size_t>> found;  // super blocks
    for (std::size_t super = 0; super < supers && place < limit_; ++super) {
      if (super < implied) {
        expect_blocks(addresses, super);
        addresses.skip(blocks(super) * walk_.facts().offset_width);
      } else if (const std::uint64_t block = walk_.take_address(addresses); block != undefined_address) {
        walk_.expect(block, head_nbytes() + super_nbytes(super) + 4);
        found.emplace_back(block, super);
      }
      place += blocks(super) * block_elements(super);
    }
    for (const auto& [block, super] : found) {
      const auto body = read_block(block, super_nbytes(super), "EASB");
      Cursor cursor(body, Kind::layout, "array super block");
      cursor.skip(place_nbytes() + bitmap_nbytes(super));
      expect_blocks(cursor, super);
    }
  }

  void expect_blocks(Cursor addresses, std::size_t super) const {
    const std::uint64_t elements = block_elements(super);
    const std::uint64_t pages = pages_of(super);
    const std::uint64_t nbytes = head_nbytes() + place_nbytes() + 4 + elements * array_->element_nbytes() +
                                 4 * std::max<std::uint64_t>(pages, 1);
    for (std::uint64_t block = 0; block < blocks(super); ++block) {
      const std::uint64_t address = walk_.take_address(addresses);
      if (address != undefined_address) walk_.expect(address, nbytes);
    }
  }

  void visit_super_block(std::uint64_t address, std::size_t super, std::uint64_t place) {
    const auto body = read_block(address, super_nbytes(super), "EASB");
    Cursor cursor(body, Kind::layout, "array super block");
    cursor.skip(place_nbytes());
    const Bytes written = cursor.take(bitmap_nbytes(super));
    visit_blocks(cursor, super, place, written);
  }

  // The data blocks of one super block, at the addresses that come next.
  void visit_blocks(Cursor& addresses, std::size_t super, std::uint64_t place, Bytes written) {
    const std::uint64_t elements = block_elements(super);
    if (elements > page_ && written.empty()) walk_.fail(header_, "pages without a bitmap");
    if (walk_.far()) expect_blocks(addresses, super);  // again: of what was too much to fetch at once
    for (std::uint64_t block = 0; block < blocks(super) && place < limit_; ++block, place += elements) {
      const std::uint64_t address = walk_.take_address(addresses);
      if (address == undefined_address) continue;
      if (elements > page_) {
        visit_pages(address, elements, place, written, block * (elements / page_));
      } else {
        const auto body = read_block(address, place_nbytes() + elements * array_->element_nbytes(), "EADB");
        array_->add(Bytes(body).subspan(place_nbytes()), place, limit_);
      }
    }
  }

  // `bit`: of the block's first page in the bitmap, where the bits of all blocks follow each other without gaps.
  void visit_pages(std::uint64_t address, std::uint64_t elements, std::uint64_t place, Bytes written,
                   std::uint64_t bit) {
    read_block(address, place_nbytes(), "EADB");
    const std::uint64_t nbytes = page_ * array_->element_nbytes() + 4;
    std::uint64_t at = address + head_nbytes() + place_nbytes() + 4;
    for (std::uint64_t i = 0; i < elements / page_ && place < limit_; ++i, ++bit, place += page_, at += nbytes) {
      if ((written[bit / 8] & (std::byte{0x80} >> (bit % 8))) == std::byte{0}) continue;
      array_->add(walk_.read_summed(at, nbytes), place, limit_);
    }
  }

  ChunkWalk& walk_;
  std::uint64_t header_;
  ChunkArray* array_ = nullptr;
  std::uint8_t client_ = 0;
  std::uint8_t place_bits_ = 0;       // wide enough for any place
  std::uint64_t in_index_ = 0;        // elements in the index block
  std::uint64_t smallest_ = 0;        // data block, in elements
  std::uint64_t first_pointers_ = 0;  // data block pointers in the first super block that is a block of its own
  std::uint64_t page_ = 0;            // elements
  std::uint64_t limit_ = 0;           // elements from here on hold no chunk
};

}  // namespace

void walk_extensible_array(ChunkWalk& walk) { ExtensibleArray(walk).run(); }

}  // namespace solar
