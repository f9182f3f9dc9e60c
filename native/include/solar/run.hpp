// A Run carries out a plan: it reads rows into buffers of fixed size, and makes batches of them before they are taken.
//
// A Run has one thread, which goes from step to step in the order of the plan. In each step:
//   1. It takes pages of the buffer for the rows that the plan reads before this step, and asks the Reader for them.
//   2. It waits until fewer than `staged` batches wait to be taken, and until the rows of this step have come.
//   3. The threads of the Reader copy the rows into the batch. Rows that are in no buffer are read straight into it.
//   4. It frees the pages of rows that were used for the last time. The batch can now be taken.
// If a read fails, its rows count as not held, and are read again with the batches that use them. An error therefore
// comes with the batch that has the bad row, and with no other.
//
// With a Node, several processes carry out one plan, each as one rank. They append the same uses and loads and share
// the buffers. Each rank reads a part of what is loaded, and makes its own batches. If a load fails, all ranks fail,
// and so they do if an epoch is not the same for all of them. A part without a buffer is read by each rank for itself,
// and may differ between ranks.
//
// One thread calls part(), before append(). Any thread may call the other functions. The Reader must outlive the Run.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "solar/batches.hpp"
#include "solar/extents.hpp"
#include "solar/memory.hpp"
#include "solar/node.hpp"
#include "solar/reader.hpp"

namespace solar {

// What a Run did, of all its parts. reads, requests and bytes are those of what was asked for and has come.
struct RunStats {
  std::uint64_t steps = 0;
  std::uint64_t reads = 0;     // loads: rows, or lines of chunks where those are kept as they are stored
  std::uint64_t hits = 0;      // uses that no read was made for
  std::uint64_t requests = 0;  // stretches of storage
  std::uint64_t bytes = 0;     // of these stretches
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_bytes = 0;  // held at most
  std::uint64_t recovered = 0;   // rows read again because their load failed, or they did not fit their page packed
  std::uint64_t stall_ns = 0;    // that making batches waited for reads though there was room for a batch
};

class Run final : public Batches {
 public:
  // Rows of one Source, for one field of the batches. Parts of a field have samples of equal size. With `pack` a page is
  // what a row may take encoded, and each row is a run of bytes in its file. One that takes more is read again at each use.
  struct Part {
    std::shared_ptr<const Source> source;
    std::size_t field = 0;
    std::size_t pages = 0, page_nbytes = 0;  // of its buffer; a page is a row unless `stored` or packed
    bool stored = false;                     // lines of chunks are kept as they are stored, and decoded at each use
    bool direct = false;                     // rows that are not held are expected: read `ahead` steps before their use
    std::uint64_t ahead = 0;                 // steps from a load to the first step that may use it
    std::uint64_t gap = 0;                   // holes below this are read over
    std::shared_ptr<const Extents> extents = nullptr;  // null: a sample is a row
    std::shared_ptr<const Boxes> boxes = nullptr;      // rows are blocks, and samples are cut out of them
    std::optional<Pack> pack = std::nullopt;           // rows are encoded when they were read, and decoded at each use
  };
  // An epoch of a part. Step s uses rows[starts[s], starts[s + 1]), which go to these positions of its batch (none: one
  // after another; below 0: to that of another rank). With extents these are samples, each of which uses several rows, and
  // `last` has a bit for each of them, from the lowest on: all uses are never listed. After the step,
  // loads[ends[s], ends[s + 1]) are read. Before the first step, groups of `start` are.
  // With `afresh` it knows nothing of what was planned before: of what is held its start stays, and all else is dropped.
  struct Afresh {
    bool direct;
    std::uint64_t ahead, gap;  // of the part, from here on
  };
  // Ranks take the uses of a step in turns, as torch divides it: use i goes to rank i % ranks, at place i / ranks.
  struct Turns {
    std::int64_t ranks = 0, rank = 0;  // 0: not so

    std::int64_t position(std::size_t use) const noexcept {
      const auto i = static_cast<std::int64_t>(use);
      return i % ranks == rank ? i / ranks : -1;
    }
  };
  struct Epoch {
    std::span<const std::int32_t> rows;
    std::span<const std::int32_t> positions;
    std::span<const std::int64_t> starts;
    std::span<const std::uint8_t> last;  // of each use: the row leaves the buffer after the step
    std::span<const std::int32_t> loads;
    std::span<const std::int64_t> ends;
    std::span<const std::int32_t> start;
    std::span<const std::int64_t> start_ends, start_due;  // group g is needed at step start_due[g]
    // With boxes: the rows of a step are the blocks that its samples touch, each once. Samples go to `positions`; these are
    // their numbers, for messages, where they lie, and where each step begins among them. With a Node they are this rank's,
    // and `own` is below 0 for each use of a block that only others touch (none: there is no such block).
    std::span<const std::int32_t> samples = {};
    std::span<const std::int64_t> corners = {}, sample_starts = {};
    std::span<const std::int32_t> own = {};
    std::span<const std::int64_t> sizes = {};  // samples of each batch; set by append()
    std::optional<Afresh> afresh = std::nullopt;
    Turns turns = {};  // in place of positions
  };
  // `scratch`: bytes that a thread of the Reader may use beside the buffers, where one request needs no more. `lends`: no
  // batch is begun while more than so many that were taken have not come back, and more than whoever asked last kept (a
  // loop gives one back as soon as it has the next), so that there are `staged` and `lends` in all; 0: that is no matter.
  // `passed_on`: whoever takes batches passes them on to who asks(), and take() says nothing of what that one keeps.
  Run(Reader& reader, std::shared_ptr<MemoryPool> pool, std::size_t staged, std::uint64_t scratch,
      std::shared_ptr<Node> node = nullptr, std::size_t lends = 0, bool passed_on = false);
  ~Run() override;  // close(), unless that was given up before: then it leaves its thread and memory as they are

  std::size_t part(const Part& part);
  // The next epoch, of every part; `sizes` has the samples of each batch. The arrays stay as long as `keep`, which comes back
  // by retired(). Throws std::invalid_argument where arrays do not fit each other.
  void append(std::vector<std::int64_t> sizes, std::vector<Epoch> parts, std::shared_ptr<const void> keep);
  bool take(std::chrono::nanoseconds limit, Batch& batch) override;
  // Somebody waits for this batch, and keeps all that were taken before it and have not come back.
  void ask(std::uint64_t number);
  // What the next batch waits for: see Reader::waiting_for; or the ranks of the Node.
  std::string waiting_for() const;
  // The last ticket that the batch being made waits for: see Reader::progress. 0: it waits for none yet.
  Reader::Ticket due() const;
  RunStats stats() const;
  // Returns the `keep` of epochs that are over, for the caller to destroy.
  std::vector<std::shared_ptr<const void>> retired();
  // Drops all work. Returns false if `limit` passes while a read does not return; close() may then be called again.
  bool close(std::chrono::nanoseconds limit = std::chrono::nanoseconds::max());

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
