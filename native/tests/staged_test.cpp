// What a Run waits for: batches that were taken and have not come back, and of the reads only those that a step uses.
#include <algorithm>
#include <thread>

#include "plans.hpp"
#include "solar/faults.hpp"
#include "solar/run.hpp"

using namespace reads;

namespace {

// Steps of one row each, all read before the first, by groups of one.
Made one_by_one(std::vector<std::int32_t> rows) {
  Made made;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto end = static_cast<std::int64_t>(i + 1);
    made.sizes.push_back(1);
    made.starts.push_back(end);
    made.ends.push_back(0);
    made.last.push_back(1);
    made.start_ends.push_back(end);
    made.start_due.push_back(0);
  }
  made.start = rows;
  made.rows = std::move(rows);
  return made;
}

bool comes_to(const Run& run, std::uint64_t steps) {
  for (int i = 0; i < 60'000 && run.stats().steps < steps; ++i) std::this_thread::sleep_for(1ms);
  return run.stats().steps == steps;
}

}  // namespace

TEST_CASE("no batch is begun while one more than the loop has is out, unless it is asked for") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 1000);
  Reader reader(2, 8, 64, Backend::automatic);
  Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20, nullptr, 1);
  run.part({source, 0, 10, 1000, false, false, 0, 0});
  append(run, one_by_one({0, 1, 2, 3, 4, 5, 6}));
  Run::Batch one, two, three;
  REQUIRE(run.take(60s, one));
  CHECK(comes_to(run, 2));
  REQUIRE(run.take(60s, two));
  std::this_thread::sleep_for(20ms);
  CHECK(run.stats().steps == 2);
  one = {};
  CHECK(comes_to(run, 3));
  REQUIRE(run.take(60s, three));
  CHECK(run.stats().steps == 3);
  REQUIRE(run.take(60s, one));  // nothing came back
  CHECK(run.stats().steps == 4);
}

TEST_CASE("batches come back after their run has ended") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 1000);
  Reader reader(2, 8, 64, Backend::automatic);
  Run::Batch kept;
  {
    Run run(reader, MemoryPool::make(1 << 20), 2, 1 << 20, nullptr, 1);
    run.part({source, 0, 10, 1000, false, false, 0, 0});
    append(run, one_by_one({0, 1, 2}));
    REQUIRE(run.take(60s, kept));
  }
  CHECK(std::ranges::equal(kept.fields[0]->bytes(), read_rows(reader, source, {0})));
  kept = {};
}

TEST_CASE("a step waits for the reads that it uses, and the last of an epoch for all that are due") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 100);
  Reader reader(2, 8, 0, Backend::pread);
  faults::Fault late;
  late.begin = 512 + 9 * 100, late.end = late.begin + 1, late.delay = 8s;
  for (const bool last : {false, true}) {
    CAPTURE(last);
    faults::inject({late});
    Run run(reader, MemoryPool::make(1 << 20), 4, 1 << 20);
    run.part({source, 0, 10, 100, false, false, 0, 0});
    std::vector<std::int32_t> rows{0, 1, 2};
    if (!last) rows.push_back(9);
    Made made = one_by_one(rows);
    if (last) made.start.push_back(9), made.start_ends.push_back(4), made.start_due.push_back(0);
    append(run, made);
    Run::Batch batch;
    for (std::size_t i = 0; i < 3; ++i) {
      REQUIRE(run.take(60s, batch));
      CHECK(std::ranges::equal(batch.fields[0]->bytes(), read_rows(reader, source, {rows[i]})));
      if (i < 2) CHECK(run.stats().bytes <= 300);  // without the late one
    }
    if (!last) REQUIRE(run.take(60s, batch));
    CHECK(run.stats().bytes == 400);
    CHECK(std::ranges::equal(batch.fields[0]->bytes(), read_rows(reader, source, {rows.back()})));
    faults::inject({});
  }
}

TEST_CASE("a large load is waited for piece by piece, and counted as one") {
  const Folder folder;
  const auto source = made::contiguous(folder, 64, 100'000);
  Reader reader(2, 8, 64, Backend::automatic);
  Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
  run.part({source, 0, 64, 100'000, false, false, 0, 100'001});
  Made made = one_by_one({0, 1});
  made.ends = {0, 31, 31};
  for (std::int32_t row = 2; row < 64; row += 2) made.loads.push_back(row);
  append(run, made);
  Run::Batch batch;
  REQUIRE(run.take(60s, batch));
  REQUIRE(run.take(60s, batch));
  CHECK(run.stats().reads == 33);
  CHECK(run.stats().requests == 3);
  CHECK(run.stats().bytes == 200'000 + 61 * 100'000);
}

TEST_CASE("before the first batch nothing is read but what it uses") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 100);
  Reader reader(2, 8, 0, Backend::pread);
  faults::Fault late;
  late.begin = 512, late.end = 513, late.delay = 1s;
  faults::inject({late});
  Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
  run.part({source, 0, 10, 100, false, false, 0, 0});
  Made made = one_by_one({0, 5, 7});
  made.start_due = {0, 1, 2};
  append(run, made);
  Run::Batch batch;
  const bool soon = run.take(100ms, batch);
  if (!soon) CHECK(reader.stats().requests <= 1);
  if (!soon) REQUIRE(run.take(60s, batch));
  for (int i = 0; i < 2; ++i) REQUIRE(run.take(60s, batch));
  CHECK(run.stats().requests == 3);
  CHECK(run.stats().bytes == 300);
  faults::inject({});
}
