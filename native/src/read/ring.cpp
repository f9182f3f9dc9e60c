#include "ring.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include "solar/error.hpp"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace solar::read {

namespace {

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

}  // namespace

Ring::Ring(unsigned entries) {
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

void Ring::map(std::size_t nbytes, std::size_t sqe_nbytes) {
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

void Ring::unmap() noexcept {
  if (rings_ != nullptr) ::munmap(rings_, rings_nbytes_);
  if (sqes_ != nullptr) ::munmap(sqes_, sqes_nbytes_);
  ::close(descriptor_);
}

Ring::~Ring() { unmap(); }

void Ring::queue(int descriptor, const iovec* parts, unsigned count, std::uint64_t offset, std::uint64_t tag) noexcept {
  const std::uint32_t tail = *sq_tail_;
  io_uring_sqe& entry = sqes_[tail & sq_mask_];
  std::memset(&entry, 0, sizeof entry);
  entry.opcode = IORING_OP_READV;
  entry.fd = descriptor;
  entry.addr = reinterpret_cast<std::uint64_t>(parts);
  entry.len = count;
  entry.off = offset;
  entry.user_data = tag;
  sq_array_[tail & sq_mask_] = tail & sq_mask_;
  store(sq_tail_, tail + 1);
}

bool Ring::submit() noexcept {
  for (;;) {
    const std::uint32_t queued = *sq_tail_ - load(sq_head_);
    if (queued == 0) return true;
    if (enter(descriptor_, queued, 0) < 0 && errno != EINTR) return false;
  }
}

bool Ring::take_back(std::uint64_t& tag) noexcept {
  const std::uint32_t tail = *sq_tail_;
  if (tail == load(sq_head_)) return false;
  tag = sqes_[(tail - 1) & sq_mask_].user_data;
  store(sq_tail_, tail - 1);
  return true;
}

void Ring::wait(unsigned count) noexcept {
  // Results come without being waited for; should waiting be refused, looking again will do.
  if (enter(descriptor_, 0, count) < 0 && errno != EINTR) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

bool Ring::take(std::uint64_t& tag, std::int32_t& result) noexcept {
  const std::uint32_t head = *cq_head_;
  if (head == load(cq_tail_)) return false;
  const io_uring_cqe& entry = cqes_[head & cq_mask_];
  tag = entry.user_data;
  result = entry.res;
  store(cq_head_, head + 1);
  return true;
}

}  // namespace solar::read

#else  // built where the kernel's headers are older than io_uring

namespace solar::read {

Ring::Ring(unsigned) { throw Error(Kind::read, "io_uring: not in this build", ENOSYS); }
Ring::~Ring() = default;
void Ring::queue(int, const iovec*, unsigned, std::uint64_t, std::uint64_t) noexcept {}
bool Ring::submit() noexcept { return true; }
bool Ring::take_back(std::uint64_t&) noexcept { return false; }
void Ring::wait(unsigned) noexcept {}
bool Ring::take(std::uint64_t&, std::int32_t&) noexcept { return false; }

}  // namespace solar::read

#endif

namespace solar::read {

std::vector<std::unique_ptr<Ring>> make_rings(unsigned threads, unsigned depth, Backend backend) {
  std::vector<std::unique_ptr<Ring>> rings(threads);
  if (backend == Backend::pread) return rings;
  try {
    for (auto& ring : rings) ring = std::make_unique<Ring>(std::max(1U, depth / threads));
  } catch (const Error&) {
    if (backend == Backend::uring) throw;
    for (auto& ring : rings) ring.reset();
  }
  return rings;
}

}  // namespace solar::read
