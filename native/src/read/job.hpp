// A Job is one ticket: its ReadPlan, or the samples that it converts; how far it has come, and its error.
//
// The Reader owns all Jobs, and uses one again for another ticket when no thread holds it. Several threads work on a
// Job at a time: each takes the next unit (`next_unit`) and reports the pieces that it has finished. The first error
// wins; the thread that finishes the last piece tells the Reader. `error` may be read only after that. What stands
// below "The Reader's" is read and written under the Reader's mutex.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>

#include "batch.hpp"
#include "solar/reader.hpp"

namespace solar::read {

// Counts that threads add to, and any may read.
class alignas(64) Counts {
 public:
  void add(const ReaderStats& more) noexcept {
    for (std::size_t i = 0; i < named_counts.size(); ++i) {
      if (const std::uint64_t n = more.*named_counts[i].count; n != 0) counts_[i].fetch_add(n, std::memory_order_relaxed);
    }
  }
  void add_to(ReaderStats& sum) const noexcept {
    for (std::size_t i = 0; i < named_counts.size(); ++i) {
      sum.*named_counts[i].count += counts_[i].load(std::memory_order_relaxed);
    }
  }
  void clear() noexcept {
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<std::uint64_t>, named_counts.size()> counts_{};
};

// Samples that are converted in slices, each of which is a unit of work and a piece of it.
struct Slices {
  std::shared_ptr<const Conversion> conversion;  // null: the Job reads
  const std::byte* samples = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0, each = 1;  // samples, and of a slice

  std::size_t units() const noexcept { return (count + each - 1) / each; }
  void convert(std::size_t unit) const {
    const std::size_t first = unit * each;
    (*conversion)(samples + first * conversion->sample_nbytes, std::min(each, count - first),
                  out + first * conversion->made_nbytes);
  }
};

struct Job {
  ReadPlan batch;
  Slices slices;
  std::atomic<std::uint32_t> next_unit{0};
  std::atomic<std::uint64_t> pieces_left{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;  // written by the first to fail, read once no piece is left
  Counts counts;             // added to before the pieces they are of are finished
  std::uint64_t ticket = 0;  // set before it is open
  std::int64_t first_row = 0;  // of those asked for

  // The Reader's, under its mutex:
  enum class State { queued, planning, open, finished } state = State::queued;
  unsigned users = 0;      // threads that hold it
  bool forgotten = false;  // waited for: may be used again once no thread holds it

  bool converts() const noexcept { return slices.conversion != nullptr; }
  std::size_t units() const noexcept { return converts() ? slices.units() : batch.units(); }
  std::size_t pieces() const noexcept { return converts() ? slices.units() : batch.pieces.size(); }
  bool reads_nothing() const noexcept { return converts() || batch.from_buffer(); }

  // Its batch, or its slices, are new; and planned, or they will be.
  void begin(std::int64_t row, bool planned) {
    next_unit = 0;
    pieces_left = pieces();
    failed = false;
    error = nullptr;
    counts.clear();
    first_row = row;
    forgotten = false;
    state = planned ? State::open : State::queued;
  }
  void fail(std::exception_ptr why) noexcept {
    if (!failed.exchange(true)) error = std::move(why);
  }
  // True for the thread that finishes the last piece.
  bool finish(std::uint64_t pieces) noexcept { return pieces_left.fetch_sub(pieces) == pieces; }
};

}  // namespace solar::read
