#include "solar/node.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "plans.hpp"
#include "solar/run.hpp"

using namespace reads;

namespace {

std::vector<std::string> named(unsigned ranks) {
  std::vector<std::string> names;
  for (unsigned rank = 0; rank < ranks; ++rank) names.push_back("rank " + std::to_string(rank + 4) + " of 8");
  return names;
}

std::vector<std::shared_ptr<Node>> nodes(unsigned ranks, std::size_t nbytes) {
  const int descriptor = Node::make(ranks, nbytes);
  std::vector<std::shared_ptr<Node>> made;
  for (unsigned rank = 0; rank < ranks; ++rank) {
    made.push_back(std::make_shared<Node>(descriptor, rank, named(ranks), nbytes));
  }
  ::close(descriptor);
  return made;
}

std::string failure(const Node& node, Node::Count count, std::uint64_t value) {
  try {
    static_cast<void>(node.wait(count, value, 60s));
  } catch (const Error& error) {
    CHECK(error.kind() == Kind::read);
    return error.what();
  }
  return "none";
}

// What /proc says of this process's shared memory in huge pages, in bytes.
std::size_t huge_nbytes() {
  std::ifstream facts("/proc/self/smaps_rollup");
  for (std::string word; facts >> word;) {
    if (std::size_t kilobytes = 0; word == "ShmemPmdMapped:" && facts >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

// Of a node's memory: bytes in huge pages and all that are taken, when one byte of it is used, and when all are.
struct Taken {
  std::size_t huge, first, all;
  bool tried;
};

// Whether the kernel gives huge pages to who asks for them in this folder: it may have none at hand.
bool gives_huge_pages(const std::string& folder) {
  constexpr std::size_t nbytes = 8 << 20;
  const int descriptor = ::open((folder + "/other").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (::ftruncate(descriptor, nbytes) != 0) return false;
  void* const got = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  if (got == MAP_FAILED) return false;
  ::madvise(got, nbytes, MADV_HUGEPAGE);
  for (std::size_t at = 0; at < nbytes; at += 4096) static_cast<char*>(got)[at] = 1;
  const bool given = huge_nbytes() > 0;
  ::munmap(got, nbytes);
  return given;
}

// Tries it in a process of its own, in a tmpfs that only that one sees, and which gives huge pages to who asks for them:
// anonymous memory gets them only where the whole machine is set so.
Taken huge_pages_of(std::size_t nbytes) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  std::string folder = std::filesystem::temp_directory_path() / "solar-huge-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    Taken found{};
    if (::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "huge=advise,size=64m") == 0) {
      const int descriptor = ::open((folder + "/node").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      found.tried = ::ftruncate(descriptor, static_cast<off_t>(2 * 4096 + nbytes)) == 0 && gives_huge_pages(folder);
      const auto taken = [&] {
        struct stat facts {};
        ::fstat(descriptor, &facts);
        return static_cast<std::size_t>(facts.st_blocks) * 512;
      };
      const Node node(descriptor, 0, named(1), nbytes);
      node.memory()[0] = std::byte{1};
      found.first = taken();
      for (std::size_t at = 0; at < nbytes; at += 4096) node.memory()[at] = std::byte{1};
      found.huge = huge_nbytes();
      found.all = taken();
    }
    static_cast<void>(::write(ends[1], &found, sizeof found));
    ::_exit(0);
  }
  Taken found{};
  REQUIRE(::read(ends[0], &found, sizeof found) == sizeof found);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  ::rmdir(folder.c_str());
  return found;
}

}  // namespace

TEST_CASE("a node's memory has huge pages where the kernel gives them, and takes no more for it") {
  constexpr std::size_t nbytes = (16 << 20) + 12345;
  const Taken taken = huge_pages_of(nbytes);
  if (!taken.tried) {
    MESSAGE("skipped: it takes root to mount a tmpfs, and a kernel that has huge pages for it");
    return;
  }
  CHECK(taken.huge >= 2 << 20);
  CHECK(taken.huge <= 14 << 20);  // of nine, the lines are in the first, and the last is not whole
  CHECK(taken.first == 3 * 4096);  // the bell, the line, and a page of the memory
  const std::size_t all = 2 * 4096 + nbytes;
  CHECK(taken.all == (all + 4095) / 4096 * 4096);
}

TEST_CASE("ranks of a node see one memory, and wait for the slowest") {
  const auto all = nodes(3, 1000);
  all[0]->memory()[999] = std::byte{7};
  CHECK(all[2]->memory()[999] == std::byte{7});
  CHECK(all[1]->wait(Node::Count::joined, 1, 60s));
  all[0]->tell(Node::Count::made, 5);
  all[1]->tell(Node::Count::made, 6);
  CHECK_FALSE(all[0]->wait(Node::Count::made, 5, 1ms));
  std::jthread last([&] { all[2]->tell(Node::Count::made, 5); });
  CHECK(all[0]->wait(Node::Count::made, 5, 60s));
  CHECK_FALSE(all[0]->wait(Node::Count::loaded, 1, 0ms));
}

TEST_CASE("whether all have come so far is answered without waiting, and without an error of any of them") {
  using Count = Node::Count;
  auto all = nodes(3, 0);
  CHECK(all[0]->all(Count::joined, 1));
  CHECK(all[0]->all(Count::reached, 0));
  for (const Count count : {Count::begun, Count::reached, Count::loaded, Count::made}) {
    for (const auto& node : all) {
      CHECK_FALSE(node->all(count, 3));
      node->tell(count, node->rank() + 3);
    }
    for (const auto& node : all) {
      CHECK(node->all(count, 3));
      CHECK_FALSE(node->all(count, 4));
    }
    all[0]->tell(count, 1);
    CHECK(all[1]->all(count, 3));  // no count decreases
  }
  all[1]->fail({Kind::read, "no such file"});
  CHECK_FALSE(all[0]->all(Count::loaded, 4));
  all[0]->tell(Count::loaded, 4);
  CHECK(all[2]->all(Count::loaded, 4));
  all[1].reset();
  CHECK(all[0]->behind(Count::made, 100) == std::vector<unsigned>{0, 2});  // who has left holds nobody up
  CHECK_FALSE(all[0]->all(Count::made, 100));
  CHECK_FALSE(all[0]->all(Count::reached, 100));
}

TEST_CASE("once a rank has seen that all have come so far, each thread sees it for good") {
  const auto all = nodes(3, 0);
  constexpr std::uint64_t steps = 2000;
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (const auto& node : all) {
      threads.emplace_back([&node] {
        for (std::uint64_t step = 1; step <= steps; ++step) node->tell(Node::Count::reached, step);
      });
    }
    for (const auto& node : all) {
      threads.emplace_back([&node, &wrong] {
        for (std::uint64_t step = 1; step <= steps;) {
          if (!node->all(Node::Count::reached, step)) continue;
          if (!node->behind(Node::Count::reached, step).empty() || !node->all(Node::Count::reached, step - 1)) ++wrong;
          ++step;
        }
      });
    }
  }
  CHECK(wrong == 0);
  CHECK_FALSE(all[0]->all(Node::Count::reached, steps + 1));
}

TEST_CASE("a rank that fails or leaves ends the waiting of the others, and says which and why") {
  auto all = nodes(3, 0);
  std::jthread fails([&] { all[1]->fail({Kind::read, "no such file"}); });
  CHECK(failure(*all[0], Node::Count::loaded, 1) == "rank 5 of 8: no such file");
  fails.join();
  all = nodes(2, 0);
  all[1]->tell(Node::Count::loaded, 4);
  std::jthread leaves([&] { all[1]->leave(); });
  CHECK(failure(*all[0], Node::Count::loaded, 5).find("rank 5 of 8 has closed") == 0);
  all[0]->tell(Node::Count::loaded, 4);
  CHECK(all[0]->wait(Node::Count::loaded, 4, 60s));
  all[0]->tell(Node::Count::made, 9);
  CHECK(all[0]->wait(Node::Count::made, 9, 60s));
}

TEST_CASE("a rank whose process is killed ends the waiting of the others") {
  const int descriptor = Node::make(2, 64);
  const Node own(descriptor, 0, named(2), 64);
  const pid_t child = ::fork();
  if (child == 0) {
    Node other(descriptor, 1, named(2), 64);
    for (;;) ::pause();
  }
  CHECK(own.wait(Node::Count::joined, 1, 60s));
  ::kill(child, SIGKILL);
  CHECK(failure(own, Node::Count::made, 1).find("rank 5 of 8 is gone: its process has ended") == 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(descriptor);
}

TEST_CASE("a rank that is killed while others are still to come ends the waiting for those") {
  const int descriptor = Node::make(3, 64);
  const pid_t child = ::fork();
  if (child == 0) {
    Node leader(descriptor, 0, named(3), 64);
    for (;;) ::pause();
  }
  const Node own(descriptor, 1, named(3), 64);
  while (own.behind(Node::Count::joined, 1).size() > 1) std::this_thread::sleep_for(1ms);
  CHECK_FALSE(own.wait(Node::Count::joined, 1, 1ms));
  ::kill(child, SIGKILL);
  CHECK(failure(own, Node::Count::joined, 1).find("rank 4 of 8 is gone: its process has ended") == 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(descriptor);
}

TEST_CASE("two processes cannot have the same rank") {
  const int descriptor = Node::make(2, 64);
  const Node own(descriptor, 0, named(2), 64);
  CHECK_THROWS_AS(Node(descriptor, 0, named(2), 64), Error);
  ::close(descriptor);
}

namespace {

// What a rank carries out: of each step, use i is for rank i % ranks.
struct Share {
  Share(const Made& from, unsigned rank, unsigned ranks) : made(from) {
    for (std::size_t step = 0; step < made.sizes.size(); ++step) {
      std::int32_t mine = 0;
      for (std::int32_t i = 0; i < from.sizes[step]; ++i) {
        positions.push_back(static_cast<unsigned>(i) % ranks == rank ? mine++ : -1);
      }
      made.sizes[step] = mine;
    }
  }
  Run::Epoch epoch() const {
    Run::Epoch epoch = made.epoch();
    epoch.positions = positions;
    return epoch;
  }

  Made made;
  std::vector<std::int32_t> positions;
};

void append(Run& run, const Made& made, unsigned rank, unsigned ranks) {
  const auto share = std::make_shared<const Share>(made, rank, ranks);
  run.append(share->made.sizes, {share->epoch()}, share);
}

// Ranks that carry out a plan together; the sum of what they did.
RunStats carried_out(const made::Sample& sample, const Plan& plan, const Run::Part& part, unsigned ranks) {
  const std::vector<Made> epochs = plan.epochs();
  const auto all = nodes(ranks, part.pages * part.page_nbytes + 4096);
  std::vector<RunStats> stats(ranks);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> processes;
    for (unsigned rank = 0; rank < ranks; ++rank) {
      processes.emplace_back([&, rank] {
        Reader reader(1, 8, 64, Backend::automatic);
        Run run(reader, MemoryPool::make(1 << 20), 1 + rank % 2, 1 << 20, all[rank]);
        run.part(part);
        for (const Made& made : epochs) append(run, made, rank, ranks);
        for (const auto& rows : plan.uses()) {
          std::vector<std::int32_t> own;
          for (std::size_t i = rank; i < rows.size(); i += ranks) own.push_back(rows[i]);
          Run::Batch batch;
          if (!run.take(60s, batch)) return ++wrong, void();
          const MutableBytes bytes = batch.fields[0]->bytes();
          const Values expected = wanted(sample, own);
          if (!std::equal(expected.begin(), expected.end(), bytes.begin())) ++wrong;
        }
        stats[rank] = run.stats();
      });
    }
  }
  CHECK(wrong == 0);
  RunStats sum;
  for (const RunStats& one : stats) {
    sum.reads += one.reads;
    sum.hits += one.hits;
    sum.bytes += one.bytes;
    CHECK(one.held_bytes == 0);
    CHECK(one.peak_bytes == part.pages * part.page_nbytes);
  }
  return sum;
}

// Two ranks, of which the other's epoch is changed; what the first one's batches end with.
std::string outcome(const std::shared_ptr<const Source>& source, const Run::Part& part, Share own, Share other) {
  const auto all = nodes(2, 1 << 20);
  std::string said = "none";
  const auto carry_out = [&](unsigned rank, const Share& share) {
    Reader reader(1, 8, 64, Backend::automatic);
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20, all[rank]);
    run.part(part);
    run.append(share.made.sizes, {share.epoch()}, nullptr);
    Run::Batch batch;
    try {
      for (std::size_t step = 0; step < share.made.sizes.size(); ++step) run.take(60s, batch);
    } catch (const Error& error) {
      if (rank == 0) said = std::string(error.kind() == Kind::plan ? "plan: " : "") + error.what();
    }
    run.close();
  };
  static_cast<void>(source);
  std::jthread second([&] { carry_out(1, other); });
  carry_out(0, own);
  return said;
}

}  // namespace

TEST_CASE("ranks of a node carry out one plan together: each reads a part, nothing is read twice, each gets its batches") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Folder folder;
    const made::Sample sample = made::random_source(folder, seed / 2);
    sample.source->check();
    made::Random random(seed);
    const bool stored = random.one_in(2);
    const std::uint64_t page = stored ? 16 : sample.source->row_nbytes(), ahead = random.upto(3);
    const Plan plan(*sample.source, stored, page, ahead, random);
    const std::uint64_t gap = seed % 3 == 0 ? 100 : 0;
    const Run::Part part{sample.source, 0, plan.pages, page, stored, false, ahead, gap};
    const RunStats alone = carried_out(sample, plan, part, 1);
    const RunStats sum = carried_out(sample, plan, part, static_cast<unsigned>(random.between(2, 4)));
    CHECK(sum.reads == plan.reads);
    CHECK(sum.hits == plan.hits);
    if (gap == 0) CHECK(sum.bytes == alone.bytes);
    CHECK(sum.bytes <= alone.bytes);  // holes between what two ranks read are nobody's
  }
}

