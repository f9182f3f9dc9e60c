// The hands of one thread: joins the pieces of a unit into requests, reads them, and has them delivered.
//
// With a Ring, what the page cache holds is read at once (preadv2, RWF_NOWAIT), and only what it does not is handed to
// the kernel, so that up to `depth` requests are in flight while the thread goes on. Without one, reads block.
// A decoding thread reads, too: its ring keeps the storage busy meanwhile, so a second pool would only add hand-overs.
#pragma once

#include <functional>
#include <memory>
#include <sys/uio.h>
#include <vector>

#include "deliver.hpp"
#include "descriptors.hpp"
#include "job.hpp"
#include "ring.hpp"
#include "solar/reader.hpp"

namespace solar::read {

// Counted by one thread, read by any.
struct alignas(64) Counts {
  std::atomic<std::uint64_t> requests{0}, bytes_read{0}, chunks_decoded{0}, bytes_decoded{0}, busy_ns{0}, decode_ns{0};
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
  struct Request {
    Job* job = nullptr;
    std::uint32_t begin = 0, end = 0;  // pieces
    std::shared_ptr<const File> file;
    std::vector<iovec> parts;
    std::size_t part = 0;      // first one with room left
    std::uint64_t offset = 0;  // where the next byte comes from
    std::uint64_t left = 0;
    Buffer scratch;
    std::uint64_t scratch_nbytes = 0;  // in use
  };

  Request& free_request();
  std::uint32_t join(const Batch& batch, std::uint32_t begin, std::uint32_t end) const noexcept;
  void prepare(Request& request);
  void open(Request& request);
  std::byte* fit_scratch(Request& request);
  void read(Request& request);
  bool read_cached(Request& request);
  void read_blocking(Request& request);
  void submit();
  void advance(Request& request, std::uint64_t nbytes) noexcept;
  void complete(Request& request);
  void arrived(Request& request, std::int32_t result);
  void end(Request& request);
  void finish(Job& job, std::uint32_t pieces);
  [[noreturn]] void fail(const Request& request, const std::string& what, int code) const;
  void publish();

  Descriptors descriptors_;
  std::uint64_t gap_;
  std::unique_ptr<Ring> ring_;
  std::function<void(Job&)> finished_;
  std::vector<Request> requests_;
  std::vector<std::uint32_t> free_;  // of requests_
  std::vector<std::byte> scrap_;     // gaps land here
  Bench bench_;
  Counts counts_;
  unsigned in_flight_ = 0;
  std::uint64_t scratch_in_flight_ = 0;
  bool cached_first_ = true;  // false where the file system knows no RWF_NOWAIT
  std::uint64_t requests_made_ = 0, bytes_asked_ = 0, busy_ns_ = 0;
};

}  // namespace solar::read
