#include "zstd_huffman.hpp"

#include <algorithm>
#include <utility>

#include "zstd_bits.hpp"
#include "zstd_fse.hpp"

namespace solar::zstd {
namespace {

constexpr unsigned kMaxWeightLog = 6;

// Two interleaved FSE states over one bit stream; the end is where a state wants bits that are not there.
unsigned read_coded_weights(Bytes in, std::array<std::uint8_t, 256>& weights) {
  struct Cell {
    std::uint8_t symbol, bits, next;
  };
  std::array<Cell, 1u << kMaxWeightLog> cells;
  const auto distribution = read_distribution(in, kMaxWeightLog, kHuffmanLog + 1);
  for_each_state(distribution, [&](unsigned state, unsigned symbol, unsigned bits, unsigned next) {
    cells[state] = {static_cast<std::uint8_t>(symbol), static_cast<std::uint8_t>(bits),
                    static_cast<std::uint8_t>(next)};
  });
  BackwardBits stream(in);
  stream.refill();
  std::size_t one = stream.take(distribution.log), other = stream.take(distribution.log);
  if (stream.left() < 0) damaged("Huffman weights are cut short");
  unsigned count = 0;
  const auto step = [&](std::size_t& state) {
    const Cell cell = cells[state];
    weights[count++] = cell.symbol;
    state = cell.next + stream.take(cell.bits);
    return stream.left() >= 0;
  };
  while (count < 254) {
    if (count % 8 == 0) stream.refill();  // eight times kMaxWeightLog bits are in it
    const std::size_t* const last = !step(one) ? &other : !step(other) ? &one : nullptr;
    if (last == nullptr) continue;
    weights[count++] = cells[*last].symbol;
    return count;
  }
  damaged("there are too many Huffman weights");
}

// One stream that is read from its end while another part of the same loop reads three more.
// The lowest set bit of `window` marks how much of it is used, so a step changes nothing but `window`.
struct Lane {
  const std::byte* base;
  const std::byte* at;
  std::uint64_t window;
  std::byte* out;
  std::byte* end;