TEST_CASE("ranks whose plans differ in anything but positions and sizes get an error that names one of the others") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  Made made;
  made.rows = {1, 2, 3, 4, 1, 2};
  made.last = {0, 0, 1, 1, 1, 1};
  made.starts = {0, 2, 4, 6};
  made.sizes = {2, 2, 2};
  made.loads = {3, 4};
  made.ends = {0, 2, 2, 2};
  made.start = {1, 2};
  made.start_ends = {1, 2};
  made.start_due = {0, 0};
  const Run::Part part{source, 0, 10, 1000, false, false, 0, 0};
  const auto changed = [&](auto change) {
    Made other = made;
    change(other);
    return outcome(source, part, Share(made, 0, 2), Share(other, 1, 2));
  };
  CHECK(changed([](Made&) {}) == "none");
  const std::string differs = "plan: rank 5 of 8 carries out another plan than rank 4 of 8: give all ranks the same";
  CHECK(changed([](Made& other) { other.rows = {1, 2, 3, 4, 2, 1}; }).find(differs) == 0);
  CHECK(changed([](Made& other) { other.last = {0, 1, 1, 1, 1, 1}; }).find(differs) == 0);
  CHECK(changed([](Made& other) { other.starts = {0, 3, 4, 6}, other.sizes = {3, 1, 2}; }).find(differs) == 0);
  CHECK(changed([](Made& other) { other.loads = {4, 3}; }).find(differs) == 0);
  CHECK(changed([](Made& other) { other.ends = {0, 1, 2, 2}; }).find(differs) == 0);
  CHECK(changed([](Made& other) { other.start = {2, 1}; }).find(differs) == 0);
  CHECK(changed([](Made& other) { other.start_ends = {2, 2}; }).find(differs) == 0);
  CHECK(changed([](Made& other) { other.start_due = {0, 1}; }).find(differs) == 0);
}

