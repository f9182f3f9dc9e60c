// Sums of Fletcher's kind: sum1 adds the words, sum2 adds sum1 after each word.
//
// Both are taken over blocks so short that 32 bits hold them: with `first` the sum before a block of n words w,
//   sum1 = first + sum(w[i]),  sum2 += n * first + sum((n - i) * w[i]).
#include "checksum.hpp"

#include <algorithm>
#include <array>

#include "solar/decode.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace solar {
namespace {

constexpr std::uint32_t adler_modulus = 65521;
// The largest multiple of 32 bytes whose sums cannot overflow if they begin reduced.
constexpr std::size_t adler_block = 5536;

struct Sums {
  std::uint32_t first, second;
};

Sums add_bytes(Sums s, Bytes in) {
  for (const std::byte b : in) {
    s.first += std::to_integer<std::uint32_t>(b);
    s.second += s.first;
  }
  return s;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] std::uint32_t total(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1))));
}

// REQUIRES: in.size() is a multiple of 32, at most adler_block.
[[gnu::target("avx2")]] Sums add_bytes_avx2(Sums s, Bytes in) {
  const __m256i zero = _mm256_setzero_si256(), ones = _mm256_set1_epi16(1);
  const __m256i weights = _mm256_setr_epi8(32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14,
                                           13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1);
  __m256i first = zero, before = zero, second = zero;
  for (std::size_t i = 0; i < in.size(); i += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in.data() + i));
    before = _mm256_add_epi32(before, first);
    first = _mm256_add_epi32(first, _mm256_sad_epu8(bytes, zero));
    second = _mm256_add_epi32(second, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, weights), ones));
  }
  s.second += static_cast<std::uint32_t>(in.size()) * s.first + 32 * total(before) + total(second);
  s.first += total(first);
  return s;
}
#endif

Sums add_block(Sums s, Bytes in) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) {
    const std::size_t whole = in.size() / 32 * 32;
    s = add_bytes_avx2(s, in.first(whole));
    in = in.subspan(whole);
  }
#endif
  return add_bytes(s, in);
}

// 65536 is 1 modulo 65535: the halves are added. Only zero becomes zero.
std::uint64_t fold(std::uint64_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

// Slicing by 8: table k gives what a byte does to the sum when k bytes follow it.
using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables crc_tables(std::uint32_t polynomial) {
  CrcTables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t sum = i;
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ ((sum & 1) != 0 ? polynomial : 0);
    tables[0][i] = sum;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t i = 0; i < 256; ++i) tables[k][i] = tables[k - 1][i] >> 8 ^ tables[0][tables[k - 1][i] & 255];
  return tables;
}

std::uint32_t sum_by_tables(Bytes in, const CrcTables& tables) {
  std::uint32_t sum = 0xffffffff;
  for (; in.size() >= 8; in = in.subspan(8)) {
    const std::uint32_t low = load_le<std::uint32_t>(in.data()) ^ sum;
    const std::uint32_t high = load_le<std::uint32_t>(in.data() + 4);
    sum = 0;
    for (unsigned k = 0; k < 4; ++k) {
      sum ^= tables[7 - k][low >> 8 * k & 255] ^ tables[3 - k][high >> 8 * k & 255];
    }
  }
  for (const std::byte b : in) sum = sum >> 8 ^ tables[0][(sum ^ std::to_integer<std::uint32_t>(b)) & 255];
  return ~sum;
}

constexpr std::size_t fletcher_block = 720;  // bytes, 360 words: 360 * 361 / 2 * 65535 fits 32 bits

}  // namespace

std::uint32_t adler32(std::uint32_t sum, Bytes in) {
  Sums s{sum & 0xffff, sum >> 16};
  while (!in.empty()) {
    const Bytes block = in.first(std::min(in.size(), adler_block));
    s = add_block(s, block);
    s.first %= adler_modulus;
    s.second %= adler_modulus;
    in = in.subspan(block.size());
  }
  return s.second << 16 | s.first;
}

std::uint32_t crc32(Bytes in) {
  static constexpr CrcTables tables = crc_tables(0xEDB88320);
  return sum_by_tables(in, tables);
}

std::uint32_t crc32c(Bytes in) {
  static constexpr CrcTables tables = crc_tables(0x82F63B78);
  return sum_by_tables(in, tables);
}

Bytes check_crc32c(Bytes in) {
  if (in.size() < 4) throw Error(Kind::codec, "the checksum is cut short");
  const Bytes before = in.first(in.size() - 4);
  if (load_le<std::uint32_t>(in.data() + before.size()) != crc32c(before))
    throw Error(Kind::codec, "the checksum is wrong");
  return before;
}

std::uint32_t fletcher32(Bytes in) {
  std::uint64_t first = 0, second = 0;
  for (std::size_t at = 0; at < in.size();) {
    const std::size_t nbytes = std::min(fletcher_block, in.size() - at) / 2 * 2;
    if (nbytes == 0) {  // a last odd byte is the high half of a word
      first += std::to_integer<std::uint64_t>(in[at]) << 8;
      second += first;
      break;
    }
    const auto n = static_cast<std::uint32_t>(nbytes / 2);
    std::uint32_t sum = 0, weighted = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t word = __builtin_bswap16(load_le<std::uint16_t>(in.data() + at + 2 * i));
      sum += word;
      weighted += (n - i) * word;
    }
    second = fold(second + n * first + weighted);
    first = fold(first + sum);
    at += nbytes;
  }
  return static_cast<std::uint32_t>(fold(second) << 16 | fold(first));
}

Bytes check_fletcher32(Bytes in) {
  if (in.size() < 4) throw Error(Kind::codec, "the chunk is shorter than its checksum");
  const Bytes data = in.first(in.size() - 4);
  const std::uint32_t stored = load_le<std::uint32_t>(in.data() + data.size()), sum = fletcher32(data);
  // Up to 1.6.2 HDF5 on little-endian machines summed words with their bytes exchanged.
  const std::uint32_t exchanged = (sum & 0x00ff00ff) << 8 | (sum >> 8 & 0x00ff00ff);
  if (stored != sum && stored != exchanged) throw Error(Kind::codec, "the Fletcher-32 checksum is wrong");
  return data;
}

std::size_t decode_fletcher32(Bytes in, MutableBytes out) {
  const Bytes data = check_fletcher32(in);
  if (data.size() > out.size()) throw Error(Kind::codec, "more than expected");
  if (!data.empty()) std::memcpy(out.data(), data.data(), data.size());
  return data.size();
}

}  // namespace solar
