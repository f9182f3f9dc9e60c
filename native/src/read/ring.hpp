// An io_uring of one thread: reads handed to the kernel, and their results. Raw system calls, no library.
//
// REQUIRES: what a read points to (vector and buffers) stays until its result was taken.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sys/uio.h>
#include <vector>

#include "solar/reader.hpp"

struct io_uring_sqe;
struct io_uring_cqe;

namespace solar::read {

class Ring {
 public:
  // Error(read) with the system's code where the kernel has none or forbids it.
  explicit Ring(unsigned entries);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  unsigned entries() const noexcept { return entries_; }
  // Queues one read; submit() hands it over. REQUIRES: fewer than entries() reads queued or in flight.
  void queue(int descriptor, const iovec* parts, unsigned count, std::uint64_t offset, std::uint64_t tag) noexcept;
  // Hands over what is queued. Returns false when the kernel refuses; then take_back() until it returns false.
  bool submit() noexcept;
  bool take_back(std::uint64_t& tag) noexcept;
  // Blocks until `count` results are there (or a signal came). REQUIRES: as many in flight.
  void wait(unsigned count) noexcept;
  // The next result, if there is one: bytes read, or minus errno.
  bool take(std::uint64_t& tag, std::int32_t& result) noexcept;

 private:
  void map(std::size_t nbytes, std::size_t sqe_nbytes);
  void unmap() noexcept;

  int descriptor_ = -1;
  unsigned entries_ = 0;
  void* rings_ = nullptr;  // shared with the kernel
  std::size_t rings_nbytes_ = 0;
  io_uring_sqe* sqes_ = nullptr;
  std::size_t sqes_nbytes_ = 0;
  std::uint32_t *sq_head_ = nullptr, *sq_tail_ = nullptr, *sq_array_ = nullptr;
  std::uint32_t *cq_head_ = nullptr, *cq_tail_ = nullptr;
  std::uint32_t sq_mask_ = 0, cq_mask_ = 0;
  const io_uring_cqe* cqes_ = nullptr;
};

// One for each thread, or (pread, or automatic where the kernel has none) null pointers.
std::vector<std::unique_ptr<Ring>> make_rings(unsigned threads, unsigned depth, Backend backend);

}  // namespace solar::read
