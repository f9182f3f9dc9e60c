// Extents of rows: so many one after another, of any layout.
#include "reads.hpp"

#include <numeric>
#include <stdexcept>

using namespace reads;

namespace {

using Places = std::vector<std::int64_t>;

struct Asked {
  Places rows, counts, positions;
  std::int64_t slots = 0;
};

// Any extents of so many rows, with repeats, empty ones, and some that lie in one another; in any order in `out`.
Asked any_extents(made::Random& random, std::int64_t all) {
  Asked asked;
  const std::size_t number = random.upto(12);
  for (std::size_t i = 0; i < number; ++i) {
    const auto row = static_cast<std::int64_t>(random.upto(static_cast<std::uint64_t>(all)));
    asked.rows.push_back(row);
    asked.counts.push_back(static_cast<std::int64_t>(random.upto(static_cast<std::uint64_t>(all - row))));
  }
  Places order(number);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [](auto a, auto b) { return a * 7 % 13 < b * 7 % 13; });
  asked.positions.resize(number);
  for (const std::int64_t i : order) {
    asked.positions[static_cast<std::size_t>(i)] = asked.slots;
    asked.slots += asked.counts[static_cast<std::size_t>(i)];
  }
  return asked;
}

}  // namespace

TEST_CASE("extents come whole, whatever the layout, and where they lie in the output") {
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < made::repeats(400U); ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed / 2);
      sample.source->bypass = seed % 2;
      if (seed % 4 >= 2) sample.source->map();
      sample.source->check();
      made::Random random(seed);
      const std::uint64_t row_nbytes = sample.source->row_nbytes();
      const Asked asked = any_extents(random, sample.source->part_first.back());
      Values wanted(static_cast<std::size_t>(asked.slots) * row_nbytes), out(wanted.size(), std::byte{0xAB});
      for (std::size_t i = 0; i < asked.rows.size(); ++i) {
        const auto from = static_cast<std::uint64_t>(asked.rows[i]) * row_nbytes;
        const auto to = static_cast<std::uint64_t>(asked.positions[i]) * row_nbytes;
        const std::uint64_t nbytes = static_cast<std::uint64_t>(asked.counts[i]) * row_nbytes;
        if (nbytes > 0) std::memcpy(wanted.data() + to, sample.rows.data() + from, nbytes);
      }
      Reader reader(1 + seed % 3, 8, random.one_in(2) ? 0 : 64, backend);
      REQUIRE(reader.wait(reader.submit(sample.source, asked.rows, out, asked.positions, asked.counts), 60s));
      REQUIRE(out == wanted);
      CHECK(reader.stats().rows == asked.rows.size());
    }
  }
}

TEST_CASE("extents that leave the source, the output or one another's places are refused at submit") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 8);
  Reader reader(1, 1, 0, Backend::automatic);
  Values out(5 * 8);
  const auto submit = [&](const Places& rows, const Places& counts, const Places& positions) {
    const auto ticket = reader.submit(source, rows, out, positions, counts);  // which throws past doctest's REQUIRE
    REQUIRE(reader.wait(ticket, 60s));
  };
  submit({10, 0, 4}, {0, 2, 3}, {0, 3, 0});
  CHECK_THROWS_AS(submit({6}, {5}, {0}), std::out_of_range);
  CHECK_THROWS_AS(submit({-1}, {1}, {0}), std::out_of_range);
  CHECK_THROWS_AS(submit({0}, {-1}, {0}), std::invalid_argument);
  CHECK_THROWS_AS(submit({0}, {INT64_MAX}, {0}), std::invalid_argument);
  CHECK_THROWS_AS(submit({0, 0, 0}, {INT64_MAX, INT64_MAX, INT64_MAX}, {0, 0, 0}), std::invalid_argument);
  CHECK_THROWS_AS(submit({0, 3}, {3, 2}, {0, 2}), std::invalid_argument);
  CHECK_THROWS_AS(submit({0}, {3}, {3}), std::invalid_argument);
  CHECK_THROWS_AS(submit({0}, {3}, {-1}), std::invalid_argument);
  CHECK_THROWS_AS(submit({0, 1}, {3}, {0, 1}), std::invalid_argument);
  CHECK_THROWS_AS(reader.submit(source, Places{0}, out, {}, Places{4}), std::invalid_argument);
}