TEST_CASE("of what is not held each rank reads its own, which may be another's too, or none") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  const Values all = contiguous_rows(*source);
  for (const std::size_t pinned : {std::size_t{0}, std::size_t{3}}) {
    const auto shared = nodes(2, pinned * 1000 + 4096);
    std::atomic<int> wrong{0};
    std::vector<RunStats> stats(2);
    std::vector<std::jthread> processes;
    for (unsigned rank = 0; rank < 2; ++rank) {
      processes.emplace_back([&, rank] {
        Reader reader(1, 8, 64, Backend::automatic);
        Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20, shared[rank]);
        run.part({source, 0, pinned, 1000, false, true, 1, 0});
        Made made;
        made.rows = {0, 1, 50, 50, 2, 60, 61, 0};
        made.last.assign(8, 0);
        made.starts = {0, 4, 7, 8};
        made.ends = {0, 0, 0, 0};
        for (std::int32_t row = 0; row < static_cast<std::int32_t>(pinned); ++row) made.start.push_back(row);
        made.start_ends = {static_cast<std::int64_t>(pinned)};
        made.start_due = {0};
        std::vector<std::int32_t> positions{0, -1, 1, -1, -1, -1, -1, -1};  // of the second step, nothing; nor of the third
        if (rank == 1) positions = {-1, 0, -1, 1, 0, 2, 1, 0};
        const std::vector<std::int64_t> sizes = rank == 0 ? std::vector<std::int64_t>{2, 0, 0} : std::vector<std::int64_t>{3, 3, 1};
        Run::Epoch epoch = made.epoch();
        if (pinned == 0 && rank == 0) made.rows[4] = 99, made.rows[1] = 98;  // what it does not use itself need not be the same
        epoch.positions = positions;
        run.append(sizes, {epoch}, nullptr);
        const std::vector<std::vector<std::int64_t>> expected =
            rank == 0 ? std::vector<std::vector<std::int64_t>>{{0, 50}, {}, {}} : std::vector<std::vector<std::int64_t>>{{1, 50}, {2, 61, 60}, {0}};
        Run::Batch batch;
        for (const auto& rows : expected) {
          if (!run.take(60s, batch)) return ++wrong, void();
          const Values values = wanted_rows(all, 1000, rows);
          if (!std::equal(values.begin(), values.end(), batch.fields[0]->bytes().begin())) ++wrong;
        }
        stats[rank] = run.stats();
        run.close();
      });
    }
    processes.clear();
    CHECK(wrong == 0);
    CHECK(stats[0].reads + stats[1].reads == (pinned == 0 ? 2 + 6 : 3 + 1 + 3));
  }
}

