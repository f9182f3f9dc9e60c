// Four lanes of multiplications, whose waits overlap: several bytes in each cycle. It is for mistakes, not for enemies.
#include "digest.hpp"

#include <array>
#include <cstring>

namespace solar::run {

namespace {

constexpr std::uint64_t first = 0x9E3779B97F4A7C15;  // of the golden ratio; the others of roots of 2, 3 and 5
constexpr std::array<std::uint64_t, 4> odd{first, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B};

std::uint64_t stirred(std::uint64_t lane, std::uint64_t word, std::uint64_t by) noexcept {
  lane = (lane ^ word) * by;
  return lane ^ (lane >> 32);
}

std::uint64_t digest_of(std::uint64_t before, std::span<const std::byte> bytes) noexcept {
  std::array<std::uint64_t, 4> lanes = odd, words;
  std::size_t at = 0;
  for (; at + sizeof words <= bytes.size(); at += sizeof words) {
    std::memcpy(words.data(), bytes.data() + at, sizeof words);
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = stirred(lanes[i], words[i], odd[i]);
  }
  words = {};
  if (at < bytes.size()) std::memcpy(words.data(), bytes.data() + at, bytes.size() - at);
  for (std::size_t i = 0; i < 4; ++i) before = chained(before, stirred(lanes[i], words[i], odd[i]));
  return chained(before, bytes.size());
}

}  // namespace

std::uint64_t chained(std::uint64_t before, std::uint64_t digest) noexcept {
  return stirred(stirred(before, digest, odd[1]), digest >> 32, odd[2]);
}

std::uint64_t digest(std::size_t steps, const std::deque<PartRun>& parts, const std::vector<Run::Epoch>& epochs) {
  std::uint64_t all = chained(first, steps);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Run::Part& part = parts[p].part();
    if (part.direct && part.pages == 0) continue;
    for (const std::uint64_t fact : {std::uint64_t{p}, std::uint64_t{part.pages}, std::uint64_t{part.page_nbytes},
                                     std::uint64_t{part.stored}, std::uint64_t{part.direct}, part.ahead}) {
      all = chained(all, fact);
    }
    const Run::Epoch& epoch = epochs[p];
    const auto add = [&all](const auto& array) { all = digest_of(all, std::as_bytes(array)); };
    add(epoch.rows);
    add(epoch.starts);
    add(epoch.last);
    add(epoch.loads);
    add(epoch.ends);
    add(epoch.start);
    add(epoch.start_ends);
    add(epoch.start_due);
  }
  return all;
}

}  // namespace solar::run
