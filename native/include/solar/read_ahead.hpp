// A ReadAhead reads batches whose rows are named one batch at a time: begin() starts a batch, take() waits for the oldest.
//
// Any thread may call any function. One take() goes on at a time, and leave() waits for it to return. The Reader must
// outlive the ReadAhead.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <sys/types.h>
#include <vector>

#include "solar/batches.hpp"

namespace solar {

class ReadAhead final : public Batches {
 public:
  // A batch that was begun and not taken: for each field its memory, and the ticket of its read; 0 if that has ended.
  struct Begun {
    std::vector<Reader::Ticket> tickets;
    std::vector<std::unique_ptr<MemoryPool::Block>> fields;
    ReaderStats counts;  // of the reads that have ended
  };

  // Each field of a batch is rows of one of these Sources.
  ReadAhead(Reader& reader, std::shared_ptr<MemoryPool> pool, std::vector<std::shared_ptr<const Source>> fields);
  ~ReadAhead() override;  // abandons what was begun; what is not over after seconds keeps its memory for ever
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Starts to read the next batch: these rows of each field. Throws what Reader::submit throws; nothing is begun then.
  void begin(std::span<const std::span<const std::int64_t>> rows_of_fields);
  void begin(std::span<const std::int64_t> rows);  // the same rows of all fields
  bool take(std::chrono::nanoseconds limit, Batch& batch) override;
  // Returns the batches that were not taken, for others to wait for. Waits for take() to return: no longer than its limit.
  std::deque<Begun> leave();
  // The tickets of the oldest batch; none if there is no batch.
  std::vector<Reader::Ticket> oldest() const;

 private:
  void abandon(Begun begun) noexcept;
  void check_process() const;

  const pid_t process_;
  Reader& reader_;
  std::shared_ptr<MemoryPool> pool_;
  std::vector<std::shared_ptr<const Source>> sources_;
  std::mutex taking_;         // held during take(), which waits for the oldest batch without the other mutex
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Begun> begun_;
};

}  // namespace solar
