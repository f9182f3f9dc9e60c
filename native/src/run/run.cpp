#include "solar/run.hpp"

#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <unistd.h>
#include <utility>

#include "part.hpp"

namespace solar {

using run::PartRun;
using run::Planned;

namespace {

constexpr std::chrono::nanoseconds longest_wait = std::chrono::hours(24 * 365);
constexpr std::chrono::nanoseconds glance = std::chrono::milliseconds(50);  // between looks at whether it closes

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

struct Run::Impl {
  Impl(Reader& on, std::shared_ptr<MemoryPool> from, std::size_t most, std::uint64_t beside)
      : reader(on), pool(std::move(from)), staged(most), scratch(beside) {}

  // A batch on its way: its memory, and what is read straight into it.
  struct Making {
    Batch batch;
    std::vector<Reader::Ticket> tickets;
    std::vector<std::size_t> fetched;  // rows of each part that are read straight into it
    std::exception_ptr error;
  };

  void conduct();
  void carry_out(const std::shared_ptr<const Planned>& planned);
  std::shared_ptr<const Planned> next();
  void start(const std::shared_ptr<const Planned>& planned);
  void issue(const std::shared_ptr<const Planned>& planned, std::size_t step);
  void count_held();
  bool wait_for_room();
  Making prepare(const Planned& planned, std::size_t step);
  bool finish(Making& making);
  bool make(const Planned& planned, std::size_t step, Making& making);
  bool settle(Reader::Ticket ticket, ReaderStats& counts);
  void publish(Making making);
  void give_up() noexcept;
  void check_process() const;
  MutableBytes memory(Making& making, const PartRun& part) const { return making.batch.fields[part.part().field]->bytes(); }

  const pid_t process = ::getpid();
  Reader& reader;
  std::shared_ptr<MemoryPool> pool;
  std::size_t staged;
  std::uint64_t scratch;
  std::deque<PartRun> parts;
  std::size_t fields = 0;
  std::uint64_t now = 0;       // steps carried out
  std::deque<Making> making;   // of this step and, where parts are direct, of those after it
  ReaderStats counts;          // since the batch before
  RunStats done;               // the thread's own

  mutable std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::deque<std::shared_ptr<const Planned>> planned;
  std::deque<Making> ready;
  std::vector<std::shared_ptr<const void>> over;
  RunStats told;
  std::vector<Reader::Ticket> waited_for;  // by the thread, or about to be
  std::exception_ptr failed;               // the plan itself: nothing can go on
  bool closing = false, ended = true, given_up = false;
  bool begun = false;  // the thread
  std::mutex joining;  // of the thread
  std::optional<std::jthread> thread;
};

// --- the thread ----

void Run::Impl::conduct() {
  ::pthread_setname_np(::pthread_self(), "solar-run");
  try {
    while (const auto epoch = next()) carry_out(epoch);
  } catch (...) {
    const std::lock_guard lock(mutex);
    failed = std::current_exception();
  }
  give_up();
  const std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

std::shared_ptr<const Planned> Run::Impl::next() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return closing || !planned.empty(); });
  return closing ? nullptr : planned.front();
}

void Run::Impl::carry_out(const std::shared_ptr<const Planned>& epoch) {
  start(epoch);
  std::uint64_t lead = 0;
  for (const PartRun& part : parts) lead = std::max(lead, part.part().direct ? part.part().ahead : 0);
  const std::size_t steps = epoch->sizes.size();
  std::size_t prepared = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    for (; prepared < std::min<std::uint64_t>(steps, step + lead + 1); ++prepared) {
      making.push_back(prepare(*epoch, prepared));
    }
    if (!wait_for_room() || !make(*epoch, step, making.front())) return;
    for (std::size_t p = 0; p < parts.size(); ++p) parts[p].drop(epoch->parts[p], step);
    Making made = std::move(making.front());
    making.pop_front();
    publish(std::move(made));
    issue(epoch, step);
    ++now;
  }
  const std::lock_guard lock(mutex);
  if (!closing) over.push_back(planned.front()), planned.pop_front();
}

// Groups that are needed first are read first.
void Run::Impl::start(const std::shared_ptr<const Planned>& epoch) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Epoch& own = epoch->parts[p];
    for (std::size_t g = 0; g < own.start_ends.size(); ++g) {
      const auto begin = static_cast<std::size_t>(g == 0 ? 0 : own.start_ends[g - 1]);
      const auto rows = own.start.subspan(begin, static_cast<std::size_t>(own.start_ends[g]) - begin);
      parts[p].load(rows, now + static_cast<std::uint64_t>(own.start_due[g]), epoch, true, done);
    }
  }
  count_held();
}

