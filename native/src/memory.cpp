#include "solar/memory.hpp"

#include <atomic>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <pthread.h>

#include "pages.hpp"
#include "solar/faults.hpp"

namespace solar {

namespace {

// One lock for all pools, held for a few list steps only: fork takes it, so that no child finds it locked for ever.
std::mutex& pool_mutex() {
  static auto* const mutex = [] {
    auto* made = new std::mutex;  // never destroyed: blocks come back while the process exits
    ::pthread_atfork([] { pool_mutex().lock(); }, [] { pool_mutex().unlock(); }, [] { pool_mutex().unlock(); });
    return made;
  }();
  return *mutex;
}

// Eight sizes to each power of two, so that batches of nearly one size share memory; whole pages.
std::size_t size_class(std::size_t nbytes) {
  if (nbytes > SIZE_MAX / 4) throw std::bad_alloc();
  std::size_t step = page_nbytes;
  while (step * 16 < nbytes) step *= 2;
  if (nbytes >= huge_page_nbytes) step = std::max(step, huge_page_nbytes);
  return std::max<std::size_t>(1, (nbytes + step - 1) / step) * step;
}

std::byte* allocate(std::size_t nbytes) {
  if (faults::any()) faults::allocate(nbytes);
  if (nbytes < huge_page_nbytes) {
    void* small = std::aligned_alloc(page_nbytes, nbytes);
    if (small == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(small);
  }
  return map_pages(nbytes);
}

std::atomic<void (*)(const std::byte*) noexcept> hears{nullptr};

void free_bytes(std::byte* bytes, std::size_t nbytes) {
  if (const auto hear = hears.load(std::memory_order_acquire); hear != nullptr) hear(bytes);
  if (nbytes < huge_page_nbytes) {
    std::free(bytes);
  } else {
    unmap_pages(bytes, nbytes);
  }
}

struct Idle {
  std::byte* bytes;
  std::size_t nbytes;
};

class Pool final : public BatchPool {
 public:
  explicit Pool(std::size_t keep) : keep_(keep) { pool_mutex(); }
  ~Pool() override {
    for (const Idle& block : idle_) free_bytes(block.bytes, block.nbytes);
  }

  std::unique_ptr<Block> take(std::size_t nbytes) override;
  void give_back(std::byte* bytes, std::size_t nbytes) noexcept;
  std::size_t in_use() const override;
  std::size_t idle() const override;
  MutableBytes whole(const std::byte* byte) const override;
  void adopt(MutableBytes bytes) override;
  bool disown(const std::byte* bytes) noexcept override;

 private:
  std::byte* take_idle(std::size_t nbytes);

  enum class Adopted { in_use, idle, disowned };  // the last: in use, and then no longer the pool's
  struct Other {
    std::size_t nbytes;
    Adopted state;
  };

  std::size_t keep_;
  std::list<Idle> idle_;  // the last to come back is first
  std::size_t idle_nbytes_ = 0;
  std::size_t used_nbytes_ = 0;
  std::map<const std::byte*, std::size_t> used_;
  std::map<const std::byte*, Other> adopted_;
};

class PoolBlock final : public MemoryPool::Block {
 public:
  PoolBlock(std::shared_ptr<Pool> pool, std::byte* bytes, std::size_t nbytes, std::size_t size)
      : pool_(std::move(pool)), bytes_(bytes), nbytes_(nbytes), size_(size) {}
  ~PoolBlock() override { pool_->give_back(bytes_, size_); }
  MutableBytes bytes() override { return {bytes_, nbytes_}; }

 private:
  std::shared_ptr<Pool> pool_;
  std::byte* bytes_;
  std::size_t nbytes_;  // asked for
  std::size_t size_;    // of the class
};

std::byte* Pool::take_idle(std::size_t nbytes) {
  const std::lock_guard lock(pool_mutex());
  for (auto& [bytes, other] : adopted_) {
    if (other.state != Adopted::idle || other.nbytes != nbytes) continue;
    used_.emplace(bytes, nbytes);
    other.state = Adopted::in_use;
    used_nbytes_ += nbytes;
    return const_cast<std::byte*>(bytes);
  }
  for (auto block = idle_.begin(); block != idle_.end(); ++block) {
    if (block->nbytes != nbytes) continue;
    used_.emplace(block->bytes, nbytes);
    std::byte* const bytes = block->bytes;
    idle_.erase(block);
    idle_nbytes_ -= nbytes;
    used_nbytes_ += nbytes;
    return bytes;
  }
  return nullptr;
}

std::unique_ptr<MemoryPool::Block> Pool::take(std::size_t nbytes) {
  const std::size_t size = size_class(nbytes);
  std::byte* bytes = take_idle(size);
  if (bytes == nullptr) {
    bytes = allocate(size);
    try {
      const std::lock_guard lock(pool_mutex());
      used_.emplace(bytes, size);
      used_nbytes_ += size;
    } catch (...) {
      free_bytes(bytes, size);
      throw;
    }
  }
  try {
    return std::make_unique<PoolBlock>(std::static_pointer_cast<Pool>(shared_from_this()), bytes, nbytes, size);
  } catch (...) {
    give_back(bytes, size);
    throw;
  }
}

void Pool::give_back(std::byte* bytes, std::size_t nbytes) noexcept {
  std::list<Idle> dropped;  // freed outside the lock, the longest idle ones
  {
    const std::lock_guard lock(pool_mutex());
    used_.erase(bytes);
    used_nbytes_ -= nbytes;
    if (const auto other = adopted_.find(bytes); other != adopted_.end()) {
      if (other->second.state == Adopted::disowned) adopted_.erase(other);
      else other->second.state = Adopted::idle;
      return;
    }
  }
  try {
    std::list<Idle> back{{bytes, nbytes}};
    const std::lock_guard lock(pool_mutex());
    idle_.splice(idle_.begin(), back);
    idle_nbytes_ += nbytes;
    while (idle_nbytes_ > keep_) {
      idle_nbytes_ -= idle_.back().nbytes;
      dropped.splice(dropped.end(), idle_, std::prev(idle_.end()));
    }
  } catch (const std::bad_alloc&) {
    free_bytes(bytes, nbytes);
  }
  for (const Idle& block : dropped) free_bytes(block.bytes, block.nbytes);
}

MutableBytes Pool::whole(const std::byte* byte) const {
  const std::lock_guard lock(pool_mutex());
  auto after = used_.upper_bound(byte);
  if (after == used_.begin()) return {};
  const auto& [begin, nbytes] = *--after;
  if (byte >= begin + nbytes) return {};
  return {const_cast<std::byte*>(begin), nbytes};
}

void Pool::adopt(MutableBytes bytes) {
  std::list<Idle> dropped;
  {
    const std::lock_guard lock(pool_mutex());
    adopted_.emplace(bytes.data(), Other{bytes.size(), Adopted::idle});
    for (auto block = idle_.begin(); block != idle_.end(); ++block) {
      if (block->nbytes != bytes.size()) continue;
      idle_nbytes_ -= block->nbytes;
      dropped.splice(dropped.end(), idle_, block);
      break;
    }
  }
  for (const Idle& block : dropped) free_bytes(block.bytes, block.nbytes);
}

bool Pool::disown(const std::byte* bytes) noexcept {
  const std::lock_guard lock(pool_mutex());
  const auto other = adopted_.find(bytes);
  if (other == adopted_.end()) return true;
  if (other->second.state != Adopted::idle) {
    other->second.state = Adopted::disowned;
    return false;
  }
  adopted_.erase(other);
  return true;
}

std::size_t Pool::in_use() const {
  const std::lock_guard lock(pool_mutex());
  return used_nbytes_;
}

std::size_t Pool::idle() const {
  const std::lock_guard lock(pool_mutex());
  return idle_nbytes_;
}

}  // namespace

void MemoryPool::before_free(void (*hear)(const std::byte*) noexcept) noexcept {
  hears.store(hear, std::memory_order_release);
}

std::shared_ptr<BatchPool> MemoryPool::make(std::size_t keep) { return std::make_shared<Pool>(keep); }

}  // namespace solar
