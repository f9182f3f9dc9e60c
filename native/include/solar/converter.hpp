// A Converter has the fields of batches converted by the threads of a Reader, some batches ahead of who takes them.
//
// It has no thread: whoever takes a batch first takes those that have come from what makes them, up to as many as were
// begun, and has them converted. A batch that was not handed out keeps the memory it came in, so that it can be given back.
//
// One thread at a time calls begin(), take() and stop(). Who makes the batches, and the Reader, must outlive the Converter.
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "solar/batches.hpp"
#include "solar/convert.hpp"

namespace solar {

class Converter {
 public:
  // One of each field; a null field stays as it comes.
  using Conversions = std::vector<std::shared_ptr<const Conversion>>;

  Converter(Reader& reader, std::shared_ptr<MemoryPool> pool, Batches& from, Conversions conversions);
  ~Converter();  // stop(); what is converted stays as it is if that does not end within seconds
  Converter(const Converter&) = delete;
  Converter& operator=(const Converter&) = delete;

  // One more batch may be taken from what makes them.
  void begin() noexcept { ++wanted_; }
  // Moves the next batch to `batch`. Returns false if `limit` passes first. If the batch failed, throws its error; none
  // comes after it.
  bool take(std::chrono::nanoseconds limit, Batches::Batch& batch);
  // How long take() waited for batches that had come and were still being converted.
  std::uint64_t waited_ns() const noexcept { return waited_ns_; }
  // Returns the batches that were not handed out, as they came; and the error of the one after these, if that failed.
  std::pair<std::vector<Batches::Batch>, std::exception_ptr> stop();

 private:
  struct Converted {
    Batches::Batch came;
    std::vector<std::unique_ptr<MemoryPool::Block>> made;  // null where a field stays as it came
    std::vector<Reader::Ticket> tickets;
  };
  void check_process() const;
  bool take_in(std::chrono::nanoseconds limit);
  void convert(Batches::Batch came);
  bool wait(Converted& oldest, std::chrono::steady_clock::time_point deadline);
  bool end(Converted& one) noexcept;

  const pid_t process_;
  Reader& reader_;
  const std::shared_ptr<MemoryPool> pool_;
  Batches& from_;
  const Conversions conversions_;
  std::size_t wanted_ = 0;  // batches that were begun and have not come
  std::deque<Converted> converting_;
  std::exception_ptr failed_;  // of the batch after those
  std::uint64_t waited_ns_ = 0;
};

}  // namespace solar
