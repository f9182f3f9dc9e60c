// Batches come one after another, from whatever makes them: a Run, or a ReadAhead.
//
// Any thread may call take(), one at a time. Whoever takes a batch owns its memory.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "solar/memory.hpp"
#include "solar/reader.hpp"

namespace solar {

class Batches {
 public:
  struct Batch {
    std::vector<std::unique_ptr<MemoryPool::Block>> fields;
    ReaderStats counts;  // of what was read and decoded for it, or since the batch before
  };

  virtual ~Batches() = default;
  // Moves the next batch to `batch`. Returns false if `limit` passes first. If the batch failed, throws its error; the
  // batch then counts as taken.
  virtual bool take(std::chrono::nanoseconds limit, Batch& batch) = 0;
};

}  // namespace solar
