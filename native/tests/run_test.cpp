#include "solar/run.hpp"

#include <set>
#include <thread>

#include "plans.hpp"

using namespace reads;

namespace {

Values taken(Run& run) {
  Run::Batch batch;
  REQUIRE(run.take(60s, batch));
  const MutableBytes bytes = batch.fields[0]->bytes();
  return {bytes.begin(), bytes.end()};
}

// One step that uses these rows, all of them read before it, in this order, and dropped after it.
Made at_once(std::vector<std::int32_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  Made made;
  made.start = rows;
  made.start_ends = {count};
  made.start_due = {0};
  made.last.assign(rows.size(), 1);
  made.rows = std::move(rows);
  made.sizes = {count};
  made.starts = {0, count};
  made.ends = {0, 0};
  return made;
}

}  // namespace

TEST_CASE("a run gives the rows of each step, holds no more than it may, and counts what the plan says") {
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < made::repeats(300U); ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed / 2);
      sample.source->bypass = seed % 4 == 3;
      sample.source->check();
      if (seed % 3 == 0) forget(*sample.source);
      made::Random random(seed);
      const bool stored = random.one_in(2);
      const std::uint64_t page = stored ? 16 : sample.source->row_nbytes(), ahead = random.upto(3);
      const Plan plan(*sample.source, stored, page, ahead, random);
      Reader reader(1 + seed % 3, 8, 64, backend);
      Run run(reader, MemoryPool::make(1 << 20), 1 + seed % 3, 1 << 20);
      run.part({sample.source, 0, plan.pages, page, stored, false, ahead, random.upto(100)});
      const std::vector<Made> epochs = plan.epochs();
      for (const Made& made : epochs) append(run, made);
      for (const auto& rows : plan.uses()) REQUIRE(taken(run) == wanted(sample, rows));
      const RunStats stats = run.stats();
      CHECK(stats.steps == plan.uses().size());
      CHECK(stats.reads == plan.reads);
      CHECK(stats.hits == plan.hits);
      CHECK(stats.recovered == 0);
      CHECK(stats.held_bytes == 0);
      CHECK(stats.peak_bytes == plan.pages * page);
    }
  }
}

TEST_CASE("stretches join neighbours and holes below the gap, in the order of the loads") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  Reader reader(2, 8, 64, Backend::automatic);
  struct Case {
    std::vector<std::int32_t> loads;
    std::uint64_t gap, requests, bytes;
  };
  const std::vector<Case> cases{{{1, 2, 3}, 0, 1, 3000},       {{1, 3, 5}, 1000, 3, 3000}, {{1, 3, 5}, 1001, 1, 5000},
                                {{7, 8, 1, 2}, 5000, 2, 4000}, {{9, 1, 3}, 1001, 2, 4000}, {{0, 99}, 1 << 20, 1, 100'000}};
  for (const Case& one : cases) {
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    run.part({source, 0, one.loads.size(), 1000, false, false, 0, one.gap});
    append(run, at_once(one.loads));
    Run::Batch batch;
    REQUIRE(run.take(60s, batch));
    CHECK(run.stats().requests == one.requests);
    CHECK(run.stats().bytes == one.bytes);
    CHECK(batch.counts.requests == one.requests);
  }
}

TEST_CASE("a stretch goes on with what is loaded later, and its holes are read, but not from the start on") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  const Values all = contiguous_rows(*source);
  for (const Backend backend : backends()) {
    Reader reader(2, 8, 64, backend);
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    run.part({source, 0, 100, 1000, false, false, 0, 3000});
    Made made;
    made.start = {0};
    made.start_ends = {1};
    made.start_due = {0};
    made.rows = {0, 1, 3, 6, 10, 2};
    made.last.assign(6, 1);
    made.starts = {0, 1, 2, 3, 4, 5, 6};
    made.sizes.assign(6, 1);
    made.loads = {1, 3, 6, 10, 2};  // holes of 1, of 2, of 3 rows, and back again
    made.ends = {0, 1, 2, 3, 4, 5, 5};
    append(run, made);
    for (const std::int32_t row : made.rows) CHECK(taken(run) == wanted_rows(all, 1000, {row}));
    CHECK(run.stats().requests == 4);
    CHECK(run.stats().bytes == 1000 + 6000 + 1000 + 1000);
  }
}

