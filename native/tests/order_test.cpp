// Orders by functions: tables of weights, shuffles that run on, mixtures within one of their shares.

#include "solar/order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

using namespace solar::plan;

TEST_CASE("draws keep to weights of nothing, of all, and of very little") {
  for (const std::vector<double>& weights : {std::vector<double>{0, 3, 0}, {5}, {1, 1e-300}, {1e307, 1e307, 0}}) {
    std::vector<std::int64_t> out(1000);
    draw_by(alias_table(weights), 7, 3, 0, out);
    for (const std::int64_t one : out) CHECK(weights[static_cast<std::size_t>(one)] > 1e-299);
  }
}

TEST_CASE("draws may begin anywhere") {
  const std::vector<double> weights{1, 2, 3, 4, 0, 9};
  const auto table = alias_table(weights);
  std::vector<std::int64_t> whole(300), part(100);
  draw_by(table, 1, 2, 0, whole);
  draw_by(table, 1, 2, 130, part);
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 130));
}

TEST_CASE("a shuffle has each sample once, and the next one others in front") {
  for (const std::int64_t size : {1, 2, 3, 11, 12, 13, 100, 4096, 4097, 10007}) {
    std::vector<std::int64_t> twice(static_cast<std::size_t>(2 * size)), late(twice.size());
    shuffled(5, size, 0, twice);
    std::vector<std::int64_t> turns(twice.size());
    std::iota(turns.begin(), turns.end(), 0);
    const std::vector<std::int32_t> sources(turns.size(), 0);
    shuffled_of(5, sources, turns, std::vector<std::int64_t>{size}, std::vector<std::int64_t>{100}, late);
    for (auto* made : {&twice, &late}) {
      for (const std::int64_t begin : {std::int64_t{0}, size}) {
        std::vector<std::int64_t> once(made->begin() + begin, made->begin() + begin + size);
        std::sort(once.begin(), once.end());
        for (std::int64_t k = 0; k < size; ++k) REQUIRE(once[static_cast<std::size_t>(k)] == k + (made == &late) * 100);
      }
    }
    if (size > 50) CHECK(!std::equal(twice.begin(), twice.begin() + size, twice.begin() + size));
  }
}

TEST_CASE("jobs of a study have the same samples in each stretch, and each once") {
  for (const std::int64_t size : {0, 1, 2, 100, 1001}) {
    for (const std::int64_t length : {1, 7, 1001, 5000}) {
      std::vector<std::int32_t> one = study_order(size, 7, 0, 3, length), two = study_order(size, 7, 1, 3, length);
      REQUIRE(one.size() == static_cast<std::size_t>(size));
      if (size > 100) CHECK((one != two) == (length > 1));
      for (std::int64_t begin = 0; begin < size; begin += length) {
        const std::int64_t end = std::min(size, begin + length);
        std::sort(one.begin() + begin, one.begin() + end);
        std::sort(two.begin() + begin, two.begin() + end);
      }
      CHECK(one == two);
      std::sort(one.begin(), one.end());
      for (std::int64_t k = 0; k < size; ++k) REQUIRE(one[static_cast<std::size_t>(k)] == k);
    }
  }
}

TEST_CASE("a mixture is within one of its shares at every position") {
  for (const std::vector<std::int64_t>& shares :
       {std::vector<std::int64_t>{1}, {7, 3}, {1, 1, 1, 1}, {90, 5, 5}, {1000, 1, 1, 333, 7}}) {
    const std::int64_t sum = std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), length = 4 * sum;
    const auto order = mixed(shares, length, 9);
    std::vector<std::int64_t> had(shares.size());
    for (std::int64_t t = 1; t <= length; ++t) {
      ++had[static_cast<std::size_t>(order[static_cast<std::size_t>(t - 1)])];
      for (std::size_t s = 0; s < shares.size(); ++s) REQUIRE(std::abs(had[s] * sum - shares[s] * t) < sum);
    }
  }
}

TEST_CASE("seeds are those of numpy's SeedSequence") {
  const std::vector<std::uint32_t> words{3, 1, 0}, more{1, 2, 3, 4, 5};
  std::vector<std::uint64_t> out(2);
  solar::plan::seeds(words, std::vector<std::int64_t>{77}, out);
  CHECK(out == std::vector<std::uint64_t>{0xABE8D5A01E554FAE, 0x5DBC97F019B1701D});
  solar::plan::seeds(more, std::vector<std::int64_t>{6}, out);  // more words than its pool has
  CHECK(out == std::vector<std::uint64_t>{0xEBCD001D1D1BCA21, 0xCFEA83A4B202608B});
  out.resize(4);
  solar::plan::seeds(std::vector<std::uint32_t>{5}, std::vector<std::int64_t>{(std::int64_t{1} << 40) + 7, 0}, out);
  CHECK(out[0] == 0x96680B70AC788AD0);
  CHECK(out[1] == 0xAA8432E524C9FCA6);
}
