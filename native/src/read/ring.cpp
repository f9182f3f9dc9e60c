#include "ring.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "signals.hpp"
#include "solar/error.hpp"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace solar::read {

namespace {

// Raw system calls, no library.
class KernelRing final : public Ring {
 public:
  // Error(read) with the system's code where the kernel has none or forbids it.
  explicit KernelRing(unsigned entries);
  ~KernelRing() override { unmap(); }

  bool of_kernel() const noexcept override { return true; }
  unsigned entries() const noexcept override { return entries_; }
  void queue(const File& file, const iovec* parts, unsigned count, std::uint64_t offset,
             std::uint64_t tag) noexcept override;
  bool submit() noexcept override;
  bool take_back(std::uint64_t& tag) noexcept override;
  void wait(unsigned count) noexcept override;
  bool take(std::uint64_t& tag, std::int32_t& result) noexcept override;

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

// One number on every architecture.
constexpr long setup_call = 425;
constexpr long enter_call = 426;

long enter(int descriptor, unsigned submit, unsigned wait) noexcept {
  return ::syscall(enter_call, descriptor, submit, wait, wait == 0 ? 0U : IORING_ENTER_GETEVENTS, nullptr, 0);
}

[[noreturn]] void fail(const char* what, int code) {
  throw Error(Kind::read, std::string("io_uring: ") + what + ": " + std::strerror(code), code);
}

std::uint32_t load(std::uint32_t* shared) noexcept { return std::atomic_ref(*shared).load(std::memory_order_acquire); }
void store(std::uint32_t* shared, std::uint32_t value) noexcept {
  std::atomic_ref(*shared).store(value, std::memory_order_release);
}

KernelRing::KernelRing(unsigned entries) {
  io_uring_params params{};
  params.flags = IORING_SETUP_CLAMP;
  descriptor_ = static_cast<int>(::syscall(setup_call, entries, &params));
  if (descriptor_ < 0) fail("cannot be set up", errno);
  constexpr unsigned needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP;
  if ((params.features & needed) != needed) {
    ::close(descriptor_);
    fail("this kernel's is too old", ENOSYS);
  }
  entries_ = params.sq_entries;
  rings_nbytes_ = std::max(params.sq_off.array + params.sq_entries * sizeof(std::uint32_t),
                           params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  sqes_nbytes_ = params.sq_entries * sizeof(io_uring_sqe);
  map(rings_nbytes_, sqes_nbytes_);
  const auto at = [this](std::uint32_t offset) {
    return reinterpret_cast<std::uint32_t*>(static_cast<char*>(rings_) + offset);
  };
  sq_head_ = at(params.sq_off.head);
  sq_tail_ = at(params.sq_off.tail);
  sq_array_ = at(params.sq_off.array);
  sq_mask_ = *at(params.sq_off.ring_mask);
  cq_head_ = at(params.cq_off.head);
  cq_tail_ = at(params.cq_off.tail);
  cq_mask_ = *at(params.cq_off.ring_mask);
  cqes_ = reinterpret_cast<const io_uring_cqe*>(at(params.cq_off.cqes));
  if (enter(descriptor_, 0, 0) < 0) {  // a sandbox may allow one call and forbid the other
    const int code = errno;
    unmap();
    fail("cannot be entered", code);
  }
}

void KernelRing::map(std::size_t nbytes, std::size_t sqe_nbytes) {
  constexpr int flags = MAP_SHARED | MAP_POPULATE;
  void* rings = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, flags, descriptor_, IORING_OFF_SQ_RING);
  if (rings != MAP_FAILED) rings_ = rings;
  void* sqes = ::mmap(nullptr, sqe_nbytes, PROT_READ | PROT_WRITE, flags, descriptor_, IORING_OFF_SQES);
  if (sqes != MAP_FAILED) sqes_ = static_cast<io_uring_sqe*>(sqes);
  if (rings_ != nullptr && sqes_ != nullptr) return;
  const int code = errno;
  unmap();
  fail("cannot be mapped", code);
}

void KernelRing::unmap() noexcept {
  if (rings_ != nullptr) ::munmap(rings_, rings_nbytes_);
  if (sqes_ != nullptr) ::munmap(sqes_, sqes_nbytes_);
  ::close(descriptor_);
}

void KernelRing::queue(const File& file, const iovec* parts, unsigned count, std::uint64_t offset,
                       std::uint64_t tag) noexcept {
  const std::uint32_t tail = *sq_tail_;
  io_uring_sqe& entry = sqes_[tail & sq_mask_];
  std::memset(&entry, 0, sizeof entry);
  entry.opcode = IORING_OP_READV;
  entry.fd = file.descriptor();
  entry.addr = reinterpret_cast<std::uint64_t>(parts);
  entry.len = count;
  entry.off = offset;
  entry.user_data = tag;
  sq_array_[tail & sq_mask_] = tail & sq_mask_;
  store(sq_tail_, tail + 1);
}

bool KernelRing::submit() noexcept {
  for (;;) {
    const std::uint32_t queued = *sq_tail_ - load(sq_head_);
    if (queued == 0) return true;
    if (enter(descriptor_, queued, 0) < 0 && errno != EINTR) return false;
  }
}

bool KernelRing::take_back(std::uint64_t& tag) noexcept {
  const std::uint32_t tail = *sq_tail_;
  if (tail == load(sq_head_)) return false;
  tag = sqes_[(tail - 1) & sq_mask_].user_data;
  store(sq_tail_, tail - 1);
  return true;
}

void KernelRing::wait(unsigned count) noexcept {
  // Results come without being waited for; should waiting be refused, looking again will do.
  if (enter(descriptor_, 0, count) < 0 && errno != EINTR) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

bool KernelRing::take(std::uint64_t& tag, std::int32_t& result) noexcept {
  const std::uint32_t head = *cq_head_;
  if (head == load(cq_tail_)) return false;
  const io_uring_cqe& entry = cqes_[head & cq_mask_];
  tag = entry.user_data;
  result = entry.res;
  store(cq_head_, head + 1);
  return true;
}

std::unique_ptr<Ring> kernel_ring(unsigned entries) { return std::make_unique<KernelRing>(entries); }

}  // namespace

}  // namespace solar::read

#else  // built where the kernel's headers are older than io_uring

namespace solar::read {

namespace {

std::unique_ptr<Ring> kernel_ring(unsigned) { throw Error(Kind::read, "io_uring: not in this build", ENOSYS); }

}  // namespace

}  // namespace solar::read

#endif

#ifdef __SANITIZE_THREAD__
extern "C" {
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace solar::read {

// What threads have read for one thread, which waits for it: a queue that never grows.
class Results {
 public:
  explicit Results(unsigned most) : results_(most) {}

  void put(std::uint64_t tag, std::int32_t result) noexcept {
    const std::lock_guard lock(mutex_);
    results_[(first_ + count_++) % results_.size()] = {tag, result};
    if (count_ >= wanted_) come_.notify_one();  // inside: who waited may take the queue away
  }
  void wait(unsigned count) noexcept {
    std::unique_lock lock(mutex_);
    wanted_ = count;
    come_.wait(lock, [this] { return count_ >= wanted_; });
    wanted_ = SIZE_MAX;
  }
  bool take(std::uint64_t& tag, std::int32_t& result) noexcept {
    const std::lock_guard lock(mutex_);
    if (count_ == 0) return false;
    std::tie(tag, result) = results_[first_];
    first_ = (first_ + 1) % results_.size();
    --count_;
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable come_;
  std::size_t wanted_ = SIZE_MAX;  // results that are waited for
  std::size_t first_ = 0, count_ = 0;
  std::vector<std::pair<std::uint64_t, std::int32_t>> results_;
};

namespace {

constexpr unsigned most_read_threads = 256;

// Holes of several reads have one memory, which nobody looks at: that they are written to at once is no race.
class HolesAreShared {
 public:
#ifdef __SANITIZE_THREAD__
  explicit HolesAreShared(unsigned parts) : any_(parts > 1) {
    if (any_) AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~HolesAreShared() {
    if (any_) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  }

 private:
  const bool any_;
#else
  explicit HolesAreShared(unsigned) {}
#endif
};

class ThreadRing final : public Ring {
 public:
  ThreadRing(unsigned entries, ReadThreads& threads) : entries_(entries), threads_(threads), results_(entries) {
    queued_.reserve(entries);
  }

  bool of_kernel() const noexcept override { return false; }
  unsigned entries() const noexcept override { return entries_; }
  void queue(const File& file, const iovec* parts, unsigned count, std::uint64_t offset,
             std::uint64_t tag) noexcept override {
    queued_.push_back({&results_, &file, parts, count, offset, tag});
  }
  bool submit() noexcept override {
    if (!threads_.submit(queued_)) return false;
    queued_.clear();
    return true;
  }
  bool take_back(std::uint64_t& tag) noexcept override {
    if (queued_.empty()) return false;
    tag = queued_.back().tag;
    queued_.pop_back();
    return true;
  }
  void wait(unsigned count) noexcept override { results_.wait(count); }
  bool take(std::uint64_t& tag, std::int32_t& result) noexcept override { return results_.take(tag, result); }

 private:
  const unsigned entries_;
  ReadThreads& threads_;
  Results results_;
  std::vector<ReadThreads::Order> queued_;
};

}  // namespace

ReadThreads::ReadThreads(unsigned most) : most_(most) {
  sleepers_.reserve(most);
  threads_.reserve(most);
}

ReadThreads::~ReadThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  sleepers_.wake(most_);
}

bool ReadThreads::submit(std::span<const Order> orders) noexcept {
  if (orders.empty()) return true;
  {
    const std::lock_guard lock(mutex_);
    try {
      const FatalSignalsOnly signals;
      const std::size_t wanted = std::min<std::size_t>(most_, busy_ + orders_.size() + orders.size());
      while (threads_.size() < wanted) threads_.emplace_back([this] { work(); });
    } catch (const std::exception&) {  // the system has no more: those that are there read one after another
    }
    if (threads_.empty()) return false;
    try {
      orders_.insert(orders_.end(), orders.begin(), orders.end());
    } catch (const std::exception&) {
      return false;
    }
  }
  sleepers_.wake(orders.size());
  return true;
}

std::size_t ReadThreads::begun() const {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

void ReadThreads::work() noexcept {
  ::pthread_setname_np(::pthread_self(), "solar-wait");
  std::unique_lock lock(mutex_);
  for (;;) {
    if (orders_.empty()) {
      if (stopping_) return;
      sleepers_.sleep(lock);
      continue;
    }
    const Order order = orders_.front();
    orders_.pop_front();
    ++busy_;
    lock.unlock();
    ssize_t got = 0;
    {
      const HolesAreShared told(order.count);
      got = order.file->read_some(order.parts, order.count, order.offset);
      if (got < 0) got = -errno;
    }
    order.to->put(order.tag, static_cast<std::int32_t>(got));
    lock.lock();
    --busy_;
  }
}

std::vector<std::unique_ptr<Ring>> make_rings(unsigned count, unsigned depth, Backend backend,
                                              std::unique_ptr<ReadThreads>& threads) {
  const unsigned entries = std::max(1U, depth / count);
  std::vector<std::unique_ptr<Ring>> rings(count);
  if (backend != Backend::pread) {
    try {
      for (auto& ring : rings) ring = kernel_ring(entries);
      return rings;
    } catch (const Error&) {
      if (backend == Backend::uring) throw;
    }
  }
  threads = std::make_unique<ReadThreads>(std::clamp(depth, 1U, most_read_threads));
  for (auto& ring : rings) ring = std::make_unique<ThreadRing>(entries, *threads);
  return rings;
}

}  // namespace solar::read
