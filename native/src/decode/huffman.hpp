// Decoding tables of deflate's prefix codes: a first level of fixed width, longer codes in subtables behind it.
//
// An Entry packs all that one look-up decides:
//   bits 0-5    bits to drop: the code and its extra bits
//   bits 8-13   how many of these are the code
//   bits 7, 14, 15  flags of what is neither literal, length nor distance
//   bits 16-30  the literal, the base of the length or distance, or the index of the subtable
//   bit 31      set for a literal
// In the entry of a subtable, bits 0-5 are the width of the first level and bits 8-13 the width of the subtable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace solar::deflate {

using Entry = std::uint32_t;

inline constexpr Entry entry_literal = 1u << 31;
inline constexpr Entry entry_special = 1u << 15;  // subtable, end or invalid
inline constexpr Entry entry_subtable = entry_special | (1u << 14);
inline constexpr Entry entry_end = entry_special | (1u << 7);  // end of block
inline constexpr Entry entry_invalid = entry_special;          // no code, or a symbol that must not occur

inline constexpr unsigned length_width = 11;
inline constexpr unsigned distance_width = 8;
inline constexpr unsigned precode_width = 7;
inline constexpr std::size_t length_symbols = 288;
inline constexpr std::size_t distance_symbols = 32;

// The most entries that a complete code of so many symbols, at most 15 bits long, can need at that width.
inline constexpr std::size_t length_entries = 2342;
inline constexpr std::size_t distance_entries = 402;

inline unsigned dropped(Entry e) noexcept { return e & 63; }
inline unsigned code_bits(Entry e) noexcept { return (e >> 8) & 63; }
inline unsigned payload(Entry e) noexcept { return e >> 16; }  // of a literal, the low byte

struct Codes {
  Entry length[length_entries];
  Entry distance[distance_entries];
};

// Builds the tables from code lengths (0: symbol unused). Throws Error(codec) for a code that zlib refuses too:
// over-subscribed, or incomplete unless it is one single code of one bit (or, for distances, none).
void build_lengths(std::span<const std::uint8_t> bits, Entry (&table)[length_entries]);
void build_distances(std::span<const std::uint8_t> bits, Entry (&table)[distance_entries]);
void build_precode(std::span<const std::uint8_t> bits, Entry (&table)[1u << precode_width]);

// The codes of a block of type 1, built on first use.
const Codes& fixed_codes();

}  // namespace solar::deflate
