// A Reader::Impl is what a Reader owns: its threads, the Jobs of all tickets, and what the threads share.
//
// Every member that changes belongs to the mutex, except atomics and what a class locks by itself (Recent, OpenFiles,
// ReadThreads). No thread holds the mutex while it plans, reads or decodes. A Worker belongs to one thread. A Job
// belongs to all threads that hold it (Job::users), and goes to `spare` once its ticket is forgotten and nobody holds
// it.
//
// Any thread of the process may call the functions that Reader has. In a forked process there are no threads: submit()
// and wait() throw Error(read), close() returns at once, and the others do nothing. work(), next(), plan() and
// finished() are for the Reader's own threads. What goes wrong in one of these fails the ticket at hand, and wait()
// throws it; nothing else ends a thread before close().
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include "read/worker.hpp"
#include "solar/reader.hpp"
#include "solar/sleepers.hpp"

namespace solar {

// The threads serve tickets in order, but those that read nothing come before all others. A thread takes units of the
// first ticket that has any left. The thread that meets a ticket first plans it, while the others go on with those
// beside.
struct Reader::Impl {
  Impl(unsigned threads, unsigned depth, std::uint64_t gap, Backend wanted, std::uint64_t scratch);
  ~Impl() { close(longest_wait); }

  Ticket submit(const Work& work);
  Ticket convert(std::shared_ptr<const Conversion> conversion, Bytes samples, MutableBytes out);
  bool wait(Ticket ticket, std::chrono::nanoseconds limit, ReaderStats* counts);
  std::string waiting_for(Ticket ticket);
  std::pair<std::uint64_t, std::uint64_t> progress(Ticket last);
  void abandon(Ticket ticket) noexcept;
  bool close(std::chrono::nanoseconds limit);
  ReaderStats stats() const;
  void check_process() const;

  read::Job* unused_job();
  Ticket enqueue(read::Job& job, bool nothing_to_do);
  void work(read::Worker& worker);
  read::Job* next(read::Job* held, bool block, std::uint32_t& unit);
  void plan(read::Job& job, std::unique_lock<std::mutex>& lock);
  read::ReadPlan::Remains leave(read::Job& job);
  read::ReadPlan::Remains forget(read::Job& job);
  void finished(read::Job& job);
  void dequeue(read::Job& job) { urgent -= std::erase(queue, &job) > 0 && job.reads_nothing(); }
  std::string on_its_way(const read::Job* wanted) const;
  std::string not_begun(const read::Job& job) const;

  const pid_t process = ::getpid();
  Backend backend = Backend::pread;
  std::mutex mutex;
  std::condition_variable has_finished, has_ended;
  Sleepers sleepers{mutex};              // threads that have nothing to do
  std::atomic<std::uint64_t> wakes{0};   // how often one of them woke
  const std::exception_ptr abandoned = std::make_exception_ptr(Error(Kind::read, "abandoned"));
  std::atomic<bool> closing{false};
  Ticket last_ticket = 0;
  std::deque<read::Job> jobs;  // all there are: as many as were ever in flight at once
  std::vector<read::Job*> spare;
  std::deque<read::Job*> queue;     // in order of tickets, but that those that read nothing come first
  std::atomic<unsigned> urgent{0};  // of these
  std::unordered_map<Ticket, read::Job*> tickets;
  read::Counts delivered;  // rows; all else is counted by the workers
  std::uint64_t over = 0;  // pieces of tickets that are finished
  read::Recent recent;
  read::OpenFiles through, past;  // the page cache
  std::unique_ptr<read::ReadThreads> read_threads;  // without io_uring; of all workers
  std::vector<std::unique_ptr<read::Worker>> workers;
  unsigned running = 0;      // threads
  bool given_up = false;     // a close() whose limit passed
  std::mutex closing_mutex;  // of the threads below
  std::vector<std::jthread> threads;
};

}  // namespace solar
