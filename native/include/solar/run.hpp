// Carries out plans: reads into buffers of hard size, and puts batches together from them, ahead of whoever takes them.
//
// A thread of its own goes from step to step, in the order that the planner counts with:
//   1. what the plan reads before this step gets its pages in the buffer, and is asked for;
//   2. it waits until fewer than `staged` batches wait to be taken, and for the reads whose rows this step uses;
//   3. the Reader's threads put the batch together; rows that are in no buffer are read straight into it;
//   4. what is used for the last time gives its pages back, and the batch is there to be taken.
// A failed read is no failed plan: its rows count as not held, and are read again with the batches that use them. So an
// error comes with the batch that has the bad row, and with no other.
//
// With a Node, several processes do this together, each with its rank: they append the same uses and loads, share the
// buffers, read each a part of what is loaded, and put their own batches together. A failed load then fails all of them,
// and so does an epoch that is not the same for all. Of a part that keeps nothing each reads its own: it may differ.
//
// part() is called before append(), by one thread; all else by any thread. The Reader must outlive the Run.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

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

class Run {
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
  };
  struct Batch {
    std::vector<std::unique_ptr<MemoryPool::Block>> fields;
    ReaderStats counts;  // of what was read and decoded since the batch before
  };

  // `scratch`: bytes that a thread of the Reader may use beside the buffers, where one request needs no more. `lends`: no
  // batch is begun while more than so many that were taken have not come back, and more than whoever asked last kept (a
  // loop gives one back as soon as it has the next), so that there are `staged` and `lends` in all; 0: that is no matter.
  Run(Reader& reader, std::shared_ptr<MemoryPool> pool, std::size_t staged, std::uint64_t scratch,
      std::shared_ptr<Node> node = nullptr, std::size_t lends = 0);
  ~Run();  // close(), unless that was given up before: then it leaves its thread and memory as they are

  std::size_t part(const Part& part);
  // The next epoch, of every part; `sizes` has the samples of each batch. The arrays stay as long as `keep`, which comes back
  // by retired(). Throws std::invalid_argument where arrays do not fit each other.
  void append(std::vector<std::int64_t> sizes, std::vector<Epoch> parts, std::shared_ptr<const void> keep);
  // The next batch. False when `limit` passed first. Throws its error: then it is taken, too.
  bool take(std::chrono::nanoseconds limit, Batch& batch);
  // What the next batch waits for: see Reader::waiting_for; or the ranks of the Node.
  std::string waiting_for() const;
  // The last ticket that the batch being made waits for: see Reader::progress. 0: it waits for none yet.
  Reader::Ticket due() const;
  RunStats stats() const;
  // What was appended with epochs that are over, for the caller to destroy.
  std::vector<std::shared_ptr<const void>> retired();
  // Gives up what is on its way. False when `limit` passed first, for a read that does not return; one may close again.
  bool close(std::chrono::nanoseconds limit = std::chrono::nanoseconds::max());

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
