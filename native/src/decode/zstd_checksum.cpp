#include "zstd_checksum.hpp"

namespace solar::zstd {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5;

std::uint64_t round(std::uint64_t sum, std::uint64_t word) { return std::rotl(sum + word * kPrime2, 31) * kPrime1; }
std::uint64_t merge(std::uint64_t sum, std::uint64_t lane) { return (sum ^ round(0, lane)) * kPrime1 + kPrime4; }

}  // namespace

std::uint64_t xxhash64(Bytes bytes) noexcept {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t sum = kPrime5;
  if (left >= 32) {
    std::uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = 0 - kPrime1;
    for (; left >= 32; at += 32, left -= 32) {
      a = round(a, load_le<std::uint64_t>(at));
      b = round(b, load_le<std::uint64_t>(at + 8));
      c = round(c, load_le<std::uint64_t>(at + 16));
      d = round(d, load_le<std::uint64_t>(at + 24));
    }
    sum = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    sum = merge(merge(merge(merge(sum, a), b), c), d);
  }
  sum += bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    sum = std::rotl(sum ^ round(0, load_le<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    sum = std::rotl(sum ^ load_le<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
    left -= 4;
  }
  for (; left > 0; ++at, --left) sum = std::rotl(sum ^ std::to_integer<std::uint64_t>(*at) * kPrime5, 11) * kPrime1;
  sum = (sum ^ sum >> 33) * kPrime2;
  sum = (sum ^ sum >> 29) * kPrime3;
  return sum ^ sum >> 32;
}

}  // namespace solar::zstd
