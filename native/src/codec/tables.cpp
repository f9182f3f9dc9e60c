#include "codec/tables.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/builtin.hpp"
#include "codec/format.hpp"
#include "decode/zstd_checksum.hpp"

namespace solar::codec {
namespace {

constexpr std::uint8_t low_byte(int symbol) { return static_cast<std::uint8_t>(symbol); }

void append_word(std::vector<std::byte>& out, std::uint32_t value) {
  if (value >= 128) out.push_back(static_cast<std::byte>(value | 128));
  out.push_back(static_cast<std::byte>(value >= 128 ? value >> 7 : value));
}

std::uint32_t get(Cursor& at) {
  const std::uint32_t low = at.u8();
  return low < 128 ? low : (low & 127) | std::uint32_t{at.u8()} << 7;
}

// In 1/256 bits, of each frequency but 0.
const std::array<std::uint32_t, table_size + 1>& cost_of() {
  static const auto costs = [] {
    std::array<std::uint32_t, table_size + 1> made{};
    for (std::uint32_t f = 1; f <= table_size; ++f)
      made[f] = static_cast<std::uint32_t>(256 * (table_bits - std::log2(f)) + 0.5);
    return made;
  }();
  return costs;
}

int width_of(std::uint32_t state) { return table_bits + 1 - static_cast<int>(std::bit_width(state)); }

}  // namespace

std::vector<std::byte> pack_tables(const AllFrequencies& all) {
  std::vector<std::byte> out;
  for (const Frequencies& table : all) {
    int first = -127, last = 127;
    while (first < 127 && table[low_byte(first)] == 0) ++first;
    while (last > first && table[low_byte(last)] == 0) --last;
    out.push_back(static_cast<std::byte>(first));
    out.push_back(static_cast<std::byte>(last - first + 1));
    for (int symbol = first; symbol <= last; ++symbol) append_word(out, table[low_byte(symbol)]);
    append_word(out, table[low_byte(escape)]);
  }
  out.resize((out.size() + 3) / 4 * 4);
  return out;
}

namespace {

AllFrequencies frequencies_of(Cursor& at) {
  AllFrequencies all{};
  for (Frequencies& table : all) {
    const int first = static_cast<std::int8_t>(at.u8()), count = at.u8();
    if (first == escape || first + count > 128) damaged("a coding table has impossible symbols");
    std::uint32_t sum = 0;
    for (int i = 0; i <= count; ++i) {
      const std::uint32_t frequency = get(at);
      sum += frequency;
      if (sum > table_size) damaged("a coding table is too full");
      table[low_byte(i < count ? first + i : escape)] = static_cast<std::uint16_t>(frequency);
    }
    if (sum != table_size || table[low_byte(escape)] == 0) damaged("a coding table is not full, or has no escape");
  }
  return all;
}

// Patterns of the learned predictor may lie behind the tables. It is no longer read, but chunks beside it are.
void skip_patterns(Cursor& at) {
  if (at.left() == 0) return;
  const std::size_t count = at.u8();
  at.skip(3);
  if (count == 0 || count > 8 || at.left() != 64 * count) damaged("there is more behind its coding tables than there can be");
}

}  // namespace

AllFrequencies parse_tables(Bytes packed) {
  Cursor at(packed, Kind::codec, "the list of coding tables");
  const AllFrequencies all = frequencies_of(at);
  at.skip(at.left() % 4);  // zeros to a whole word
  skip_patterns(at);
  return all;
}

std::uint64_t tables_checksum(Bytes packed) { return std::max<std::uint64_t>(1, zstd::xxhash64(packed)); }

Bytes builtin_tables() { return std::as_bytes(std::span(builtin)); }

std::array<std::int8_t, table_size> spread(const Frequencies& frequencies) {
  std::array<std::int8_t, table_size> symbols;
  std::uint32_t place = 0;
  for (int symbol = -128; symbol < 128; ++symbol)
    for (int i = 0; i < frequencies[low_byte(symbol)]; ++i) {
      symbols[place] = static_cast<std::int8_t>(symbol);
      place = (place + table_size / 2 + table_size / 8 + 3) % table_size;
    }
  return symbols;
}

void Coding::take(Bytes bytes) {
  if (!packed.empty() && std::ranges::equal(packed, bytes)) return;
  packed.clear();
  made = 0;
  frequencies = parse_tables(bytes);
  packed.assign(bytes.begin(), bytes.end());
}

void Coding::make(std::uint32_t wanted) {
  for (std::size_t k = 0; k < table_count; ++k) {
    if ((wanted & ~made) >> k & 1) {
      const auto symbols = spread(frequencies[k]);
      Frequencies next = frequencies[k];
      for (std::uint32_t place = 0; place < table_size; ++place) {
        const std::uint8_t symbol = low_byte(symbols[place]);
        const std::uint32_t state = next[symbol]++;
        const auto width = static_cast<std::uint32_t>(width_of(state));
        places[k * table_size + place] = symbol | width << 8 | ((state << width) - table_size) << 16;
      }
    }
  }
  made |= wanted;
}

Encoding::Encoding(const AllFrequencies& all) {
  for (std::size_t k = 0; k < table_count; ++k) {
    const Frequencies& table = all[k];
    std::array<std::uint32_t, 256> begin{};
    std::uint32_t before = 0;
    for (int symbol = -128; symbol < 128; ++symbol) {
      const std::uint8_t at = low_byte(symbol);
      const std::uint32_t f = table[at];
      begin[at] = before;
      known[k][at] = f != 0;
      if (f == 0) continue;
      const auto most = static_cast<std::uint32_t>(table_bits - (std::bit_width(f - 1) - (f > 1)));
      steps[k][at] = {(most << 16) - (f << most), static_cast<std::int32_t>(before) - static_cast<std::int32_t>(f)};
      cost[k][at] = cost_of()[f];
      before += f;
    }
    const auto symbols = spread(table);
    for (std::uint32_t place = 0; place < table_size; ++place)
      states[k][begin[low_byte(symbols[place])]++] = static_cast<std::uint16_t>(table_size + place);
    const std::uint32_t escaped = (known[k][low_byte(escape)] ? cost[k][low_byte(escape)] : 1u << 20) + 32 * 256;
    known[k][low_byte(escape)] = false;
    for (int symbol = -128; symbol < 128; ++symbol)
      if (!known[k][low_byte(symbol)]) cost[k][low_byte(symbol)] = escaped;
  }
  for (std::size_t symbol = 0; symbol < 256; ++symbol)
    for (std::size_t k = 0; k < 16; ++k) costs[symbol][k] = cost[k][symbol];
}

// Every symbol that was seen keeps a place, and the escape always; what is over or missing is taken where it costs
// least.
Frequencies normalised(const Histogram& seen) {
  Histogram counts = seen;
  counts[low_byte(escape)] = std::max<std::uint64_t>(1, counts[low_byte(escape)]);
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) total += count;
  Frequencies table{};
  int sum = 0;
  for (std::size_t s = 0; s < 256; ++s) {
    if (counts[s] == 0) continue;
    const double share = static_cast<double>(counts[s]) * table_size / static_cast<double>(total);
    table[s] = static_cast<std::uint16_t>(std::max(1.0, std::floor(share + 0.5)));
    sum += table[s];
  }
  for (; sum != static_cast<int>(table_size);) {
    const int way = sum < static_cast<int>(table_size) ? 1 : -1;
    std::size_t best = 256;
    double least = 0;
    for (std::size_t s = 0; s < 256; ++s) {
      if (table[s] + way < 1 || counts[s] == 0) continue;
      const double change = static_cast<double>(counts[s]) * std::log2(double(table[s]) / (table[s] + way));
      if (best == 256 || change < least) best = s, least = change;
    }
    table[best] = static_cast<std::uint16_t>(table[best] + way);
    sum += way;
  }
  return table;
}

}  // namespace solar::codec
