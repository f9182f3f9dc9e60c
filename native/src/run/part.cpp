#include "part.hpp"

#include <algorithm>

#include "read/grid.hpp"
#include "solar/error.hpp"

namespace solar::run {

namespace {

constexpr std::size_t fed_rows = 1 << 13;  // of a load that was fed: some 150 bytes each until it has come
constexpr std::size_t most_fed = 4;
constexpr std::uint64_t piece_nbytes =
    2 << 20;  // of a load that is waited for by itself: with its holes about one long call

std::size_t keys_of(const Run::Part& part, const read::Lines& lines) {
  return part.stored ? lines.count() : static_cast<std::size_t>(part.source->part_first.back());
}

}  // namespace

PartRun::PartRun(Reader& reader, const Run::Part& part, std::uint64_t scratch, const Node* node, std::byte* memory,
                 Requests* asked)
    : reader_(reader),
      part_(part),
      lines_(*part.source),
      buffer_(keys_of(part, lines_), part.pages, part.page_nbytes, memory),
      scratch_(scratch),
      node_(node),
      asked_(asked),
      fresh_(keys_of(part, lines_)),
      coming_(keys_of(part, lines_)) {
  for (const Form& form : part_.source->forms) {
    const read::Grid grid(*part_.source, form);
    whole_.push_back(!form.pipeline.empty() || grid.tiles() != 1 || grid.chunk_row_nbytes() != row_nbytes());
  }
}

std::uint64_t PartRun::batch_nbytes(const Run::Epoch& epoch, std::size_t step) const {
  if (part_.boxes == nullptr || !part_.boxes->runs()) {
    return static_cast<std::uint64_t>(epoch.sizes[step]) * sample_nbytes();
  }
  std::uint64_t rows = 0;
  for (std::int64_t i = epoch.sample_starts[step]; i < epoch.sample_starts[step + 1]; ++i) {
    rows = std::max(rows, Boxes::end(corner(epoch, static_cast<std::size_t>(i))));
  }
  return rows * sample_nbytes();
}

template <typename Act>
void PartRun::each_use(const Run::Epoch& epoch, std::size_t step, const Act& act) const {
  const auto begin = static_cast<std::size_t>(epoch.starts[step]),
             end = static_cast<std::size_t>(epoch.starts[step + 1]);
  for (std::size_t i = begin; i < end; ++i) {
    const auto places = part_.boxes == nullptr ? epoch.positions : epoch.own;  // blocks go nowhere, but to a rank
    const std::int64_t position = epoch.turns.ranks > 0 ? epoch.turns.position(i - begin)
                                  : places.empty()      ? static_cast<std::int64_t>(i - begin)
                                                        : places[i];
    if (part_.extents == nullptr) {
      act(i, epoch.rows[i], position);
      continue;
    }
    const Extents& extents = *part_.extents;
    const Extents::RowLimits place = extents.place(epoch.rows[i]);
    extents.each_slot(position, epoch.sizes[step], [&](std::size_t k, std::int64_t slot) {
      act(i * extents.slots() + k, static_cast<std::int32_t>(extents.row(place, k)), slot);
    });
  }
}

bool PartRun::read_as_one(std::int64_t row, std::int64_t other) const {
  if (lines_.number(row) != lines_.number(other)) return false;
  const auto first = part_.source->part_first;
  const auto part = std::upper_bound(first.begin(), first.end(), row) - first.begin() - 1;
  return whole_[static_cast<std::size_t>(part_.source->part_form[static_cast<std::size_t>(part)])];
}

// Leaves of what is loaded the part that this rank reads: a stretch of it, which cuts no line of chunks in two. Who read
// the end of one load begins the next, so that its requests go on.
void PartRun::share() {
  const std::size_t ranks = node_->ranks(), all = rows_.size();
  const auto begin_of = [this, ranks, all](std::size_t turn) {
    std::size_t begin = all * turn / ranks;
    while (begin > 0 && begin < all && read_as_one(rows_[begin - 1], rows_[begin])) ++begin;
    return rows_.begin() + static_cast<std::ptrdiff_t>(begin);
  };
  const std::size_t turn = (node_->rank() + loads_++) % ranks;
  rows_ = {begin_of(turn), begin_of(turn + 1)};
  if (turn > 0 || rows_.empty()) after_ = {};  // others read what lies between
}

// What is left to read in where rows are encoded: at least a row.
std::uint64_t PartRun::reading_scratch() const noexcept {
  const std::uint64_t encoding = Pack::scratch(row_nbytes(), part_.source->itemsize);
  return scratch_ < encoding + row_nbytes() ? row_nbytes() : scratch_ - encoding;
}

// What is to be done with `rows_`.
Work PartRun::work(Task task, MutableBytes out, FileOffset* after) {
  Work work;
  work.task = task;
  work.source = part_.source;
  work.rows = rows_;
  work.out = out;
  if (task != loading_task()) work.positions = positions_;
  work.buffer = &buffer_;
  work.lines = &lines_;
  work.pack = part_.pack;
  work.gap = part_.gap;
  work.after = after;
  work.scratch = task == Task::pack ? reading_scratch() : scratch_;
  return work;
}

Reader::Ticket PartRun::submit(const Work& work) {
  if (asked_ == nullptr) return reader_.submit(work);
  *asked_ += requests_of(work, 1);  // in stretches: threads are no matter
  return 0;
}

// Starts bringing `rows_` to their positions in `out`; where samples are boxes, what these have of them.
Reader::Ticket PartRun::deliver(Task task, const Run::Epoch& epoch, std::size_t step, MutableBytes out) {
  if (part_.boxes == nullptr) return submit(work(task, out));
  const auto begin = static_cast<std::size_t>(epoch.sample_starts[step]);
  const auto count = static_cast<std::size_t>(epoch.sample_starts[step + 1]) - begin;
  const auto samples = epoch.samples.subspan(begin, count);
  const std::size_t corner = part_.boxes->corner_size();
  Work cut = work(task, out);
  samples_.assign(samples.begin(), samples.end());
  positions_.clear();
  if (!epoch.positions.empty()) {
    const auto places = epoch.positions.subspan(begin, count);
    positions_.assign(places.begin(), places.end());
  }
  if (!all_chosen_) {
    std::sort(rows_.begin(), rows_.end());
    cut.blocks = rows_;
  }
  cut.rows = samples_;
  cut.boxes = part_.boxes;
  cut.corners = epoch.corners.subspan(begin * corner, count * corner);
  cut.positions.reset();
  if (!positions_.empty()) cut.positions = positions_;
  return submit(cut);
}

void PartRun::load(Rows rows, std::uint64_t due, bool start, RunStats& stats, const std::function<bool()>& ready) {
  if (start) after_ = {};
  choose(rows, start);
  const std::size_t most = node_ != nullptr || start ? chosen_.size() : rows_of_a_piece();
  for (std::size_t begin = 0; begin < chosen_.size(); begin += most) {
    const auto first = chosen_.begin() + static_cast<std::ptrdiff_t>(begin);
    rows_.assign(first, first + static_cast<std::ptrdiff_t>(std::min(most, chosen_.size() - begin)));
    load_piece(due, start ? nullptr : &after_, stats, ready);
  }
}

// Pages for these rows; of a start, those held are passed over.
void PartRun::choose(Rows rows, bool start) {
  chosen_.clear();
  for (const std::int32_t row : rows) {
    const std::size_t k = key(row);
    if (start && buffer_.holds(k)) continue;
    buffer_.take(k, part_.stored ? lines_.pages(lines_.of(row), part_.page_nbytes) : 1);
    fresh_[k] = coming_[k] = true;
    if (!lost_.empty()) lost_.erase(k);
    chosen_.push_back(row);
  }
}

bool PartRun::begin_afresh(const Run::Epoch& epoch, const Settle& settle, RunStats& stats, ReaderStats& counts) {
  if (!epoch.afresh) return true;
  while (!loading_.empty()) {
    if (!came(loading_.front(), &settle, stats, counts)) return false;
    loading_.pop_front();
  }
  part_.direct = epoch.afresh->direct;
  part_.ahead = epoch.afresh->ahead;
  part_.gap = epoch.afresh->gap;
  std::vector<bool> stays(fresh_.size());
  for (const std::int32_t row : epoch.start) stays[key(row)] = true;
  for (std::size_t k = 0; k < stays.size(); ++k) {
    if (!stays[k] && buffer_.holds(k)) buffer_.drop(k);
  }
  lost_.clear();
  return true;
}

bool PartRun::feed(std::uint64_t now, RunStats& stats, ReaderStats& counts) {
  for (auto loading = loading_.begin(); !waiting_.empty() && loading != loading_.end();) {
    const bool here = loading->fed && came(*loading, nullptr, stats, counts);
    loading = here ? loading_.erase(loading) : std::next(loading);
  }
  while (!waiting_.empty() && fed_ < most_fed) {
    Waiting& next = waiting_.front();
    const std::uint64_t due = next.due;
    choose(next.rows.first(std::min(fed_rows, next.rows.size())), true);
    next.rows = next.rows.subspan(std::min(fed_rows, next.rows.size()));
    if (next.rows.empty()) waiting_.pop_front();
    rows_ = chosen_;
    if (rows_.empty()) continue;
    load_piece(due, &fed_after_, stats, [] { return true; });
    loading_.back().fed = true;
    ++fed_;
  }
  return waiting_.empty() || waiting_.front().due > now;
}

bool PartRun::feed_all(std::uint64_t now, const Settle& settle, RunStats& stats, ReaderStats& counts) {
  while (!feed(now, stats, counts)) {
    const auto first = std::find_if(loading_.begin(), loading_.end(), [](const Loading& one) { return one.fed; });
    if (!came(*first, &settle, stats, counts)) return false;
    loading_.erase(first);
  }
  return true;
}

// So many rows are about as long as a piece, as they are stored on average.
std::size_t PartRun::rows_of_a_piece() const noexcept {
  const std::uint64_t each = part_.stored ? part_.page_nbytes : row_nbytes();
  return static_cast<std::size_t>(std::max<std::uint64_t>(1, piece_nbytes / std::max<std::uint64_t>(1, each)));
}

void PartRun::load_piece(std::uint64_t due, FileOffset* after, RunStats& stats, const std::function<bool()>& ready) {
  loading_.push_back({0, due, rows_});  // first: nothing may come between a ticket and its being noted
  if (node_ != nullptr) share();
  if (rows_.empty() || !ready()) return;
  stats.reads += rows_.size();
  try {
    loading_.back().ticket = submit(work(loading_task(), {}, after));
  } catch (...) {
    loading_.pop_back();
    throw;
  }
}

bool PartRun::arrive(const Run::Epoch& epoch, std::size_t step, std::uint64_t now, const Settle& settle,
                     RunStats& stats, ReaderStats& counts) {
  const bool all = node_ != nullptr || step + 2 == epoch.starts.size();
  if (!feed_all(now, settle, stats, counts)) return false;
  const bool some = !all && awaits(epoch, step);
  for (auto loading = loading_.begin(); loading != loading_.end();) {
    if (loading->due > now) {
      ++loading;
      continue;
    }
    if (!came(*loading, nullptr, stats, counts)) {
      if (!all && !(some && has_awaited(*loading))) {
        ++loading;
        continue;
      }
      if (!came(*loading, &settle, stats, counts)) return false;
    }
    loading = loading_.erase(loading);
  }
  return true;
}

// Whether a load has come, or does in the end, which is noted then. With `settle`, false when the Run closes.
bool PartRun::came(const Loading& loading, const Settle* settle, RunStats& stats, ReaderStats& counts) {
  ReaderStats own;
  bool lost = false;
  try {
    const bool here = loading.ticket == 0 || reader_.wait(loading.ticket, std::chrono::nanoseconds(0), &own);
    if (!here && (settle == nullptr || !(*settle)(loading.ticket, own))) return false;
    stats.requests += own.requests;
    stats.bytes += own.bytes_read;
  } catch (const std::exception&) {
    if (node_ != nullptr) throw;  // others would use these pages
    lost = true;
  }
  settled(loading, lost);
  fed_ -= loading.fed;
  add(counts, own);
  return true;
}

// What was lost comes again, with the batch that the bad row is in.
void PartRun::settled(const Loading& loading, bool lost) {
  for (const std::int64_t row : loading.rows) {
    const std::size_t k = key(static_cast<std::int32_t>(row));
    coming_[k] = false;
    if (!lost) continue;
    if (buffer_.holds(k)) buffer_.drop(k);
    lost_.insert(k);
  }
}

// Notes what the step uses and is on its way. False when that is nothing.
bool PartRun::awaits(const Run::Epoch& epoch, std::size_t step) {
  awaited_.clear();
  each_use(epoch, step, [this](std::size_t, std::int32_t row, std::int64_t) {
    if (const std::size_t k = key(row); coming_[k]) awaited_.push_back(k);
  });
  std::sort(awaited_.begin(), awaited_.end());
  return !awaited_.empty();
}

bool PartRun::has_awaited(const Loading& loading) const {
  return std::any_of(loading.rows.begin(), loading.rows.end(), [this](std::int64_t row) {
    return std::binary_search(awaited_.begin(), awaited_.end(), key(static_cast<std::int32_t>(row)));
  });
}

Reader::Ticket PartRun::due_first() const noexcept {
  for (const Loading& loading : loading_) {
    if (loading.ticket != 0) return loading.ticket;
  }
  return 0;
}

Reader::Ticket PartRun::due_last(std::uint64_t now) const noexcept {
  Reader::Ticket last = 0;
  for (const Loading& loading : loading_) {
    if (loading.due <= now) last = std::max(last, loading.ticket);
  }
  return last;
}

// Its pages may be written to, or be another's afterwards: a plan that asks for that would give wrong bytes.
void PartRun::check_due(std::int32_t row, const char* what) const {
  if (!coming_[key(row)]) return;
  throw Error(Kind::plan, part_.source->name + ": the plan " + what + " sample " + std::to_string(row) +
                              " before the step that it is read for");
}

// The rows of a step that are held, or that are not, and their positions. False when there are none.
bool PartRun::chosen(const Run::Epoch& epoch, std::size_t step, bool held) {
  rows_.clear();
  positions_.clear();
  all_chosen_ = true;
  each_use(epoch, step, [this, held](std::size_t, std::int32_t row, std::int64_t position) {
    if (position < 0) return;
    if (has(row) != held) {
      all_chosen_ = false;
      return;
    }
    if (held) check_due(row, "uses");
    rows_.push_back(row);
    positions_.push_back(position);
  });
  return !rows_.empty();
}

// Of the uses of rows that are held, all but each one's first since it was loaded were read for before.
void PartRun::count_hits(const Run::Epoch& epoch, std::size_t step, RunStats& stats) {
  each_use(epoch, step, [this, &stats](std::size_t, std::int32_t row, std::int64_t position) {
    const std::size_t k = key(row);
    if (!has(row)) return;
    if (!fresh_[k] && position >= 0) ++stats.hits;
    fresh_[k] = false;
  });
}

bool PartRun::mend(const Run::Epoch& epoch, std::size_t step, std::uint64_t now, RunStats& stats) {
  if (lost_.empty()) return false;
  std::vector<std::int32_t> wanted;
  each_use(epoch, step, [&](std::size_t use, std::int32_t row, std::int64_t) {
    if (const std::size_t k = key(row); lost_.contains(k) && !is_last(epoch, use)) {
      lost_.erase(k);
      wanted.push_back(row);
    }
  });
  if (wanted.empty()) return false;
  stats.recovered += wanted.size();
  stats.reads -= wanted.size();  // they were counted when they were lost
  load(wanted, now, true, stats, [] { return true; });
  return true;
}

std::vector<std::int64_t> PartRun::missing(const Run::Epoch& epoch, std::size_t step) const {
  std::vector<std::int64_t> uses;
  each_use(epoch, step, [this, &uses](std::size_t use, std::int32_t row, std::int64_t position) {
    if (position >= 0 && !has(row)) uses.push_back(static_cast<std::int64_t>(use));
  });
  return uses;
}

Reader::Ticket PartRun::fetch(const Run::Epoch& epoch, std::size_t step, MutableBytes out, RunStats& stats) {
  if (!chosen(epoch, step, false)) return 0;
  std::vector<std::int64_t> once = rows_;  // a row that a batch has twice is read once
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  for (const std::int64_t row : once) {
    ++(part_.direct && !buffer_.holds(key(static_cast<std::int32_t>(row))) ? stats.reads : stats.recovered);
  }
  stats.hits += rows_.size() - once.size();
  return deliver(Task::fetch, epoch, step, out);
}

Reader::Ticket PartRun::put_together(const Run::Epoch& epoch, std::size_t step, MutableBytes out, RunStats& stats) {
  count_hits(epoch, step, stats);
  if (!chosen(epoch, step, true)) return 0;
  return deliver(using_task(), epoch, step, out);
}

void PartRun::drop(const Run::Epoch& epoch, std::size_t step) {
  each_use(epoch, step, [this, &epoch](std::size_t use, std::int32_t row, std::int64_t) {
    if (!is_last(epoch, use)) return;
    check_due(row, "drops");
    if (const std::size_t k = key(row); buffer_.holds(k)) buffer_.drop(k);
  });
}

}  // namespace solar::run
