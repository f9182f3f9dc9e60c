// The container of filter 32008: bit-shuffled blocks, stored as they are or compressed one by one.
//
// values: version major, minor, bytes of an item, items of a block (0: about 8 KiB), compressor. If compressed, a
// header precedes: be64 bytes of all, be32 bytes of a block, which overrules values. Up to 7 last items are stored as
// is.
#include <algorithm>

#include "damaged.hpp"
#include "solar/decode.hpp"

namespace solar {
namespace {

enum class Compressor : std::uint32_t { none = 0, lz4 = 2, zstd = 3 };


std::size_t default_block_items(std::size_t itemsize) { return std::max<std::size_t>(8192 / itemsize / 8 * 8, 128); }

// Decompresses the next block to `out`.
void decompress_block(Cursor& cursor, Compressor compressor, MutableBytes out) {
  const Bytes stored = cursor.take(load_be32(cursor.take(4).data()));
  const std::size_t n = compressor == Compressor::lz4 ? decode_lz4_block(stored, out) : decode_zstd(stored, out);
  if (n != out.size()) damaged("a block is shorter than announced");
}

}  // namespace

std::size_t decode_bitshuffle(Bytes in, MutableBytes out, const Filter& filter, Scratch& scratch) {
  const auto value = [&](std::size_t i) { return i < filter.values.size() ? filter.values[i] : 0; };
  const std::size_t itemsize = value(2);
  const auto compressor = Compressor{value(4)};
  if (itemsize == 0) damaged("the item size is zero");
  Cursor cursor(in, Kind::codec, "the container");
  std::uint64_t nbytes = in.size();
  std::size_t block_items = value(3);
  if (compressor != Compressor::none) {
    nbytes = load_be64(cursor.take(8).data());
    block_items = load_be32(cursor.take(4).data()) / itemsize;
  }
  if (nbytes > out.size()) damaged("more than expected");
  if (nbytes % itemsize) damaged("the items are not whole");
  if (block_items == 0) block_items = default_block_items(itemsize);
  if (block_items % 8) damaged("a block is not a multiple of 8 items");

  const std::size_t items = nbytes / itemsize, shuffled = items / 8 * 8;
  if (compressor != Compressor::none)
    scratch.c.resize(std::max(scratch.c.size(), std::min(block_items, items) * itemsize));
  for (std::size_t item = 0; item < shuffled; item += block_items) {
    const std::size_t size = std::min(block_items, shuffled - item) * itemsize;
    Bytes block;
    if (compressor == Compressor::none) {
      block = cursor.take(size);
    } else {
      const auto room = MutableBytes(scratch.c).first(size);
      decompress_block(cursor, compressor, room);
      block = room;
    }
    bitunshuffle(block, out.subspan(item * itemsize, size), itemsize);
  }
  const Bytes rest = cursor.take((items - shuffled) * itemsize);
  if (!rest.empty()) std::memcpy(out.data() + shuffled * itemsize, rest.data(), rest.size());
  return nbytes;
}

}  // namespace solar