TEST_CASE("a stretch longer than one request is read whole, with its holes") {
  const Folder folder;
  const auto source = made::contiguous(folder, 3000, 5000);
  const Values all = contiguous_rows(*source);
  for (const Backend backend : backends()) {
    Reader reader(2, 8, 64, backend);
    std::vector<std::int32_t> rows;
    for (std::int32_t row = 0; row < 3000; row += row % 7 == 6 ? 40 : 1) rows.push_back(row);
    const Made made = at_once(rows);
    forget(*source);
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    run.part({source, 0, made.rows.size(), 5000, false, false, 0, 1 << 20});
    append(run, made);
    CHECK(taken(run) == wanted_rows(all, 5000, {made.rows.begin(), made.rows.end()}));
    CHECK(run.stats().requests == 1);
    CHECK(run.stats().bytes == (static_cast<std::uint64_t>(made.rows.back()) + 1) * 5000);
  }
}

TEST_CASE("rows that are not held are read straight into their batch, ahead where that is the plan") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Folder folder;
    const made::Sample sample = made::random_source(folder, seed);
    sample.source->check();
    made::Random random(seed);
    Reader reader(2, 8, 64, Backend::automatic);
    Run run(reader, MemoryPool::make(1 << 20), 2, 1 << 20);
    const auto all = static_cast<std::uint64_t>(sample.source->part_first.back());
    const std::uint64_t pinned = random.upto(all);
    run.part({sample.source, 0, pinned, sample.source->row_nbytes(), false, true, random.upto(3), 64});
    Made made;
    for (std::size_t row = 0; row < pinned; ++row) made.start.push_back(static_cast<std::int32_t>(row));
    made.start_ends = {static_cast<std::int64_t>(made.start.size())};
    made.start_due = {0};
    std::size_t expected = made.start.size();
    for (std::size_t step = 0; step < 10; ++step) {
      std::set<std::int32_t> once;
      for (std::size_t i = random.between(1, 8); i > 0; --i) {
        made.rows.push_back(static_cast<std::int32_t>(random.upto(all - 1)));
        expected += static_cast<std::uint64_t>(made.rows.back()) >= pinned && once.insert(made.rows.back()).second;
      }
      made.starts.push_back(static_cast<std::int64_t>(made.rows.size()));
      made.sizes.push_back(made.starts[step + 1] - made.starts[step]);
      made.ends.push_back(0);
    }
    made.last.assign(made.rows.size(), 0);
    append(run, made);
    for (std::size_t step = 0; step < 10; ++step) {
      const auto begin = made.rows.begin() + made.starts[step], end = made.rows.begin() + made.starts[step + 1];
      REQUIRE(taken(run) == wanted(sample, {begin, end}));
    }
    CHECK(run.stats().reads == expected);
    CHECK(run.stats().recovered == 0);
  }
}

TEST_CASE("parts of one field fill the batch together, each at its positions") {
  const Folder one, other;
  const auto a = made::contiguous(one, 10, 100), b = made::contiguous(other, 10, 100, 77);
  const Values rows_a = contiguous_rows(*a), rows_b = contiguous_rows(*b);
  Reader reader(2, 8, 64, Backend::automatic);
  Run run(reader, MemoryPool::make(1 << 20), 2, 1 << 20);
  run.part({a, 0, 10, 100, false, false, 0, 0});
  run.part({b, 0, 10, 100, false, false, 0, 0});
  const Made of_a = at_once({4, 2}), of_b = at_once({9, 0, 3});
  const std::vector<std::int32_t> at_a{3, 0}, at_b{1, 4, 2};
  Run::Epoch epoch_a = of_a.epoch(), epoch_b = of_b.epoch();
  epoch_a.positions = at_a;
  epoch_b.positions = at_b;
  run.append({5}, {epoch_a, epoch_b}, nullptr);
  Values expected;
  for (const auto& [rows, row] : {std::pair{&rows_a, 2}, {&rows_b, 9}, {&rows_b, 3}, {&rows_a, 4}, {&rows_b, 0}}) {
    const Values values = wanted_rows(*rows, 100, {row});
    expected.insert(expected.end(), values.begin(), values.end());
  }
  CHECK(taken(run) == expected);
  run.close();  // before the arrays go
}

