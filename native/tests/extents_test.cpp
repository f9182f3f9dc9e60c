// Samples of several rows: what each is, what a Run makes of a plan of them, and arrays that make no sense.
#include "plans.hpp"
#include "solar/run.hpp"

using namespace reads;

namespace {

// Places 3, 5, 7 in rows 0 to 9, and 12 in rows 10 to 13; two fields: rows -1 and 0, and row 9, held within the stretch.
Extents two_stretches() { return {{0, 3, 4}, {3, 12}, {0, 10}, {10, 14}, 2, {-1, 0, 9}, {2, 1}}; }

std::vector<std::int64_t> rows_of(const Extents& extents, std::int64_t sample) {
  std::vector<std::int64_t> rows;
  for (std::size_t k = 0; k < extents.slots(); ++k) rows.push_back(extents.row(extents.place(sample), k));
  return rows;
}

}  // namespace

TEST_CASE("a sample's rows lie about its place and never leave its stretch") {
  const Extents extents = two_stretches();
  extents.check(14);
  CHECK(rows_of(extents, 0) == std::vector<std::int64_t>{2, 3, 9});
  CHECK(rows_of(extents, 2) == std::vector<std::int64_t>{6, 7, 9});
  CHECK(rows_of(extents, 3) == std::vector<std::int64_t>{11, 12, 13});
  std::vector<std::int64_t> slots;
  extents.each_slot(2, 5, [&](std::size_t, std::int64_t slot) { slots.push_back(slot); });
  extents.each_slot(-1, 5, [&](std::size_t, std::int64_t slot) { slots.push_back(slot); });
  CHECK(slots == std::vector<std::int64_t>{4, 5, 12, -1, -1, -1});
}

TEST_CASE("extents that do not fit each other, or the rows, are refused") {
  const auto wrong = [](auto change, std::int64_t rows = 14) {
    Extents extents = two_stretches();
    change(extents);
    CHECK_THROWS_AS(extents.check(rows), std::invalid_argument);
  };
  wrong([](Extents&) {}, 13);
  wrong([](Extents& e) { e.first = {0, 3}; });
  wrong([](Extents& e) { e.first = {0, 5, 4}; });
  wrong([](Extents& e) { e.first = {0, 5, 6}; });  // its last place would be row 9 + 2
  wrong([](Extents& e) { e.first = {0, 3, INT64_MAX}; });
  wrong([](Extents& e) { e.first = {}; });
  wrong([](Extents& e) { e.anchor[1] = 14; });
  wrong([](Extents& e) { e.low[1] = -1; });
  wrong([](Extents& e) { e.high[0] = 3; });
  wrong([](Extents& e) { e.every = 0; });
  wrong([](Extents& e) { e.steps = {}, e.sizes = {}; });
  wrong([](Extents& e) { e.steps[0] = INT64_MIN; });
  wrong([](Extents& e) { e.sizes = {3, 1}; });
  wrong([](Extents& e) { e.sizes = {INT64_MAX, INT64_MAX}; });
}

TEST_CASE("a run puts samples of several rows together, field after field, and drops each row after its last use") {
  const Folder folder;
  const auto source = made::contiguous(folder, 14, 100);
  Reader reader(2, 8, 64, Backend::automatic);
  const auto extents = std::make_shared<const Extents>(two_stretches());
  for (const bool direct : {true, false}) {
    CAPTURE(direct);
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    run.part({source, 0, 14, 100, false, direct, 0, 0, extents});
    Made made;
    made.rows = {3, 0, 2};  // samples
    made.starts = {0, 2, 3};
    made.sizes = {2, 1};
    made.last = {0b01011111, 1};  // of the first step all but row 9; of the second rows 6 and 9
    made.ends = {0, 0, 0};
    if (!direct) {
      made.start = {2, 3, 6, 7, 9, 11, 12, 13};
      made.start_ends = {8};
      made.start_due = {0};
    }
    append(run, made);
    for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{11, 12, 2, 3, 13, 9}, {6, 7, 9}}) {
      Run::Batch batch;
      REQUIRE(run.take(60s, batch));
      const auto expected = read_rows(reader, source, rows);
      const MutableBytes bytes = batch.fields[0]->bytes();
      REQUIRE(bytes.size() >= expected.size());
      CHECK(std::equal(expected.begin(), expected.end(), bytes.begin()));
    }
    CHECK(run.stats().held_bytes == (direct ? 0 : 100));  // row 7
  }
}

TEST_CASE("an epoch of extents whose arrays do not fit is refused") {
  const Folder folder;
  const auto source = made::contiguous(folder, 14, 100);
  Reader reader(2, 8, 64, Backend::automatic);
  Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
  const auto extents = std::make_shared<const Extents>(two_stretches());
  run.part({source, 0, 0, 100, false, true, 0, 0, extents});
  const auto refused = [&run](std::vector<std::int32_t> samples, std::vector<std::uint8_t> last, std::int64_t size) {
    Made made;
    made.rows = std::move(samples);
    made.starts = {0, static_cast<std::int64_t>(made.rows.size())};
    made.sizes = {size};
    made.last = std::move(last);
    made.ends = {0, 0};
    CHECK_THROWS_AS(append(run, made), std::invalid_argument);
  };
  refused({4}, {0}, 1);
  refused({-1}, {0}, 1);
  refused({0, 1, 2}, {0}, 3);
  refused({0}, {0}, 2);
  CHECK_THROWS_AS(run.part({made::contiguous(folder, 13, 100), 1, 0, 100, false, true, 0, 0, extents}),
                  std::invalid_argument);
}
