#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <utility>

#include "solar/error.hpp"
#include "solar/plan.hpp"

namespace solar::plan {

namespace {

using Bits = std::vector<std::uint64_t>;

bool has(const Bits& bits, std::int64_t i) { return bits[static_cast<std::size_t>(i) / 64] >> (i % 64) & 1; }
void put(Bits& bits, std::int64_t i) { bits[static_cast<std::size_t>(i) / 64] |= std::uint64_t{1} << (i % 64); }
void drop(Bits& bits, std::int64_t i) { bits[static_cast<std::size_t>(i) / 64] &= ~(std::uint64_t{1} << (i % 64)); }

// The highest bit below `end`; -1: none.
std::int64_t highest_below(const Bits& bits, std::int64_t end) {
  if (end <= 0) return -1;
  auto word = static_cast<std::int64_t>((end - 1) / 64);
  std::uint64_t value = bits[static_cast<std::size_t>(word)] & (~std::uint64_t{0} >> (63 - (end - 1) % 64));
  while (value == 0 && word > 0) value = bits[static_cast<std::size_t>(--word)];
  return value == 0 ? -1 : word * 64 + 63 - std::countl_zero(value);
}

std::int64_t unit_of(const Units& units, std::int64_t item) {
  if (units.first.empty()) return item / units.per_unit;
  const auto count = static_cast<std::int64_t>(units.first.size()) - 1;
  const std::int64_t guess = std::min(item / units.per_unit, count - 1);  // nearly always
  const auto first = units.first.begin() + guess;
  if (first[0] <= item && item < first[1]) return guess;
  return std::upper_bound(units.first.begin(), units.first.end(), item) - units.first.begin() - 1;
}

std::int64_t begin_of(const Units& units, std::int64_t unit) {
  if (units.first.empty()) return std::min(unit * units.per_unit, units.items);
  return units.first[static_cast<std::size_t>(unit)];
}

std::int64_t offset_of(const Units& units, std::int64_t unit) {
  return units.offset.empty() ? unit * units.stored : units.offset[static_cast<std::size_t>(unit)];
}

std::int64_t nbytes_of(const Units& units, std::int64_t unit) {
  return units.nbytes.empty() ? units.stored : units.nbytes[static_cast<std::size_t>(unit)];
}

std::int64_t weight_of(const Units& units, std::int64_t item) {
  if (units.held > 0) return units.held;
  const std::int64_t unit = unit_of(units, item);
  return units.weight.empty() ? nbytes_of(units, unit) : units.weight[static_cast<std::size_t>(unit)];
}

// What is read from the highest place down.
struct Chain {
  std::int64_t after = -1;  // where the next one up begins; -1: there is none