  bool open(const BackwardBits& bits) {
    if (bits.left() < 64) return false;
    base = bits.base();
    at = base + ((bits.left() + 7) >> 3) - 8;
    window = (load_le<std::uint64_t>(at) | 1) << (-bits.left() & 7);
    return true;
  }
  SOLAR_ZSTD_INLINE void refill() {
    const int used = std::countr_zero(window);
    at -= used >> 3;
    window = (load_le<std::uint64_t>(at) | 1) << (used & 7);
  }
  BackwardBits close() const { return {base, (at - base) * 8 + 64 - std::countr_zero(window)}; }
};

constexpr unsigned kSteps = 5;         // 55 bits between refills
constexpr unsigned kStepBytes = 7;     // that many bytes at most
constexpr std::size_t kRunBytes = 16;  // three symbols a step, and the fourth byte of the last store

// How many rounds of kSteps all lanes can take without leaving their input or output.
SOLAR_ZSTD_INLINE std::size_t rounds(const Lane (&lanes)[4], std::size_t round_bytes) {
  std::size_t n = ~std::size_t{0};
  for (const Lane& lane : lanes) {
    n = std::min(n, static_cast<std::size_t>(lane.at - lane.base) / kStepBytes);
    n = std::min(n, static_cast<std::size_t>(lane.end - lane.out) / round_bytes);
  }
  return n;
}

SOLAR_ZSTD_INLINE void singles_body(Lane (&lanes)[4], const std::uint16_t* table) {
  Lane a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
  const auto step = [table](Lane & lane, unsigned i) __attribute__((always_inline)) {
    const unsigned cell = table[lane.window >> (64 - kHuffmanLog)];
    lane.window <<= cell & 63;
    lane.out[i] = static_cast<std::byte>(cell >> 8);
  };
  for (std::size_t n = rounds(lanes, kSteps); n > 0; --n) {
    for (unsigned i = 0; i < kSteps; ++i) {
      step(a, i);
      step(b, i);
      step(c, i);
      step(d, i);
    }
    for (Lane* lane : {&a, &b, &c, &d}) {
      lane->out += kSteps;
      lane->refill();
    }
  }
  lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
}

SOLAR_ZSTD_INLINE void runs_body(Lane (&lanes)[4], const std::uint32_t* table) {
  Lane a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
  const auto step = [table](Lane & lane) __attribute__((always_inline)) {
    const std::uint32_t cell = table[lane.window >> (64 - kHuffmanLog)];
    lane.window <<= (cell >> 24) & 63;
    std::memcpy(lane.out, &cell, sizeof cell);
    lane.out += cell >> 30;
  };
  for (std::size_t n = rounds(lanes, kRunBytes); n > 0; --n) {
    for (unsigned i = 0; i < kSteps; ++i) {
      step(a);
      step(b);
      step(c);
      step(d);
    }
    for (Lane* lane : {&a, &b, &c, &d}) lane->refill();
  }
  lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
}

SOLAR_ZSTD_BMI2 void singles_bmi2(Lane (&lanes)[4], const std::uint16_t* table) { singles_body(lanes, table); }
SOLAR_ZSTD_BMI2 void runs_bmi2(Lane (&lanes)[4], const std::uint32_t* table) { runs_body(lanes, table); }
void singles_plain(Lane (&lanes)[4], const std::uint16_t* table) { singles_body(lanes, table); }
void runs_plain(Lane (&lanes)[4], const std::uint32_t* table) { runs_body(lanes, table); }

// The rest of one stream, which must end where `out` does.
void finish(BackwardBits bits, std::byte* out, std::byte* end, const std::uint16_t* table) {
  const auto step = [&] {
    const unsigned cell = table[bits.peek(kHuffmanLog)];
    bits.skip(cell & 63);
    *out++ = static_cast<std::byte>(cell >> 8);
  };
  while (static_cast<std::size_t>(end - out) >= kSteps) {
    bits.refill();
    for (unsigned i = 0; i < kSteps; ++i) step();
    if (bits.left() < 0) break;
  }
  while (out < end && bits.left() >= 0) {
    bits.refill();
    step();
  }
  if (out != end || bits.left() != 0) damaged("a Huffman stream does not end where it must");
}

// `cells`: a power of two, and the same for many symbols in turn.
SOLAR_ZSTD_INLINE void fill_cells(std::uint16_t* to, unsigned cells, std::uint64_t cell) {
  const std::uint64_t four = cell * 0x0001000100010001;
  if (cells == 1) return void(std::memcpy(to, &four, 2));
  if (cells == 2) return void(std::memcpy(to, &four, 4));
  if (cells == 4) return void(std::memcpy(to, &four, 8));
  const std::uint64_t eight[2] = {four, four};
  for (unsigned i = 0; i < cells; i += 8) std::memcpy(to + i, eight, 16);
}

}  // namespace

void Huffman::read(Bytes& in) {
  empty_ = true;
  std::array<std::uint8_t, 256> weights{};
  if (in.empty()) damaged("a Huffman table is missing");
  const auto head = std::to_integer<unsigned>(in[0]);
  unsigned count = head < 128 ? 0 : head - 127;
  const std::size_t stored = head < 128 ? head : (count + 1) / 2;
  if (stored > in.size() - 1) damaged("a Huffman table is cut short");
  const Bytes body = in.subspan(1, stored);
  if (head < 128) {
    count = read_coded_weights(body, weights);
  } else {
    for (unsigned i = 0; i < count; ++i) {
      const auto pair = std::to_integer<unsigned>(body[i / 2]);
      weights[i] = static_cast<std::uint8_t>(i % 2 == 0 ? pair >> 4 : pair & 15);
    }
  }
  build(weights, count);
  in = in.subspan(1 + stored);
}

// The last symbol's weight is not stored: it fills the code space up to a power of two.
void Huffman::build(std::array<std::uint8_t, 256>& weights, unsigned count) {
  std::uint32_t sum = 0;
  for (unsigned s = 0; s < count; ++s) {
    if (weights[s] > kHuffmanLog) damaged("a Huffman code is too long");
    sum += (1u << weights[s]) >> 1;
  }
  const auto log = static_cast<unsigned>(std::bit_width(sum));
  if (sum == 0 || log > kHuffmanLog) damaged("Huffman weights do not add up");
  const std::uint32_t rest = (1u << log) - sum;
  if (!std::has_single_bit(rest)) damaged("Huffman weights do not add up");
  weights[count++] = static_cast<std::uint8_t>(std::bit_width(rest));

  // Symbols by weight, lightest first. Each quarter of them counts for itself, so that none waits for the one before.
  const unsigned quarter = (count + 3) / 4;
  std::array<std::array<unsigned, 4>, kHuffmanLog + 1> places{};
  for (unsigned i = 0; i < quarter; ++i)
    for (unsigned q = 0; q < 4; ++q) ++places[weights[q * quarter + i]][q];
  unsigned end = 0;
  std::array<unsigned, kHuffmanLog + 1> ends;
  for (unsigned w = 0; w < places.size(); ++w) {
    for (unsigned& place : places[w]) end += std::exchange(place, end);
    ends[w] = end;
  }
  if (ends[1] - ends[0] < 2) damaged("Huffman weights do not add up");
  std::array<std::uint8_t, 256> symbols;
  for (unsigned i = 0; i < quarter; ++i)
    for (unsigned q = 0; q < 4; ++q)
      symbols[places[weights[q * quarter + i]][q]++] = static_cast<std::uint8_t>(q * quarter + i);
  std::uint16_t* to = single_.data();
  for (unsigned weight = 1; weight <= log; ++weight) {
    const unsigned cells = (1u << (weight - 1)) << (kHuffmanLog - log);
    for (unsigned i = ends[weight - 1]; i < ends[weight]; ++i, to += cells)
      fill_cells(to, cells, (log + 1 - weight) | symbols[i] << 8);
  }
  empty_ = false;
  runs_built_ = false;
}

void Huffman::build_runs() {
  constexpr unsigned mask = (1u << kHuffmanLog) - 1;
  for (unsigned i = 0; i <= mask; ++i) {
    std::uint32_t cell = 0, length = 0, number = 0;
    for (unsigned next = i; number < 3; ++number) {
      const std::uint32_t one = single_[next];
      if (length + (one & 63) > kHuffmanLog) break;
      length += one & 63;
      cell |= (one >> 8) << (8 * number);
      next = i << length & mask;
    }
    runs_[i] = cell | length << 24 | number << 30;
  }
  runs_built_ = true;
}

void Huffman::decode_one(Bytes in, MutableBytes out) const {
  finish(BackwardBits(in), out.data(), out.data() + out.size(), single_.data());
}

void Huffman::decode_four(Bytes in, MutableBytes out) {
  if (in.size() < 10 || out.size() < 6) damaged("four Huffman streams do not fit their space");
  // Several symbols in one step pay where codes are short and the literals many.
  const bool runs = out.size() >= (32 << 10) && in.size() < out.size() / 4 * 3;
  if (runs && !runs_built_) build_runs();
  Bytes rest = in.subspan(6);
  const std::size_t part = (out.size() + 3) / 4;
  Lane lanes[4];
  bool open = true;
  BackwardBits streams[4];
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t nbytes = i < 3 ? load_le<std::uint16_t>(in.data() + 2 * i) : rest.size();
    if (nbytes > rest.size()) damaged("a Huffman stream is cut short");
    streams[i] = BackwardBits(rest.first(nbytes));
    rest = rest.subspan(nbytes);
    lanes[i].out = out.data() + i * part;
    lanes[i].end = i < 3 ? lanes[i].out + part : out.data() + out.size();
    open = lanes[i].open(streams[i]) && open;
  }
  if (lanes[3].out > lanes[3].end) damaged("four Huffman streams do not fit their space");
  if (open) {
    for (std::size_t before = 1; before != 0; before = rounds(lanes, runs ? kRunBytes : kSteps)) {
      if (runs)
        has_bmi2() ? runs_bmi2(lanes, runs_.data()) : runs_plain(lanes, runs_.data());
      else
        has_bmi2() ? singles_bmi2(lanes, single_.data()) : singles_plain(lanes, single_.data());
    }
    for (std::size_t i = 0; i < 4; ++i) streams[i] = lanes[i].close();
  }
  for (std::size_t i = 0; i < 4; ++i) finish(streams[i], lanes[i].out, lanes[i].end, single_.data());
}

}  // namespace solar::zstd
