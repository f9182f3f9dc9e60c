// What the planner works out over millions of samples: shuffles, who takes what, and the sweep.
//
// All of it is pure: arrays in, arrays out; nothing is read, no thread is started. Any number of threads may plan at
// a time, each with a Sweep of its own. The caller owns the memory behind every span.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace solar::plan {

using Item = std::int32_t;  // a sample, numbered in the order of storage; or a unit, where units are held whole

// torch.randperm(n) of a CPU generator seeded so, after it gave `skipped` 32-bit numbers. REQUIRES: n < 2^31.
std::vector<Item> randperm(std::int64_t n, std::uint64_t seed, std::uint64_t skipped);

// How many 32-bit numbers randperm(n) takes from its generator.
std::uint64_t randperm_draws(std::int64_t n);

// The uses of the items in [begin, end), counted from begin, and where each step begins among them.
struct Uses {
  std::vector<Item> items;
  std::vector<std::int64_t> starts;  // one more than steps
};
Uses select(std::span<const Item> order, std::span<const std::int64_t> starts, Item begin, Item end);

// The items of ranges, each once a step and in ascending order. Step s has the ranges [starts[s], starts[s + 1]), and
// range r the items from first[r] to last[r], none if that is less. REQUIRES: items from 0 on.
Uses merge_ranges(std::span<const std::int64_t> first, std::span<const std::int64_t> last,
                  std::span<const std::int64_t> starts);

// Which rank takes each use when each gets its share of every step (torch's: as equal as can be, the first ranks one
// more). A use goes to the rank at whose home it lies (homes: where each begins, and the end) while that has room, then
// to one with room on the same node, then to any. Ranks are asked in ascending order. REQUIRES: homes has ranks + 1.
std::vector<std::int32_t> assign(std::span<const Item> order, std::span<const std::int64_t> starts,
                                 std::span<const std::int64_t> homes, std::int32_t ranks_per_node);

// Units in the order of storage. Alike where `offset` is empty: unit u has items [u * per_unit, ...) at u * stored.
// Of one item each where only `first` is empty.
struct Units {
  std::int64_t items = 0;
  std::int64_t per_unit = 1;
  std::int64_t stored = 1;
  std::int64_t held = 1;  // bytes of an item in memory; 0: those of its unit, by `weight` or else as they are stored
  std::vector<std::int64_t> first, offset;
  std::vector<std::int64_t> nbytes;  // that are read for the unit; 0: nothing is
  std::vector<std::int64_t> weight;
  // Where units have several chunks: unit u has those of [chunk_first[u], chunk_first[u + 1]).
  std::vector<std::int64_t> chunk_first, chunk_offset, chunk_nbytes;
};

struct Extent {
  std::int64_t offset, nbytes;
};

struct Counts {
  std::int64_t reads = 0;     // items that were loaded
  std::int64_t visits = 0;    // units they came from, once for each visit of the head
  std::int64_t requests = 0;  // neighbours joined, also with what was issued last
  std::int64_t bytes = 0;     // of these requests
  std::int64_t decoded = 0;   // samples in the units visited
  std::int64_t sweeps = 0;    // times that the head began anew
  std::int64_t peak = 0;      // bytes held, at most
};

struct Record {
  std::vector<Item> loads;         // in the order of reading
  std::vector<std::int64_t> ends;  // issue step i, 1 to steps, has loads [ends[i - 1], ends[i]); ends[0] is 0
  std::vector<std::uint8_t> last;  // of each use: its item leaves memory after it
};

// The read head's way over the units, worked out from the last step back to the first.
//
// Seen backwards, a use brings its item into memory, and the head, moving down the units, takes out what waits where
// it passes: there the item is read. So the head need only move when room is needed, memory is always full, and every
// read is due before its use by construction. A use of an item that is in memory already costs nothing: it stays.
//
// What is read after step t - 1 and before step t is done is issued at t; it is held from t on, and wanted at t + ahead
// at the soonest. Once room is needed, `burst` bytes more than that are taken, for larger requests.
//
// A `lasting` sweep takes out what waits for the steps of an earlier call of back() only where nothing else is ripe.
// Where each call is for an epoch that uses all there is once, what memory holds when an epoch begins was then kept
// from the one before, and no policy reads fewer bytes; but the head finds less on its way.
class Sweep {
 public:
  Sweep(std::shared_ptr<const Units> units, std::int64_t room, std::int64_t burst, std::int64_t ahead,
        std::int64_t gap, bool lasting = false);

  // Goes back over the steps before those that it has seen, and if asked writes down what is read and dropped when. An
  // epoch may come in several calls, all but the first of which `goes_on`. Throws Error(plan) when the uses of ahead + 1
  // steps take more than the room.
  // REQUIRES: items in [0, units.items).
  Counts back(std::span<const Item> items, std::span<const std::int64_t> starts, Record* record = nullptr,
              bool goes_on = false);

  // What must be in memory before the first step seen, ascending; `rest` gets what reading it costs.
  std::vector<Item> residents(Counts& rest) const;

  std::int64_t items() const { return units_->items; }

 private:
  bool use(Item item);
  void unlock(std::vector<std::uint64_t>& ripe);
  void flush(std::int64_t target, Counts& counts, Record* record);
  void take(std::vector<std::uint64_t>& ripe, std::int64_t target, Counts& counts);

  std::shared_ptr<const Units> units_;  // copies of a Sweep go on from where it is
  std::int64_t room_, burst_, ahead_, gap_;
  bool lasting_;
  std::int64_t held_ = 0;             // bytes in memory
  std::int64_t head_;                 // items below it are yet to be passed in this sweep
  std::int64_t request_ = -1;         // where what was read last in this sweep begins; -1: nothing was
  std::vector<std::uint64_t> resident_, ripe_;  // in memory; and far enough from its use to be read
  std::vector<std::uint64_t> later_;            // ripe, and waiting for what an earlier call of back() saw
  std::vector<std::vector<Item>> locked_;       // uses of the last ahead + 1 steps, a ring
  std::size_t turn_ = 0;
  std::size_t behind_ = 0;  // steps seen of the epoch at hand
  std::vector<Extent> aside_;  // empty but in flush(), as is
  std::vector<Item> taken_;    // what goes out of memory in a step
  std::unordered_map<Item, std::int64_t> again_;  // locked items: how many of their uses in the ring but one
};

// What reading each step's items by itself costs: no memory but the step's own. Items and units of one step are read
// once. The peak is what the items of a step weigh, at most.
Counts direct(const Units& units, std::span<const Item> items, std::span<const std::int64_t> starts, std::int64_t gap);

}  // namespace solar::plan
