// Deflate (RFC 1951) in its wrappers: zlib's (RFC 1950) and gzip's (RFC 1952).
//
// Two loops decode a block: one while there is so much room on both sides that nothing needs checking between refills,
// and a careful one for the ends. Bits are kept in a 64-bit word, the next bit lowest.
#include <algorithm>
#include <array>

#include "checksum.hpp"
#include "copy.hpp"
#include "damaged.hpp"
#include "huffman.hpp"
#include "solar/decode.hpp"

// Inside the fast loop nothing may stay a call: its state would live in memory instead of registers.
#define SOLAR_INFLATE_INLINE __attribute__((always_inline))

namespace solar {
namespace {

using namespace deflate;

// So much output is summed up at a time, while it is in the first cache.
constexpr std::ptrdiff_t piece_nbytes = 16 << 10;

// What one turn of the fast loop may read (three refills) and write (two literals, a match, the slack of its copy).
constexpr std::ptrdiff_t fast_input = 24;
constexpr std::ptrdiff_t fast_output = 2 + 258 + copy_slack;


struct State {
  const std::byte* in;
  const std::byte* in_end;
  std::byte* out;
  std::byte* out_begin;
  std::byte* out_end;
  std::uint64_t word = 0;
  // How many bits of `word` are valid. Bits above them may be set only inside the fast loop.
  unsigned nbits = 0;
  const std::byte* summed = out_begin;  // up to here
  std::uint32_t sum = 1;                // Adler-32
  bool sums = true;                     // whether it is wanted

  bool roomy() const { return in_end - in >= fast_input && out_end - out >= fast_output; }
  void sum_up() {
    if (sums) sum = adler32(sum, Bytes(summed, out));
    summed = out;
  }