// What is read after this step.
void Run::Impl::issue(const std::shared_ptr<const Planned>& epoch, std::size_t step) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Epoch& own = epoch->parts[p];
    const auto begin = static_cast<std::size_t>(own.ends[step]), end = static_cast<std::size_t>(own.ends[step + 1]);
    parts[p].load(own.loads.subspan(begin, end - begin), now + 1 + parts[p].part().ahead, epoch, false, done);
  }
  count_held();
}

void Run::Impl::count_held() {
  done.held_bytes = 0;
  for (const PartRun& part : parts) done.held_bytes += part.held_nbytes();
  done.peak_bytes = std::max(done.peak_bytes, done.held_bytes);
}

bool Run::Impl::wait_for_room() {
  std::unique_lock lock(mutex);
  told = done;
  waited_for.clear();
  for (const PartRun& part : parts) {
    if (const auto ticket = part.due_first(); ticket != 0) waited_for.push_back(ticket);
  }
  changed.wait(lock, [this] { return closing || ready.size() < staged; });
  return !closing;
}

// Memory for a batch; and what is known not to be held is asked for.
Run::Impl::Making Run::Impl::prepare(const Planned& epoch, std::size_t step) {
  Making made;
  made.fetched.resize(parts.size());
  made.batch.fields.resize(fields);
  const auto rows = static_cast<std::uint64_t>(epoch.sizes[step]);
  for (const PartRun& part : parts) {
    auto& field = made.batch.fields[part.part().field];
    if (field == nullptr) field = pool->take(std::max<std::uint64_t>(1, rows * part.row_nbytes()));
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].part().direct) continue;
    made.fetched[p] = parts[p].missing(epoch.parts[p], step);
    const auto ticket = parts[p].fetch(epoch.parts[p], step, memory(made, parts[p]), done);
    if (ticket != 0) made.tickets.push_back(ticket);
  }
  return made;
}

// Puts the batch together. False when it closes.
bool Run::Impl::make(const Planned& epoch, std::size_t step, Making& made) {
  const std::uint64_t begin = now_ns();
  const auto settled = [this](Reader::Ticket ticket, ReaderStats& of) { return settle(ticket, of); };
  for (PartRun& part : parts) {
    if (!part.arrive(now, settled, done, counts)) return false;
  }
  done.stall_ns += now_ns() - begin;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const MutableBytes out = memory(made, parts[p]);
    const auto together = parts[p].put_together(epoch.parts[p], step, out, done);
    if (together != 0) made.tickets.push_back(together);
    if (parts[p].missing(epoch.parts[p], step) == made.fetched[p]) continue;
    if (made.fetched[p] > 0 && !finish(made)) return false;  // or two would write to the same rows
    const auto again = parts[p].fetch(epoch.parts[p], step, out, done);
    if (again != 0) made.tickets.push_back(again);
  }
  return finish(made);
}

// Waits for all that is read and copied to the batch. False when it closes.
bool Run::Impl::finish(Making& made) {
  while (!made.tickets.empty()) {
    ReaderStats own;
    try {
      if (!settle(made.tickets.back(), own)) return false;
      done.requests += own.stretches;
      done.bytes += own.bytes_read;
    } catch (const std::exception&) {
      made.error = std::current_exception();
    }
    for (const NamedCount& one : named_counts) counts.*one.count += own.*one.count;
    made.tickets.pop_back();
  }
  return true;
}

bool Run::Impl::settle(Reader::Ticket ticket, ReaderStats& of) {
  {
    const std::lock_guard lock(mutex);
    waited_for.assign(1, ticket);
  }
  while (!reader.wait(ticket, glance, &of)) {
    const std::lock_guard lock(mutex);
    if (closing) return false;
  }
  return true;
}

void Run::Impl::publish(Making made) {
  ++done.steps;
  count_held();
  made.batch.counts = std::exchange(counts, {});
  const std::lock_guard lock(mutex);
  told = done;
  ready.push_back(std::move(made));
  changed.notify_all();
}

// Waits for all that is still written to the buffers and batches.
void Run::Impl::give_up() noexcept {
  std::vector<Reader::Ticket> tickets;
  for (const PartRun& part : parts) {
    for (const Reader::Ticket ticket : part.on_their_way()) tickets.push_back(ticket);
  }
  for (const Making& one : making) tickets.insert(tickets.end(), one.tickets.begin(), one.tickets.end());
  for (const Reader::Ticket ticket : tickets) reader.abandon(ticket);
  for (const Reader::Ticket ticket : tickets) {
    try {
      reader.wait(ticket, longest_wait);
    } catch (const std::exception&) {  // it is over
    }
  }
}