TEST_CASE("a process forked from a rank neither keeps it alive nor has any of it") {
  const int descriptor = Node::make(2, 64);
  const Node own(descriptor, 0, named(2), 64);
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Node other(descriptor, 1, named(2), 64);
    const pid_t forked = ::fork();
    if (forked == 0) {
      other.leave();
      other.fail({Kind::read, "not from here"});
      char refused = 'n';
      try {
        other.wait(Node::Count::joined, 1, 0ms);
      } catch (const Error&) {
        refused = 'y';
      }
      static_cast<void>(::write(pipe[1], &refused, 1));
      for (;;) ::pause();
    }
    static_cast<void>(::write(pipe[1], &forked, sizeof forked));
    for (;;) ::pause();
  }
  ::close(pipe[1]);
  std::string said(sizeof(pid_t) + 1, '\0');
  for (std::size_t got = 0; got < said.size();) {
    const ssize_t more = ::read(pipe[0], said.data() + got, said.size() - got);
    REQUIRE(more > 0);
    got += static_cast<std::size_t>(more);
  }
  ::close(pipe[0]);
  CHECK((said.front() == 'y' || said.back() == 'y'));
  const bool late = said.back() == 'y';
  pid_t forked = 0;
  std::memcpy(&forked, said.data() + (late ? 0 : 1), sizeof forked);
  CHECK_FALSE(own.wait(Node::Count::made, 1, 1ms));
  ::kill(child, SIGKILL);
  CHECK(failure(own, Node::Count::made, 1).find("rank 5 of 8 is gone") == 0);
  ::kill(forked, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(descriptor);
}

