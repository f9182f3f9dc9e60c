// Copies of the dictionary coders: bytes that repeat what was written `distance` bytes before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "solar/bytes.hpp"

namespace solar {

// How far behind its end a wide copy may write.
inline constexpr std::size_t copy_slack = 32;

inline void copy16(std::byte* to, const std::byte* from) noexcept {
  std::byte block[16];
  std::memcpy(block, from, 16);
  std::memcpy(to, block, 16);
}

inline void copy8(std::byte* to, const std::byte* from) noexcept {
  const std::uint64_t block = load_le<std::uint64_t>(from);
  std::memcpy(to, &block, sizeof block);
}

// For distances below 8: which bytes repeat, what repeats them over a word, and how far the next such word is.
struct Period {
  std::uint64_t bytes, repeats;
  std::size_t step;
};
inline constexpr Period periods[8] = {
    {0, 0, 8},
    {0xff, 0x0101010101010101, 8},
    {0xffff, 0x0001000100010001, 8},
    {0xffffff, 0x0001000001000001, 6},
    {0xffffffff, 0x0000000100000001, 8},
    {0xffffffffff, 0x0000010000000001, 5},
    {0xffffffffffff, 0x0001000000000001, 6},
    {0xffffffffffffff, 0x0100000000000001, 7},
};

// Runs of zeros are long, and a call that fills memory has wider stores than all machines have.
inline std::byte* repeat_word(std::byte* out, std::uint64_t word, std::byte* end) noexcept {
  if (word == (word & 0xff) * 0x0101010101010101) {
    std::memset(out, static_cast<int>(word & 0xff), static_cast<std::size_t>(end - out));
    return end;
  }
  const std::uint64_t four[4] = {word, word, word, word};
  for (; out < end; out += sizeof four) std::memcpy(out, four, sizeof four);
  return end;
}

// REQUIRES: length >= 1, `distance` >= 1 bytes before `out`, length + copy_slack bytes of room from `out`.
inline std::byte* copy_wide(std::byte* out, std::size_t distance, std::size_t length) noexcept {
  const std::byte* from = out - distance;
  std::byte* const end = out + length;
  if (distance >= 16) {
    do {
      copy16(out, from);
      copy16(out + 16, from + 16);
      out += 32;
      from += 32;
    } while (out < end);
  } else if (distance >= 8) {
    do {
      copy8(out, from);
      copy8(out + 8, from + 8);
      out += 16;
      from += 16;
    } while (out < end);
  } else {  // stores only: no load waits for the store before it
    const Period period = periods[distance];
    const std::uint64_t word = (load_le<std::uint64_t>(from) & period.bytes) * period.repeats;
    if (period.step == 8 && length > 64) return repeat_word(out, word, end);
    do {
      std::memcpy(out, &word, sizeof word);
      std::memcpy(out + period.step, &word, sizeof word);
      out += 2 * period.step;
    } while (out < end);
  }
  return end;
}

// The same with no more than `length` bytes of room: wide as far as that goes.
inline std::byte* copy_tight(std::byte* out, std::size_t distance, std::size_t length) noexcept {
  if (length > copy_slack) {
    out = copy_wide(out, distance, length - copy_slack);
    length = copy_slack;
  }
  for (; length; --length, ++out) *out = *(out - distance);
  return out;
}

}  // namespace solar
