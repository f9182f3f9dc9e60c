#include "solar/node.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace solar {

namespace {

constexpr std::size_t page = 4096;
constexpr std::chrono::milliseconds glance(100);  // between looks at whether all are alive
constexpr std::size_t counts = 3;

// One for each rank, a page apart from the others; zeros are a beginning.
struct alignas(page) Line {
  std::array<std::atomic<std::uint64_t>, counts> told;
  std::atomic<std::uint32_t> joined;  // its lock is held
  std::atomic<std::uint32_t> failed;
  std::atomic<std::uint32_t> left;
  char why[page / 2];
};
static_assert(sizeof(Line) == page && std::atomic<std::uint64_t>::is_always_lock_free);

// Before the lines: what wakes those who wait. It counts what any rank tells.
struct alignas(page) Bell {
  std::atomic<std::uint32_t> rung;
};

[[noreturn]] void fail_with(const char* what) {
  const int code = errno;
  throw Error(Kind::read, std::string("the memory that ranks of a node share: ") + what + ": " + std::strerror(code), code);
}

std::size_t total(unsigned ranks, std::size_t nbytes) { return sizeof(Bell) + ranks * sizeof(Line) + nbytes; }

struct flock lock_of(unsigned rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

struct Node::Impl {
  int descriptor = -1;
  unsigned rank, ranks;
  std::size_t nbytes;
  std::byte* mapped = nullptr;

  Bell& bell() const { return *reinterpret_cast<Bell*>(mapped); }
  Line& line(unsigned of) const { return reinterpret_cast<Line*>(mapped + sizeof(Bell))[of]; }
  void ring() const noexcept {
    bell().rung.fetch_add(1, std::memory_order_release);
    ::syscall(SYS_futex, &bell().rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  bool all_have(Count count, std::uint64_t value) const;
  void check_alive(unsigned of) const;
  void check_failed() const;
};

int Node::make(unsigned ranks, std::size_t nbytes) {
  const int descriptor = ::memfd_create("solar-node", MFD_CLOEXEC);
  if (descriptor < 0) fail_with("cannot be made");
  if (::ftruncate(descriptor, static_cast<off_t>(total(ranks, nbytes))) != 0) {
    ::close(descriptor);
    fail_with("has no room");
  }
  return descriptor;
}

Node::Node(int descriptor, unsigned rank, unsigned ranks, std::size_t nbytes) : impl_(std::make_unique<Impl>()) {
  impl_->rank = rank;
  impl_->ranks = ranks;
  impl_->nbytes = nbytes;
  // Opened anew, for a lock belongs to an open file, which a descriptor from another process shares with that.
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  impl_->descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (impl_->descriptor < 0) fail_with("cannot be opened");
  struct flock lock = lock_of(rank);
  void* const got = ::fcntl(impl_->descriptor, F_OFD_SETLK, &lock) == 0
                        ? ::mmap(nullptr, total(ranks, nbytes), PROT_READ | PROT_WRITE, MAP_SHARED, impl_->descriptor, 0)
                        : MAP_FAILED;
  if (got == MAP_FAILED) {
    ::close(impl_->descriptor);
    fail_with("cannot be mapped, or another process has this rank");
  }
  static_cast<void>(::madvise(got, total(ranks, nbytes), MADV_DONTFORK));
  impl_->mapped = static_cast<std::byte*>(got);
  impl_->line(rank).joined = 1;
  tell(Count::joined, 1);
}

Node::~Node() {
  leave();
  ::munmap(impl_->mapped, total(impl_->ranks, impl_->nbytes));
  ::close(impl_->descriptor);
}

unsigned Node::rank() const noexcept { return impl_->rank; }
unsigned Node::ranks() const noexcept { return impl_->ranks; }

MutableBytes Node::memory() const noexcept {
  return {impl_->mapped + sizeof(Bell) + impl_->ranks * sizeof(Line), impl_->nbytes};
}

void Node::tell(Count count, std::uint64_t value) noexcept {
  auto& told = impl_->line(impl_->rank).told[static_cast<std::size_t>(count)];
  if (told.load(std::memory_order_relaxed) >= value) return;
  told.store(value, std::memory_order_release);
  impl_->ring();
}

bool Node::wait(Count count, std::uint64_t value, std::chrono::nanoseconds limit) const {
  const auto deadline = std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(8760));
  for (;;) {
    const std::uint32_t rung = impl_->bell().rung.load(std::memory_order_acquire);
    if (impl_->all_have(count, value)) return true;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return false;
    const auto nap = std::min<std::chrono::nanoseconds>(left, glance).count();
    const timespec time{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
    ::syscall(SYS_futex, &impl_->bell().rung, FUTEX_WAIT, rung, &time, nullptr, 0);
  }
}

bool Node::Impl::all_have(Count count, std::uint64_t value) const {
  bool all = true;
  for (unsigned of = 0; of < ranks; ++of) {
    if (line(of).told[static_cast<std::size_t>(count)].load(std::memory_order_acquire) >= value) continue;
    if (all) check_failed();
    check_alive(of);
    all = false;
  }
  return all;
}

void Node::Impl::check_failed() const {
  for (unsigned of = 0; of < ranks; ++of) {
    const Line& other = line(of);
    if (of == rank || other.failed.load(std::memory_order_acquire) == 0) continue;
    throw Error(Kind::read, "rank " + std::to_string(of) + " of this node: " +
                                std::string(other.why, ::strnlen(other.why, sizeof other.why)));
  }
}

// A rank that has joined holds a lock for as long as it lives.
void Node::Impl::check_alive(unsigned of) const {
  if (of == rank || line(of).joined.load(std::memory_order_acquire) == 0) return;
  if (line(of).left.load(std::memory_order_acquire) != 0) {
    throw Error(Kind::read, "rank " + std::to_string(of) + " of this node has closed its loader, and others go on");
  }
  struct flock lock = lock_of(of);
  if (::fcntl(descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return;
  if (line(of).left.load(std::memory_order_acquire) != 0) return;  // in between
  throw Error(Kind::read, "rank " + std::to_string(of) + " of this node is gone: its process has ended");
}

void Node::fail(const std::string& why) noexcept {
  Line& own = impl_->line(impl_->rank);
  if (own.failed.load(std::memory_order_relaxed) != 0) return;
  std::memcpy(own.why, why.data(), std::min(why.size(), sizeof own.why));
  own.failed.store(1, std::memory_order_release);
  impl_->ring();
}

void Node::leave() noexcept {
  tell(Count::made, UINT64_MAX);
  impl_->line(impl_->rank).left.store(1, std::memory_order_release);
  impl_->ring();
}

}  // namespace solar
