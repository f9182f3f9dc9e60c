// Closing while everything else goes on: callers that submit, wait, abandon and ask, and reads on their way.
#include <atomic>
#include <thread>

#include "plans.hpp"
#include "solar/faults.hpp"

using namespace reads;

namespace {

// Reads that take longer, so that some are on their way whenever it is.
struct Slowed {
  Slowed() {
    faults::Fault plain, ring;
    plain.delay = ring.delay = 200us;
    ring.call = faults::Call::ring;
    faults::inject({plain, ring});
  }
  ~Slowed() { faults::inject({}); }
  Slowed(const Slowed&) = delete;
  Slowed& operator=(const Slowed&) = delete;
};

// Reads on and on until the Reader is closed; what came must be right.
void read_on(Reader& reader, const std::shared_ptr<const Source>& source, const Values& all, unsigned seed,
             std::atomic<unsigned>& wrong) {
  made::Random random(seed);
  const std::uint64_t row_nbytes = source->row_nbytes();
  std::vector<Values> outs;  // of abandoned tickets, too: they are written to until the Reader is closed
  std::vector<std::vector<std::int64_t>> kept;
  outs.reserve(100'000);
  kept.reserve(100'000);
  try {
    while (outs.size() < 100'000) {
      auto& rows = kept.emplace_back(1 + random.upto(8));
      for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(49));
      auto& out = outs.emplace_back(rows.size() * row_nbytes);
      const auto ticket = reader.submit(source, rows, out);
      if (random.one_in(4)) reader.abandon(ticket);
      if (random.one_in(4)) static_cast<void>(reader.waiting_for(ticket));
      if (random.one_in(8)) static_cast<void>(reader.stats());
      if (random.one_in(4)) continue;
      try {
        while (!reader.wait(ticket, 1ms)) {
        }
        wrong += out != wanted_rows(all, row_nbytes, rows);
      } catch (const Error& error) {
        if (std::string(error.what()) != "abandoned") throw;
      }
    }
  } catch (const Error& error) {
    wrong += std::string(error.what()) != "the Reader is closed";
  }
  reader.close();  // or memory of abandoned tickets would go before they end
}

}  // namespace

TEST_CASE("a reader is closed amid the reads of many threads: what came is right, and what did not says so") {
  const Folder folder;
  for (const Backend backend : backends()) {
    const auto source = made::contiguous(folder, 50, 3000);
    const Values all = contiguous_rows(*source);
    for (unsigned seed = 0; seed < 30; ++seed) {
      const Slowed slowed;
      std::atomic<unsigned> wrong{0};
      {
        source->bypass = seed % 2;
        Reader reader(2, 8, 0, backend);
        std::vector<std::jthread> threads;
        for (unsigned i = 0; i < 3; ++i) {
          threads.emplace_back([&, i] { read_on(reader, source, all, 10 * seed + i, wrong); });
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100 * seed));
        if (seed % 3 == 0) threads.emplace_back([&] { reader.close(0ns); });
        reader.close();
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a run is closed while its batches are taken and asked about in other threads") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Folder folder;
    const made::Sample sample = made::random_source(folder, seed);
    sample.source->check();
    made::Random random(seed);
    const Slowed slowed;
    Reader reader(2, 8, 64, Backend::automatic);
    const Plan plan(*sample.source, false, sample.source->row_nbytes(), 1, random);
    std::vector<Values> right;
    for (const auto& rows : plan.uses()) right.push_back(wanted(sample, rows));
    std::atomic<unsigned> wrong{0};
    {
      Run run(reader, MemoryPool::make(1 << 20), 2, 1 << 20);
      run.part({sample.source, 0, plan.pages, sample.source->row_nbytes(), false, false, 1, 0});
      std::jthread taking([&] {
        Run::Batch batch;
        try {
          for (const Values& values : right) {
            while (!run.take(1ms, batch)) {
            }
            const MutableBytes bytes = batch.fields[0]->bytes();
            wrong += !std::equal(bytes.begin(), bytes.end(), values.begin(), values.end());
          }
        } catch (const Error& error) {
          wrong += std::string(error.what()) != "the Run is closed";
        }
      });
      std::jthread asking([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          static_cast<void>(run.waiting_for());
          static_cast<void>(run.stats());
          static_cast<void>(run.retired());
        }
      });
      for (const Made& made : plan.epochs()) append(run, made);
      std::this_thread::sleep_for(std::chrono::microseconds(50 * random.upto(40)));
      if (random.one_in(2)) run.close(0ns);
      run.close();
    }
    CHECK(wrong == 0);
  }
}