  // At least 56 bits while there is input.
  void refill() {
    for (; nbits < 56 && in < in_end; nbits += 8) word |= std::to_integer<std::uint64_t>(*in++) << nbits;
  }
  void drop(unsigned n) {
    if (n > nbits) damaged("the stream is cut short");
    word >>= n;
    nbits -= n;
  }
  unsigned take(unsigned n) {  // n <= 16
    refill();
    const unsigned value = static_cast<unsigned>(word) & ((1u << n) - 1);
    drop(n);
    return value;
  }
  // Drops what is left of a byte and gives whole bytes back.
  void align() {
    in -= nbits / 8;
    word = nbits = 0;
  }
};

inline unsigned extra_bits(std::uint64_t word, Entry e) noexcept {
  return static_cast<unsigned>((word & ((std::uint64_t{1} << dropped(e)) - 1)) >> code_bits(e));
}

inline Entry subentry(const Entry* table, Entry e, std::uint64_t word) noexcept {
  return table[payload(e) + (word & ((1u << code_bits(e)) - 1))];
}

// Returns true at the end of the block, false after a piece of it. REQUIRES: s.roomy().
SOLAR_INFLATE_INLINE inline bool inflate_fast(State& s, const Codes& codes) {
  constexpr std::uint64_t length_mask = (1u << length_width) - 1, distance_mask = (1u << distance_width) - 1;
  const std::byte* const in_last = s.in_end - fast_input;
  const std::byte* const out_last = s.out + std::min(s.out_end - s.out - fast_output, piece_nbytes);
  // All in locals: for the compiler, `s` might be among the bytes that are written.
  const std::byte* in = s.in;
  std::byte* out = s.out;
  const std::byte* const out_begin = s.out_begin;
  std::uint64_t word = s.word;
  std::uint64_t nbits = s.nbits;
  // If bits above `nbits` are set, they are the same that are or'ed in again.
  const auto refill = [&]() SOLAR_INFLATE_INLINE {
    word |= load_le<std::uint64_t>(in) << (nbits & 63);
    in += 7 - (nbits >> 3 & 7);
    nbits |= 56;
  };
  const auto drop = [&](Entry n) SOLAR_INFLATE_INLINE {
    word >>= n & 63;
    nbits -= n;  // of an Entry, only the low bits count
  };
  const auto put_literal = [&](Entry e) SOLAR_INFLATE_INLINE {
    drop(e);
    *out++ = static_cast<std::byte>(payload(e));
  };
  const auto next = [&]() SOLAR_INFLATE_INLINE { return codes.length[word & length_mask]; };

  bool ended = false;
  refill();
  // The next entry is always looked up before the refill and the copy that come before its use.
  Entry e = next();
  for (;;) {
    // Two jumps that are hardly ever taken cost less than one condition that is made of both.
    if (in > in_last) break;
    if (out > out_last) break;
    if (e & entry_literal) {  // three of the first level take at most 33 of the 56 bits
      put_literal(e);
      e = next();
      if (e & entry_literal) {
        put_literal(e);
        e = next();
        if (e & entry_literal) {
          put_literal(e);
          e = next();
          refill();
          continue;
        }
      }
    }
    if (e & entry_special) [[unlikely]] {
      if ((e & entry_subtable) == entry_subtable) {
        drop(length_width);
        e = subentry(codes.length, e, word);
      }
      if (e & entry_literal) {
        put_literal(e);
        e = next();
        refill();
        continue;
      }
      if (e & entry_special) {
        if ((e & entry_end) != entry_end) damaged("a length has no meaning");
        drop(e);
        ended = true;
        break;
      }
    }
    const std::size_t length = payload(e) + extra_bits(word, e);
    drop(e);
    e = codes.distance[word & distance_mask];  // 14 bits are left at least: no look-up waits for a refill
    refill();
    if (e & entry_special) [[unlikely]] {
      if ((e & entry_subtable) == entry_subtable) {
        drop(distance_width);
        e = subentry(codes.distance, e, word);
      }
      if (e & entry_special) damaged("a distance has no meaning");
    }
    const std::size_t distance = payload(e) + extra_bits(word, e);
    drop(e);
    if (distance > static_cast<std::size_t>(out - out_begin)) damaged("a distance reaches before the beginning");
    e = next();
    out = copy_match(out, distance, length);
    refill();
  }
  s.in = in;
  s.out = out;
  s.nbits = nbits & 63;
  s.word = word & ((std::uint64_t{1} << s.nbits) - 1);
  return ended;
}

bool inflate_fast_generic(State& s, const Codes& codes) { return inflate_fast(s, codes); }

#if defined(__x86_64__)
// Shifts by a register and masks of n bits are one instruction each.
[[gnu::target("bmi,bmi2")]] bool inflate_fast_bmi2(State& s, const Codes& codes) { return inflate_fast(s, codes); }
const auto inflate_fast_best = __builtin_cpu_supports("bmi2") ? inflate_fast_bmi2 : inflate_fast_generic;
#else
constexpr auto inflate_fast_best = inflate_fast_generic;
#endif

// One symbol of a table, its code dropped; the extra bits that follow are left.
Entry take_symbol(State& s, const Entry* table, unsigned width) {
  Entry e = table[s.word & ((1u << width) - 1)];
  if ((e & entry_subtable) == entry_subtable) {
    s.drop(width);
    e = subentry(table, e, s.word);
  }
  if ((e & entry_literal) == 0 && (e & entry_special) && (e & entry_end) != entry_end) damaged("a code has no meaning");
  s.drop(code_bits(e));
  return e;
}

unsigned take_value(State& s, Entry e) { return payload(e) + s.take(dropped(e) - code_bits(e)); }

// Decodes to the end of the block.
void inflate_tight(State& s, const Codes& codes) {
  for (;;) {
    s.refill();
    Entry e = take_symbol(s, codes.length, length_width);
    if (e & entry_literal) {
      if (s.out == s.out_end) damaged("more than expected");
      *s.out++ = static_cast<std::byte>(payload(e));
      continue;
    }
    if (e & entry_special) return;
    const std::size_t length = take_value(s, e);
    s.refill();
    e = take_symbol(s, codes.distance, distance_width);
    const std::size_t distance = take_value(s, e);
    if (distance > static_cast<std::size_t>(s.out - s.out_begin)) damaged("a distance reaches before the beginning");
    if (length > static_cast<std::size_t>(s.out_end - s.out)) damaged("more than expected");
    s.out = copy_tight(s.out, distance, length);
  }
}

void inflate_block(State& s, const Codes& codes) {
  for (; s.roomy(); s.sum_up())
    if (inflate_fast_best(s, codes)) return;
  inflate_tight(s, codes);
}

void inflate_stored(State& s) {
  s.align();
  if (s.in_end - s.in < 4) damaged("the stream is cut short");
  const std::size_t n = load_le<std::uint16_t>(s.in);
  if ((n ^ 0xffff) != load_le<std::uint16_t>(s.in + 2)) damaged("a stored block is damaged");
  s.in += 4;
  if (n > static_cast<std::size_t>(s.in_end - s.in)) damaged("the stream is cut short");
  if (n > static_cast<std::size_t>(s.out_end - s.out)) damaged("more than expected");
  if (n) std::memcpy(s.out, s.in, n);
  s.in += n;
  s.out += n;
}

// The code lengths of a dynamic block, themselves coded: 16 to 18 repeat.
void take_code_lengths(State& s, std::span<std::uint8_t> bits) {
  static constexpr std::array<std::uint8_t, 19> places = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                          11, 4,  12, 3, 13, 2, 14, 1, 15};
  std::array<std::uint8_t, 19> own{};
  const unsigned n = s.take(4) + 4;
  for (unsigned i = 0; i < n; ++i) own[places[i]] = static_cast<std::uint8_t>(s.take(3));
  Entry table[1u << precode_width];
  build_precode(own, table);
  for (std::size_t i = 0; i < bits.size();) {
    s.refill();
    const Entry e = table[s.word & ((1u << precode_width) - 1)];
    s.drop(code_bits(e));
    const unsigned symbol = payload(e);
    if (symbol < 16) {
      bits[i++] = static_cast<std::uint8_t>(symbol);
      continue;
    }
    if (symbol == 16 && i == 0) damaged("a repeat has nothing before it");
    const std::uint8_t value = symbol == 16 ? bits[i - 1] : std::uint8_t{0};
    const std::size_t times = symbol == 16 ? 3 + s.take(2) : symbol == 17 ? 3 + s.take(3) : 11 + s.take(7);
    if (times > bits.size() - i) damaged("a repeat is too long");
    std::fill_n(bits.begin() + static_cast<std::ptrdiff_t>(i), times, value);
    i += times;
  }
}

void inflate_dynamic(State& s, Codes& codes) {
  const std::size_t lengths = s.take(5) + 257, distances = s.take(5) + 1;
  if (lengths > 286 || distances > 30) damaged("a block has too many symbols");
  std::array<std::uint8_t, 286 + 30> bits{};
  take_code_lengths(s, std::span(bits).first(lengths + distances));
  if (bits[256] == 0) damaged("a block has no end");
  build_lengths(std::span(bits).first(lengths), codes.length);
  build_distances(std::span(bits).subspan(lengths, distances), codes.distance);
  inflate_block(s, codes);
}

void check_header(Bytes in) {
  if (in.size() < 6) damaged("the stream is cut short");
  const unsigned method = std::to_integer<unsigned>(in[0]), flags = std::to_integer<unsigned>(in[1]);
  if ((method & 15) != 8 || method >> 4 > 7 || (method * 256 + flags) % 31 != 0) damaged("not a zlib stream");
  if (flags & 32) damaged("the stream needs a dictionary");
}

void inflate_blocks(State& s) {
  Codes codes;
  for (bool last = false; !last;) {
    last = s.take(1);
    const unsigned type = s.take(2);
    if (type == 0) inflate_stored(s);
    else if (type == 1) inflate_block(s, fixed_codes());
    else if (type == 2) inflate_dynamic(s, codes);
    else
      damaged("a block is of no known type");
    s.sum_up();
  }
  s.align();
}

// What lies behind the header of a member of gzip: its fields of any length are passed over.
Bytes behind_gzip_header(Bytes in) {
  constexpr unsigned has_sum = 2, has_extra = 4, has_name = 8, has_comment = 16, reserved = 224;
  if (in.size() < 18) damaged("the stream is cut short");
  if (in[0] != std::byte{0x1f} || in[1] != std::byte{0x8b} || in[2] != std::byte{8}) damaged("not a gzip stream");
  const unsigned flags = std::to_integer<unsigned>(in[3]);
  if (flags & reserved) damaged("the stream has an unknown flag");
  std::size_t at = 10;
  if (flags & has_extra) at += 2 + load_le<std::uint16_t>(in.data() + at);
  for (const unsigned text : {has_name, has_comment}) {
    if ((flags & text) == 0) continue;
    while (at < in.size() && in[at] != std::byte{0}) ++at;
    ++at;
  }
  if (flags & has_sum) at += 2;
  if (at > in.size()) damaged("the stream is cut short");
  return in.subspan(at);
}

}  // namespace

