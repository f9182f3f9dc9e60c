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
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "forked.hpp"
#include "pages.hpp"

namespace solar {

namespace {

constexpr std::size_t page = 4096;
constexpr std::chrono::milliseconds alive_check(100);  // between looks at whether all are alive
constexpr std::size_t counts = 5;
constexpr std::size_t kept = 4;  // digests: nobody is more than one epoch before the others

// One for each rank, a page apart from the others; zeros are a beginning.
struct alignas(page) Line {
  std::array<std::atomic<std::uint64_t>, counts> told;
  std::array<std::atomic<std::uint64_t>, kept> digests;  // of the plans of the epochs begun last
  std::atomic<std::uint32_t> joined;                     // its lock is held
  std::atomic<std::uint32_t> failed;
  std::atomic<std::uint32_t> left;
  std::int32_t kind, code;  // of why it has failed
  char why[page / 2];
};
static_assert(sizeof(Line) == page && std::atomic<std::uint64_t>::is_always_lock_free);

// Before the lines: what wakes those who wait. It counts what any rank tells.
struct alignas(page) Bell {
  std::atomic<std::uint32_t> rung;
};

const std::string subject = "the memory that ranks of a node share";

[[noreturn]] void fail_with(const char* what) {
  const int code = errno;
  throw Error(Kind::read, subject + ": " + what + ": " + std::strerror(code), code);
}

std::size_t total(std::size_t ranks, std::size_t nbytes) { return sizeof(Bell) + ranks * sizeof(Line) + nbytes; }

// Asks for huge pages where the memory behind the lines has whole ones. At its ends pages stay small, so that no more
// memory is taken than was asked for. Advice: the kernel follows it if shmem_enabled says so.
void ask_for_huge_pages(std::byte* mapped, std::size_t ranks, std::size_t nbytes) noexcept {
  const std::size_t front = total(ranks, 0), end = (front + nbytes) / huge_page_nbytes * huge_page_nbytes;
  const std::size_t begin = (front + huge_page_nbytes - 1) / huge_page_nbytes * huge_page_nbytes;
  if (begin < end) static_cast<void>(::madvise(mapped + begin, end - begin, MADV_HUGEPAGE));
}

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
  Impl(int from, unsigned place, std::vector<std::string> all, std::size_t memory);
  ~Impl();

  const pid_t process = ::getpid();
  std::vector<std::string> names;
  unsigned rank;
  std::size_t nbytes;
  run::Private descriptor;
  std::byte* mapped = nullptr;
  mutable std::atomic<bool> heard = false;  // of another's failure