namespace {

// Of each step, rank 0 of 2 gets one row and rank 1 the next. Both are loaded in the step before, one by each rank.
struct Lockstep {
  explicit Lockstep(std::int32_t steps, unsigned rank) {
    for (std::int32_t step = 0; step < steps; ++step) {
      made.rows.insert(made.rows.end(), {2 * step, 2 * step + 1});
      positions.insert(positions.end(), {rank == 0 ? 0 : -1, rank == 1 ? 0 : -1});
      made.last.insert(made.last.end(), {1, 1});
      made.starts.push_back(2 * step + 2);
      made.sizes.push_back(1);
      if (step > 0) made.loads.insert(made.loads.end(), {2 * step, 2 * step + 1});
      if (step > 0) made.ends.push_back(static_cast<std::int64_t>(made.loads.size()));
    }
    made.ends.push_back(static_cast<std::int64_t>(made.loads.size()));
    made.start = {0, 1};
    made.start_ends = {2};
    made.start_due = {0};
  }

  Made made;
  std::vector<std::int32_t> positions;
};

// Two ranks in this process, each with a Run of one staged batch.
struct TwoRanks {
  TwoRanks(const std::shared_ptr<const Source>& source, std::int32_t steps) {
    for (unsigned rank = 0; rank < 2; ++rank) {
      runs[rank].part({source, 0, 100, 1000, false, false, 0, 16});
      const auto share = std::make_shared<const Lockstep>(steps, rank);
      Run::Epoch epoch = share->made.epoch();
      epoch.positions = share->positions;
      runs[rank].append(share->made.sizes, {epoch}, share);
    }
  }
  // What counts the next batch of a rank has.
  ReaderStats take(unsigned rank) {
    Run::Batch batch;
    REQUIRE(runs[rank].take(60s, batch));
    return batch.counts;
  }
  bool comes(auto&& holds) const {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!holds() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    return holds();
  }
  bool rank_0_waits_for_rank_1() const {
    return comes([this] { return runs[0].waiting_for() == "rank 5 of 8"; });
  }