  void join(const Extent& extent, std::int64_t gap, std::int64_t& requests, std::int64_t& bytes) {
    bytes += extent.nbytes;
    const std::int64_t hole = after < 0 ? -1 : after - extent.offset - extent.nbytes;
    if (hole == 0 || (hole > 0 && hole < gap)) {
      bytes += hole;
    } else {
      ++requests;
    }
    after = extent.offset;
  }
};

// Counts the reading of these items, which descend; each unit of them once.
void count(const Units& units, std::span<const Item> items, std::int64_t gap, Chain& request, std::vector<Extent>& aside,
           Counts& counts) {
  const auto read = [&](const Extent& extent) { request.join(extent, gap, counts.requests, counts.bytes); };
  counts.reads += static_cast<std::int64_t>(items.size());
  std::int64_t visited = -1;
  for (const std::int64_t item : items) {
    const std::int64_t unit = unit_of(units, item);
    if (unit == visited) continue;
    visited = unit;
    ++counts.visits;
    counts.decoded += begin_of(units, unit + 1) - begin_of(units, unit);
    if (units.chunk_first.empty()) {
      const Extent extent{offset_of(units, unit), nbytes_of(units, unit)};
      if (extent.nbytes > 0) read(extent);
      continue;
    }
    const auto u = static_cast<std::size_t>(unit), end = static_cast<std::size_t>(units.chunk_first[u + 1]);
    for (auto k = static_cast<std::size_t>(units.chunk_first[u]); k < end; ++k) {
      aside.push_back({units.chunk_offset[k], units.chunk_nbytes[k]});
    }
  }
  // Where units have several chunks, those of one may lie among those of others.
  std::sort(aside.begin(), aside.end(), [](const Extent& a, const Extent& b) { return a.offset > b.offset; });
  for (const Extent& extent : aside) read(extent);
  aside.clear();
}

}  // namespace

Sweep::Sweep(std::shared_ptr<const Units> units, std::int64_t room, std::int64_t burst, std::int64_t ahead,
             std::int64_t gap, bool lasting)
    : units_(std::move(units)), room_(room), burst_(burst), ahead_(ahead), gap_(gap), lasting_(lasting),
      head_(units_->items), resident_(static_cast<std::size_t>(units_->items) / 64 + 1), ripe_(resident_.size()),
      later_(lasting ? resident_.size() : 0), locked_(static_cast<std::size_t>(ahead) + 1) {}

// Whether the item comes into memory with it, seen backwards.
bool Sweep::use(Item item) {
  if (!has(resident_, item)) {
    put(resident_, item);
    held_ += weight_of(*units_, item);
    return true;
  }
  if (has(ripe_, item)) {
    // The item stays from this use to the next one, so reading it moves to before this use.
    drop(ripe_, item);
  } else if (lasting_ && has(later_, item)) {
    drop(later_, item);
  } else {
    ++again_[item];
  }
  return false;
}

void Sweep::unlock(Bits& ripe) {
  for (const Item item : locked_[turn_]) {
    const auto more = again_.empty() ? again_.end() : again_.find(item);
    if (more == again_.end()) {
      put(ripe, item);
    } else if (--more->second == 0) {
      again_.erase(more);
    }
  }
}

void Sweep::flush(std::int64_t target, Counts& counts, Record* record) {
  take(ripe_, target, counts);
  if (lasting_ && held_ > room_) take(later_, room_, counts);
  // A step reads from the lowest place up, also where the sweep came to the end and began anew.
  if (!std::is_sorted(taken_.begin(), taken_.end(), std::greater<>())) {
    std::sort(taken_.begin(), taken_.end(), std::greater<>());
  }
  Chain request{request_};
  count(*units_, taken_, gap_, request, aside_, counts);
  request_ = request.after;
  if (record != nullptr) record->loads.insert(record->loads.end(), taken_.begin(), taken_.end());
  taken_.clear();
}

// Takes out what the head passes, whole units, until no more is held than `target`.
void Sweep::take(Bits& ripe, std::int64_t target, Counts& counts) {
  while (held_ > target) {
    std::int64_t item = highest_below(ripe, head_);
    if (item < 0) {
      item = highest_below(ripe, units_->items);
      if (item < 0) break;
      ++counts.sweeps;
    }
    const std::int64_t begin = begin_of(*units_, unit_of(*units_, item));
    for (; item >= begin; item = highest_below(ripe, item)) {
      drop(ripe, item);
      drop(resident_, item);
      held_ -= weight_of(*units_, item);
      taken_.push_back(static_cast<Item>(item));
    }
    head_ = begin;
  }
}

Counts Sweep::back(std::span<const Item> items, std::span<const std::int64_t> starts, Record* record, bool goes_on) {
  Counts counts;
  const std::size_t steps = starts.size() - 1;
  std::vector<std::int64_t> from_back(record != nullptr ? steps + 1 : 0);  // loads of issue step i and all after it
  if (record != nullptr) {
    *record = {{}, {}, std::vector<std::uint8_t>(items.size())};
    record->loads.reserve(items.size());  // mostly fewer; growing would take twice the memory
  }
  // What waits for these epochs' steps is read before what waits for later ones.
  for (std::size_t word = 0; !goes_on && word < later_.size(); ++word) later_[word] |= std::exchange(ripe_[word], 0);
  behind_ = goes_on ? behind_ : 0;
  for (std::size_t step = steps; step-- > 0;) {
    unlock(lasting_ && ++behind_ <= locked_.size() ? later_ : ripe_);
    std::vector<Item>& mine = locked_[turn_];
    mine.assign(items.begin() + starts[step], items.begin() + starts[step + 1]);
    turn_ = (turn_ + 1) % locked_.size();
    for (std::size_t i = mine.size(); i-- > 0;) {
      const bool last = use(mine[i]);
      if (record != nullptr) record->last[static_cast<std::size_t>(starts[step]) + i] = last;
    }
    if (held_ > room_) flush(room_ - burst_, counts, record);
    if (held_ > room_) {
      throw Error(Kind::plan, "the uses of " + std::to_string(ahead_ + 1) + " steps take " + std::to_string(held_) +
                                  " bytes, and there is room for " + std::to_string(room_));
    }
    counts.peak = std::max(counts.peak, held_);
    if (record != nullptr) from_back[step + 1] = static_cast<std::int64_t>(record->loads.size());
  }
  if (record != nullptr) {
    std::reverse(record->loads.begin(), record->loads.end());
    const auto all = static_cast<std::int64_t>(record->loads.size());
    for (std::size_t step = 0; step < steps; ++step) record->ends.push_back(all - from_back[step + 1]);
    record->ends.push_back(all);
  }
  return counts;
}

std::vector<Item> Sweep::residents(Counts& rest) const {
  rest = {};
  std::vector<Item> found;
  for (std::int64_t item = highest_below(resident_, units_->items); item >= 0; item = highest_below(resident_, item)) {
    found.push_back(static_cast<Item>(item));
  }
  std::vector<Extent> aside;
  Chain request;
  count(*units_, found, gap_, request, aside, rest);
  rest.peak = held_;
  std::reverse(found.begin(), found.end());
  return found;
}

Counts direct(const Units& units, std::span<const Item> items, std::span<const std::int64_t> starts, std::int64_t gap) {
  Counts counts;
  std::vector<Item> wanted;
  std::vector<Extent> aside;
  for (std::size_t step = 0; step + 1 < starts.size(); ++step) {
    wanted.assign(items.begin() + starts[step], items.begin() + starts[step + 1]);
    std::sort(wanted.begin(), wanted.end(), std::greater<>());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    Chain request;
    count(units, wanted, gap, request, aside, counts);
    std::int64_t held = 0;
    for (const std::int64_t item : wanted) held += weight_of(units, item);
    counts.peak = std::max(counts.peak, held);
  }
  return counts;
}

}  // namespace solar::plan
