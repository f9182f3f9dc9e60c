#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "solar/plan.hpp"

namespace solar::plan {

// From here on torch takes 64-bit numbers, and builds the permutation from the inside out.
static constexpr std::int64_t large = std::numeric_limits<std::uint32_t>::max() / 20;

// x % by, by a division of doubles, which processors do in less time. It is exact: a quotient of two such numbers that
// is no whole number lies 2^-32 of itself or more below the next one.
static std::uint32_t remainder(std::uint32_t x, std::uint32_t by) {
  return x - static_cast<std::uint32_t>(static_cast<double>(x) / static_cast<double>(by)) * by;
}

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
    // What the draws say does not depend on what was swapped: so many places are asked of memory side by side.
    std::array<std::uint32_t, 64> other;
    const auto count = static_cast<std::uint32_t>(n);
    for (std::uint32_t first = 0; first + 1 < count;) {
      const std::uint32_t here = std::min<std::uint32_t>(other.size(), count - 1 - first);
      for (std::uint32_t k = 0; k < here; ++k) other[k] = static_cast<std::uint32_t>(random());
      for (std::uint32_t k = 0; k < here; ++k) {
        const std::uint32_t i = first + k;
        other[k] = i + remainder(other[k], count - i);
        __builtin_prefetch(&order[other[k]], 1);
      }
      for (std::uint32_t k = 0; k < here; ++k) std::swap(order[first + k], order[other[k]]);
      first += here;
    }
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

}  // namespace solar::plan
