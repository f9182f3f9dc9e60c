// Huffman coded literals: the table as stored, and its one or four bit streams (RFC 8878, 4.2).
#pragma once

#include <array>

#include "solar/bytes.hpp"

namespace solar::zstd {

inline constexpr unsigned kHuffmanLog = 11;  // no code is longer

class Huffman {
 public:
  bool empty() const { return empty_; }
  void clear() { empty_ = true; }

  // Reads a table description and advances `in` behind it.
  void read(Bytes& in);
  // REQUIRES: not empty(). Fills `out` exactly from one stream, or from four behind a jump table.
  void decode_one(Bytes in, MutableBytes out) const;
  void decode_four(Bytes in, MutableBytes out);

 private:
  void build(std::array<std::uint8_t, 256>& weights, unsigned count);
  void build_runs();

  bool empty_ = true;
  bool runs_built_ = false;
  // Indexed by the next 11 bits. One symbol: length | symbol << 8.
  std::array<std::uint16_t, 1u << kHuffmanLog> single_;
  // As many whole symbols as the 11 bits hold, at most three: their bytes | length of all << 24 | number << 30.
  std::array<std::uint32_t, 1u << kHuffmanLog> runs_;
};

}  // namespace solar::zstd
