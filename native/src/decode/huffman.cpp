#include "huffman.hpp"

#include <algorithm>
#include <array>

#include "solar/error.hpp"

namespace solar::deflate {
namespace {

constexpr unsigned longest_code = 15;

// What each symbol means, without the length of its code.
constexpr auto length_meanings = [] {
  std::array<Entry, length_symbols> meanings{};
  for (unsigned s = 0; s < 256; ++s) meanings[s] = entry_literal | (s << 16);
  meanings[256] = entry_end;
  unsigned base = 3;
  for (unsigned s = 257; s < 285; ++s) {
    const unsigned extra = s < 265 ? 0 : (s - 261) / 4;
    meanings[s] = (base << 16) | extra;
    base += 1u << extra;
  }
  meanings[285] = 258u << 16;
  meanings[286] = meanings[287] = entry_invalid;
  return meanings;
}();

constexpr auto distance_meanings = [] {
  std::array<Entry, distance_symbols> meanings{};
  unsigned base = 1;
  for (unsigned s = 0; s < 30; ++s) {
    const unsigned extra = s < 4 ? 0 : s / 2 - 1;
    meanings[s] = (base << 16) | extra;
    base += 1u << extra;
  }
  meanings[30] = meanings[31] = entry_invalid;
  return meanings;
}();

constexpr auto precode_meanings = [] {
  std::array<Entry, 19> meanings{};
  for (unsigned s = 0; s < 19; ++s) meanings[s] = s << 16;
  return meanings;
}();

// The symbols that have a code, shortest code first, and how many codes have each length.
struct Ordered {
  std::array<std::uint16_t, longest_code + 1> count{};
  std::array<std::uint16_t, length_symbols> symbol{};
  std::size_t used = 0;
  unsigned longest = 0;
};

// `lone`: one code of one bit is accepted although it leaves the other unused.
Ordered order(std::span<const std::uint8_t> bits, bool lone) {
  Ordered codes;
  for (const std::uint8_t n : bits) ++codes.count[n];
  std::array<std::uint16_t, longest_code + 2> first{};
  int left = 1;
  for (unsigned n = 1; n <= longest_code; ++n) {
    left = 2 * left - codes.count[n];
    if (left < 0) throw Error(Kind::codec, "a code has more symbols than its lengths allow");
    if (codes.count[n]) codes.longest = n;
    first[n + 1] = static_cast<std::uint16_t>(first[n] + codes.count[n]);
  }
  if (left > 0 && !(lone && codes.longest <= 1)) throw Error(Kind::codec, "a code is incomplete");
  codes.used = first[longest_code + 1];
  for (std::size_t s = 0; s < bits.size(); ++s)
    if (bits[s]) codes.symbol[first[bits[s]]++] = static_cast<std::uint16_t>(s);
  return codes;
}

// The code after `code` of the same length. Codes are kept as the stream has them, first bit lowest.
unsigned next_code(unsigned code, unsigned nbits) {
  unsigned bit = 1u << (nbits - 1);
  while (code & bit) bit >>= 1;
  return bit ? (code & (bit - 1)) | bit : 0;
}

// The width a subtable needs that begins with a code of `nbits`; count: codes not yet placed.
unsigned subtable_width(const Ordered& codes, unsigned nbits, unsigned width) {
  int left = 1 << (nbits - width);
  for (; nbits < codes.longest; ++nbits, left *= 2) {
    left -= codes.count[nbits];
    if (left <= 0) break;
  }
  return nbits - width;
}

void build_table(std::span<const std::uint8_t> bits, std::span<const Entry> meanings, unsigned width, bool lone,
                 std::span<Entry> table) {
  Ordered codes = order(bits, lone);
  std::size_t at = 0;
  unsigned code = 0;
  table[0] = entry_invalid;
  // A table for codes of up to n bits is the table for n - 1 bits twice, with the codes of n bits added.
  for (unsigned n = 1; n <= width; ++n) {
    std::copy_n(table.begin(), std::size_t{1} << (n - 1), table.begin() + (std::ptrdiff_t{1} << (n - 1)));
    for (; codes.count[n]; --codes.count[n], ++at) {
      table[code] = meanings[codes.symbol[at]] + n * 0x101;
      code = next_code(code, n);
    }
  }
  const unsigned mask = (1u << width) - 1;
  unsigned prefix = mask + 1, start = 0, wide = 0, end = mask + 1;
  for (unsigned n = width + 1; at < codes.used; ++n) {
    for (; codes.count[n]; --codes.count[n], ++at) {
      if ((code & mask) != prefix) {
        prefix = code & mask;
        wide = subtable_width(codes, n, width);
        start = end;
        end += 1u << wide;
        if (end > table.size()) throw Error(Kind::codec, "a code needs more room than any valid code");
        table[prefix] = entry_subtable | (start << 16) | (wide << 8) | width;
      }
      const Entry entry = meanings[codes.symbol[at]] + (n - width) * 0x101;
      for (unsigned i = code >> width; i < 1u << wide; i += 1u << (n - width)) table[start + i] = entry;
      code = next_code(code, n);
    }
  }
}

}  // namespace

void build_lengths(std::span<const std::uint8_t> bits, Entry (&table)[length_entries]) {
  build_table(bits, length_meanings, length_width, true, table);
}

void build_distances(std::span<const std::uint8_t> bits, Entry (&table)[distance_entries]) {
  build_table(bits, distance_meanings, distance_width, true, table);
}

void build_precode(std::span<const std::uint8_t> bits, Entry (&table)[1u << precode_width]) {
  build_table(bits, precode_meanings, precode_width, false, table);
}

const Codes& fixed_codes() {
  static const Codes codes = [] {
    std::array<std::uint8_t, length_symbols> lengths;
    std::fill_n(lengths.begin(), 144, std::uint8_t{8});
    std::fill_n(lengths.begin() + 144, 112, std::uint8_t{9});
    std::fill_n(lengths.begin() + 256, 24, std::uint8_t{7});
    std::fill_n(lengths.begin() + 280, 8, std::uint8_t{8});
    std::array<std::uint8_t, distance_symbols> distances;
    distances.fill(5);
    Codes built;
    build_lengths(lengths, built.length);
    build_distances(distances, built.distance);
    return built;
  }();
  return codes;
}

}  // namespace solar::deflate
