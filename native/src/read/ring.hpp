// Reads that one thread has handed over, and their results: to the kernel by an io_uring, or, where the kernel has or
// allows none, to threads that do nothing but wait for the storage.
//
// REQUIRES: the file, and what a read points to (vector and buffers), stay until its result was taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <sys/uio.h>
#include <thread>
#include <vector>

#include "solar/file.hpp"
#include "solar/reader.hpp"
#include "solar/sleepers.hpp"

namespace solar::read {

class Ring {
 public:
  virtual ~Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  virtual bool of_kernel() const noexcept = 0;
  virtual unsigned entries() const noexcept = 0;
  // Queues one read; submit() hands it over. REQUIRES: fewer than entries() reads queued or in flight.
  virtual void queue(const File& file, const iovec* parts, unsigned count, std::uint64_t offset,
                     std::uint64_t tag) noexcept = 0;
  // Hands over what is queued. Returns false when it is refused; then take_back() until it returns false.
  virtual bool submit() noexcept = 0;
  virtual bool take_back(std::uint64_t& tag) noexcept = 0;
  // Blocks until `count` results are there (or a signal came). REQUIRES: as many in flight.
  virtual void wait(unsigned count) noexcept = 0;
  // The next result, if there is one: bytes read, or minus errno.
  virtual bool take(std::uint64_t& tag, std::int32_t& result) noexcept = 0;

 protected:
  Ring() = default;
};

// Threads that read, for the Rings of a Reader. Each is begun when there is a read that no other is free for.
class ReadThreads {
 public:
  // What one reads, and where its result goes. The Ring and the Order stay until that is there.
  struct Order {
    class Results* to = nullptr;
    const File* file = nullptr;
    const iovec* parts = nullptr;
    unsigned count = 0;
    std::uint64_t offset = 0, tag = 0;
  };

  explicit ReadThreads(unsigned most);
  ~ReadThreads();  // REQUIRES: every result was taken
  ReadThreads(const ReadThreads&) = delete;
  ReadThreads& operator=(const ReadThreads&) = delete;

  // Returns false, and takes none of them, where there is no thread and none can be begun, or no memory.
  bool submit(std::span<const Order> orders) noexcept;
  std::size_t begun() const;

 private:
  void work() noexcept;

  const unsigned most_;
  mutable std::mutex mutex_;  // of what follows
  Sleepers sleepers_{mutex_};
  std::deque<Order> orders_;
  std::size_t busy_ = 0;  // threads that read
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

// One for each thread: of the kernel's or (pread, or automatic where the kernel has none) with `threads`, which it makes.
std::vector<std::unique_ptr<Ring>> make_rings(unsigned count, unsigned depth, Backend backend,
                                              std::unique_ptr<ReadThreads>& threads);

}  // namespace solar::read
