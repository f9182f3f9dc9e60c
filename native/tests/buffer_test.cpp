#include "solar/buffer.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

#include "solar/error.hpp"

using namespace solar;

TEST_CASE("a buffer gives each key pages of its own, and never more than it has") {
  std::mt19937 random(1);
  Buffer buffer(50, 40, 16);
  std::map<std::size_t, std::size_t> held;
  std::size_t pages = 0, peak = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::size_t key = random() % 50;
    CHECK(buffer.holds(key) == held.contains(key));
    if (held.contains(key)) {
      for (std::size_t i = 0; i < held[key]; ++i) CHECK(*buffer.page(key, i) == static_cast<std::byte>(key * 5 + i));
      buffer.drop(key);
      pages -= held[key];
      held.erase(key);
    } else if (const std::size_t more = random() % 6; pages + more > 40) {
      CHECK_THROWS_AS(buffer.take(key, more), Error);
    } else {
      buffer.take(key, more);
      CHECK_THROWS_AS(buffer.take(key, 0), Error);
      for (std::size_t i = 0; i < more; ++i) *buffer.page(key, i) = static_cast<std::byte>(key * 5 + i);
      held[key] = more;
      pages += more;
      peak = std::max(peak, pages);
    }
    CHECK(buffer.held_nbytes() == pages * 16);
    CHECK(buffer.peak_nbytes() == peak * 16);
  }
}

TEST_CASE("the bytes of a key are met page by page") {
  Buffer buffer(3, 8, 10);
  buffer.take(0, 2);
  buffer.take(1, 3);
  buffer.drop(0);
  buffer.take(2, 4);
  std::vector<std::pair<std::byte*, std::uint64_t>> runs;
  buffer.each_run(2, 7, 25, [&](std::byte* at, std::uint64_t nbytes) { runs.emplace_back(at, nbytes); });
  CHECK(runs == std::vector<std::pair<std::byte*, std::uint64_t>>{{buffer.page(2, 0) + 7, 3},
                                                                   {buffer.page(2, 1), 10},
                                                                   {buffer.page(2, 2), 10},
                                                                   {buffer.page(2, 3), 2}});
}
