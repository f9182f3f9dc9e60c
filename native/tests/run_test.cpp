#include "solar/run.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "read/lines.hpp"
#include "reads.hpp"

using namespace reads;
using solar::read::Lines;

namespace {

// An epoch's arrays, and what carrying it out must take.
struct Made {
  std::vector<std::int64_t> sizes, starts{0}, ends{0}, start_ends, start_due;
  std::vector<std::int32_t> rows, loads, start;
  std::vector<std::uint8_t> last;

  Run::Epoch epoch() const {
    Run::Epoch epoch;
    epoch.rows = rows;
    epoch.starts = starts;
    epoch.last = last;
    epoch.loads = loads;
    epoch.ends = ends;
    epoch.start = start;
    epoch.start_ends = start_ends;
    epoch.start_due = start_due;
    return epoch;
  }
};

// A plan that is right, whatever it costs: each row, or line where those are kept, is held over a few of its uses.
class Plan {
 public:
  Plan(const Source& source, bool stored, std::uint64_t page_nbytes, std::uint64_t ahead, made::Random& random)
      : source_(source), lines_(source), stored_(stored), page_nbytes_(page_nbytes), ahead_(ahead), random_(random) {
    const std::size_t steps = random.between(1, 30);
    for (std::size_t step = 0; step < steps; ++step) {
      std::vector<std::int32_t> batch(random.between(1, 6));
      for (auto& row : batch) row = static_cast<std::int32_t>(random.upto(rows() - 1));
      uses_.push_back(batch);
    }
    hold();
  }

  std::size_t pages = 0;  // held at most
  std::size_t reads = 0, hits = 0;

  // The steps in epochs of random lengths.
  std::vector<Made> epochs() const {
    std::vector<Made> epochs(1);
    for (std::size_t step = 0; step < uses_.size(); ++step) {
      Made& made = epochs.back();
      if (step == 0) {
        made.start = sorted(loads_.at(0));
        made.start_ends = {static_cast<std::int64_t>(made.start.size())};
        made.start_due = {0};
      }
      made.sizes.push_back(static_cast<std::int64_t>(uses_[step].size()));
      for (std::size_t i = 0; i < uses_[step].size(); ++i) {
        made.rows.push_back(uses_[step][i]);
        made.last.push_back(last_.contains({step, i}));
      }
      made.starts.push_back(static_cast<std::int64_t>(made.rows.size()));
      const auto more = loads_.find(step + 1);
      if (more != loads_.end()) {
        for (const auto row : sorted(more->second)) made.loads.push_back(row);
      }
      made.ends.push_back(static_cast<std::int64_t>(made.loads.size()));
      if (step + 1 < uses_.size() && random_.one_in(4)) epochs.emplace_back();
    }
    return epochs;
  }

  const std::vector<std::vector<std::int32_t>>& uses() const { return uses_; }

 private:
  std::uint64_t rows() const { return static_cast<std::uint64_t>(source_.part_first.back()); }
  std::size_t key(std::int32_t row) const {
    return stored_ ? lines_.number(row) : static_cast<std::size_t>(row);
  }
  std::size_t pages_of(std::int32_t row) const { return stored_ ? lines_.pages(lines_.of(row), page_nbytes_) : 1; }

  // Rows in the order of storage: of their first chunk's file and offset.
  std::vector<std::int32_t> sorted(std::vector<std::int32_t> rows) const {
    std::sort(rows.begin(), rows.end(), [this](std::int32_t a, std::int32_t b) { return place(a) < place(b); });
    return rows;
  }
  std::pair<std::size_t, std::int32_t> place(std::int32_t row) const { return {0, row}; }

