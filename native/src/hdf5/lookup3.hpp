// Bob Jenkins' lookup3 hash, the checksum of HDF5's newer metadata. Read byte by byte: no alignment is asked for.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "solar/bytes.hpp"

namespace solar {

inline std::uint32_t lookup3(Bytes bytes, std::uint32_t seed = 0) {
  std::uint32_t a = 0xdeadbeefu + static_cast<std::uint32_t>(bytes.size()) + seed;
  std::uint32_t b = a;
  std::uint32_t c = a;
  if (bytes.empty()) return c;

  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  while (left > 12) {
    a += load_le<std::uint32_t>(p);
    b += load_le<std::uint32_t>(p + 4);
    c += load_le<std::uint32_t>(p + 8);
    a = (a - c) ^ std::rotl(c, 4), c += b;
    b = (b - a) ^ std::rotl(a, 6), a += c;
    c = (c - b) ^ std::rotl(b, 8), b += a;
    a = (a - c) ^ std::rotl(c, 16), c += b;
    b = (b - a) ^ std::rotl(a, 19), a += c;
    c = (c - b) ^ std::rotl(b, 4), b += a;
    p += 12;
    left -= 12;
  }

  std::uint32_t last[3] = {0, 0, 0};  // the rest, 1 to 12 bytes, as if followed by zeros
  std::memcpy(last, p, left);
  a += last[0], b += last[1], c += last[2];
  c = (c ^ b) - std::rotl(b, 14);
  a = (a ^ c) - std::rotl(c, 11);
  b = (b ^ a) - std::rotl(a, 25);
  c = (c ^ b) - std::rotl(b, 16);
  a = (a ^ c) - std::rotl(c, 4);
  b = (b ^ a) - std::rotl(a, 14);
  c = (c ^ b) - std::rotl(b, 24);
  return c;
}

// Whether that is the sum of `bytes`. In the fuzzers' build any is, or none of their inputs would come behind it.
inline bool has_sum(Bytes bytes, std::uint32_t stored) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  static_cast<void>(stored);
  return !bytes.empty();
#else
  return lookup3(bytes) == stored;
#endif
}

}  // namespace solar
