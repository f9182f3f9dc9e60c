#include "zstd_fse.hpp"

#include <algorithm>

#include "zstd_bits.hpp"

namespace solar::zstd {
namespace {

// Bits from the lowest of the first byte upwards; zeros behind the end, which finish() reports.
class ForwardBits {
 public:
  explicit ForwardBits(Bytes in) : in_(in) {}

  unsigned peek(unsigned n) const {
    const std::size_t byte = at_ / 8;
    const std::uint32_t window =
        byte + 4 <= in_.size() ? load_le<std::uint32_t>(in_.data() + byte) : last_bytes(byte);
    return (window >> (at_ % 8)) & ((1u << n) - 1);
  }
  void skip(unsigned n) { at_ += n; }
  std::size_t finish() const {
    const std::size_t nbytes = (at_ + 7) / 8;
    if (nbytes > in_.size()) damaged("a distribution is cut short");
    return nbytes;
  }

 private:
  std::uint32_t last_bytes(std::size_t byte) const {
    std::uint32_t window = 0;
    if (byte < in_.size()) std::memcpy(&window, in_.data() + byte, in_.size() - byte);
    return window;
  }

  Bytes in_;
  std::size_t at_ = 0;
};

// A count between -1 and `remaining` - 1, in as few bits as that range allows.
int read_count(ForwardBits& bits, unsigned remaining) {
  const auto width = static_cast<unsigned>(std::bit_width(remaining));
  const unsigned half = 1u << (width - 1);
  const unsigned short_codes = 2 * half - 1 - remaining;
  unsigned value = bits.peek(width);
  const unsigned low = value & (half - 1);
  if (low < short_codes) {
    bits.skip(width - 1);
    return static_cast<int>(low) - 1;
  }
  bits.skip(width);
  if (value >= half) value -= short_codes;
  return static_cast<int>(value) - 1;
}

}  // namespace

Distribution read_distribution(Bytes& in, unsigned max_log, unsigned max_symbols) {
  ForwardBits bits(in);
  Distribution result;
  result.log = bits.peek(4) + 5;
  bits.skip(4);
  if (result.log > max_log) damaged("a distribution is finer than allowed");
  unsigned remaining = (1u << result.log) + 1;  // states still to be given away, plus one
  while (remaining > 1) {
    if (result.symbols == max_symbols) damaged("a distribution has too many symbols");
    const int count = read_count(bits, remaining);
    result.counts[result.symbols++] = static_cast<std::int16_t>(count);
    remaining -= static_cast<unsigned>(count < 0 ? 1 : count);
    if (count != 0) continue;
    // Pairs of bits say how many more symbols have no state. A pair of 3 says that another pair follows.
    for (unsigned threes = 8; threes == 8;) {
      const unsigned window = bits.peek(16);
      threes = static_cast<unsigned>(std::countr_one(window)) / 2;
      const unsigned more = threes == 8 ? 24 : 3 * threes + (window >> 2 * threes & 3);
      bits.skip(threes == 8 ? 16 : 2 * threes + 2);
      if (more > max_symbols - result.symbols) damaged("a distribution has too many symbols");
      result.symbols += more;
    }
  }
  in = in.subspan(bits.finish());
  return result;
}

std::array<std::uint8_t, 1u << kMaxFseLog> spread(const Distribution& distribution) {
  std::array<std::uint8_t, 1u << kMaxFseLog> symbols;
  const unsigned size = 1u << distribution.log;
  unsigned high = size;
  for (unsigned s = 0; s < distribution.symbols; ++s) {
    if (distribution.counts[s] < 0) symbols[--high] = static_cast<std::uint8_t>(s);
  }
  // In a row first: so the scattering is one loop without branches that depend on the counts.
  std::array<std::uint8_t, (1u << kMaxFseLog) + 8> row;
  unsigned end = 0;
  for (unsigned s = 0; s < distribution.symbols; ++s) {
    const int count = distribution.counts[s];
    const std::uint64_t eight = s * 0x0101010101010101;
    std::memcpy(row.data() + end, &eight, 8);
    for (int i = 8; i < count; i += 8) std::memcpy(row.data() + end + i, &eight, 8);
    end += static_cast<unsigned>(std::max(count, 0));
  }
  const unsigned step = (size >> 1) + (size >> 3) + 3;
  unsigned at = 0;
  for (unsigned i = 0; i < end; ++i) {
    symbols[at] = row[i];
    do at = (at + step) & (size - 1);
    while (at >= high);
  }
  return symbols;
}

}  // namespace solar::zstd
