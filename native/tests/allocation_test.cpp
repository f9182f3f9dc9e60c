// Memory that is not to be had: the n-th allocation of C++ fails, for each n, in whatever thread that is. What is asked
// for is there then, or it is an error of whoever asked; nothing ends the program, hangs, or is written to too late.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>

#include "plans.hpp"
#include "solar/faults.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> left{0};  // allocations that go well, of those that are counted
std::atomic<bool> weighing{false};
std::atomic<std::int64_t> held{0}, most{0};  // bytes, since they are weighed

void weigh(void* bytes, std::int64_t sign) noexcept {
  if (!weighing.load(std::memory_order_relaxed)) return;
  const std::int64_t now = held += sign * static_cast<std::int64_t>(::malloc_usable_size(bytes));
  for (std::int64_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
  }
}

}  // namespace

// For the whole program of tests: one look at a flag unless a test here counts. (gcc takes free() in a delete that it
// sees through for a mistake.)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t nbytes) {
  if (counting.load(std::memory_order_relaxed) && left.fetch_sub(1, std::memory_order_relaxed) == 0) {
    throw std::bad_alloc();
  }
  void* const bytes = std::malloc(std::max<std::size_t>(1, nbytes));
  if (bytes == nullptr) throw std::bad_alloc();
  weigh(bytes, 1);
  return bytes;
}
void* operator new(std::size_t nbytes, const std::nothrow_t&) noexcept {  // of std::stable_partition
  try {
    return ::operator new(nbytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* bytes) noexcept {
  weigh(bytes, -1);
  std::free(bytes);
}
void operator delete(void* bytes, std::size_t) noexcept { ::operator delete(bytes); }
#pragma GCC diagnostic pop

using namespace reads;

namespace {

enum class End { right, wrong, error, no_memory };

// How this ends when the n-th allocation fails; and whether there were that many.
std::pair<End, bool> without(std::int64_t n, const std::function<bool()>& act) {
  End end = End::right;
  left = n;
  counting = true;
  try {
    end = act() ? End::right : End::wrong;
  } catch (const Error&) {
    end = End::error;
  } catch (const std::bad_alloc&) {
    end = End::no_memory;
  }
  counting = false;
  return {end, left < 0};
}

// Fails each allocation in turn, or under ThreadSanitizer one in six. `afterwards` must always be right. Returns how often
// it did not end well.
int fail_each(const std::function<bool()>& act, const std::function<bool()>& afterwards) {
  constexpr std::int64_t step = 30 / made::repeats(30);
  static std::int64_t first = 0;  // so that the next call fails those that this one passes over
  int failures = 0;
  for (std::int64_t n = first++ % step;; n += step) {
    CAPTURE(n);
    const auto [end, failed] = without(n, act);
    REQUIRE(end != End::wrong);
    REQUIRE((failed || end == End::right));
    failures += end != End::right;
    REQUIRE(afterwards());
    if (!failed) return failures;
  }
}

bool same(const Run::Batch& batch, const Values& wanted) {
  const MutableBytes bytes = batch.fields[0]->bytes();
  return std::equal(bytes.begin(), bytes.end(), wanted.begin(), wanted.end());
}

std::vector<std::int64_t> some_rows(const Source& source, made::Random& random) {
  std::vector<std::int64_t> rows(12);
  const auto all = static_cast<std::uint64_t>(source.part_first.back());
  for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(all - 1));
  return rows;
}

}  // namespace

TEST_CASE("whichever allocation of a read fails, its ticket ends, and the Reader goes on") {
  int failures = 0;
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed);
      sample.source->bypass = seed % 2;
      if (seed % 4 >= 2) sample.source->map();
      sample.source->check();
      made::Random random(seed);
      const auto rows = some_rows(*sample.source, random);
      const Values right = wanted(sample, {rows.begin(), rows.end()});
      Values out(right.size());
      std::optional<Reader> reader;
      const auto read = [&] {
        const auto ticket = reader->submit(sample.source, rows, out);
        while (!reader->wait(ticket, 60s)) {
        }
        return out == right;
      };
      const auto read_anew = [&] {
        reader.emplace(2, 4, 0, backend);
        return read();
      };
      failures += fail_each(read_anew, read_anew);  // with descriptors to open and memory to get
      failures += fail_each(read, read);
    }
  }
  CHECK(failures > made::repeats(100));
}