  unsigned ranks() const { return static_cast<unsigned>(names.size()); }
  Bell& bell() const { return *reinterpret_cast<Bell*>(mapped); }
  Line& line(unsigned of) const { return reinterpret_cast<Line*>(mapped + sizeof(Bell))[of]; }
  bool here() const noexcept { return ::getpid() == process; }
  void ring() const noexcept {
    bell().rung.fetch_add(1, std::memory_order_release);
    ::syscall(SYS_futex, &bell().rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  bool has(unsigned of, Count count, std::uint64_t value) const {
    return line(of).told[static_cast<std::size_t>(count)].load(std::memory_order_acquire) >= value;
  }
  bool all_have(Count count, std::uint64_t value) const;
  void check_failed(unsigned of) const;
  void check_there(unsigned of) const;
};

int Node::make(unsigned ranks, std::size_t nbytes) {
  const int descriptor = ::memfd_create("solar-node", MFD_CLOEXEC);
  if (descriptor < 0) fail_with("cannot be made");
  if (::ftruncate(descriptor, static_cast<off_t>(total(ranks, nbytes))) != 0) {
    const int code = errno;
    ::close(descriptor);
    errno = code;
    fail_with("has no room");
  }
  return descriptor;
}

Node::Impl::Impl(int from, unsigned place, std::vector<std::string> all, std::size_t memory)
    : names(std::move(all)), rank(place), nbytes(memory) {
  struct stat found {};
  if (::fstat(from, &found) != 0) fail_with("cannot be seen");
  const std::size_t wanted = total(names.size(), nbytes);
  if (found.st_size != static_cast<off_t>(wanted)) {
    throw Error(Kind::plan, subject + " has " + std::to_string(found.st_size) + " bytes, and " + names.at(rank) +
                                " wants " + std::to_string(wanted) + ": give all ranks the same memory");
  }
  // Opened anew, for a lock belongs to an open file, which a descriptor from another process shares with that.
  if (!descriptor.open(("/proc/self/fd/" + std::to_string(from)).c_str(), O_RDWR | O_CLOEXEC)) {
    fail_with("cannot be opened");
  }
  struct flock lock = lock_of(rank);
  if (::fcntl(descriptor.get(), F_OFD_SETLK, &lock) != 0) {
    if (errno == EAGAIN || errno == EACCES) {
      throw Error(Kind::read,
                  subject + ": there is a " + names.at(rank) + " already: each process needs a rank of its own");
    }
    fail_with("cannot be locked");
  }
  void* const got = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (got == MAP_FAILED) fail_with("cannot be mapped");
  static_cast<void>(::madvise(got, wanted, MADV_DONTFORK));
  mapped = static_cast<std::byte*>(got);
  ask_for_huge_pages(mapped, names.size(), nbytes);
}

// A forked process does not have the mapping, but perhaps something else in its place.
Node::Impl::~Impl() {
  if (mapped != nullptr && here()) ::munmap(mapped, total(names.size(), nbytes));
}

Node::Node(int descriptor, unsigned rank, std::vector<std::string> names, std::size_t nbytes)
    : impl_(std::make_unique<Impl>(descriptor, rank, std::move(names), nbytes)) {
  impl_->line(rank).joined = 1;
  tell(Count::joined, 1);
}

Node::~Node() { leave(); }

unsigned Node::rank() const noexcept { return impl_->rank; }
unsigned Node::ranks() const noexcept { return impl_->ranks(); }
const std::string& Node::name(unsigned rank) const { return impl_->names.at(rank); }

MutableBytes Node::memory() const noexcept {
  return {impl_->mapped + sizeof(Bell) + impl_->ranks() * sizeof(Line), impl_->nbytes};
}

void Node::tell(Count count, std::uint64_t value) noexcept {
  if (!impl_->here()) return;
  auto& told = impl_->line(impl_->rank).told[static_cast<std::size_t>(count)];
  if (told.load(std::memory_order_relaxed) >= value) return;
  told.store(value, std::memory_order_release);
  if (count != Count::reached) impl_->ring();
}

bool Node::wait(Count count, std::uint64_t value, std::chrono::nanoseconds limit) const {
  if (!impl_->here()) {
    throw Error(Kind::read,
                subject + " belongs to process " + std::to_string(impl_->process) + ", not to one forked from it");
  }
  const auto deadline =
      std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(8760));
  for (;;) {
    const std::uint32_t rung = impl_->bell().rung.load(std::memory_order_acquire);
    if (impl_->all_have(count, value)) return true;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return false;
    const auto nap = std::min<std::chrono::nanoseconds>(left, alive_check).count();
    const timespec time{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
    ::syscall(SYS_futex, &impl_->bell().rung, FUTEX_WAIT, rung, &time, nullptr, 0);
  }
}

// Only who is behind is looked at: what has befallen the others may come after what is waited for. But in the beginning
// nobody is before the others: who is gone by then was to let them in, or will be missed.
bool Node::Impl::all_have(Count count, std::uint64_t value) const {
  bool all = true;
  for (unsigned of = 0; of < ranks(); ++of) {
    const bool behind = !has(of, count, value);
    all = all && !behind;
    if (of != rank && (behind || count == Count::joined)) check_failed(of);
    if (of != rank && behind) check_there(of);
  }
  for (unsigned of = 0; of < ranks() && !all && count == Count::joined; ++of) {
    if (of != rank) check_there(of);
  }
  return all;
}

bool Node::all(Count count, std::uint64_t value) const noexcept {
  bool all = true;
  for (unsigned of = 0; of < ranks() && impl_->here(); ++of) all = all && impl_->has(of, count, value);
  return all;
}

std::vector<unsigned> Node::behind(Count count, std::uint64_t value) const {
  std::vector<unsigned> found;
  for (unsigned of = 0; of < ranks() && impl_->here(); ++of) {
    if (!impl_->has(of, count, value)) found.push_back(of);
  }
  return found;
}

void Node::Impl::check_failed(unsigned of) const {
  const Line& other = line(of);
  if (other.failed.load(std::memory_order_acquire) == 0) return;
  heard = true;
  const std::string why(other.why, ::strnlen(other.why, sizeof other.why));
  throw Error(static_cast<Kind>(other.kind), why, other.code);
}

// A rank that has joined holds a lock for as long as it lives.
void Node::Impl::check_there(unsigned of) const {
  if (line(of).joined.load(std::memory_order_acquire) == 0) return;
  struct flock lock = lock_of(of);
  if (line(of).left.load(std::memory_order_acquire) == 0) {
    if (::fcntl(descriptor.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return;
    if (line(of).left.load(std::memory_order_acquire) == 0) {
      heard = true;
      throw Error(Kind::read, names[of] + " is gone: its process has ended; what it wrote last, or the system's log, says why");
    }
  }
  check_failed(of);  // it fails before it leaves
  heard = true;
  throw Error(Kind::read, names[of] + " has closed its loader while others go on: all ranks must take equally many batches");
}

bool Node::begin(std::uint64_t number, std::uint64_t digest, std::chrono::nanoseconds limit) {
  if (impl_->here()) impl_->line(impl_->rank).digests[number % kept].store(digest, std::memory_order_relaxed);
  tell(Count::begun, number + 1);
  if (!wait(Count::begun, number + 1, limit)) return false;
  for (unsigned of = 0; of < ranks(); ++of) {
    if (impl_->line(of).digests[number % kept].load(std::memory_order_relaxed) == digest) continue;
    impl_->heard = true;  // it names both
    throw Error(Kind::plan, name(of) + " carries out another plan than " + name(rank()) +
                                ": give all ranks the same files, sampler, seed, batch size and buffer, and begin "
                                "with all of them where one is resumed");
  }
  return true;
}

void Node::fail(const Error& why) noexcept {
  if (!impl_->here()) return;
  Line& own = impl_->line(impl_->rank);
  if (own.failed.load(std::memory_order_relaxed) != 0) return;
  const std::string_view name = impl_->heard ? "" : std::string_view(impl_->names[impl_->rank]);
  const std::string_view what = why.what(), between = name.empty() ? "" : ": ";
  std::size_t at = 0;
  for (const std::string_view part : {name, between, what}) {
    const std::size_t here = std::min(part.size(), sizeof own.why - at);
    std::memcpy(own.why + at, part.data(), here);
    at += here;
  }
  own.kind = static_cast<std::int32_t>(why.kind());
  own.code = why.code();
  own.failed.store(1, std::memory_order_release);
  impl_->ring();
}

void Node::leave() noexcept {
  if (!impl_->here()) return;
  tell(Count::made, UINT64_MAX);
  impl_->line(impl_->rank).left.store(1, std::memory_order_release);
  impl_->ring();
}

}  // namespace solar
