// A Run::Impl is what a Run owns: its thread, the parts, and what the thread shares with whoever takes batches.
//
// The Run's thread executes conduct() and all that it calls; the parts (PartRun) and what is being made belong to it
// alone, and need no lock. Appended epochs, finished batches, errors and counts are shared: they belong to the mutex of
// Doors. Doors outlives the Run, for the memory of batches comes back at any time, in any thread: each field's block
// shares the Loan of its batch, and the last one to go ends it.
//
// A read that fails becomes the error of the batches that use its rows. Any other error, of a plan for one, ends the
// Run's thread, and take() throws it once the batches before are taken. In a forked process part(), append() and take()
// throw Error(read).
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>

#include "part.hpp"

namespace solar {

using run::PartRun;
using run::Planned;

// What the Run shares with whoever takes batches; it outlives the Run, for batches come back at any time.
struct Doors {
  Doors(std::size_t with_taker, bool on) : lends(with_taker), passed_on(on) {}

  const pid_t process = ::getpid();
  std::mutex mutex;
  std::condition_variable changed;
  const std::size_t lends;  // batches that whoever takes them has while another is begun; 0: any number
  const bool passed_on;     // who takes batches is not who keeps them, and says by ask() what is kept
  std::uint64_t taken = 0;  // batches, so far
  std::size_t lent = 0;     // batches that were taken, and of which some memory has not come back
  std::size_t kept = 0;     // of these, that whoever asked for the next one had
  std::size_t asked = 0;    // of these, that were there when somebody asked last
  bool wanted = false;      // somebody waits for the next one, whatever is lent
  bool awaited = false;     // the Run's thread waits for room for a batch

  // Whoever takes batches has as many as it may have while another is begun.
  bool all_lent() const { return lends > 0 && !wanted && lent > std::max(lends, kept); }
};

// A batch, from when it was taken until all of its memory has come back.
class Loan {
 public:
  explicit Loan(std::shared_ptr<Doors> doors) : doors_(std::move(doors)) {}
  ~Loan() {
    if (!begun_ || ::getpid() != doors_->process) return;  // in a forked process the mutex may be locked for ever
    std::unique_lock lock(doors_->mutex);
    const bool wake = doors_->awaited && doors_->all_lent();
    --doors_->lent;
    lock.unlock();  // first, so that who wakes need not wait for it
    if (wake) doors_->changed.notify_all();
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  // REQUIRES: the mutex.
  void begin() noexcept {
    begun_ = true;
    ++doors_->taken;
    ++doors_->lent;
  }

 private:
  std::shared_ptr<Doors> doors_;
  bool begun_ = false;
};

// The memory of a field of a batch, which ends the loan with the last of them.
class LentBlock final : public MemoryPool::Block {
 public:
  LentBlock(std::unique_ptr<MemoryPool::Block> block, std::shared_ptr<Loan> loan)
      : loan_(std::move(loan)), block_(std::move(block)) {}
  MutableBytes bytes() override { return block_->bytes(); }

 private:
  std::shared_ptr<Loan> loan_;  // goes last
  std::unique_ptr<MemoryPool::Block> block_;
};

struct Run::Impl {
  Impl(Reader& on, std::shared_ptr<MemoryPool> from, std::size_t most, std::uint64_t beside, std::shared_ptr<Node> among,
       std::size_t with_taker, bool passed_on)
      : reader(on), pool(std::move(from)), staged(most), scratch(beside), node(std::move(among)),
        doors(std::make_shared<Doors>(with_taker, passed_on)) {
    // If a wait found no memory to note its ticket, that would look like the ticket's own error.
    waited_for.reserve(1);
  }

  // A batch on its way: its memory, and what is read straight into it.
  struct Making {
    Batch batch;
    std::shared_ptr<Loan> loan;
    std::vector<Reader::Ticket> tickets;
    std::vector<std::vector<std::int64_t>> fetched;  // uses of each part that are read straight into it
    std::exception_ptr error;
  };

  void conduct();
  void tell_node(const std::exception& error) noexcept;
  void carry_out(std::shared_ptr<const Planned> planned);
  std::shared_ptr<const Planned> next();
  bool begin(const Planned& planned);
  void start(const Planned& planned, bool first);
  void issue(const Planned& planned, std::size_t step);
  bool all_have(Node::Count count, std::uint64_t value);
  bool wait_for_ranks(Node::Count count, std::uint64_t value, const std::function<bool()>& there);
  void count_held();
  bool wait_for_room();
  bool has_room() const { return ready.size() < staged && !doors->all_lent(); }
  void prepare(const Planned& planned, std::size_t step, Making& making);
  bool finish(Making& making);
  bool make(const Planned& planned, std::size_t step, Making& making);
  bool settle(Reader::Ticket ticket, ReaderStats& counts);
  void publish(Making making);
  void give_up() noexcept;
  void check_process() const;
  void note_due(const Making& making);
  MutableBytes memory(Making& making, const PartRun& part) const { return making.batch.fields[part.part().field]->bytes(); }

  const pid_t process = ::getpid();
  Reader& reader;
  std::shared_ptr<MemoryPool> pool;
  std::size_t staged;
  std::uint64_t scratch;
  std::shared_ptr<Node> node;  // null: this process alone
  std::size_t taken = 0;       // of its memory, by parts
  std::deque<PartRun> parts;
  std::size_t fields = 0;
  std::uint64_t now = 0;       // steps carried out
  std::uint64_t epochs = 0;    // begun, with a Node
  std::uint64_t chain = 0;     // digest of their plans
  std::deque<Making> making;   // of this step and, where parts are direct, of those after it
  ReaderStats counts;          // since the batch before
  RunStats done;               // the thread's own

  const std::shared_ptr<Doors> doors;
  std::mutex& mutex = doors->mutex;  // of what follows
  std::condition_variable& changed = doors->changed;
  std::deque<std::shared_ptr<const Planned>> planned;
  std::deque<Making> ready;
  std::vector<std::shared_ptr<const void>> over;
  RunStats told;
  std::vector<Reader::Ticket> waited_for;  // by the thread, or about to be
  Reader::Ticket due = 0;                  // the last one that the batch being made waits for
  std::string awaited;                     // ranks of the node, by the thread
  std::exception_ptr failed;               // the plan itself: nothing can go on
  bool closing = false, ended = true, given_up = false;
  bool begun = false;  // the thread
  std::mutex joining;  // of the thread
  std::optional<std::jthread> thread;
};

}  // namespace solar
