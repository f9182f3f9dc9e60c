#include "hdf5/fractal_heap.hpp"

#include <algorithm>
#include <bit>

#include "hdf5/lookup3.hpp"

namespace solar::hdf5 {

namespace {

constexpr const char* fractal_heap_name = "fractal heap";

unsigned log2_of(std::uint64_t power) { return static_cast<unsigned>(std::bit_width(power)) - 1; }

}  // namespace

FractalHeap::FractalHeap(Image& image, std::uint64_t address) : image_(image), address_(address) {
  const FileFacts& facts = image.facts;
  if (address == undefined_address) damaged(fractal_heap_name, address, "cannot be read");
  const std::size_t nbytes = 26u + 12u * facts.length_width + 3u * facts.offset_width;
  std::vector<std::byte> bytes = image.read(address, nbytes, fractal_heap_name);
  Fields fields(bytes, facts, fractal_heap_name);
  fields.signature("FRHP");
  fields.version(0);
  fields.skip(2);  // width of identifiers
  if (fields.u16() > 0) throw Elsewhere{"its group's links are compressed"};
  const unsigned flags = fields.u8();
  checksums_ = (flags & 2) != 0;
  const std::uint32_t largest_managed = fields.u32();
  fields.length();                              // identifier of the next huge object
  fields.address();                             // of the huge objects
  fields.length();                              // free space
  fields.address();                             // of the free space manager
  for (int i = 0; i < 8; ++i) fields.length();  // sizes and counts of managed, huge and tiny objects
  read_table(fields);
  fields.checksum(bytes);
  length_width_ = std::min(width_of(largest_direct_), width_of(largest_managed));
}

// The doubling table: rows of blocks, each row but the second with blocks twice as large as the one before.
void FractalHeap::read_table(Fields& fields) {
  width_ = fields.u16();
  first_nbytes_ = fields.length();
  largest_direct_ = fields.length();
  const unsigned bits = fields.u16();
  fields.u16();  // rows that a new root starts with
  root_ = fields.address();
  root_rows_ = fields.u16();
  const bool powers =
      std::has_single_bit(width_) && std::has_single_bit(first_nbytes_) && std::has_single_bit(largest_direct_);
  if (!powers || largest_direct_ < first_nbytes_ || largest_direct_ > largest_structure || bits == 0 || bits > 64) {
    fields.refuse("has damaged sizes");
  }
  direct_rows_ = log2_of(largest_direct_) - log2_of(first_nbytes_) + 2;
  offset_width_ = (bits + 7) / 8;
  const unsigned most_rows = bits + 1 - std::min(bits, log2_of(first_nbytes_) + log2_of(width_));
  if (root_rows_ > most_rows) fields.refuse("has too many rows");
}

std::uint64_t FractalHeap::row_nbytes(unsigned row) const {
  const unsigned shift = row == 0 ? 0 : row - 1;
  return log2_of(first_nbytes_) + shift > 63 ? 0 : first_nbytes_ << shift;
}

Bytes FractalHeap::object(Bytes identifier) {
  Fields fields(identifier, image_.facts, "identifier in a fractal heap");
  const unsigned flags = fields.u8();
  const unsigned kind = (flags >> 4) & 3;
  if ((flags & 0xc0) != 0 || kind == 3) fields.refuse("is of unknown kind");
  if (kind == 2) {  // it is in the identifier itself
    const std::size_t nbytes = (flags & 0x0f) + 1u;
    if (identifier.size() > 17) throw Elsewhere{"a link or a message of it is in a long identifier of its heap"};
    return fields.take(nbytes);
  }
  if (kind != 0) throw Elsewhere{"a link or a message of it is not in the blocks of its heap"};
  const std::uint64_t offset = fields.uint(offset_width_);
  const std::uint64_t nbytes = fields.uint(length_width_);
  const HeapBlock place = direct_block(offset);
  const Bytes bytes = block(place, true);
  const std::uint64_t inside = offset - place.start;
  const std::uint64_t header = 5u + image_.facts.offset_width + offset_width_ + (checksums_ ? 4u : 0u);
  if (inside < header || nbytes == 0 || inside > bytes.size() || nbytes > bytes.size() - inside) {
    fields.refuse("leads outside its block");
  }
  return bytes.subspan(static_cast<std::size_t>(inside), static_cast<std::size_t>(nbytes));
}

FractalHeap::HeapBlock FractalHeap::direct_block(std::uint64_t offset) {
  if (root_ == undefined_address) damaged(fractal_heap_name, address_, "has no blocks");
  if (root_rows_ == 0) {
    if (offset >= first_nbytes_) damaged(fractal_heap_name, address_, "has no object at " + std::to_string(offset));
    return {root_, first_nbytes_, 0};
  }
  HeapBlock place{root_, 0, 0};
  unsigned rows = root_rows_;
  for (;;) {
    // The row is found from the offset alone: row r > 0 starts where all rows before it end, at width * size of its
    // blocks.
    const std::uint64_t inside = (offset - place.start) / width_;
    const unsigned row = inside < first_nbytes_ ? 0 : log2_of(inside) - log2_of(first_nbytes_) + 1;
    if (row >= rows) damaged(fractal_heap_name, address_, "has no object at " + std::to_string(offset));
    place.nbytes = rows;
    place = entry(place, offset);
    if (row < direct_rows_) return place;
    const unsigned smallest = log2_of(first_nbytes_) + log2_of(width_);
    if (log2_of(place.nbytes) < smallest) damaged(fractal_heap_name, address_, "has damaged rows");
    rows = log2_of(place.nbytes) - smallest + 1;
  }
}

// The block of an indirect block that holds `offset`. `indirect.nbytes` is its number of rows.
FractalHeap::HeapBlock FractalHeap::entry(const HeapBlock& indirect, std::uint64_t offset) {
  const Bytes bytes = block(indirect, false);
  const std::uint64_t inside = offset - indirect.start;
  const std::uint64_t in_row = inside / width_;
  const unsigned row = in_row < first_nbytes_ ? 0 : log2_of(in_row) - log2_of(first_nbytes_) + 1;
  const std::uint64_t nbytes = row_nbytes(row);
  const std::uint64_t row_start = row == 0 ? 0 : nbytes * width_;
  const std::uint64_t column = (inside - row_start) / nbytes;
  Fields fields(bytes, image_.facts, fractal_heap_name);
  fields.skip(5u + image_.facts.offset_width + offset_width_);
  fields.skip(static_cast<std::size_t>(row * width_ + column) * image_.facts.offset_width);
  const std::uint64_t address = fields.address();
  if (address == undefined_address) damaged(fractal_heap_name, address_, "has no block for " + std::to_string(offset));
  return {address, nbytes, indirect.start + row_start + column * nbytes};
}

Bytes FractalHeap::block(const HeapBlock& place, bool direct) {
  const std::uint64_t prefix = 5u + image_.facts.offset_width + offset_width_;
  const std::uint64_t nbytes = direct ? place.nbytes : prefix + place.nbytes * width_ * image_.facts.offset_width + 4;
  if (const auto known = blocks_.find(place.address); known != blocks_.end()) {
    const Block& block = known->second;
    if (block.start != place.start || block.bytes.size() != nbytes)
      damaged(fractal_heap_name, address_, "has a block twice");
    return block.bytes;
  }
  std::vector<std::byte> bytes = image_.read(place.address, nbytes, "fractal heap block");
  Fields fields(bytes, image_.facts, "fractal heap block");
  direct ? fields.signature("FHDB") : fields.signature("FHIB");
  fields.version(0);
  if (fields.address() != address_ || fields.uint(offset_width_) != place.start) fields.refuse("is another heap's");
  if (!direct) {
    fields.skip(bytes.size() - 4 - fields.position());
    fields.checksum(bytes);
  } else if (checksums_) {
    verify_direct(bytes);
  }
  return blocks_.emplace(place.address, Block{place.start, std::move(bytes)}).first->second.bytes;
}

// The checksum is in the block's header, and counts as zero in its own sum.
void FractalHeap::verify_direct(std::vector<std::byte>& bytes) const {
  const std::size_t at = 5u + image_.facts.offset_width + offset_width_;
  if (bytes.size() < at + 4) damaged(fractal_heap_name, address_, "has a block without room");
  const std::uint32_t stored = load_le<std::uint32_t>(bytes.data() + at);
  std::memset(bytes.data() + at, 0, 4);
  if (!has_sum(bytes, stored)) damaged(fractal_heap_name, address_, "has a block with a wrong checksum");
}

}  // namespace solar::hdf5
