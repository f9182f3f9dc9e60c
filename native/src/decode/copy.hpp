// Copies of the dictionary coders: bytes that repeat what was written `distance` bytes before.
#pragma once

#include <algorithm>
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

// As memcpy, which does large pieces by one instruction where that is slower than registers.
inline void copy_plain(std::byte* to, const std::byte* from, std::size_t n) noexcept {
  for (; n >= 64; n -= 64, to += 64, from += 64)
    for (std::size_t i = 0; i < 64; i += 16) copy16(to + i, from + i);
  if (n) std::memcpy(to, from, n);
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

// Stores only: no load waits for the store before it. REQUIRES: as copy_wide, and distance < 8.
[[gnu::always_inline]] inline std::byte* repeat_period(std::byte* out, std::size_t distance, std::byte* end) noexcept {
  const Period period = periods[distance];
  const std::uint64_t word = (load_le<std::uint64_t>(out - distance) & period.bytes) * period.repeats;
  do {
    std::memcpy(out, &word, sizeof word);
    std::memcpy(out + period.step, &word, sizeof word);
    out += 2 * period.step;
  } while (out < end);
  return end;
}

std::byte* copy_long(std::byte* out, std::size_t distance, std::size_t length) noexcept;

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
    return end;
  }
  if (length > 64 && (distance == 1 || length > 256)) [[unlikely]] return copy_long(out, distance, length);
  if (distance < 8) return repeat_period(out, distance, end);
  do {
    copy8(out, from);
    copy8(out + 8, from + 8);
    out += 16;
    from += 16;
  } while (out < end);
  return end;
}

// What is long and repeats: each time twice as much, so that no load waits for the store before it.
[[gnu::noinline]] inline std::byte* copy_long(std::byte* out, std::size_t distance, std::size_t length) noexcept {
  std::byte* const end = out + length;
  if (distance == 1) return static_cast<std::byte*>(std::memset(out, std::to_integer<int>(out[-1]), length)) + length;
  out = copy_wide(out, distance, 32);
  for (std::size_t n = (32 + distance) / distance * distance; out < end; n *= 2) {  // whole periods, all written
    const std::size_t part = std::min(n, static_cast<std::size_t>(end - out));
    std::memcpy(out, out - n, part);
    out += part;
  }
  return end;
}

// As copy_wide, for matches that are mostly short and come from anywhere: few ways to go, for each is hard to foresee.
[[gnu::always_inline]] inline std::byte* copy_match(std::byte* out, std::size_t distance, std::size_t length) noexcept {
  std::byte* const end = out + length;
  const std::byte* from = out - distance;
  if (distance < 8) return repeat_period(out, distance, end);
  copy8(out, from);
  copy8(out + 8, from + 8);
  copy8(out + 16, from + 16);
  if (length <= 24) return end;
  if (distance >= 16) {
    for (out += 24, from += 24; out < end; out += 32, from += 32) {
      copy16(out, from);
      copy16(out + 16, from + 16);
    }
    return end;
  }
  while ((out += 24) < end) {
    from += 24;
    // This keeps the compiler from making vectors of the loop: the test whether they overlap takes longer than so short
    // a copy.
    asm("" : "+r"(from));
    copy8(out, from);
    copy8(out + 8, from + 8);
    copy8(out + 16, from + 16);
  }
  return end;
}

// The same with no more than `length` bytes of room: wide as far as that goes.
inline std::byte* copy_tight(std::byte* out, std::size_t distance, std::size_t length) noexcept {
  if (length > copy_slack) {
    const std::size_t before = length - copy_slack + distance;  // bytes that repeat, behind the last ones
    out = copy_wide(out, distance, length - copy_slack);
    length = copy_slack;
    const std::size_t far = distance < copy_slack ? (copy_slack + distance - 1) / distance * distance : distance;
    if (far <= before) {
      copy16(out, out - far);
      copy16(out + 16, out + 16 - far);
      return out + copy_slack;
    }
  }
  for (; length; --length, ++out) *out = *(out - distance);
  return out;
}

}  // namespace solar