// --- whoever takes the batches ----

void Run::Impl::check_process() const {
  if (::getpid() == process) return;
  throw Error(Kind::read, "this Run belongs to process " + std::to_string(process) +
                              " and has no thread in this one, forked from it; make a new Run here");
}

Run::Run(Reader& reader, std::shared_ptr<MemoryPool> pool, std::size_t staged, std::uint64_t scratch)
    : impl_(std::make_unique<Impl>(reader, std::move(pool), std::max<std::size_t>(1, staged), scratch)) {}

Run::~Run() {
  if (impl_ == nullptr) return;
  if (::getpid() != impl_->process || !close(std::chrono::nanoseconds(impl_->given_up ? 0 : longest_wait.count()))) {
    static_cast<void>(impl_.release());
  }
}

std::size_t Run::part(const Part& part) {
  impl_->check_process();
  if (impl_->begun) throw std::logic_error("a part is added before the first epoch");
  if (!part.stored && part.pages > 0 && part.page_nbytes != part.source->row_nbytes()) {
    throw std::invalid_argument(part.source->name + ": a page is a row, unless lines of chunks are kept");
  }
  for (const PartRun& other : impl_->parts) {
    if (other.part().field == part.field && other.row_nbytes() != part.source->row_nbytes()) {
      throw std::invalid_argument(part.source->name + ": rows of another size than the field's other parts");
    }
  }
  impl_->parts.emplace_back(impl_->reader, part, impl_->scratch);
  impl_->fields = std::max(impl_->fields, part.field + 1);
  return impl_->parts.size() - 1;
}

void Run::append(std::vector<std::int64_t> sizes, std::vector<Epoch> parts, std::shared_ptr<const void> keep) {
  impl_->check_process();
  if (parts.size() != impl_->parts.size()) {
    throw std::invalid_argument(std::to_string(parts.size()) + " parts of an epoch, for a Run of " +
                                std::to_string(impl_->parts.size()));
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Part& part = impl_->parts[p].part();
    std::size_t of_field = 0;
    for (const PartRun& other : impl_->parts) of_field += other.part().field == part.field;
    run::check(parts[p], part, sizes, of_field == 1);
  }
  auto made = std::make_shared<const Planned>(Planned{std::move(sizes), std::move(parts), std::move(keep)});
  const std::lock_guard lock(impl_->mutex);
  if (impl_->closing) throw Error(Kind::read, "the Run is closed");
  impl_->planned.push_back(std::move(made));
  impl_->changed.notify_all();
  if (std::exchange(impl_->begun, true)) return;
  sigset_t all, before;  // signals are for the program's own threads
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    impl_->ended = false;
    impl_->thread.emplace([impl = impl_.get()] { impl->conduct(); });
  } catch (...) {
    impl_->ended = true;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool Run::take(std::chrono::nanoseconds limit, Batch& batch) {
  impl_->check_process();
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  Impl::Making made;
  {
    std::unique_lock lock(impl_->mutex);
    const auto there = [this] { return !impl_->ready.empty() || impl_->closing || impl_->failed != nullptr; };
    if (!impl_->changed.wait_until(lock, deadline, there)) return false;
    if (impl_->ready.empty()) {
      if (impl_->failed != nullptr) std::rethrow_exception(impl_->failed);
      throw Error(Kind::read, "the Run is closed");
    }
    made = std::move(impl_->ready.front());
    impl_->ready.pop_front();
    impl_->changed.notify_all();
  }
  if (made.error != nullptr) std::rethrow_exception(made.error);
  batch = std::move(made.batch);
  return true;
}

std::string Run::waiting_for() const {
  if (::getpid() != impl_->process) return "";
  std::vector<Reader::Ticket> tickets;
  {
    const std::lock_guard lock(impl_->mutex);
    tickets = impl_->waited_for;
  }
  for (const Reader::Ticket ticket : tickets) {
    if (std::string found = impl_->reader.waiting_for(ticket); !found.empty()) return found;
  }
  return "";
}

RunStats Run::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->told;
}

std::vector<std::shared_ptr<const void>> Run::retired() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->over, {});
}

bool Run::close(std::chrono::nanoseconds limit) {
  if (::getpid() != impl_->process) return true;
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  {
    std::unique_lock lock(impl_->mutex);
    impl_->closing = true;
    impl_->changed.notify_all();
    impl_->given_up = !impl_->changed.wait_until(lock, deadline, [this] { return impl_->ended; });
    if (impl_->given_up) return false;
  }
  const std::lock_guard lock(impl_->joining);
  impl_->thread.reset();
  return true;
}

}  // namespace solar