TEST_CASE("a row that cannot be read fails the batches that use it, and no others") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  const Values all = contiguous_rows(*source);
  for (const bool direct : {false, true}) {
    Reader reader(2, 8, 64, Backend::automatic);
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    run.part({source, 0, 100, 1000, false, direct, 1, 0});
    Made made;
    made.start = {10, 20, 95};
    made.start_ends = {3};
    made.start_due = {0};
    made.rows = {10, 20, 95, 10, 20, 20};
    made.starts = {0, 2, 4, 6};
    made.sizes = {2, 2, 2};
    made.ends = {0, 0, 0, 0};
    made.last = {0, 0, 1, 1, 0, 1};
    REQUIRE(::truncate(source->files[0].path.c_str(), 512 + 95'500) == 0);
    append(run, made);
    // The file is another one for threads that open it now: all of its rows fail, by name.
    Run::Batch batch;
    for (int step = 0; step < 3; ++step) {
      try {
        run.take(60s, batch);
        CHECK(step != 1);
      } catch (const Error& error) {
        CHECK(error.kind() == Kind::read);
        CHECK(std::string(error.what()).find("contiguous.h5") != std::string::npos);
      }
    }
    CHECK(run.stats().steps == 3);
    std::filesystem::resize_file(source->files[0].path, 512 + 100'000);
  }
}

TEST_CASE("what a failed load has lost is read again for its batch, and stays from then on if the plan has it stay") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  const Values all = contiguous_rows(*source);
  const std::string path = source->files[0].path;
  for (const bool direct : {false, true}) {
    Reader reader(2, 8, 64, Backend::automatic);
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    run.part({source, 0, 100, 1000, false, direct, 0, 0});
    const auto epoch_of = [](std::vector<std::int32_t> rows) {
      Made made;
      made.starts.push_back(static_cast<std::int64_t>(rows.size()));
      made.sizes = {static_cast<std::int64_t>(rows.size())};
      made.ends = {0, 0};
      made.last.assign(rows.size(), 0);
      made.rows = std::move(rows);
      return made;
    };
    Made first = epoch_of({10, 20});
    first.start = {10, 20, 95};
    first.start_ends = {3};
    first.start_due = {0};
    std::filesystem::rename(path, path + ".away");
    append(run, first);
    Run::Batch batch;
    CHECK_THROWS_AS(run.take(60s, batch), Error);
    std::filesystem::rename(path + ".away", path);
    for (int round = 0; round < 3; ++round) {
      append(run, epoch_of({10, 95}));
      CHECK(taken(run) == wanted_rows(all, 1000, {10, 95}));
      append(run, epoch_of({20, 20, 95}));
      CHECK(taken(run) == wanted_rows(all, 1000, {20, 20, 95}));
      CHECK(run.stats().held_bytes == 3000);
    }
    CHECK(run.stats().hits == (direct ? 13 : 12));  // directly, both 20 were read in one go at first
  }
}

TEST_CASE("a plan that asks for more than there is room for, or reads what is held, ends in an error") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  Reader reader(2, 8, 64, Backend::automatic);
  for (const std::vector<std::int32_t>& start : {std::vector<std::int32_t>{1, 2, 3}, {1, 2}}) {
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    run.part({source, 0, 2, 1000, false, false, 0, 0});
    Made made;
    made.start = start;
    made.start_ends = {static_cast<std::int64_t>(start.size())};
    made.start_due = {0};
    made.rows = {1, 2};
    made.starts = {0, 1, 2};
    made.sizes = {1, 1};
    made.loads = {1};
    made.ends = {0, 1, 1};
    made.last = {0, 1};
    append(run, made);
    Run::Batch batch;
    CHECK_THROWS_AS(
        {
          while (run.take(60s, batch)) {
          }
        },
        Error);
  }
}

