#include <array>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "solar/plan.hpp"

namespace solar::plan {

namespace {

// From here on torch takes 64-bit numbers, and builds the permutation from the inside out.
constexpr std::int64_t large = std::numeric_limits<std::uint32_t>::max() / 20;

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finaliser
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Six rounds over two halves of `bits` each.
class Feistel {
 public:
  Feistel(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) {
    while ((std::uint64_t{1} << (2 * bits_)) < n) ++bits_;
    for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = mix(mix(seed + 0x9E3779B97F4A7C15u * (i + 1)) ^ epoch);
  }
  std::uint64_t operator()(std::uint64_t value) const {
    std::uint64_t left = value >> bits_, right = value & mask();
    for (const std::uint64_t key : keys_) left = std::exchange(right, left ^ (mix(right ^ key) & mask()));
    return left << bits_ | right;
  }
  std::uint64_t back(std::uint64_t value) const {
    std::uint64_t left = value >> bits_, right = value & mask();
    for (std::size_t i = keys_.size(); i-- > 0;) right = std::exchange(left, right ^ (mix(left ^ keys_[i]) & mask()));
    return left << bits_ | right;
  }

 private:
  std::uint64_t mask() const { return (std::uint64_t{1} << bits_) - 1; }
  unsigned bits_ = 1;
  std::array<std::uint64_t, 6> keys_;
};

}  // namespace

std::uint64_t randperm_draws(std::int64_t n) {
  if (n < large) return static_cast<std::uint64_t>(n > 0 ? n - 1 : 0);
  return 2 * static_cast<std::uint64_t>(n);
}

std::vector<Item> randperm(std::int64_t n, std::uint64_t seed, std::uint64_t skipped) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  random.discard(skipped);
  std::vector<Item> order(static_cast<std::size_t>(n));
  if (n < large) {
    std::iota(order.begin(), order.end(), 0);
    const auto count = static_cast<std::uint32_t>(n);
    for (std::uint32_t i = 0; i + 1 < count; ++i) std::swap(order[i], order[i + random() % (count - i)]);
    return order;
  }
  for (std::uint64_t i = 0; i < order.size(); ++i) {
    const std::uint64_t high = random(), low = random();
    const std::uint64_t other = (high << 32 | low) % (i + 1);
    order[i] = order[other];
    order[other] = static_cast<Item>(i);
  }
  return order;
}

void keyed(std::span<std::int64_t> values, std::int64_t n, std::uint64_t seed, std::uint64_t epoch, bool inverse) {
  const auto limit = static_cast<std::uint64_t>(n);
  const Feistel shuffle(limit, seed, epoch);
  for (std::int64_t& value : values) {
    auto walked = static_cast<std::uint64_t>(value);
    do {
      walked = inverse ? shuffle.back(walked) : shuffle(walked);
    } while (walked >= limit);
    value = static_cast<std::int64_t>(walked);
  }
}

}  // namespace solar::plan
