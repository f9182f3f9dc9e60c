#include "solar/read_ahead.hpp"

#include <stdexcept>
#include <unistd.h>
#include <utility>

#include "solar/error.hpp"

namespace solar {

namespace {

constexpr std::chrono::seconds last_read(5);  // that an abandoned read may take to end

}  // namespace

ReadAhead::ReadAhead(Reader& reader, std::shared_ptr<MemoryPool> pool, std::vector<std::shared_ptr<const Source>> fields)
    : process_(::getpid()), reader_(reader), pool_(std::move(pool)), sources_(std::move(fields)) {
  if (sources_.empty()) throw std::invalid_argument("batches of no fields");
}

ReadAhead::~ReadAhead() {
  for (Begun& begun : leave()) abandon(std::move(begun));
}

void ReadAhead::check_process() const {
  if (::getpid() == process_) return;
  throw Error(Kind::read, "these batches are read by process " + std::to_string(process_) +
                              ", from which this one was forked; make a new iterator here");
}

// The memory must stay while the engine may write to it: a read that does not end keeps it for ever.
void ReadAhead::abandon(Begun begun) noexcept {
  bool ended = ::getpid() == process_;
  if (ended) {
    for (const Reader::Ticket ticket : begun.tickets) reader_.abandon(ticket);
  }
  for (const Reader::Ticket ticket : begun.tickets) {
    if (ticket == 0 || !ended) continue;
    try {
      ended = reader_.wait(ticket, last_read);
    } catch (const Error&) {  // of a batch that nobody asks for any more
    } catch (...) {           // which says nothing of whether the read has ended
      ended = false;
    }
  }
  if (!ended) static_cast<void>(new (std::nothrow) Begun(std::move(begun)));
}

void ReadAhead::begin(std::span<const std::int64_t> rows) { begin(std::vector(sources_.size(), rows)); }

void ReadAhead::begin(std::span<const std::span<const std::int64_t>> rows_of_fields) {
  check_process();
  if (rows_of_fields.size() != sources_.size()) throw std::invalid_argument("rows of other fields");
  Begun begun;
  begun.tickets.reserve(sources_.size());
  begun.fields.reserve(sources_.size());
  try {
    for (std::size_t field = 0; field < sources_.size(); ++field) {
      const auto& source = sources_[field];
      const std::span<const std::int64_t> rows = rows_of_fields[field];
      begun.fields.push_back(pool_->take(rows.size() * source->row_nbytes()));
      begun.tickets.push_back(reader_.submit(source, rows, begun.fields.back()->bytes()));
    }
    const std::lock_guard lock(mutex_);
    begun_.push_back(std::move(begun));
    changed_.notify_all();
  } catch (...) {
    abandon(std::move(begun));
    throw;
  }
}

bool ReadAhead::take(std::chrono::nanoseconds limit, Batch& batch) {
  check_process();
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  const std::lock_guard taking(taking_);
  for (;;) {
    Reader::Ticket ticket = 0;
    std::size_t field = 0;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, deadline, [this] { return !begun_.empty(); })) return false;
      Begun& oldest = begun_.front();
      while (field < oldest.tickets.size() && oldest.tickets[field] == 0) ++field;
      if (field == oldest.tickets.size()) {
        batch.fields = std::move(oldest.fields);
        batch.counts = oldest.counts;
        begun_.pop_front();
        return true;
      }
      ticket = oldest.tickets[field];
    }
    ReaderStats counts;
    std::exception_ptr failed;
    try {
      const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
      if (!reader_.wait(ticket, std::max(left, std::chrono::nanoseconds(0)), &counts)) return false;
    } catch (...) {
      failed = std::current_exception();
    }
    Begun lost;
    {
      const std::lock_guard lock(mutex_);
      Begun& oldest = begun_.front();
      oldest.tickets[field] = 0;
      add(oldest.counts, counts);
      if (failed == nullptr) continue;
      lost = std::move(oldest);
      begun_.pop_front();
    }
    abandon(std::move(lost));  // other fields may still be read to their memory
    std::rethrow_exception(failed);
  }
}

std::deque<ReadAhead::Begun> ReadAhead::leave() {
  if (::getpid() != process_) return {};  // where the mutexes may be locked for ever
  const std::scoped_lock lock(taking_, mutex_);
  return std::exchange(begun_, {});
}

std::vector<Reader::Ticket> ReadAhead::oldest() const {
  if (::getpid() != process_) return {};
  const std::lock_guard lock(mutex_);
  return begun_.empty() ? std::vector<Reader::Ticket>() : begun_.front().tickets;
}

}  // namespace solar
