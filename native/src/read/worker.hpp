// The hands of one thread: joins the pieces of a unit into requests, reads them, and has them delivered.
//
// What the page cache holds is read at once (preadv2, RWF_NOWAIT). Only what it does not is handed to the Ring, so that
// up to `depth` requests are in flight while the thread goes on; without a Ring, it is waited for. After many reads
// that were all held, plain ones follow, which are cheaper, until one takes long; and gaps are read over only if short.
// Of a Source that is mapped, pieces that need no decoding are copied while the page cache holds the file (see Mapping).
// Of a Source that bypasses the page cache, what the cache does not hold is read past it, where the file system can.
// A decoding thread reads, too: its ring keeps the storage busy meanwhile, so a second pool would only add hand-overs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "deliver.hpp"
#include "descriptors.hpp"
#include "job.hpp"
#include "mapping.hpp"
#include "request.hpp"
#include "ring.hpp"
#include "solar/reader.hpp"

namespace solar::read {

// Counted by one thread, read by any.
struct alignas(64) Counts {
  std::atomic<std::uint64_t> requests{0}, bypassed{0}, bytes_read{0}, bytes_mapped{0}, chunks_decoded{0}, bytes_decoded{0}, busy_ns{0},
      decode_ns{0};
};

class Worker {
 public:
  // `finished` is called when the last piece of a Job is done, by the thread that did it.
  Worker(std::size_t files, std::uint64_t gap, std::unique_ptr<Ring> ring, std::function<void(Job&)> finished);
  ~Worker();

  // Does a unit, or begins it. Errors go to the Job.
  void run(Job& job, std::size_t unit);
  bool busy() const noexcept { return in_flight_ > 0; }
  // Finishes what has come; with `block`, waits for something to come.
  void reap(bool block);
  const Counts& counts() const noexcept { return counts_; }

 private:
  Request& free_request();
  std::uint32_t copy_mapped(Job& job, std::uint32_t begin, std::uint32_t end);
  std::uint32_t join(const Batch& batch, std::uint32_t begin, std::uint32_t end) const noexcept;
  std::shared_ptr<const File> open(const Request& request, Descriptors& descriptors);
  void fit_scratch(Request& request, std::uint64_t nbytes);
  void read(Request& request);
  bool bypasses(Request& request);
  bool read_past(Request& request);
  std::byte* window(Request& request, std::uint64_t nbytes);
  bool read_through(Request& request);
  bool read_at_once(Request& request);
  void read_trusting(Request& request);
  void read_blocking(Request& request);
  void queue(Request& request, const iovec* parts, std::size_t count);
  void submit();
  void land(Request& request, std::int64_t result);
  void arrived(Request& request, std::int32_t result);
  void end(Request& request);
  void finish(Job& job, std::uint32_t pieces);
  [[noreturn]] void fail(const Request& request, const std::string& what, int code) const;
  void publish();

  Descriptors files_, direct_files_;
  std::uint64_t gap_;
  std::unique_ptr<Ring> ring_;
  std::function<void(Job&)> finished_;
  std::vector<Request> requests_;
  std::vector<std::uint32_t> free_;  // of requests_
  Buffer slots_;                     // windows of small requests
  Buffer scrap_;                     // gaps land here
  Bench bench_;
  Counts counts_;
  const Job* running_ = nullptr;  // whose unit is being done, and the pieces that ended meanwhile: they are counted
  std::uint32_t done_ = 0;        // at the end of the unit, for threads that count at once wait for each other
  unsigned in_flight_ = 0;
  std::uint64_t scratch_in_flight_ = 0;
  bool cached_first_ = true;  // false where the file system knows no RWF_NOWAIT
  bool bypass_ = true;        // false where it takes no direct reads though it lets files be opened for them
  unsigned held_ = 0;         // reads since the last that the page cache did not hold
  std::uint64_t bytes_mapped_ = 0;
  std::uint64_t requests_made_ = 0, bypassed_ = 0, bytes_asked_ = 0, busy_ns_ = 0;
};

}  // namespace solar::read
