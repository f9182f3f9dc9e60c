#include <condition_variable>
#include <fcntl.h>
#include <linux/futex.h>
#include <list>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include "shared.hpp"

namespace solar {

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Mapped::Mapped(int descriptor, std::size_t nbytes, bool writable) : nbytes_(nbytes) {
  const int may = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const got = ::mmap(nullptr, nbytes, may, MAP_SHARED, descriptor, 0);
  if (got == MAP_FAILED) serve::fail_with("it cannot be mapped");
  bytes_ = static_cast<std::byte*>(got);
}

Mapped::~Mapped() { ::munmap(bytes_, nbytes_); }

namespace serve {

Descriptor sealed(const char* name, std::size_t nbytes, std::unique_ptr<Mapped>& mapped, bool read_only) {
  Descriptor made(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (made.get() < 0) fail_with("there is none");
  if (::ftruncate(made.get(), static_cast<off_t>(nbytes)) != 0) fail_with("there is not so much");
  mapped = std::make_unique<Mapped>(made.get(), nbytes, true);
  if (::fcntl(made.get(), F_ADD_SEALS, seals_of(read_only)) != 0)
    fail_with("it cannot be sealed (Linux 5.1 or later does)");
  return made;
}

Descriptor for_reading(const Descriptor& of) {
  Descriptor made(::open(("/proc/self/fd/" + std::to_string(of.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (made.get() < 0) fail_with("it cannot be opened for reading");
  return made;
}

void wake(std::atomic<std::uint32_t>& rung) {
  rung.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &rung, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace serve

namespace {

constexpr std::size_t alignment = 64;

struct Allocation {
  std::size_t begin, end;
  bool free = false;
};

class RingPool final : public SharedPool {
 public:
  explicit RingPool(std::size_t nbytes)
      : whole_(serve::sealed("solar-batches", nbytes, mapped_, true)),
        reading_(serve::for_reading(whole_)),
        used_(nbytes) {}

  std::unique_ptr<Block> take(std::size_t nbytes) override;
  void give_back(std::list<Allocation>::iterator piece) noexcept;
  std::size_t in_use() const override {
    const std::lock_guard lock(mutex_);
    std::size_t used = 0;
    for (const Allocation& piece : pieces_) used += piece.end - piece.begin;
    return used;
  }
  std::size_t idle() const override { return size() - in_use(); }
  int descriptor() const override { return reading_.get(); }
  std::size_t size() const override { return mapped_->size(); }
  void use(std::size_t nbytes) override {
    const std::lock_guard lock(mutex_);
    used_ = std::min(nbytes, size());
    freed_.notify_all();
  }
  std::size_t offset(const void* bytes) const override {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes), begin = reinterpret_cast<std::uintptr_t>(mapped_->bytes());
    if (at < begin || at - begin >= size()) throw std::invalid_argument("these bytes are not of the pool");
    return at - begin;
  }
  std::chrono::nanoseconds waited() const override {
    const std::lock_guard lock(mutex_);
    return waiting_ ? std::chrono::steady_clock::now() - since_ : std::chrono::nanoseconds(0);
  }
  void close() override {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    freed_.notify_all();
  }

 private:
  std::size_t room_for(std::size_t nbytes) const;  // where it begins; SIZE_MAX: there is none

  std::unique_ptr<Mapped> mapped_;
  Descriptor whole_, reading_;
  std::size_t used_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  std::list<Allocation> pieces_;  // in the order in which they were taken
  std::chrono::steady_clock::time_point since_;
  bool waiting_ = false, closed_ = false;
};

class RingBlock final : public MemoryPool::Block {
 public:
  RingBlock(std::shared_ptr<RingPool> ring, std::list<Allocation>::iterator piece, MutableBytes bytes)
      : ring_(std::move(ring)), piece_(piece), bytes_(bytes) {}
  ~RingBlock() override { ring_->give_back(piece_); }
  MutableBytes bytes() override { return bytes_; }

 private:
  std::shared_ptr<RingPool> ring_;
  std::list<Allocation>::iterator piece_;
  MutableBytes bytes_;
};

std::size_t RingPool::room_for(std::size_t nbytes) const {
  if (pieces_.empty()) return used_ >= nbytes ? 0 : SIZE_MAX;
  const std::size_t tail = pieces_.front().begin, head = pieces_.back().end;
  if (pieces_.back().begin < tail) return tail - head >= nbytes ? head : SIZE_MAX;
  if (used_ >= head && used_ - head >= nbytes) return head;
  return tail >= nbytes ? 0 : SIZE_MAX;
}

std::unique_ptr<MemoryPool::Block> RingPool::take(std::size_t nbytes) {
  const std::size_t wanted = (std::max<std::size_t>(nbytes, 1) + alignment - 1) / alignment * alignment;
  std::list<Allocation> one(1);
  std::unique_lock lock(mutex_);
  if (wanted > used_) throw Error(Kind::plan, "a batch is larger than all memory for batches");
  std::size_t begin = 0;
  if ((begin = room_for(wanted)) == SIZE_MAX && !closed_) {
    since_ = std::chrono::steady_clock::now();
    waiting_ = true;
    freed_.wait(lock, [&] { return closed_ || (begin = room_for(wanted)) != SIZE_MAX; });
    waiting_ = false;
  }
  if (closed_) throw Error(Kind::read, "the service ends");
  one.front() = {begin, begin + wanted};
  pieces_.splice(pieces_.end(), one);
  const auto piece = std::prev(pieces_.end());
  lock.unlock();
  try {
    return std::make_unique<RingBlock>(std::static_pointer_cast<RingPool>(shared_from_this()), piece,
                                       MutableBytes(mapped_->bytes() + begin, nbytes));
  } catch (...) {
    give_back(piece);
    throw;
  }
}

void RingPool::give_back(std::list<Allocation>::iterator piece) noexcept {
  std::list<Allocation> over;
  const std::lock_guard lock(mutex_);
  piece->free = true;
  while (!pieces_.empty() && pieces_.front().free) over.splice(over.end(), pieces_, pieces_.begin());
  freed_.notify_all();
}

}  // namespace

std::shared_ptr<SharedPool> SharedPool::make(std::size_t nbytes) { return std::make_shared<RingPool>(nbytes); }

}  // namespace solar