TEST_CASE("arrays that do not fit each other are refused") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  Reader reader(1, 8, 64, Backend::automatic);
  Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
  run.part({source, 0, 2, 1000, false, false, 0, 0});
  Made good;
  good.rows = {1, 2};
  good.starts = {0, 1, 2};
  good.sizes = {1, 1};
  good.ends = {0, 0, 0};
  good.last = {0, 0};
  const auto refused = [&](auto change) {
    Made made = good;
    change(made);
    CHECK_THROWS_AS(append(run, made), std::invalid_argument);
  };
  refused([](Made& made) { made.rows = {1, 100}; });
  refused([](Made& made) { made.rows = {-1, 2}; });
  refused([](Made& made) { made.starts = {0, 2}; });
  refused([](Made& made) { made.starts = {0, 2, 1}; });
  refused([](Made& made) { made.starts = {0, 0, 2}; });
  refused([](Made& made) { made.ends = {0, 1, 0}; });
  refused([](Made& made) { made.last = {1}; });
  refused([](Made& made) { made.start = {1}; });
  refused([](Made& made) { made.sizes = {1, 2}; });
  refused([](Made& made) { made.sizes = {1, -1}; });
  refused([](Made& made) {
    made.positions = {0, 0};
    made.sizes = {1, INT64_MAX / 100};
  });
  CHECK_THROWS_AS(run.append({}, {}, nullptr), std::invalid_argument);
}

TEST_CASE("a run is closed at any time, and gives nothing afterwards") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Folder folder;
    const made::Sample sample = made::random_source(folder, seed);
    sample.source->check();
    made::Random random(seed);
    Reader reader(2, 8, 64, Backend::automatic);
    const Plan plan(*sample.source, false, sample.source->row_nbytes(), 1, random);
    const std::vector<Made> epochs = plan.epochs();
    Run run(reader, MemoryPool::make(1 << 20), 2, 1 << 20);
    run.part({sample.source, 0, plan.pages, sample.source->row_nbytes(), false, false, 1, 0});
    for (const Made& made : epochs) append(run, made);
    for (std::uint64_t taking = random.upto(plan.uses().size()); taking > 0; --taking) taken(run);
    std::jthread closing;
    if (random.one_in(2)) closing = std::jthread([&run] { run.close(); });
    if (random.one_in(2)) CHECK(run.close(60s));
    if (random.one_in(2)) continue;
    run.close();
    Run::Batch batch;
    CHECK_THROWS_AS(
        {
          while (run.take(60s, batch)) {
          }
        },
        Error);
    CHECK_THROWS_AS(append(run, epochs[0]), Error);
  }
}

TEST_CASE("a plan that is made afresh keeps what it begins with, and drops all else") {
  const Folder folder;
  const auto source = made::contiguous(folder, 8, 64);
  source->check();
  const Values all = contiguous_rows(*source);
  const std::uint64_t row = 64;
  Reader reader(1, 8, 64, backends().front());
  Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
  run.part({source, 0, 4, row, false, false, 2, 0});
  Made before = at_once({0, 1, 2, 3});  // of which one is used, and all stay
  before.rows = {1};
  before.last = {0};
  before.sizes = {1};
  before.starts = {0, 1};
  append(run, before);
  const auto after = std::make_shared<Made>(at_once({1, 5, 3}));
  Run::Epoch epoch = after->epoch();
  epoch.afresh = {false, 0, 0};
  run.append(after->sizes, {epoch}, after);
  REQUIRE(taken(run) == wanted_rows(all, row, {1}));
  REQUIRE(taken(run) == wanted_rows(all, row, {1, 5, 3}));
  CHECK(run.stats().reads == 5);  // 1 and 3 were there
  CHECK(run.stats().held_bytes == 0);
  CHECK(run.stats().peak_bytes == 4 * row);
}
