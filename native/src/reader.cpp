#include <stdexcept>

#include "read/impl.hpp"
#include "signals.hpp"

namespace solar {

using read::Job;
using read::ReadPlan;
using read::Worker;

namespace {

constexpr unsigned most_threads = 1024;
constexpr unsigned most_depth = 4096;
constexpr std::size_t slice_nbytes = 256 << 10;  // of samples that are converted, before or after: whichever are more

}  // namespace

Reader::Impl::Impl(unsigned count, unsigned depth, std::uint64_t gap, Backend wanted, std::uint64_t scratch)
    : recent(count, scratch / 2 * count), through(read::descriptor_limit(count), count, false), past(read::descriptor_limit(count), count, true) {
  if (count == 0 || count > most_threads || depth > most_depth) {
    throw std::invalid_argument("a Reader has 1 to " + std::to_string(most_threads) +
                                " threads and a depth of at most " + std::to_string(most_depth));
  }
  auto rings = read::make_rings(count, depth, wanted, read_threads);
  backend = read_threads == nullptr ? Backend::uring : Backend::pread;
  for (auto& ring : rings) {
    const read::WorkerFiles files{through, past, static_cast<unsigned>(workers.size()), read::descriptor_limit(count) / count};
    workers.push_back(std::make_unique<Worker>(files, gap, scratch, recent, std::move(ring),
                                               std::max(1U, depth / count), [this](Job& job) { finished(job); }));
  }
  sleepers.reserve(workers.size());
  try {
    const FatalSignalsOnly signals;
    for (auto& worker : workers) {
      threads.emplace_back([this, &worker = *worker] { work(worker); });
      const std::lock_guard lock(mutex);
      ++running;
    }
  } catch (...) {
    close(longest_wait);
    throw;
  }
}

void Reader::Impl::check_process() const {
  if (::getpid() == process) return;
  throw Error(Kind::read, "this Reader belongs to process " + std::to_string(process) +
                              " and has no threads in this one, forked from it; make a new Reader here");
}

Job* Reader::Impl::unused_job() {
  const std::lock_guard lock(mutex);
  spare.reserve(jobs.size() + 1);  // for all of them: a job comes back without asking for memory
  if (spare.empty()) spare.push_back(&jobs.emplace_back());
  Job* const job = spare.back();
  spare.pop_back();
  return job;
}

Reader::Ticket Reader::Impl::submit(const Work& work) {
  Job* const job = unused_job();
  try {
    job->batch.begin(work);
    if (work.after != nullptr) {
      job->batch.plan(static_cast<unsigned>(workers.size()));
      *work.after = job->batch.end;
    }
  } catch (...) {
    const std::lock_guard lock(mutex);
    spare.push_back(job);
    throw;
  }
  job->begin(job->batch.rows.empty() ? 0 : job->batch.rows.front().row, work.after != nullptr);
  return enqueue(*job, work.after != nullptr && job->batch.pieces.empty());
}

Reader::Ticket Reader::Impl::convert(std::shared_ptr<const Conversion> conversion, Bytes samples, MutableBytes out) {
  const std::size_t before = conversion->sample_nbytes, after = conversion->made_nbytes;
  const std::size_t count = before == 0 ? 0 : samples.size() / before;
  if (samples.size() != count * before || out.size() != count * after) {
    throw std::invalid_argument("memory of another size than that of the samples");
  }
  Job* const job = unused_job();
  job->slices = {std::move(conversion), samples.data(), out.data(), count,
                 std::max<std::size_t>(1, slice_nbytes / std::max(before, after))};
  job->begin(0, true);
  return enqueue(*job, count == 0);
}

// REQUIRES: nobody else knows the Job yet.
Reader::Ticket Reader::Impl::enqueue(Job& job, bool nothing_to_do) {
  std::unique_lock lock(mutex);
  if (closing) {
    spare.push_back(&job);
    throw Error(Kind::read, "the Reader is closed");
  }
  const Ticket ticket = job.ticket = ++last_ticket;
  tickets.emplace(ticket, &job);
  if (nothing_to_do) {
    lock.unlock();
    finished(job);
    return ticket;
  }
  // What is in memory need not wait for what is not.
  job.reads_nothing() ? queue.push_front(&job) : queue.push_back(&job);
  urgent += job.reads_nothing();
  const std::size_t units = job.state == Job::State::open ? job.units() : 1;  // who plans it wakes others
  lock.unlock();  // first: who wakes would wait for it, and hold it when the caller asks for another ticket
  // A thread for each unit: to wake more than there is work for takes longer than the work.
  sleepers.wake(units);
  return ticket;
}

bool Reader::Impl::wait(Ticket ticket, std::chrono::nanoseconds limit, ReaderStats* counts) {
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  std::exception_ptr error;
  std::shared_ptr<const Source> source;  // let go outside the lock
  ReadPlan::Remains remains;             // as well
  {
    std::unique_lock lock(mutex);
    bool in_time = true;
    for (;;) {
      if (closing) throw Error(Kind::read, "the Reader is closed");
      const auto found = tickets.find(ticket);
      if (found == tickets.end()) throw std::invalid_argument("no ticket " + std::to_string(ticket) + " to wait for");
      Job& job = *found->second;
      if (job.state == Job::State::finished) {
        error = std::move(job.error);
        source = job.batch.release();
        if (counts != nullptr) job.counts.add_to(*counts = {});
        tickets.erase(found);
        job.forgotten = true;
        if (job.users == 0) remains = forget(job);
        break;
      }
      if (!in_time) return false;
      in_time = has_finished.wait_until(lock, deadline) == std::cv_status::no_timeout;
    }
  }
  if (error) std::rethrow_exception(error);
  return true;
}

void Reader::Impl::abandon(Ticket ticket) noexcept {
  const std::lock_guard lock(mutex);
  const auto found = tickets.find(ticket);
  if (found != tickets.end() && found->second->state != Job::State::finished) found->second->fail(abandoned);
}

bool Reader::Impl::close(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  {
    std::unique_lock lock(mutex);
    closing = true;
    lock.unlock();
    sleepers.wake(workers.size());
    lock.lock();
    has_finished.notify_all();
    given_up = !has_ended.wait_until(lock, deadline, [this] { return running == 0; });
    if (given_up) return false;
  }
  const std::lock_guard lock(closing_mutex);
  threads.clear();  // joins
  return true;
}

void Reader::Impl::work(Worker& worker) {
  ::pthread_setname_np(::pthread_self(), "solar-read");
  Job* job = nullptr;
  for (;;) {
    std::uint32_t unit = 0;
    job = next(job, !worker.busy(), unit);
    if (job != nullptr) {
      worker.run(*job, unit);
    } else if (!worker.busy()) {
      break;
    }
    if (worker.busy()) worker.reap(job == nullptr);
  }
  const std::lock_guard lock(mutex);
  if (--running == 0) has_ended.notify_all();
}

// The next unit of work, of the Job held if that has one. Null when there is none (and, with `block`, never will be).
Job* Reader::Impl::next(Job* held, bool block, std::uint32_t& unit) {
  if (held != nullptr && !closing && (urgent == 0 || held->reads_nothing())) {
    unit = held->next_unit.fetch_add(1, std::memory_order_relaxed);
    if (unit < held->units()) return held;
  }
  ReadPlan::Remains remains;  // let go outside the lock
  std::unique_lock lock(mutex);
  if (held != nullptr) remains = leave(*held);
  for (std::size_t i = 0; !closing;) {
    if (i == queue.size()) {
      if (!block) return nullptr;
      sleepers.sleep(lock);
      wakes.fetch_add(1, std::memory_order_relaxed);
      i = 0;
      continue;
    }
    Job& job = *queue[i];
    if (job.state == Job::State::planning) {
      ++i;
      continue;
    }
    if (job.state == Job::State::queued) {
      plan(job, lock);
    } else {
      unit = job.next_unit.fetch_add(1, std::memory_order_relaxed);
      if (unit < job.units()) {
        ++job.users;
        return &job;
      }
      dequeue(job);
    }
    i = 0;
  }
  return nullptr;
}

// Plans a queued Job, outside the lock.
void Reader::Impl::plan(Job& job, std::unique_lock<std::mutex>& lock) {
  job.state = Job::State::planning;
  lock.unlock();
  try {
    if (!job.failed) job.batch.plan(static_cast<unsigned>(workers.size()));
    job.pieces_left = job.batch.pieces.size();
  } catch (...) {
    job.fail(std::current_exception());
  }
  const bool nothing_to_do = job.failed || job.batch.pieces.empty();
  if (nothing_to_do) finished(job);
  lock.lock();
  if (nothing_to_do) return;
  job.state = Job::State::open;
  const std::size_t others = std::min(job.batch.units() - 1, sleepers.count());  // this thread takes one
  if (others == 0) return;
  lock.unlock();
  sleepers.wake(others);
  lock.lock();
}

// The thread no longer holds the Job, which is used again when its ticket was waited for.
ReadPlan::Remains Reader::Impl::leave(Job& job) {
  return --job.users == 0 && job.forgotten ? forget(job) : ReadPlan::Remains();
}

// The Job may be used again. Gives what is too large to be kept till then.
ReadPlan::Remains Reader::Impl::forget(Job& job) {
  spare.push_back(&job);
  job.slices = {};
  return job.batch.release_large();
}

void Reader::Impl::finished(Job& job) {
  const std::lock_guard lock(mutex);
  if (!job.failed) {
    ReaderStats whole;
    if (!job.converts() && job.batch.delivers()) whole.rows = job.batch.asked;
    job.counts.add(whole);
    delivered.add(whole);
  }
  job.state = Job::State::finished;
  over += job.pieces();
  dequeue(job);
  has_finished.notify_all();
}

ReaderStats Reader::Impl::stats() const {
  ReaderStats total;
  delivered.add_to(total);
  for (const auto& worker : workers) worker->counts().add_to(total);
  return total;
}

Reader::Reader(unsigned threads, unsigned depth, std::uint64_t gap, Backend backend, std::uint64_t scratch)
    : impl_(std::make_unique<Impl>(threads, depth, gap, backend, scratch)) {}

Reader::~Reader() {
  // In a forked child there are no threads to join, and what they held stays locked: leave it all as it is. So it must
  // be where a close() was given up, for the threads may still come back to it.
  if (::getpid() != impl_->process || (impl_->given_up && !close(std::chrono::nanoseconds(0)))) {
    static_cast<void>(impl_.release());
  }
}

Reader::Ticket Reader::submit(std::shared_ptr<const Source> source, std::span<const std::int64_t> rows,
                              MutableBytes out, Positions positions, Positions counts) {
  return submit({.source = std::move(source), .rows = rows, .out = out, .positions = positions, .counts = counts});
}

Reader::Ticket Reader::submit(const Work& work) {
  impl_->check_process();
  return impl_->submit(work);
}

Reader::Ticket Reader::convert(std::shared_ptr<const Conversion> conversion, Bytes samples, MutableBytes out) {
  impl_->check_process();
  return impl_->convert(std::move(conversion), samples, out);
}

bool Reader::wait(Ticket ticket, std::chrono::nanoseconds limit, ReaderStats* counts) {
  impl_->check_process();
  return impl_->wait(ticket, limit, counts);
}

std::string Reader::waiting_for(Ticket ticket) const {
  return ::getpid() == impl_->process ? impl_->waiting_for(ticket) : "";
}

std::pair<std::uint64_t, std::uint64_t> Reader::progress(Ticket last) const {
  return ::getpid() == impl_->process ? impl_->progress(last) : std::pair<std::uint64_t, std::uint64_t>();
}

void Reader::abandon(Ticket ticket) noexcept {
  if (::getpid() == impl_->process) impl_->abandon(ticket);
}

bool Reader::close(std::chrono::nanoseconds limit) { return ::getpid() != impl_->process || impl_->close(limit); }

Backend Reader::backend() const { return impl_->backend; }
std::uint64_t Reader::opened() const { return impl_->through.opened() + impl_->past.opened(); }
std::uint64_t Reader::wakes() const { return impl_->wakes.load(std::memory_order_relaxed); }
ReaderStats Reader::stats() const { return impl_->stats(); }

}  // namespace solar
