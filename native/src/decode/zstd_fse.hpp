// Finite state entropy: the distribution as stored, and its layout over the states (RFC 8878, 4.1).
#pragma once

#include <array>
#include <cstdlib>

#include "solar/bytes.hpp"

namespace solar::zstd {

inline constexpr unsigned kMaxFseLog = 9;
inline constexpr unsigned kMaxFseSymbols = 53;

// How many states each symbol has; -1 is a symbol with one state that resets all bits.
struct Distribution {
  std::array<std::int16_t, kMaxFseSymbols> counts{};
  unsigned symbols = 0;
  unsigned log = 0;
};

// Reads a distribution and advances `in` behind it. REQUIRES: max_log <= kMaxFseLog, max_symbols <= kMaxFseSymbols.
Distribution read_distribution(Bytes& in, unsigned max_log, unsigned max_symbols);

// The symbol of each state. REQUIRES: the counts add up to 1 << log.
std::array<std::uint8_t, 1u << kMaxFseLog> spread(const Distribution& distribution);

// Calls put(state, symbol, bits, next): from `state`, `bits` are read and added to `next`.
template <class Put>
void for_each_state(const Distribution& distribution, Put put) {
  const auto symbols = spread(distribution);
  const unsigned size = 1u << distribution.log;
  // The states of a symbol are numbered from its count up to its double. From `limit` on they take one bit less.
  struct Visits {
    std::uint16_t next, limit, bits;
  };
  std::array<Visits, kMaxFseSymbols> visits;
  for (unsigned s = 0; s < distribution.symbols; ++s) {
    const auto count = static_cast<unsigned>(std::abs(distribution.counts[s]));
    const auto width = static_cast<unsigned>(std::bit_width(count));
    visits[s] = {static_cast<std::uint16_t>(count), static_cast<std::uint16_t>(1u << width),
                 static_cast<std::uint16_t>(distribution.log + 1 - width)};
  }
  for (unsigned state = 0; state < size; ++state) {
    Visits& of = visits[symbols[state]];
    const unsigned visit = of.next++;
    const unsigned bits = of.bits - (visit < of.limit ? 0u : 1u);
    put(state, symbols[state], bits, (visit << bits) - size);
  }
}

}  // namespace solar::zstd
