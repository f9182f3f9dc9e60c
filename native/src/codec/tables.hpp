// The coding tables of `dense`: how often each symbol is expected in each class, and what follows for both directions.
//
// Tables are data: 17 lists of frequencies that add up to 1024, named by the checksum of their bytes. Table 16 is that
// of the classes' differences; symbol -128 is the escape, after which a value is found in the list of escapes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "solar/bytes.hpp"

namespace solar::codec {

inline constexpr int table_bits = 10;
inline constexpr std::uint32_t table_size = 1u << table_bits;
inline constexpr std::size_t table_count = 17, class_table = 16;
inline constexpr std::int32_t escape = -128;
inline constexpr std::size_t most_classes = 64;

// Class k: 0 to 15 have tables of their own; above, the values' lowest bits are stored as they are.
constexpr std::size_t table_of(std::size_t k) { return k < 16 ? k : 14 + (k & 1); }
constexpr int low_bits_of(std::size_t k) { return k < 16 ? 0 : static_cast<int>((k - 14) / 2); }

// Of one table, by the symbol's low byte.
using Frequencies = std::array<std::uint16_t, 256>;
using AllFrequencies = std::array<Frequencies, table_count>;

std::vector<std::byte> pack_tables(const AllFrequencies& all);  // whole words
AllFrequencies parse_tables(Bytes packed);                      // throws Error(codec)
std::uint64_t tables_checksum(Bytes packed);                    // never 0
Bytes builtin_tables();

// The symbol at each of the 1024 places.
std::array<std::int8_t, table_size> spread(const Frequencies& frequencies);

// For a decoder: at each place {symbol: 8 bits, width: 8, base: 16}. It belongs to one thread, in its Scratch. take()
// checks the tables, and throws Error(codec) for those that are none; make() makes those of them that are wanted when
// they are first used. They are kept for the chunks that follow with the same ones.
struct Coding {
  std::vector<std::byte> packed;
  AllFrequencies frequencies;
  std::uint32_t made = 0;
  alignas(64) std::uint32_t places[table_count * table_size];

  void take(Bytes bytes);
  void make(std::uint32_t wanted);  // bits by table
};

// For an encoder: what the tables say, arranged for its loops. A value that does not change; any thread may read it.
struct Encoding {
  explicit Encoding(const AllFrequencies& all);

  struct Step {
    std::uint32_t widths;  // (state + widths) >> 16 is how many bits go out
    std::int32_t places;
  };
  std::array<std::array<Step, 256>, table_count> steps;
  std::array<std::array<std::uint16_t, table_size>, table_count> states;
  std::array<std::array<std::uint32_t, 256>, table_count> cost;  // in 1/256 bits, escaped values included
  std::array<std::array<std::uint32_t, 16>, 256> costs;          // the same of tables 0 to 15, by symbol
  std::array<std::array<bool, 256>, table_count> known;          // but the escape
};

using Histogram = std::array<std::uint64_t, 256>;
Frequencies normalised(const Histogram& seen);

}  // namespace solar::codec
