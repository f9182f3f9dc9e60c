#include "zstd_sequences.hpp"

#include <algorithm>

#include "zstd_bits.hpp"

namespace solar::zstd {
namespace {

// REQUIRES: copy_slack bytes behind both ends.
SOLAR_ZSTD_INLINE void copy_literals(std::byte* to, const std::byte* from, std::size_t n) {
  copy16(to, from);
  if (n <= 16) [[likely]]
    return;
  for (std::byte* const end = to + n; (to += 16) < end;) copy16(to, from += 16);
}

struct Sequence {
  std::size_t literals, offset, match;
};

// `code`: so many bits of the value are in the stream. What it is depends on that, which is known first.
SOLAR_ZSTD_INLINE std::size_t find_offset(unsigned code, std::size_t value, bool no_literals,
                                          std::array<std::size_t, 3>& repeats) {
  if (code > 1) [[likely]] {
    repeats = {value - 3, repeats[0], repeats[1]};
    return repeats[0];
  }
  if (code == 0) {  // the last one, or the one before it
    const std::size_t offset = no_literals ? repeats[1] : repeats[0], other = no_literals ? repeats[0] : repeats[1];
    repeats[0] = offset, repeats[1] = other;
    return offset;
  }
  const std::size_t which = value - 1 + (no_literals ? 1 : 0);
  const std::size_t offset = which == 1 ? repeats[1] : which == 2 ? repeats[2] : repeats[0] - 1;
  repeats = {offset, repeats[0], which == 1 ? repeats[2] : repeats[1]};
  return offset;
}

// Copies what one sequence says where the wide copies don't fit; a lie of lengths or offset is found here.
__attribute__((noinline)) void carry_out_carefully(Sequence sequence, Literals literals, Output out) {
  if (sequence.literals > literals.left()) damaged("a sequence wants more literals than there are");
  out.append(literals.at, sequence.literals);
  if (sequence.match > out.room()) damaged("the output is larger than its space");
  if (sequence.offset - 1 >= static_cast<std::size_t>(out.at - out.begin)) damaged("a match begins before the frame");
  copy_tight(out.at, sequence.offset, sequence.match);
}

// Carries out sequences one after the other. `fast_out` and `fast_literals`: up to where wide copies fit.
struct Copier {
  Output out;
  Literals literals;
  const std::byte* fast_out;
  const std::byte* fast_literals;

  Copier(const Output& to, const Literals& from) : out(to), literals(from), fast_out(to.at), fast_literals(from.at) {
    if (out.room() < copy_slack || literals.readable - literals.at < static_cast<std::ptrdiff_t>(copy_slack)) return;
    fast_out = out.end - copy_slack;
    fast_literals = std::min(literals.end, literals.readable - copy_slack);
  }

