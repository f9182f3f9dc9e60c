// Random plans for a Run that are right, whatever they cost, and what carrying them out must take.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "read/lines.hpp"
#include "reads.hpp"
#include "solar/run.hpp"

namespace reads {

using solar::read::Lines;

// An epoch's arrays, and what carrying it out must take.
struct Made {
  std::vector<std::int64_t> sizes, starts{0}, ends{0}, start_ends, start_due;
  std::vector<std::int32_t> rows, positions, loads, start;
  std::vector<std::uint8_t> last;
  std::vector<std::int32_t> samples = {}, own = {};  // of boxes
  std::vector<std::int64_t> corners = {}, sample_starts = {};

  Run::Epoch epoch() const {
    Run::Epoch epoch;
    epoch.rows = rows;
    epoch.positions = positions;
    epoch.starts = starts;
    epoch.last = last;
    epoch.loads = loads;
    epoch.ends = ends;
    epoch.start = start;
    epoch.start_ends = start_ends;
    epoch.start_due = start_due;
    epoch.samples = samples;
    epoch.own = own;
    epoch.corners = corners;
    epoch.sample_starts = sample_starts;
    return epoch;
  }
};

// The run's next epoch. It has arrays of its own, for as long as it needs them.
inline void append(Run& run, const Made& made) {
  const auto kept = std::make_shared<const Made>(made);
  run.append(kept->sizes, {kept->epoch()}, kept);
}

// A plan that is right, whatever it costs: each row, or line where those are kept, is held over a few of its uses.
class Plan {
 public:
  Plan(const Source& source, bool stored, std::uint64_t page_nbytes, std::uint64_t ahead, made::Random& random)
      : source_(source), lines_(source), stored_(stored), page_nbytes_(page_nbytes), ahead_(ahead), random_(random) {
    const std::size_t steps = random.between(1, 30);
    for (std::size_t step = 0; step < steps; ++step) {
      std::vector<std::int32_t> batch(random.between(1, 6));
      for (auto& row : batch) row = static_cast<std::int32_t>(random.upto(rows() - 1));
      uses_.push_back(batch);
    }
    hold();
  }

  std::size_t pages = 0;  // held at most
  std::size_t reads = 0, hits = 0;

  // The steps in epochs of random lengths.
  std::vector<Made> epochs() const {
    std::vector<Made> epochs(1);
    for (std::size_t step = 0; step < uses_.size(); ++step) {
      Made& made = epochs.back();
      if (step == 0) {
        made.start = sorted(loads_.at(0));
        const auto later = std::stable_partition(made.start.begin(), made.start.end(), [this](auto row) {
          const auto is_it = [&](auto used) { return key(used) == key(row); };
          return std::any_of(uses_[0].begin(), uses_[0].end(), is_it);
        });
        made.start_ends = {later - made.start.begin(), static_cast<std::int64_t>(made.start.size())};
        made.start_due = {0, 1};
      }
      made.sizes.push_back(static_cast<std::int64_t>(uses_[step].size()));
      for (std::size_t i = 0; i < uses_[step].size(); ++i) {
        made.rows.push_back(uses_[step][i]);
        made.last.push_back(last_.contains({step, i}));
      }
      made.starts.push_back(static_cast<std::int64_t>(made.rows.size()));
      const auto more = loads_.find(step + 1);
      if (more != loads_.end()) {
        for (const auto row : sorted(more->second)) made.loads.push_back(row);
      }
      made.ends.push_back(static_cast<std::int64_t>(made.loads.size()));
      if (step + 1 < uses_.size() && random_.one_in(4)) epochs.emplace_back();
    }
    return epochs;
  }

  const std::vector<std::vector<std::int32_t>>& uses() const { return uses_; }

 private:
  std::uint64_t rows() const { return static_cast<std::uint64_t>(source_.part_first.back()); }
  std::size_t key(std::int32_t row) const {
    return stored_ ? lines_.number(row) : static_cast<std::size_t>(row);
  }
  std::size_t pages_of(std::int32_t row) const { return stored_ ? lines_.pages(lines_.of(row), page_nbytes_) : 1; }

  static std::vector<std::int32_t> sorted(std::vector<std::int32_t> rows) {
    std::sort(rows.begin(), rows.end());
    return rows;
  }

  void hold() {
    std::map<std::size_t, std::vector<std::pair<std::size_t, std::size_t>>> of_key;  // its uses: step, place in it
    for (std::size_t step = 0; step < uses_.size(); ++step) {
      for (std::size_t i = 0; i < uses_[step].size(); ++i) of_key[key(uses_[step][i])].push_back({step, i});
    }
    std::vector<std::int64_t> change(uses_.size() + 2);
    for (const auto& [k, uses] : of_key) {
      std::size_t from = 0, free_from = 0;  // the use that is read for, and the first step at which it may be
      while (from < uses.size()) {
        std::size_t to = from;
        while (to + 1 < uses.size() && (uses[to + 1].first < uses[to].first + 1 + ahead_ || random_.one_in(2))) ++to;
        const auto [step, i] = uses[from];
        const std::int64_t latest = static_cast<std::int64_t>(step) - static_cast<std::int64_t>(ahead_);
        const std::size_t at = latest <= 0 ? 0 : random_.between(std::min<std::size_t>(free_from, latest), latest);
        loads_[at].push_back(uses_[step][i]);
        last_.insert(uses[to]);
        change[at] += static_cast<std::int64_t>(pages_of(uses_[step][i]));
        change[uses[to].first + 1] -= static_cast<std::int64_t>(pages_of(uses_[step][i]));
        free_from = uses[to].first + 1;
        ++reads;
        hits += to - from;
        from = to + 1;
      }
    }
    loads_[0];
    std::int64_t held = 0;
    for (const std::int64_t more : change) {
      held += more;
      pages = std::max(pages, static_cast<std::size_t>(held));
    }
  }

  const Source& source_;
  Lines lines_;
  bool stored_;
  std::uint64_t page_nbytes_, ahead_;
  made::Random& random_;
  std::vector<std::vector<std::int32_t>> uses_;
  std::map<std::size_t, std::vector<std::int32_t>> loads_;  // of each issue step
  std::set<std::pair<std::size_t, std::size_t>> last_;
};

inline Values wanted(const made::Sample& sample, const std::vector<std::int32_t>& rows) {
  return wanted_rows(sample.rows, sample.source->row_nbytes(), {rows.begin(), rows.end()});
}

}  // namespace reads
