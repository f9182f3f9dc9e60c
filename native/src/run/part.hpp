// A PartRun is one part of a Run: its buffer, what is on its way into it, and what of a plan concerns it.
//
// Only the Run's thread calls it, in the order that run.hpp gives: load, feed, arrive, put_together or fetch, drop. It
// owns its Buffer (or has the part of a Node's memory that it was given), and asks the Reader for all reads. The
// Reader, the Node and the epochs' arrays must outlive it. Before it is destroyed, the caller waits for every ticket
// that each_on_its_way() names or that put_together() and fetch() returned: they write to its buffer or read from it.
//
// A plan that uses, drops or loads what it must not is Error(plan). A failed load is no error here: its rows count as
// not held, and the batch that uses them reads them again.
#pragma once

#include <deque>
#include <functional>
#include <unordered_set>

#include "read/lines.hpp"
#include "solar/asked.hpp"
#include "solar/run.hpp"

namespace solar::run {

using Rows = std::span<const std::int32_t>;

// An epoch that was appended, of all parts.
struct Planned {
  std::vector<std::int64_t> sizes;
  std::vector<Run::Epoch> parts;
  std::shared_ptr<const void> keep;
  std::uint64_t digest = 0;  // where there is a Node
};

// Throws std::invalid_argument unless the epoch's arrays fit each other, the part, and the sizes of the batches; `alone`:
// there is no other part of its field; `shared`: there are other ranks, to whom some of it goes.
void check(const Run::Epoch& epoch, const Run::Part& part, const std::vector<std::int64_t>& sizes, bool alone,
           bool shared);

class PartRun {
 public:
  // Whether a ticket has ended: false when the Run closes first. Throws the ticket's error.
  using Settle = std::function<bool(Reader::Ticket, ReaderStats&)>;

  // Of a Node, `memory` is what this part's buffer takes of it. With `asked` nothing is read: requests are counted there.
  PartRun(Reader& reader, const Run::Part& part, std::uint64_t scratch, const Node* node, std::byte* memory,
          Requests* asked = nullptr);

  const Run::Part& part() const noexcept { return part_; }
  std::uint64_t row_nbytes() const noexcept { return part_.source->row_nbytes(); }
  std::uint64_t sample_nbytes() const {
    if (part_.boxes != nullptr) return part_.boxes->nbytes(part_.source->itemsize);
    return row_nbytes() * (part_.extents == nullptr ? 1 : part_.extents->slots());
  }
  // The bytes that a batch takes. Of runs that is what its samples have.
  std::uint64_t batch_nbytes(const Run::Epoch& epoch, std::size_t step) const;
  std::size_t held_nbytes() const noexcept { return buffer_.held_nbytes(); }

  // Starts reading these rows into the buffer, for use at step `due` or later. Of a start, those held are passed over.
  // `ready` is called before anything is written to the buffer.
  void load(Rows rows, std::uint64_t due, bool start, RunStats& stats, const std::function<bool()>& ready);
  // The same for rows of a start, which stay until feed() asks for them, a few at a time: a load has in memory what is more
  // than small rows are.
  void load_later(Rows rows, std::uint64_t due) {
    after_ = fed_after_ = {};
    waiting_.push_back({rows, due});
  }
  // Waits for what is on its way and drops what is held, but for the start of this epoch, if that is planned afresh. False
  // when the Run closes.
  bool begin_afresh(const Run::Epoch& epoch, const Settle& settle, RunStats& stats, ReaderStats& counts);
  // Asks for what waits, while there is little on its way. Whether all that is due has been asked for.
  bool feed(std::uint64_t now, RunStats& stats, ReaderStats& counts);
  // Until all that is due has been asked for. False when the Run closes.
  bool feed_all(std::uint64_t now, const Settle& settle, RunStats& stats, ReaderStats& counts);
  bool waits() const noexcept { return !waiting_.empty(); }
  // Waits for the loads that are due and have rows of this step, or for all that are due: in the last step of an epoch, and
  // with a Node, whose other ranks use them. Else reading goes on while the batch is put together. False when the Run closes.
  bool arrive(const Run::Epoch& epoch, std::size_t step, std::uint64_t now, const Settle& settle, RunStats& stats,
              ReaderStats& counts);
  // Loads again what a failed load has lost and this step uses, where the plan has it stay. False when there is nothing.
  bool mend(const Run::Epoch& epoch, std::size_t step, std::uint64_t now, RunStats& stats);
  // Starts reading the rows of a step that are not held straight into `out`; 0: there are none.
  Reader::Ticket fetch(const Run::Epoch& epoch, std::size_t step, MutableBytes out, RunStats& stats);
  // The uses of a step whose rows are not held.
  std::vector<std::int64_t> missing(const Run::Epoch& epoch, std::size_t step) const;
  // Starts putting those that are held into `out`. Throws Error(plan) where one is used before it is due: it may still be
  // on its way.
  Reader::Ticket put_together(const Run::Epoch& epoch, std::size_t step, MutableBytes out, RunStats& stats);
  // Drops what this step used for the last time. Throws Error(plan) where that is not due yet.
  void drop(const Run::Epoch& epoch, std::size_t step);

