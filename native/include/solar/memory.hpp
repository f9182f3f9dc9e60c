// Batch memory that is used again: large blocks, huge pages where the kernel has them, no page faults after the first use.
//
// take() and the release of a Block may happen in any thread. At most `keep` bytes stay idle in the pool.
#pragma once

#include <cstddef>
#include <memory>

#include "solar/bytes.hpp"

namespace solar {

class BatchPool;

class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  // Owns its bytes; gives them back to the pool (which outlives it) when destroyed.
  class Block;

  static std::shared_ptr<BatchPool> make(std::size_t keep);
  virtual ~MemoryPool() = default;
  virtual std::unique_ptr<Block> take(std::size_t nbytes) = 0;   // contents unspecified
  virtual std::size_t in_use() const = 0;                        // bytes handed out
  virtual std::size_t idle() const = 0;                          // bytes kept for the next take

 protected:
  MemoryPool() = default;
};

class MemoryPool::Block {
 public:
  virtual ~Block() = default;
  virtual MutableBytes bytes() = 0;
};

// A pool that also hands out memory of somebody else's, such as what a device copies from: it is taken before other.
class BatchPool : public MemoryPool {
 public:
  // The whole of the memory in use that holds this byte; none: it is not the pool's.
  virtual MutableBytes whole(const std::byte* byte) const = 0;
  // Hands these bytes out until they are disowned, in place of as many that lie idle.
  virtual void adopt(MutableBytes bytes) = 0;
  // Whether they are not the pool's any more. While they are in use they are: ask again.
  virtual bool disown(const std::byte* bytes) noexcept = 0;
};

}  // namespace solar