  SOLAR_ZSTD_INLINE void carry_out(const Sequence& sequence) {
    const std::size_t nbytes = sequence.literals + sequence.match;
    const std::size_t before = static_cast<std::size_t>(out.at - out.begin) + sequence.literals;
    if (fast_out - out.at < static_cast<std::ptrdiff_t>(nbytes) ||
        fast_literals - literals.at < static_cast<std::ptrdiff_t>(sequence.literals) || sequence.offset - 1 >= before)
        [[unlikely]] {
      carry_out_carefully(sequence, literals, out);
    } else {
      copy_literals(out.at, literals.at, sequence.literals);
      copy_match(out.at + sequence.literals, sequence.offset, sequence.match);
    }
    literals.at += sequence.literals;
    out.at += nbytes;
  }
};

SOLAR_ZSTD_INLINE std::uint64_t low(std::uint64_t bits, unsigned n) { return bits & ((std::uint64_t{1} << n) - 1); }

SOLAR_ZSTD_INLINE Sequence read_sequence(BackwardBits& bits, const SequenceCell& length, const SequenceCell& offset,
                                         const SequenceCell& match, std::array<std::size_t, 3>& repeats) {
  Sequence sequence;
  std::size_t value;
  const unsigned extra = length.extra + offset.extra + match.extra;
  bits.refill();
  if (extra <= 57 - 26) [[likely]] {  // of 57 bits the next three states take at most 26
    std::uint64_t packed = bits.take(extra);
    sequence.literals = length.base + low(packed, length.extra);
    packed >>= length.extra;
    sequence.match = match.base + low(packed, match.extra);
    value = offset.base + (packed >> match.extra);
  } else {
    value = offset.base + bits.take(offset.extra);
    bits.refill();
    sequence.match = match.base + bits.take(match.extra);
    sequence.literals = length.base + bits.take(length.extra);
    bits.refill();
  }
  sequence.offset = find_offset(offset.extra, value, length.base == 0, repeats);
  return sequence;
}

SOLAR_ZSTD_INLINE void run_body(BackwardBits bits, unsigned count, Literals& literals, SequenceTables& tables,
                                Output& out) {
  const SequenceCell* const lengths = tables.current[0].cells.data();
  const SequenceCell* const offsets = tables.current[1].cells.data();
  const SequenceCell* const matches = tables.current[2].cells.data();
  auto repeats = tables.repeats;
  Copier copier(out, literals);
  bits.refill();
  std::size_t length_state = bits.take(tables.current[0].log);
  std::size_t offset_state = bits.take(tables.current[1].log);
  std::size_t match_state = bits.take(tables.current[2].log);
  for (;; --count) {
    const SequenceCell& length = lengths[length_state];
    const SequenceCell& offset = offsets[offset_state];
    const SequenceCell& match = matches[match_state];
    const Sequence sequence = read_sequence(bits, length, offset, match, repeats);
    if (count == 1) {  // no states follow
      copier.carry_out(sequence);
      break;
    }
    std::uint64_t packed = bits.take(length.bits + match.bits + offset.bits);
    offset_state = offset.next + low(packed, offset.bits);
    packed >>= offset.bits;
    match_state = match.next + low(packed, match.bits);
    length_state = length.next + (packed >> match.bits);
    copier.carry_out(sequence);
  }
  if (bits.left() != 0) damaged("the sequences do not end where they must");
  tables.repeats = repeats;
  literals = copier.literals;
  out = copier.out;
}

SOLAR_ZSTD_BMI2 void run_bmi2(BackwardBits bits, unsigned count, Literals& literals, SequenceTables& tables,
                              Output& out) {
  run_body(bits, count, literals, tables, out);
}

void run_plain(BackwardBits bits, unsigned count, Literals& literals, SequenceTables& tables, Output& out) {
  run_body(bits, count, literals, tables, out);
}

unsigned read_sequence_count(Cursor& in) {
  const unsigned first = in.u8();
  if (first < 128) return first;
  if (first < 255) return ((first - 128) << 8) + in.u8();
  return in.u16() + 0x7F00u;
}

}  // namespace

void Output::append(const std::byte* from, std::size_t n) {
  if (n > room()) damaged("the output is larger than its space");
  if (n > 0) std::memcpy(at, from, n);
  at += n;
}

void decode_sequences(Bytes in, Literals literals, SequenceTables& tables, Output& out) {
  Cursor cursor(in, Kind::codec, "a sequences section");
  const unsigned count = read_sequence_count(cursor);
  if (count > 0) {
    const unsigned modes = cursor.u8();
    Bytes rest = cursor.take(cursor.left());
    tables.read(rest, modes);
    const BackwardBits bits(rest);
    has_bmi2() ? run_bmi2(bits, count, literals, tables, out) : run_plain(bits, count, literals, tables, out);
  } else if (cursor.left() != 0) {
    damaged("bytes follow an empty sequences section");
  }
  out.append(literals.at, literals.left());
}

}  // namespace solar::zstd
