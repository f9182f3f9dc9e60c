// A FractalHeap reads objects of HDF5's fractal heaps, in which groups with many links keep them.
//
// It belongs to one thread, and refers to its Image, which must outlive it. Bytes that it returns are the heap's or the
// identifier's own, and valid as long as both. Damage is Error(layout); what only libhdf5 can read is Elsewhere.
#pragma once

#include <unordered_map>

#include "hdf5/image.hpp"

namespace solar::hdf5 {

// Keeps the blocks it has read. Throws Elsewhere for filtered heaps and objects too large for blocks.
class FractalHeap {
 public:
  FractalHeap(Image& image, std::uint64_t address);

  // The object's bytes, valid as long as the heap and the identifier.
  Bytes object(Bytes identifier);

 private:
  struct HeapBlock {
    std::uint64_t address;  // of a block
    std::uint64_t nbytes;
    std::uint64_t start;  // in the heap's own space
  };
  void read_table(Fields& fields);
  std::uint64_t row_nbytes(unsigned row) const;  // of each block of the row
  HeapBlock direct_block(std::uint64_t offset);
  HeapBlock entry(const HeapBlock& indirect, std::uint64_t offset);
  Bytes block(const HeapBlock& place, bool direct);
  void verify_direct(std::vector<std::byte>& bytes) const;

  Image& image_;
  std::uint64_t address_;
  std::uint16_t width_ = 0;  // blocks in a row
  std::uint64_t first_nbytes_ = 0;
  std::uint64_t largest_direct_ = 0;
  unsigned direct_rows_ = 0;
  unsigned root_rows_ = 0;  // 0: the root is a direct block
  std::uint64_t root_ = undefined_address;
  std::size_t offset_width_ = 0;
  std::size_t length_width_ = 0;
  bool checksums_ = false;
  struct Block {
    std::uint64_t start;
    std::vector<std::byte> bytes;
  };
  std::unordered_map<std::uint64_t, Block> blocks_;  // by address
};

}  // namespace solar::hdf5
