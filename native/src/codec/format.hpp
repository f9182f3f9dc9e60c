// The bytes of a chunk, as io/FORMAT.md says them, and the checks before anything of it is used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "solar/bytes.hpp"
#include "solar/convert.hpp"

namespace solar::codec {

inline constexpr std::uint32_t magic = 0x31434c53;  // "SLC1"
inline constexpr std::uint8_t major_version = 1, minor_version = 0;
inline constexpr std::size_t header_nbytes = 80, entry_nbytes = 12, checksum_nbytes = 8;
inline constexpr std::size_t most_values = 16384;  // in a tile
inline constexpr std::size_t block = 32;           // values coded together

// How integers become values again.
enum class Quanta : std::uint8_t {
  real = 0,     // fma(v, step, base), in the chunk's own type
  integer = 1,  // base + step * v, modulo the type's size
  bits = 2,     // v is a float32's bits, put in the order of the numbers
};

enum Flag : std::uint32_t {
  tables_inline = 1,
  lossless = 1u << 16,  // the upper half informs, and may be unknown
  lattice = 1u << 17,
};

enum class TileCoder : std::uint8_t { raw = 0, constant = 1, pack = 2, dense = 3 };

struct Extent {
  std::uint32_t z, y, x;
  std::size_t values() const { return std::size_t{z} * y * x; }
};

struct Header {
  Number number = Number::float32;
  Quanta quanta = Quanta::real;
  std::uint32_t flags = 0;
  std::uint32_t shape[4] = {1, 1, 1, 1};
  Extent tile{1, 1, 1};
  double bound = 0;
  std::uint64_t step = 0, base = 0;  // the bits of a double, or an integer
  std::uint64_t tables = 0;          // checksum of the coding tables; 0: none are needed
  std::uint32_t tables_nbytes = 0;   // of those inside the chunk
  std::uint32_t nbytes = 0;          // of the whole chunk
};

struct Entry {
  std::uint32_t offset = 0;  // of the tile, in words of 4 bytes from the chunk's first
  std::uint8_t predictor = 0;
  TileCoder coder = TileCoder::raw;
  std::uint16_t runs = 0;  // of values kept bit for bit
  std::int32_t origin = 0;
};

std::size_t itemsize_of(Number number);
constexpr bool is_real(Number number) { return number == Number::float32 || number == Number::float64; }

void store(const Header& header, std::byte* out);
void store(const Entry& entry, std::byte* out);

// A chunk whose lengths, checksum and directory are as they must be.
struct Checked {
  Header header;
  Bytes tables;              // inside the chunk, or empty
  const std::byte* entries;  // tiles of them
  std::size_t tiles;
  Bytes all;

  Entry entry(std::size_t tile) const;
  Bytes bytes_of(std::size_t tile) const;  // whole words
};
// `out_nbytes`: what the caller has room for, or any.
inline constexpr std::size_t any_size = ~std::size_t{0};
Checked check(Bytes chunk, std::size_t out_nbytes);
Header parse_header(Bytes chunk);  // unchecked but for what it is parsed into

// The number of tiles along each axis (the first of `shape` is not cut).
struct Grid {
  explicit Grid(const Header& header);
  std::size_t tiles() const { return n[0] * n[1] * n[2] * n[3]; }
  // The tile's extent, and its first value's position in the array.
  struct PlacedTile {
    Extent extent;
    std::size_t first;
  };
  PlacedTile place(std::size_t tile) const;

  std::size_t n[4];
  std::size_t shape[4];
  Extent tile;
};

// What the tiles' entries and widths promise is there (keep.cpp); how dense tiles' streams end is not looked at.
void check_tiles(const Checked& chunk);

// The bytes that a value of its own takes in a chunk.
inline std::size_t word_of(std::size_t itemsize) { return std::max<std::size_t>(itemsize, 4); }

[[noreturn]] void damaged(const char* what);

}  // namespace solar::codec
