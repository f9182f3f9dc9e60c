// The model in a time of its own: what readers would have met, without a mount and without waiting.
//
// Input, one line for each read: READER THINK FILE OFFSET NBYTES. The reads of a reader come one after another, each
// THINK nanoseconds after the one before was answered (the first: after 0). Arguments: latency bandwidth iops rpc, as
// slowfs has them. Output: for each read, in the order of the input, when it was asked for and when it was answered;
// then the counts: requests, pieces, bytes.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include "model.hpp"

namespace {

using slowfs::Nanos;

struct Read {
  int reader;
  Nanos think;
  std::uint64_t file, offset, nbytes;
  slowfs::Piece piece{};
  Nanos asked = 0, answered = 0;
};

enum Stage { ask, send, answer };

class Replay {
 public:
  Replay(slowfs::Costs costs, std::vector<Read>& reads) : model_(costs), reads_(reads) {
    for (std::size_t i = 0; i < reads.size(); i++) waiting_[reads[i].reader].push(i);
    for (const auto& [reader, own] : waiting_) next(reader, 0);
  }

  void run() {
    for (; !events_.empty(); events_.pop()) {
      const auto [when, order, stage, i] = events_.top();
      step(when, stage, i);
    }
  }

  slowfs::Counts counts() { return model_.counts(); }

 private:
  using Event = std::tuple<Nanos, std::uint64_t, Stage, std::size_t>;  // when, and by number where times are equal

  void step(Nanos now, Stage stage, std::size_t i) {
    Read& read = reads_[i];
    if (stage == ask) {
      read.asked = now;
      read.piece = model_.arrive(read.file, read.offset, read.nbytes, now);
      add(std::max(now, read.piece.ready), send, i);
    } else if (stage == send) {
      add(std::max(now, model_.send(read.piece)), answer, i);
    } else {
      read.answered = now;
      model_.done(read.piece, now);
      next(read.reader, now);
    }
  }

  void next(int reader, Nanos now) {
    auto& own = waiting_[reader];
    if (own.empty()) return;
    add(now + reads_[own.front()].think, ask, own.front());
    own.pop();
  }

  void add(Nanos when, Stage stage, std::size_t i) { events_.emplace(when, number_++, stage, i); }

  slowfs::Model model_;
  std::vector<Read>& reads_;
  std::map<int, std::queue<std::size_t>> waiting_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t number_ = 0;
};

}  // namespace

int main(int count, char** words) {
  if (count != 5) return 2;
  const slowfs::Costs costs{static_cast<Nanos>(std::atof(words[1]) * 1e9), std::atof(words[2]), std::atof(words[3]),
                            static_cast<std::uint64_t>(std::atoll(words[4]))};
  std::vector<Read> reads;
  int reader;
  unsigned long long file, offset, nbytes;
  long long think;
  while (std::scanf("%d %lld %llu %llu %llu", &reader, &think, &file, &offset, &nbytes) == 5)
    reads.push_back({reader, think, file, offset, nbytes});
  Replay replay(costs, reads);
  replay.run();
  for (const Read& read : reads)
    std::printf("%lld %lld\n", static_cast<long long>(read.asked), static_cast<long long>(read.answered));
  const slowfs::Counts counts = replay.counts();
  std::printf("%llu %llu %llu\n", static_cast<unsigned long long>(counts.requests),
              static_cast<unsigned long long>(counts.pieces), static_cast<unsigned long long>(counts.bytes));
}
