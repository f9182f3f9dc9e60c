#include "zstd_tables.hpp"

#include <algorithm>

#include "zstd_bits.hpp"

namespace solar::zstd {
namespace {

struct Code {
  std::uint32_t base;
  std::uint8_t extra;
};
using Codes = std::array<Code, kMaxFseSymbols>;

// Each code's values begin where those of the code before end.
template <std::size_t N>
constexpr Codes codes(std::uint32_t first, const std::uint8_t (&extras)[N]) {
  Codes result{};
  for (std::size_t i = 0; i < N; ++i) {
    result[i] = {first, extras[i]};
    first += 1u << extras[i];
  }
  return result;
}

constexpr std::array<Codes, 3> kCodes{
    codes(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  //
              1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}),
    codes(1, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
              16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}),
    codes(3, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
              1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}),
};
constexpr std::array<unsigned, 3> kSymbols{36, 32, 53};
constexpr std::array<unsigned, 3> kMaxLogs{9, 8, 9};

constexpr std::array<Distribution, 3> kPredefined{{
    {{4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1},
     36,
     6},
    {{1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1}, 29, 5},
    {{1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
      1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1},
     53,
     6},
}};

void build_sequences(const Distribution& distribution, const Codes& codes, SequenceTable& table) {
  table.log = distribution.log;
  for_each_state(distribution, [&](unsigned state, unsigned symbol, unsigned bits, unsigned next) {
    table.cells[state] = {static_cast<std::uint16_t>(next), static_cast<std::uint8_t>(bits), codes[symbol].extra,
                          codes[symbol].base};
  });
}

const SequenceTable& predefined(std::size_t which) {
  static const auto tables = [] {
    std::array<SequenceTable, 3> result;
    for (std::size_t i = 0; i < 3; ++i) build_sequences(kPredefined[i], kCodes[i], result[i]);
    return result;
  }();
  return tables[which];
}

void copy(const SequenceTable& from, SequenceTable& to) {
  to.log = from.log;
  std::copy_n(from.cells.begin(), std::size_t{1} << from.log, to.cells.begin());
}

void build_single(Bytes& in, const Codes& codes, unsigned symbols, SequenceTable& table) {
  if (in.empty()) damaged("a sequence table is missing");
  const auto symbol = std::to_integer<unsigned>(in[0]);
  if (symbol >= symbols) damaged("a sequence code does not exist");
  in = in.subspan(1);
  table.log = 0;
  table.cells[0] = {0, 0, codes[symbol].extra, codes[symbol].base};
}

}  // namespace

void SequenceTables::begin_frame() {
  known = {};
  repeats = {1, 4, 8};
}

void SequenceTables::read(Bytes& in, unsigned modes) {
  if ((modes & 3) != 0) damaged("a reserved bit of the sequences is set");
  enum : unsigned { kPredefinedMode, kSingleMode, kCodedMode, kRepeatMode };
  for (std::size_t i = 0; i < 3; ++i) {
    const unsigned mode = modes >> (6 - 2 * i) & 3;
    if (mode == kRepeatMode) {
      if (!known[i]) damaged("the first sequence table refers to one before");
      continue;
    }
    if (mode == kPredefinedMode) copy(predefined(i), current[i]);
    if (mode == kSingleMode) build_single(in, kCodes[i], kSymbols[i], current[i]);
    if (mode == kCodedMode) build_sequences(read_distribution(in, kMaxLogs[i], kSymbols[i]), kCodes[i], current[i]);
    known[i] = true;
  }
}

}  // namespace solar::zstd
