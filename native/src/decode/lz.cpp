// Dictionary coders without entropy coding: LZ4 blocks, HDF5's LZ4 container, LZF.
#include <algorithm>

#include "copy.hpp"
#include "damaged.hpp"
#include "solar/decode.hpp"

namespace solar {
namespace {


// Both sides of a sequence decoder; every step checks both.
struct Sides {
  const std::byte* in;
  const std::byte* in_end;
  std::byte* out;
  std::byte* out_begin;
  std::byte* out_end;

  Sides(Bytes from, MutableBytes to)
      : in(from.data()), in_end(in + from.size()), out(to.data()), out_begin(out), out_end(out + to.size()) {}

  std::size_t input() const { return static_cast<std::size_t>(in_end - in); }
  std::size_t room() const { return static_cast<std::size_t>(out_end - out); }
  std::size_t written() const { return static_cast<std::size_t>(out - out_begin); }

  std::size_t byte() {
    if (in == in_end) damaged("the block is cut short");
    return std::to_integer<std::size_t>(*in++);
  }

  void literals(std::size_t n) {
    if (n <= 32 && input() >= 32 && room() >= 32) {
      copy16(out, in);
      copy16(out + 16, in + 16);
    } else {
      if (n > input()) damaged("the block is cut short");
      if (n > room()) damaged("more than expected");
      if (n) std::memcpy(out, in, n);
    }
    in += n;
    out += n;
  }

  void match(std::size_t distance, std::size_t length) {
    if (distance == 0 || distance > written()) damaged("a distance reaches before the beginning");
    if (length > room()) damaged("more than expected");
    out = room() - length >= copy_slack ? copy_wide(out, distance, length) : copy_tight(out, distance, length);
  }
};

// A length of LZ4: 15 in the token goes on in bytes, 255 in each but the last.
[[gnu::always_inline]] inline std::size_t long_length(Sides& s, std::size_t n) {
  if (n < 15) return n;
  for (; s.input() >= 8 && load_le<std::uint64_t>(s.in) == ~std::uint64_t{0}; s.in += 8) n += 8 * 255;
  std::size_t next;
  do {
    next = s.byte();
    n += next;
  } while (next == 255);
  return n;
}

// What a sequence may take of the input while its lengths are in its token and what it may take of the output,
// copies that write beyond their end included.
constexpr std::size_t short_input = 1 + 16 + 2, short_output = 14 + 18 + copy_slack;

// Decodes sequences while there is such room on both sides: no length is checked then that a token can hold.
void run_lz4(Sides& sides) {
  if (sides.input() < short_input || sides.room() < short_output) return;
  Sides s = sides;  // in registers
  const std::byte *const last_in = s.in_end - short_input, *const last_out = s.out_end - short_output;
  while (s.in <= last_in && s.out <= last_out) {
    sides.in = s.in, sides.out = s.out;  // where it goes on slowly
    const auto token = std::to_integer<std::size_t>(*s.in++);
    std::size_t literals = token >> 4, length = (token & 15) + 4;
    if (literals < 15) [[likely]] {
      copy16(s.out, s.in);
    } else {
      literals = long_length(s, literals);
      if (s.input() < literals + copy_slack || s.room() < literals + short_output) return;
      if (literals > 128) {
        std::memcpy(s.out, s.in, literals);
      } else {
        for (std::size_t i = 0; i < literals; i += 32) {
          copy16(s.out + i, s.in + i);
          copy16(s.out + i + 16, s.in + i + 16);
        }
      }
    }
    s.in += literals;
    s.out += literals;
    const std::size_t distance = load_le<std::uint16_t>(s.in);
    s.in += 2;
    if (distance - 1 >= s.written()) damaged("a distance reaches before the beginning");
    if (length < 19 && distance >= 8) [[likely]] {
      const std::byte* const from = s.out - distance;
      copy8(s.out, from);
      copy8(s.out + 8, from + 8);
      std::memcpy(s.out + 16, from + 16, 2);
      s.out += length;
      continue;
    }
    if (length == 19) length = long_length(s, 15) + 4;
    if (s.room() < length + copy_slack) return;
    s.out = copy_wide(s.out, distance, length);
  }
  sides = s;
}

}  // namespace

std::size_t decode_lz4_block(Bytes in, MutableBytes out) {
  Sides s(in, out);
  for (;;) {
    run_lz4(s);
    const std::size_t token = s.byte();
    s.literals(long_length(s, token >> 4));
    if (s.in == s.in_end) return s.written();  // only the last sequence has no match
    if (s.input() < 2) damaged("the block is cut short");
    const std::size_t distance = load_le<std::uint16_t>(s.in);
    s.in += 2;
    s.match(distance, long_length(s, token & 15) + 4);
  }
}

std::size_t decode_h5lz4(Bytes in, MutableBytes out) {
  Cursor cursor(in, Kind::codec, "the container");
  const std::uint64_t nbytes = load_be64(cursor.take(8).data());
  const std::uint64_t block = load_be32(cursor.take(4).data());
  if (nbytes > out.size()) damaged("more than expected");
  if (block == 0 && nbytes > 0) damaged("the block size is zero");
  for (std::uint64_t done = 0; done < nbytes;) {
    const std::uint64_t part = std::min(block, nbytes - done);
    const Bytes stored = cursor.take(load_be32(cursor.take(4).data()));
    if (stored.size() == part) {
      std::memcpy(out.data() + done, stored.data(), part);
    } else if (decode_lz4_block(stored, out.subspan(done, part)) != part) {
      damaged("a block is shorter than announced");
    }
    done += part;
  }
  return nbytes;
}

std::size_t decode_lzf(Bytes in, MutableBytes out) {
  Sides s(in, out);
  while (s.in < s.in_end) {
    const std::size_t control = s.byte();
    if (control < 32) {
      s.literals(control + 1);
      continue;
    }
    std::size_t length = control >> 5;
    if (length == 7) length += s.byte();
    const std::size_t distance = ((control & 31) << 8) + s.byte() + 1;
    s.match(distance, length + 2);
  }
  return s.written();
}

}  // namespace solar
