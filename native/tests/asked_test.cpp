// What is said to be asked for is what is asked for: of files that lie elsewhere, by the log of who fetches.
#include "solar/asked.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include "afar.hpp"
#include "plans.hpp"

using namespace reads;

namespace {

constexpr unsigned threads = 2;
unsigned files = 0;  // so far

Requests logged(const Fetchers& fetchers) { return {fetchers.fetched, fetchers.nbytes}; }

void check_same(const Requests& said, const Requests& made) {
  CHECK(said.number == made.number);
  CHECK(said.bytes == made.bytes);
}

}  // namespace

TEST_CASE("the requests of rows that are read are those that are ordered") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Folder folder;
    const made::Sample sample = made::random_source(folder, seed);
    if (sample.source->files.size() > 1) continue;  // there is one that lies elsewhere
    const Fetchers fetchers(bytes_of(sample.source->files[0].path));
    const auto source = from_afar(*sample.source, "test://asked/" + std::to_string(++files));
    made::Random random(seed);
    std::vector<std::int64_t> rows(random.between(1, 200));
    for (auto& row : rows)
      row = static_cast<std::int64_t>(random.upto(static_cast<std::uint64_t>(source->part_first.back()) - 1));
    Values out(rows.size() * source->row_nbytes());
    Work work;
    work.source = source;
    work.rows = rows;
    work.out = out;
    const Requests said = requests_of(work, threads);
    check_same({}, logged(fetchers));  // nothing is read to say so
    Reader reader(threads, 8, 64, Backend::pread);
    CHECK(read_rows(reader, source, rows) == wanted_rows(sample.rows, source->row_nbytes(), rows));
    check_same(said, logged(fetchers));
  }
}

TEST_CASE("the requests of a run are those that are ordered, epoch by epoch") {
  unsigned tried = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Folder folder;
    const made::Sample sample = made::random_source(folder, seed);
    if (sample.source->files.size() > 1) continue;
    const Fetchers fetchers(bytes_of(sample.source->files[0].path));
    const auto source = from_afar(*sample.source, "test://asked/" + std::to_string(++files));
    made::Random random(seed);
    const bool stored = random.one_in(2);
    const std::uint64_t page = stored ? 16 : source->row_nbytes(), ahead = random.upto(3), scratch = 1 << 20;
    const Plan plan(*source, stored, page, ahead, random);
    const Run::Part part{source, 0, plan.pages, page, stored, false, ahead, random.upto(100)};
    Reader reader(threads, 8, 64, Backend::pread);
    Run run(reader, MemoryPool::make(1 << 20), 1, scratch);
    run.part(part);
    Asked asked(reader, part, scratch);
    Requests said;
    const std::vector<Made> epochs = plan.epochs();
    for (const Made& made : epochs) said += asked.epoch(made.sizes, made.epoch());
    check_same({}, logged(fetchers));
    for (const Made& made : epochs) append(run, made);
    for (const auto& rows : plan.uses()) {
      Run::Batch batch;
      REQUIRE(run.take(60s, batch));
      const MutableBytes bytes = batch.fields[0]->bytes();
      REQUIRE(Values(bytes.begin(), bytes.end()) == wanted(sample, rows));
    }
    check_same(said, logged(fetchers));
    ++tried;
  }
  CHECK(tried > 10);
}

TEST_CASE("rows are asked for together where what lies between is less than what is read over from afar") {
  const Folder folder;
  const auto source = from_afar(*made::contiguous(folder, 500, 1000));
  struct Case {
    std::vector<std::int64_t> rows;
    std::uint64_t requests, bytes;
  };
  const std::vector<Case> cases{
      {{0, 1, 2}, 1, 3000}, {{4, 0, 2}, 1, 5000}, {{0, 130}, 1, 131'000}, {{0, 140}, 2, 2000}};
  for (const Case& one : cases) {
    Values out(one.rows.size() * 1000);
    Work work;
    work.source = source;
    work.rows = one.rows;
    work.out = out;
    check_same(requests_of(work, 1), {one.requests, one.bytes});
  }
}

TEST_CASE("an epoch whose arrays do not fit each other is refused") {
  const Folder folder;
  const auto source = from_afar(*made::contiguous(folder, 100, 1000));
  Reader reader(1, 8, 64, Backend::pread);
  Asked asked(reader, {source, 0, 10, 1000, false, false, 0, 0}, 1 << 20);
  Made made;
  made.sizes = {2};
  made.rows = {1, 2};
  made.last = {1};  // of one use, and there are two
  made.starts = {0, 2};
  made.ends = {0, 0};
  CHECK_THROWS_AS(asked.epoch(made.sizes, made.epoch()), std::invalid_argument);
}
