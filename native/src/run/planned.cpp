// Whether the arrays of an epoch fit each other.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "part.hpp"

namespace solar::run {

namespace {

[[noreturn]] void refuse_epoch(const std::string& what) { throw std::invalid_argument("an epoch of a run: " + what); }

// Whether `ends` goes up from 0 or more to `all`.
void check_ends(std::span<const std::int64_t> ends, std::size_t all, const char* name) {
  std::int64_t before = 0;
  for (const std::int64_t end : ends) {
    if (end < before) refuse_epoch(std::string(name) + " goes down");
    before = end;
  }
  if (before != static_cast<std::int64_t>(all)) refuse_epoch(std::string(name) + " does not end with its array");
}

void check_rows(std::span<const std::int32_t> rows, std::int64_t all, const char* name) {
  for (const std::int32_t row : rows) {
    if (row < 0 || row >= all)
      refuse_epoch(std::string(name) + " has row " + std::to_string(row) + " of " + std::to_string(all));
  }
}

// Whether the arrays of samples that are boxes fit each other, and their blocks are among those that their step uses for
// this rank.
void check_boxes(const Run::Epoch& epoch, const Run::Part& part, const std::vector<std::int64_t>& sizes, bool shared) {
  if (!epoch.own.empty() && epoch.own.size() != epoch.rows.size()) refuse_epoch("own must be as long as rows");
  if (!epoch.own.empty() && !shared) refuse_epoch("there is no other rank to whom blocks may belong");
  const Boxes& boxes = *part.boxes;
  const std::size_t size = boxes.corner_size();
  if (epoch.sample_starts.size() != sizes.size() + 1 || epoch.sample_starts[0] != 0) {
    refuse_epoch("sample_starts must be one more than steps");
  }
  check_ends(epoch.sample_starts, epoch.samples.size(), "sample_starts");
  if (epoch.corners.size() / size != epoch.samples.size() || epoch.corners.size() % size != 0) {
    refuse_epoch("each sample has a corner");
  }
  std::vector<std::int64_t> used;
  for (std::size_t step = 0; step + 1 < epoch.starts.size(); ++step) {
    used.clear();
    for (auto use = static_cast<std::size_t>(epoch.starts[step]);
         use < static_cast<std::size_t>(epoch.starts[step + 1]); ++use) {
      if (epoch.own.empty() || epoch.own[use] >= 0) used.push_back(epoch.rows[use]);
    }
    if (!std::is_sorted(used.begin(), used.end())) std::sort(used.begin(), used.end());
    for (std::int64_t i = epoch.sample_starts[step]; i < epoch.sample_starts[step + 1]; ++i) {
      const auto corner = epoch.corners.subspan(static_cast<std::size_t>(i) * size, size);
      boxes.check(corner);
      const std::uint64_t item = boxes.nbytes(part.source->itemsize);
      if (boxes.runs() && Boxes::end(corner) > INT64_MAX / item)
        refuse_epoch("a batch of more rows than can be counted");
      auto at = used.begin();
      boxes.each_block(*part.source, corner, [&used, &at](std::int64_t block) {
        if (at == used.end() || *at != block) at = std::lower_bound(used.begin(), used.end(), block);
        if (at == used.end() || *at != block) refuse_epoch("a box has a block that its step does not use");
        ++at;  // mostly the next one
      });
    }
  }
}

}  // namespace

void check(const Run::Epoch& epoch, const Run::Part& part, const std::vector<std::int64_t>& sizes, bool alone,
           bool shared) {
  const std::int64_t all = part.source->part_first.back();
  const Extents* const extents = part.extents.get();
  check_rows(epoch.rows, extents == nullptr ? all : extents->samples(), "rows");
  check_rows(epoch.loads, all, "loads");
  check_rows(epoch.start, all, "start");
  if (epoch.starts.size() != sizes.size() + 1 || epoch.ends.size() != sizes.size() + 1 || epoch.starts[0] != 0) {
    refuse_epoch("starts and ends must be one more than steps");
  }
  check_ends(epoch.starts, epoch.rows.size(), "starts");
  check_ends(epoch.ends, epoch.loads.size(), "ends");
  check_ends(epoch.start_ends, epoch.start.size(), "start_ends");
  const std::size_t flags = extents == nullptr ? epoch.rows.size() : (epoch.rows.size() * extents->slots() + 7) / 8;
  if (epoch.last.size() != flags) refuse_epoch("last must be as long as rows");
  if (epoch.start_due.size() != epoch.start_ends.size()) refuse_epoch("start_due must be as long as start_ends");
  const std::span<const std::int64_t> starts = part.boxes == nullptr ? epoch.starts : epoch.sample_starts;
  const std::size_t placed = part.boxes == nullptr ? epoch.rows.size() : epoch.samples.size();
  if (!epoch.positions.empty() && epoch.positions.size() != placed)
    refuse_epoch("positions must be as long as what they place");
  const Run::Turns& turns = epoch.turns;
  if (turns.ranks != 0 && (turns.rank < 0 || turns.rank >= turns.ranks || !epoch.positions.empty() ||
                           part.boxes != nullptr || (!shared && turns.ranks > 1)))
    refuse_epoch("turns of rank " + std::to_string(turns.rank) + " of " + std::to_string(turns.ranks));
  if (part.boxes != nullptr) check_boxes(epoch, part, sizes, shared);
  const std::uint64_t nbytes =
      part.boxes == nullptr ? part.source->row_nbytes() : part.boxes->nbytes(part.source->itemsize);
  const auto most = static_cast<std::int64_t>(INT64_MAX / std::max<std::uint64_t>(1, nbytes)) /
                    static_cast<std::int64_t>(extents == nullptr ? 1 : extents->slots());
  for (std::size_t step = 0; step < sizes.size(); ++step) {
    if (sizes[step] < 0 || sizes[step] > most) refuse_epoch("a batch of " + std::to_string(sizes[step]) + " rows");
    const std::int64_t uses = starts[step + 1] - starts[step];
    // Of an epoch that uses no row of its own, all comes from elsewhere.
    const bool filled = alone && epoch.positions.empty() && turns.ranks == 0 && placed > 0;
    const bool fits = filled ? uses == sizes[step] : shared || uses <= sizes[step];
    if (!fits) refuse_epoch("a batch of another size");
    if (turns.ranks > 0 && sizes[step] != (uses - turns.rank + turns.ranks - 1) / turns.ranks)
      refuse_epoch("a batch of another size than turns give it");
    for (std::int64_t use = starts[step]; !epoch.positions.empty() && use < starts[step + 1]; ++use) {
      const std::int32_t position = epoch.positions[static_cast<std::size_t>(use)];
      if ((position < 0 && !shared) || position >= sizes[step])
        refuse_epoch("position " + std::to_string(position) + " of a batch");
    }
  }
}

}  // namespace solar::run