std::size_t inflate_zlib(Bytes in, MutableBytes out) {
  check_header(in);
  State s{in.data() + 2, in.data() + in.size(), out.data(), out.data(), out.data() + out.size()};
  inflate_blocks(s);
  if (s.in_end - s.in < 4) damaged("the stream is cut short");
  if (load_be32(s.in) != s.sum) damaged("the Adler-32 checksum is wrong");
  return static_cast<std::size_t>(s.out - s.out_begin);
}

std::size_t inflate_gzip(Bytes in, MutableBytes out) {
  std::size_t written = 0;
  do {  // a member
    in = behind_gzip_header(in);
    const MutableBytes room = out.subspan(written);
    State s{in.data(), in.data() + in.size(), room.data(), room.data(), room.data() + room.size()};
    s.sums = false;
    inflate_blocks(s);
    if (s.in_end - s.in < 8) damaged("the stream is cut short");
    const Bytes made(s.out_begin, s.out);
    if (load_le<std::uint32_t>(s.in) != crc32(made)) damaged("the CRC-32 checksum is wrong");
    if (load_le<std::uint32_t>(s.in + 4) != static_cast<std::uint32_t>(made.size())) damaged("its size is another");
    written += made.size();
    in = in.subspan(static_cast<std::size_t>(s.in - in.data()) + 8);
    while (!in.empty() && in.front() == std::byte{0}) in = in.subspan(1);  // padding
  } while (!in.empty());
  return written;
}

}  // namespace solar