  void hold() {
    std::map<std::size_t, std::vector<std::pair<std::size_t, std::size_t>>> of_key;  // its uses: step, place in it
    for (std::size_t step = 0; step < uses_.size(); ++step) {
      for (std::size_t i = 0; i < uses_[step].size(); ++i) of_key[key(uses_[step][i])].push_back({step, i});
    }
    std::vector<std::int64_t> change(uses_.size() + 2);
    for (const auto& [k, uses] : of_key) {
      std::size_t from = 0, free_from = 0;  // the use that is read for, and the first step at which it may be
      while (from < uses.size()) {
        std::size_t to = from;
        while (to + 1 < uses.size() && (uses[to + 1].first < uses[to].first + 1 + ahead_ || random_.one_in(2))) ++to;
        const auto [step, i] = uses[from];
        const std::int64_t latest = static_cast<std::int64_t>(step) - static_cast<std::int64_t>(ahead_);
        const std::size_t at = latest <= 0 ? 0 : random_.between(std::min<std::size_t>(free_from, latest), latest);
        loads_[at].push_back(uses_[step][i]);
        last_.insert(uses[to]);
        change[at] += static_cast<std::int64_t>(pages_of(uses_[step][i]));
        change[uses[to].first + 1] -= static_cast<std::int64_t>(pages_of(uses_[step][i]));
        free_from = uses[to].first + 1;
        ++reads;
        hits += to - from;
        from = to + 1;
      }
    }
    loads_[0];
    std::int64_t held = 0;
    for (const std::int64_t more : change) {
      held += more;
      pages = std::max(pages, static_cast<std::size_t>(held));
    }
  }

  const Source& source_;
  Lines lines_;
  bool stored_;
  std::uint64_t page_nbytes_, ahead_;
  made::Random& random_;
  std::vector<std::vector<std::int32_t>> uses_;
  std::map<std::size_t, std::vector<std::int32_t>> loads_;  // of each issue step
  std::set<std::pair<std::size_t, std::size_t>> last_;
};

Values wanted(const made::Sample& sample, const std::vector<std::int32_t>& rows) {
  return wanted_rows(sample.rows, sample.source->row_nbytes(), {rows.begin(), rows.end()});
}

Values taken(Run& run) {
  Run::Batch batch;
  REQUIRE(run.take(60s, batch));
  const MutableBytes bytes = batch.fields[0]->bytes();
  return {bytes.begin(), bytes.end()};
}

void append(Run& run, const Made& made) {
  const auto kept = std::make_shared<const Made>(made);
  run.append(kept->sizes, {kept->epoch()}, kept);
}

}  // namespace

TEST_CASE("a run gives the rows of each step, holds no more than it may, and counts what the plan says") {
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < 300; ++seed) {
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
    Made made;
    made.start = one.loads;
    made.start_ends = {static_cast<std::int64_t>(one.loads.size())};
    made.start_due = {0};
    made.rows = one.loads;
    made.last.assign(one.loads.size(), 1);
    made.sizes = {static_cast<std::int64_t>(one.loads.size())};
    made.starts.push_back(made.sizes[0]);
    made.ends.push_back(0);
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    run.part({source, 0, one.loads.size(), 1000, false, false, 0, one.gap});
    append(run, made);
    Run::Batch batch;
    REQUIRE(run.take(60s, batch));
    CHECK(run.stats().requests == one.requests);
    CHECK(run.stats().bytes == one.bytes);
    CHECK(batch.counts.stretches == one.requests);
  }
}

TEST_CASE("a stretch longer than one request is read whole, with its holes") {
  const Folder folder;
  const auto source = made::contiguous(folder, 3000, 5000);
  const Values all = contiguous_rows(*source);
  for (const Backend backend : backends()) {
    Reader reader(2, 8, 64, backend);
    Made made;
    for (std::int32_t row = 0; row < 3000; row += row % 7 == 6 ? 40 : 1) made.start.push_back(row);
    made.start_ends = {static_cast<std::int64_t>(made.start.size())};
    made.start_due = {0};
    made.rows = made.start;
    made.last.assign(made.rows.size(), 1);
    made.sizes = {static_cast<std::int64_t>(made.rows.size())};
    made.starts.push_back(made.sizes[0]);
    made.ends.push_back(0);
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
  const auto made = [](std::vector<std::int32_t> rows) {
    Made made;
    made.rows = made.start = std::move(rows);
    std::sort(made.start.begin(), made.start.end());
    made.start_ends = {static_cast<std::int64_t>(made.start.size())};
    made.start_due = {0};
    made.starts.push_back(static_cast<std::int64_t>(made.rows.size()));
    made.ends.push_back(0);
    made.last.assign(made.rows.size(), 1);
    return made;
  };
  const Made of_a = made({4, 2}), of_b = made({9, 0, 3});
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
