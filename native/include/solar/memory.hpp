// A MemoryPool hands out the memory of batches, and uses it again: large blocks, in huge pages if the kernel has them,
// without page faults after the first use.
//
// Any thread may call take() and destroy a Block. The pool keeps at most `keep` bytes that nobody uses.
#pragma once

#include <cstddef>
#include <memory>

#include "solar/bytes.hpp"

namespace solar {

class BatchPool;

class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  // A Block owns its bytes. Its destructor gives them back to the pool, which the block keeps alive.
  class Block;

  static std::shared_ptr<BatchPool> make(std::size_t keep);
  // Has this function called with each block that a pool made by make() is about to free.
  static void before_free(void (*hear)(const std::byte*) noexcept) noexcept;
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

// A BatchPool can also hand out memory that belongs to somebody else, such as memory that a device copies from. It
// hands out such memory first.
class BatchPool : public MemoryPool {
 public:
  // Returns all of the block in use that holds this byte, or nothing if the byte is not the pool's.
  virtual MutableBytes whole(const std::byte* byte) const = 0;
  // Hands out these bytes until disown() is called, and frees as many idle bytes of its own.
  virtual void adopt(MutableBytes bytes) = 0;
  // Gives up adopted bytes. Returns false while they are in use: call it again then.
  virtual bool disown(const std::byte* bytes) noexcept = 0;
};

}  // namespace solar