  const std::vector<std::shared_ptr<Node>> all = nodes(2, 1 << 20);
  Reader readers[2]{{1, 8, 0, Backend::pread}, {1, 8, 0, Backend::pread}};
  Run runs[2]{{readers[0], MemoryPool::make(1 << 20), 1, 1 << 20, all[0]},
              {readers[1], MemoryPool::make(1 << 20), 1, 1 << 20, all[1]}};
};

}  // namespace

TEST_CASE("a wait for a rank whose loop is slow is counted as that") {
  const Folder folder;
  TwoRanks two(made::contiguous(folder, 100, 1000), 4);
  CHECK(two.comes([&] { return two.all[0]->all(Node::Count::made, 1) && two.runs[0].waiting_for() != "rank 5 of 8"; }));
  two.take(0);
  CHECK(two.rank_0_waits_for_rank_1());  // which has room for one batch, and nobody takes it
  two.take(1);
  CHECK(two.take(0).ranks_ns >= 50'000'000);  // a Run says whom it waits for after so long
}

TEST_CASE("a wait for a rank that waits for its reads is not counted as one for its loop") {
  const Folder folder;
  TwoRanks two(made::contiguous(folder, 100, 1000), 5);
  const auto rank_1_has_begun = [&](std::uint64_t steps) {
    return two.comes([&] { return two.all[0]->behind(Node::Count::reached, steps) == std::vector<unsigned>{0}; });
  };
  // Of each step but the first, rank 1 begins before rank 0, whose batch before is not taken.
  two.take(1);
  CHECK(rank_1_has_begun(2));
  two.take(0);
  two.take(1);
  CHECK(rank_1_has_begun(3));
  {
    const Injected held({{.call = faults::Call::read, .path = "contiguous.h5", .begin = 6600, .end = 6700, .delay = 1h}});
    two.take(0);  // rank 0 goes on to the step after which rank 1 reads row 6, for the next
    two.take(1);
    CHECK(rank_1_has_begun(4));
    CHECK(two.take(0).ranks_ns == 0);
    CHECK(two.rank_0_waits_for_rank_1());
    CHECK(two.comes([] { return faults::met() == 1; }));
  }
  CHECK(two.take(0).ranks_ns == 0);
}

TEST_CASE("a rank that closes amid an epoch ends those of the others with an error") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  const auto all = nodes(2, 1 << 20);
  std::vector<std::jthread> processes;
  std::atomic<int> errors{0};
  for (unsigned rank = 0; rank < 2; ++rank) {
    processes.emplace_back([&, rank] {
      Reader reader(1, 8, 64, Backend::automatic);
      Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20, all[rank]);
      run.part({source, 0, 100, 1000, false, false, 0, 16});
      const Lockstep share(40, rank);
      Run::Epoch epoch = share.made.epoch();
      epoch.positions = share.positions;
      run.append(share.made.sizes, {epoch}, nullptr);
      Run::Batch batch;
      try {
        for (int step = 0; step < (rank == 0 ? 10 : 40); ++step) run.take(60s, batch);
      } catch (const Error& error) {
        CHECK(std::string(error.what()).find("rank 4 of 8 has closed") != std::string::npos);
        ++errors;
      }
      run.close();
    });
  }
  processes.clear();
  CHECK(errors == 1);
}
