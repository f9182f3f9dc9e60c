#include "solar/plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "solar/error.hpp"

using namespace solar;
using namespace solar::plan;

namespace {

std::vector<std::int64_t> steps_of(std::size_t uses, std::int64_t batch) {
  std::vector<std::int64_t> starts;
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(uses); at += batch) starts.push_back(at);
  starts.push_back(static_cast<std::int64_t>(uses));
  return starts;
}

std::shared_ptr<const Units> alike(std::int64_t items, std::int64_t per_unit, std::int64_t held) {
  return std::make_shared<const Units>(Units{items, per_unit, per_unit, held, {}, {}, {}, {}, {}, {}, {}});
}

}  // namespace

TEST_CASE("a permutation is torch's") {
  CHECK(randperm(10, 5, 0) == std::vector<Item>{1, 4, 9, 6, 3, 5, 0, 2, 8, 7});
  CHECK(randperm(1, 5, 0) == std::vector<Item>{0});
  // The numbers that an epoch before took are skipped.
  CHECK(randperm(10, 5, randperm_draws(10)) != randperm(10, 5, 0));
}

TEST_CASE("ranges of a step are merged: each item once, ascending") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<std::int64_t> first, last, starts{0};
    std::vector<Item> items;
    std::vector<std::int64_t> ends{0};
    for (unsigned step = 0; step < 5; ++step) {
      std::set<Item> wanted;
      for (unsigned range = random() % 5; range > 0; --range) {
        first.push_back(random() % 40);
        last.push_back(first.back() + static_cast<std::int64_t>(random() % 12) - 2);
        for (std::int64_t item = first.back(); item <= last.back(); ++item) wanted.insert(static_cast<Item>(item));
      }
      starts.push_back(static_cast<std::int64_t>(first.size()));
      items.insert(items.end(), wanted.begin(), wanted.end());
      ends.push_back(static_cast<std::int64_t>(items.size()));
    }
    const Uses uses = merge_ranges(first, last, starts);
    CHECK(uses.items == items);
    CHECK(uses.starts == ends);
  }
}

TEST_CASE("every use is served by one load, whose sample is there from before its first use to after its last") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const std::int64_t items = 1 + random() % 200, batch = 1 + random() % 8, ahead = random() % 3;
    const std::int64_t room = (ahead + 1) * batch + random() % 60;
    const std::int64_t burst = random() % 10, gap = random() % 6;
    Sweep sweep(alike(items, 1 + random() % 4, 1), room, burst, ahead, gap, seed % 2 == 1);
    std::vector<std::vector<Item>> uses;
    std::vector<Record> records;
    for (unsigned epoch = 0; epoch < 3; ++epoch) uses.push_back(randperm(items, seed * 3 + epoch, 0));
    for (std::size_t epoch = 3; epoch-- > 0;) {
      records.emplace(records.begin());
      const Counts counts = sweep.back(uses[epoch], steps_of(uses[epoch].size(), batch), &records.front());
      CHECK(counts.peak <= room);
      CHECK(counts.reads == static_cast<std::int64_t>(records.front().loads.size()));
    }
    Counts rest;
    const auto start = sweep.residents(rest);
    std::set<Item> memory(start.begin(), start.end());
    for (std::size_t epoch = 0; epoch < 3; ++epoch) {
      const auto starts = steps_of(uses[epoch].size(), batch);
      for (std::size_t step = 0; step + 1 < starts.size(); ++step) {
        REQUIRE(memory.size() <= static_cast<std::size_t>(room));
        for (auto use = starts[step]; use < starts[step + 1]; ++use) {
          const Item item = uses[epoch][static_cast<std::size_t>(use)];
          REQUIRE(memory.contains(item));
          if (records[epoch].last[static_cast<std::size_t>(use)]) memory.erase(item);
        }
        for (auto load = records[epoch].ends[step]; load < records[epoch].ends[step + 1]; ++load) {
          REQUIRE(memory.insert(records[epoch].loads[static_cast<std::size_t>(load)]).second);
        }
      }
    }
    CHECK(memory.empty());
  }
}

TEST_CASE("a copy of a sweep goes on as the original does") {
  const auto uses = randperm(500, 1, 0), before = randperm(500, 2, 0);
  Sweep sweep(alike(500, 1, 1), 50, 5, 1, 3);
  sweep.back(uses, steps_of(500, 4));
  Sweep copy(sweep);
  Record one, other;
  sweep.back(before, steps_of(500, 4), &one);
  copy.back(before, steps_of(500, 4), &other);
  CHECK(one.loads == other.loads);
  CHECK(one.ends == other.ends);
  CHECK(one.last == other.last);
}

TEST_CASE("too little room is an error that says how much the steps take") {
  const auto uses = randperm(100, 1, 0);
  Sweep sweep(alike(100, 1, 1), 7, 0, 1, 0);
  CHECK_THROWS_WITH_AS(sweep.back(uses, steps_of(100, 4)), "the uses of 2 steps take 8 bytes, and there is room for 7",
                       Error);
}

TEST_CASE("reading step by step joins what lies near within a step alone") {
  const Units units{10, 1, 1, 0, {}, {}, {}, {}, {}, {}, {}};
  const std::vector<Item> uses{0, 2, 9, 1, 1, 8};
  const Counts counts = direct(units, uses, std::vector<std::int64_t>{0, 3, 6}, 2);
  CHECK(counts.requests == 4);  // 0-2 and 9; 1 and 8
  CHECK(counts.bytes == 6);     // the hole at 1 is read, 1 is read once in the second step
  CHECK(counts.reads == 5);     // and a use of it again is a hit
}

TEST_CASE("each rank takes its share of a step, at home first") {
  const std::vector<Item> uses{0, 1, 2, 3, 4, 9};
  const std::vector<std::int64_t> starts{0, 6}, homes{0, 5, 10};
  CHECK(assign(uses, starts, homes, 1) == std::vector<std::int32_t>{0, 0, 0, 1, 1, 1});
  const Uses home = select(uses, starts, 3, 10);
  CHECK(home.items == std::vector<Item>{0, 1, 6});
  CHECK(home.starts == std::vector<std::int64_t>{0, 3});
}

TEST_CASE("chunks of units that lie among one another are read in the order of storage") {
  // Of three units the first chunks lie side by side, and then the second ones; the fourth was never written.
  const Units units{4, 1, 1, 1, {}, {0, 10, 20, 90}, {15, 15, 15, 0}, {}, {0, 2, 4, 6, 6}, {0, 50, 10, 55, 20, 60},
                    {10, 5, 10, 5, 10, 5}};
  const std::vector<Item> items{3, 2, 0, 1, 1};
  const std::vector<std::int64_t> starts{0, 3, 5};
  const Counts apart = direct(units, items, starts, 0);
  CHECK(apart.requests == 4 + 2);
  CHECK(apart.bytes == 30 + 15);
  CHECK(apart.reads == 3 + 1);
  CHECK(apart.peak == 3);
  const Counts joined = direct(units, items, starts, 31);
  CHECK(joined.requests == 1 + 2);
  CHECK(joined.bytes == 65 + 15);
}