  // Loads that nobody has waited for.
  template <typename Act>
  void each_on_its_way(const Act& act) const {
    for (const Loading& loading : loading_) {
      if (loading.ticket != 0) act(loading.ticket);
    }
  }
  Reader::Ticket due_first() const noexcept;
  Reader::Ticket due_last(std::uint64_t now) const noexcept;  // of those that are due now; 0: none

 private:
  struct Loading {
    Reader::Ticket ticket;  // 0: other ranks of the Node read all of it
    std::uint64_t due;
    std::vector<std::int64_t> rows;  // also those that other ranks read
    bool fed = false;
  };
  struct Waiting {
    Rows rows;
    std::uint64_t due;
  };

  std::size_t key(std::int32_t row) const noexcept {
    return part_.stored ? lines_.number(row) : static_cast<std::size_t>(row);
  }
  // Calls act(use, row, position) for each use of a step, with its number in the epoch.
  template <typename Act>
  void each_use(const Run::Epoch& epoch, std::size_t step, const Act& act) const;
  // REQUIRES: samples are cut out of blocks.
  Boxes::Corner corner(const Run::Epoch& epoch, std::size_t sample) const noexcept {
    return epoch.corners.subspan(sample * part_.boxes->corner_size(), part_.boxes->corner_size());
  }
  bool is_last(const Run::Epoch& epoch, std::size_t use) const noexcept {
    return part_.extents == nullptr ? epoch.last[use] != 0 : (epoch.last[use / 8] >> use % 8 & 1) != 0;
  }
  // Whether the buffer has a row for use: of a packed one, whether it fits its page, which is known once it is due.
  bool has(std::int32_t row) const noexcept {
    const std::size_t k = key(row);
    return buffer_.holds(k) && (!part_.pack || coming_[k] || asked_ != nullptr || Pack::fits(buffer_.page(k, 0)));
  }
  Task loading_task() const noexcept { return part_.stored ? Task::keep : part_.pack ? Task::pack : Task::load; }
  Task using_task() const noexcept { return part_.stored ? Task::decode : part_.pack ? Task::unpack : Task::gather; }
  bool read_as_one(std::int64_t row, std::int64_t other) const;
  void share();
  std::size_t rows_of_a_piece() const noexcept;
  void choose(Rows rows, bool start);
  void load_piece(std::uint64_t due, FileOffset* after, RunStats& stats, const std::function<bool()>& ready);
  bool came(const Loading& loading, const Settle* settle, RunStats& stats, ReaderStats& counts);
  void settled(const Loading& loading, bool lost);
  bool awaits(const Run::Epoch& epoch, std::size_t step);
  bool has_awaited(const Loading& loading) const;
  Work work(Task task, MutableBytes out, FileOffset* after = nullptr);
  Reader::Ticket submit(const Work& work);
  Reader::Ticket deliver(Task task, const Run::Epoch& epoch, std::size_t step, MutableBytes out);
  std::uint64_t reading_scratch() const noexcept;
  bool chosen(const Run::Epoch& epoch, std::size_t step, bool held);
  void check_due(std::int32_t row, const char* what) const;
  void count_hits(const Run::Epoch& epoch, std::size_t step, RunStats& stats);

  Reader& reader_;
  Run::Part part_;
  read::Lines lines_;
  std::vector<bool> whole_;  // of each form: rows are read with the whole line of chunks that they are in
  Buffer buffer_;
  std::uint64_t scratch_;
  const Node* node_;
  Requests* asked_;
  std::uint64_t loads_ = 0;  // that were shared among the ranks of the Node
  std::deque<Loading> loading_;
  FileOffset after_;  // where the stretch that was loaded last ends
  std::deque<Waiting> waiting_;
  FileOffset fed_after_;                        // the same of what was fed
  std::size_t fed_ = 0;                         // loads on their way that were
  std::unordered_set<std::size_t> lost_;        // keys that a failed load should have brought
  std::vector<bool> fresh_;                     // of each key: loaded, and not used since
  std::vector<bool> coming_;                    // of each key: held for a load that is not due yet
  std::vector<std::int64_t> rows_, positions_;  // of the ticket at hand
  bool all_chosen_ = false;                     // it has all rows that its step uses here
  std::vector<std::int64_t> samples_;           // of it, where they are boxes
  std::vector<std::int64_t> chosen_;            // of a load, before it is cut into pieces
  std::vector<std::size_t> awaited_;            // keys that the step uses and that are on their way, in order
};

}  // namespace solar::run
