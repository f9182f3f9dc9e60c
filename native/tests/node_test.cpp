#include "solar/node.hpp"

#include <algorithm>
#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "plans.hpp"
#include "solar/run.hpp"

using namespace reads;

namespace {

std::vector<std::unique_ptr<Node>> nodes(unsigned ranks, std::size_t nbytes) {
  const int descriptor = Node::make(ranks, nbytes);
  std::vector<std::unique_ptr<Node>> made;
  for (unsigned rank = 0; rank < ranks; ++rank) made.push_back(std::make_unique<Node>(descriptor, rank, ranks, nbytes));
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

}  // namespace

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

TEST_CASE("a rank that fails or leaves ends the waiting of the others, and says which and why") {
  auto all = nodes(3, 0);
  std::jthread fails([&] { all[1]->fail("no such file"); });
  CHECK(failure(*all[0], Node::Count::loaded, 1) == "rank 1 of this node: no such file");
  fails.join();
  all = nodes(2, 0);
  all[1]->tell(Node::Count::loaded, 4);
  std::jthread leaves([&] { all[1]->leave(); });
  CHECK(failure(*all[0], Node::Count::loaded, 5).find("rank 1 of this node has closed") == 0);
  all[0]->tell(Node::Count::loaded, 4);
  CHECK(all[0]->wait(Node::Count::loaded, 4, 60s));
  all[0]->tell(Node::Count::made, 9);
  CHECK(all[0]->wait(Node::Count::made, 9, 60s));
}

TEST_CASE("a rank whose process is killed ends the waiting of the others") {
  const int descriptor = Node::make(2, 64);
  const Node own(descriptor, 0, 2, 64);
  const pid_t child = ::fork();
  if (child == 0) {
    Node other(descriptor, 1, 2, 64);
    for (;;) ::pause();
  }
  CHECK(own.wait(Node::Count::joined, 1, 60s));
  ::kill(child, SIGKILL);
  CHECK(failure(own, Node::Count::made, 1).find("rank 1 of this node is gone") == 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(descriptor);
}

TEST_CASE("two processes cannot have the same rank") {
  const int descriptor = Node::make(2, 64);
  const Node own(descriptor, 0, 2, 64);
  CHECK_THROWS_AS(Node(descriptor, 0, 2, 64), Error);
  ::close(descriptor);
}

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
    const std::vector<Made> epochs = plan.epochs();
    const auto ranks = static_cast<unsigned>(random.between(2, 4));
    const auto all = nodes(ranks, plan.pages * page + 4096);
    std::vector<RunStats> stats(ranks);
    std::atomic<int> wrong{0};
    {
      std::vector<std::jthread> processes;
      for (unsigned rank = 0; rank < ranks; ++rank) {
        processes.emplace_back([&, rank] {
          Reader reader(1, 8, 64, Backend::automatic);
          const std::shared_ptr<Node> node(all[rank].get(), [](Node*) {});
          Run run(reader, MemoryPool::make(1 << 20), 1 + rank % 2, 1 << 20, node);
          run.part({sample.source, 0, plan.pages, page, stored, false, ahead, 16});
          for (const Made& made : epochs) {  // use i of a step is for rank i % ranks
            auto kept = std::make_shared<std::pair<Made, std::vector<std::int32_t>>>(made, std::vector<std::int32_t>());
            for (std::size_t step = 0; step < made.sizes.size(); ++step) {
              std::int32_t mine = 0;
              for (std::int32_t i = 0; i < made.sizes[step]; ++i) {
                kept->second.push_back(static_cast<unsigned>(i) % ranks == rank ? mine++ : -1);
              }
              kept->first.sizes[step] = mine;
            }
            Run::Epoch epoch = kept->first.epoch();
            epoch.positions = kept->second;
            run.append(kept->first.sizes, {epoch}, kept);
          }
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
      CHECK(one.held_bytes == 0);
      CHECK(one.peak_bytes == plan.pages * page);
    }
    CHECK(sum.reads == plan.reads);
    CHECK(sum.hits == plan.hits);
  }
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
      Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20, std::shared_ptr<Node>(all[rank].get(), [](Node*) {}));
      run.part({source, 0, 100, 1000, false, false, 0, 16});
      Made made;
      std::vector<std::int32_t> positions;
      for (std::int32_t step = 0; step < 40; ++step) {
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
      Run::Epoch epoch = made.epoch();
      epoch.positions = positions;
      run.append(made.sizes, {epoch}, nullptr);
      Run::Batch batch;
      try {
        for (int step = 0; step < (rank == 0 ? 10 : 40); ++step) run.take(60s, batch);
      } catch (const Error& error) {
        CHECK(std::string(error.what()).find("rank 0 of this node has closed") != std::string::npos);
        ++errors;
      }
      run.close();
    });
  }
  processes.clear();
  CHECK(errors == 1);
}
