#include "solar/asked.hpp"

#include "part.hpp"
#include "read/batch.hpp"

namespace solar {

Asked::Asked(Reader& reader, const Run::Part& part, std::uint64_t scratch)
    : part_(std::make_unique<run::PartRun>(reader, part, scratch, nullptr, nullptr, &requests_)) {}

Asked::~Asked() = default;

// As Run carries it out, but that nothing is waited for, or put together.
Requests Asked::epoch(std::vector<std::int64_t> sizes, Run::Epoch epoch) {
  run::check(epoch, part_->part(), sizes, true, false);
  epoch.sizes = sizes;
  const run::PartRun::Settle settled = [](Reader::Ticket, ReaderStats&) { return true; };
  const auto ready = [] { return true; };
  requests_ = {};
  RunStats stats;
  ReaderStats counts;
  part_->begin_afresh(epoch, settled, stats, counts);
  const auto start = [&](bool first) {
    for (std::size_t g = 0; g < epoch.start_ends.size(); ++g) {
      if ((epoch.start_due[g] == 0 || part_->part().direct) != first) continue;
      const auto begin = static_cast<std::size_t>(g == 0 ? 0 : epoch.start_ends[g - 1]);
      const auto rows = epoch.start.subspan(begin, static_cast<std::size_t>(epoch.start_ends[g]) - begin);
      const std::uint64_t due = now_ + static_cast<std::uint64_t>(epoch.start_due[g]);
      first ? part_->load(rows, due, true, stats, ready) : part_->load_later(rows, due);
    }
    part_->feed_all(UINT64_MAX, settled, stats, counts);
  };
  start(true);
  for (std::size_t step = 0; step < sizes.size(); ++step) {
    part_->arrive(epoch, step, now_, settled, stats, counts);
    if (step == 0) start(false);
    part_->fetch(epoch, step, {}, stats);
    part_->drop(epoch, step);
    const auto begin = static_cast<std::size_t>(epoch.ends[step]), end = static_cast<std::size_t>(epoch.ends[step + 1]);
    part_->load(epoch.loads.subspan(begin, end - begin), now_ + 1 + part_->part().ahead, false, stats, ready);
    ++now_;
  }
  return requests_;
}

Requests requests_of(const Work& work, unsigned threads) {
  read::ReadPlan batch;
  batch.begin(work);
  batch.plan(threads);
  if (work.after != nullptr) *work.after = batch.end;
  Requests made;
  for (std::size_t unit = 0; unit < batch.units(); ++unit) {
    const std::uint32_t end = batch.unit_begin[unit + 1];
    for (std::uint32_t i = batch.unit_begin[unit]; i < end;) {
      if (batch.pieces[i].how == read::How::fill) {
        ++i;
        continue;
      }
      const std::uint32_t to = batch.joined(i, end, read::gap_from_afar);
      made += {1, batch.end_of(to) - batch.begin_of(i)};
      i = to;
    }
  }
  return made;
}

}  // namespace solar