TEST_CASE("whichever allocation of a run fails, its batches are right or end with an error, and it can be closed") {
  int failures = 0;
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed);
      sample.source->check();
      made::Random random(seed);
      const bool stored = seed % 2 == 1;
      const std::uint64_t page = stored ? 16 : sample.source->row_nbytes();
      const Plan plan(*sample.source, stored, page, 1, random);
      std::vector<std::shared_ptr<const Made>> epochs;
      for (const Made& made : plan.epochs()) epochs.push_back(std::make_shared<const Made>(made));
      std::vector<Values> right;
      for (const auto& rows : plan.uses()) right.push_back(wanted(sample, rows));
      Reader reader(2, 4, 64, backend);
      const auto carry_out = [&] {
        Run run(reader, MemoryPool::make(0), 2, 1 << 20);
        run.part({sample.source, 0, plan.pages, page, stored, seed % 3 == 0, 1, 64});
        for (const auto& made : epochs) run.append(made->sizes, {made->epoch()}, made);
        for (const Values& values : right) {
          Run::Batch batch;
          while (!run.take(60s, batch)) {
          }
          if (!same(batch, values)) return false;
        }
        return true;
      };
      failures += fail_each(carry_out, carry_out);
    }
  }
  CHECK(failures > made::repeats(100));
}

TEST_CASE("a run whose thread could not be started starts it with the next epoch") {
  const Folder folder;
  const made::Sample sample = made::random_source(folder, 0);
  sample.source->check();
  made::Random random(0);
  const Plan plan(*sample.source, false, sample.source->row_nbytes(), 1, random);
  const auto first = std::make_shared<const Made>(plan.epochs().front());
  const Values right = wanted(sample, plan.uses().front());
  Reader reader(1, 4, 64, Backend::pread);
  bool failed = true;
  for (std::int64_t n = 0; failed; ++n) {
    CAPTURE(n);
    Run run(reader, MemoryPool::make(0), 2, 1 << 20);
    run.part({sample.source, 0, plan.pages, sample.source->row_nbytes(), false, false, 1, 64});
    left = n;
    counting = true;
    try {
      run.append(first->sizes, {first->epoch()}, first);
      failed = false;
    } catch (const std::bad_alloc&) {
    }
    counting = false;
    if (!failed) break;  // its thread may have missed an allocation, too
    run.append(first->sizes, {first->epoch()}, first);
    Run::Batch batch;
    REQUIRE(run.take(60s, batch));
    CHECK(same(batch, right));
  }
}

TEST_CASE("many small rows that a run begins with are asked for a few at a time, and are one request all the same") {
  constexpr std::int64_t rows = made::repeats(1 << 20), row_nbytes = 8, steps = 30, batch = 64;
  const Folder folder;
  const auto source = made::contiguous(folder, rows, row_nbytes);
  const Values all = contiguous_rows(*source);
  for (const std::int64_t due : {1, 20, 29}) {
    CAPTURE(due);
    auto made = std::make_shared<Made>();
    made::Random random(1);
    for (std::int64_t step = 0; step < steps; ++step) {
      for (std::int64_t i = 0; i < batch; ++i) {  // before the others are due, those of the first group
        const auto most_row = static_cast<std::uint64_t>(step < due ? batch : rows) - 1;
        made->rows.push_back(static_cast<std::int32_t>(random.upto(most_row)));
      }
      made->sizes.push_back(batch);
      made->starts.push_back((step + 1) * batch);
      made->ends.push_back(0);
    }
    made->last.resize(made->rows.size());
    for (std::int32_t row = 0; row < rows; ++row) made->start.push_back(row);
    made->start_ends = {batch, rows};
    made->start_due = {0, due};
    Reader reader(2, 8, 64, Backend::automatic);
    Run run(reader, MemoryPool::make(1 << 20), 2, 1 << 20);
    run.part({source, 0, rows, row_nbytes, false, false, 0, 64});
    held = most = 0;
    weighing = true;
    run.append(made->sizes, {made->epoch()}, made);
    for (std::int64_t step = 0; step < steps; ++step) {
      Run::Batch taken;
      REQUIRE(run.take(60s, taken));
      const auto own = made->rows.begin() + step * batch;
      CHECK(same(taken, wanted_rows(all, row_nbytes, {own, own + batch})));
    }
    weighing = false;
    CHECK(most < rows * 50);  // about 120 each, were all of them asked for at once
    const RunStats stats = run.stats();
    CHECK(stats.reads == rows);
    CHECK(stats.requests == 2);
    CHECK(stats.bytes == rows * row_nbytes);
  }
}
