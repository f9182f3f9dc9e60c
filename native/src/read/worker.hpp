// The hands of one thread: joins the pieces of a unit into requests, reads them, and has them delivered.
//
// What the page cache holds is read at once (preadv2, RWF_NOWAIT). Only what it does not is handed to the Ring, so that
// up to `depth` requests are in flight while the thread goes on. After many reads that were all held, plain ones follow,
// which are cheaper, until one takes long; and gaps are read over only if short.
// Of a Source that is mapped, pieces that need no decoding are copied while the page cache holds the file (see Mapping).
// Of a Source that bypasses the page cache, what the cache does not hold is read past it, where the file system can.
// What lies far away is ordered (see Far), as if a ring read it.
// Of a file that is staged, what its stage has is read from there, and the rest afterwards written there (see Stage). If
// the stage keeps chunks decoded, the rest is decoded first (see DecodedFile).
// A decoding thread reads, too: its ring keeps the storage busy meanwhile, so a second pool would only add hand-overs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "deliver.hpp"
#include "descriptors.hpp"
#include "job.hpp"
#include "mapping.hpp"
#include "patience.hpp"
#include "request.hpp"
#include "ring.hpp"
#include "stage_files.hpp"
#include "solar/far.hpp"
#include "solar/reader.hpp"

namespace solar::read {

// A piece on its way, for whoever asks what a ticket waits for: set by one thread, read by any.
class Flight {
 public:
  // The ticket's lower half, and the piece: one word, so that they belong together.
  static std::uint64_t word(std::uint64_t ticket, std::uint32_t piece) noexcept { return ticket << 32 | piece; }
  static constexpr std::uint64_t none = ~std::uint64_t{0};  // no batch has that many pieces

  void set(std::uint64_t word, std::uint64_t since_ns) noexcept {
    since_ns_.store(since_ns, std::memory_order_relaxed);
    word_.store(word, std::memory_order_relaxed);
  }
  void move(std::uint64_t word) noexcept { word_.store(word, std::memory_order_relaxed); }  // since then as before
  void clear() noexcept { word_.store(none, std::memory_order_relaxed); }
  std::uint64_t word() const noexcept { return word_.load(std::memory_order_relaxed); }
  std::uint64_t since_ns() const noexcept { return since_ns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> word_{none}, since_ns_{0};
};

// The open files of a Reader, and which of its threads uses them here.
struct WorkerFiles {
  OpenFiles& through;  // the page cache
  OpenFiles& past;     // it
  unsigned thread;
  std::size_t staged;  // files of a local disk, of which each thread has its own
};

class Worker {
 public:
  // `finished` is called when the last piece of a Job is done, by the thread that did it.
  // `depth`: requests in flight; more of those from afar. `scratch`: bytes of all of them, and of what is kept
  // for the next.
  Worker(WorkerFiles files, std::uint64_t gap, std::uint64_t scratch, Recent& recent, std::unique_ptr<Ring> ring,
         std::size_t depth, std::function<void(Job&)> finished);
  ~Worker();

  // Does a unit, or begins it. Errors go to the Job.
  void run(Job& job, std::size_t unit);
  bool busy() const noexcept { return in_flight_ > 0; }
  // Finishes what has come; with `block`, waits for something to come.
  void reap(bool block);
  // For any thread:
  const Counts& counts() const noexcept { return counts_; }
  const std::vector<Flight>& flights() const noexcept { return flights_; }

 private:
  void convert(Job& job, std::size_t unit);
  void await(bool block);
  void begin() noexcept;
  void charge(Job& job);
  void settle();
  Flight& flight(const Request& request) noexcept { return flights_[1 + index(request)]; }
  std::size_t index(const Request& request) const noexcept {
    return static_cast<std::size_t>(&request - requests_.data());
  }
  void put(Job& job, const Piece& piece) noexcept;
  Request& free_request();
  std::uint32_t copy_mapped(Job& job, std::uint32_t begin, std::uint32_t end);
  std::uint32_t join(const ReadPlan& batch, std::uint32_t begin, std::uint32_t end) const noexcept;
  std::shared_ptr<const File> open(const Request& request, Descriptors& descriptors);
  std::uint64_t scratch_of(const Request& request) const noexcept;
  void fit_scratch(Request& request, std::uint64_t nbytes);
  void keep_scratch(Request& request, std::size_t most) noexcept;
  void read(Request& request);
  bool bypasses(Request& request);
  bool read_past(Request& request);
  std::byte* window(Request& request, std::uint64_t nbytes);
  std::size_t block_nbytes(const Request& request) const noexcept;
  void count(Request& request) noexcept;
  bool read_through(Request& request);
  bool read_laid_out(Request& request);
  bool read_at_once(Request& request);
  void read_trusting(Request& request);
  void read_blocking(Request& request, int failed = 0);
  void read_far(Request& request);
  bool is_scrap(const iovec& part) const noexcept {
    return part.iov_base >= scrap_.data() && part.iov_base < scrap_.data() + hole_limit;
  }
  bool try_again(Request& request, int failed, Patience& patience);
  void queue(Request& request, const iovec* parts, std::size_t count, std::uint64_t offset);
  void submit();
  void land(Request& request, std::int64_t result);
  void choose(Request& request);
  bool read_staged(Request& request);
  void landed(Request& request);
  bool sound(Request& request);
  void put_staged(Request& request);
  void read_again(Request& request);
  const DecodedFile* decoded_of(const Request& request) const noexcept;
  bool read_decoded(Request& request, const DecodedFile& from);
  void decode_parts(Request& request, const DecodedFile& from);
  std::uint64_t wanted_end(const Request& request) const noexcept;
  void fill_parts(Request& request, Bytes bytes, std::uint64_t begin);
  void decode_run(const Request& request, const DecodedFile& from, const DecodedFile::Run& run, MutableBytes raw);
  void read_stored(const Request& request, std::uint64_t offset, MutableBytes out);
  void decode_chunk(const DecodedFile::Form& form, std::uint32_t mask, Bytes stored, MutableBytes raw);
  bool cut_alike(const Staged& staged, const DecodedFile& from, DecodedFile::Run& run);
  bool read_there(const Staged& staged, const DecodedFile::Run& run, MutableBytes raw);
  const Mapping* mapping_of(const ReadPlan& batch, std::size_t index);
  void take_far(std::chrono::nanoseconds limit);
  void arrived(Request& request, std::int64_t result);
  void end(Request& request);
  [[noreturn]] void fail(const Request& request, const std::string& what, int code) const;
  static std::exception_ptr caught(const ReadPlan& batch, const Piece& piece);
  static std::uint64_t now_ns() noexcept;

  static constexpr unsigned trusted = 256;  // reads held by the page cache, after which the next will be

  Descriptors files_, direct_files_;
  StageFiles stage_files_;
  std::vector<std::uint32_t> entries_;  // of the blocks of a request
  std::vector<Stage::Blocks> runs_;     // of a request
  std::uint64_t gap_;
  std::unique_ptr<Ring> ring_;
  std::function<void(Job&)> finished_;
  std::vector<Request> requests_;
  std::vector<std::uint32_t> free_;  // of requests_
  Workspace slots_;                     // windows of small requests
  Workspace scrap_;                     // gaps land here
  std::vector<Flight> flights_;      // the first one is the piece at hand; then, of each request in the ring, its first
  Bench bench_;
  Counts counts_;
  // Whose work is being done, since when, and what of it was done: told to the Job when another's turn comes or the unit
  // ends, for threads that tell at once wait for each other.
  Job* charged_ = nullptr;
  std::uint64_t since_ns_ = 0;
  ReaderStats done_;
  std::uint32_t pieces_done_ = 0;
  unsigned in_flight_ = 0;
  unsigned far_in_flight_ = 0;                                                // of these
  std::shared_ptr<Far::Mailbox> mailbox_ = std::make_shared<Far::Mailbox>();  // of these
  std::string why_;                                                           // the last far read failed
  std::uint64_t scratch_;
  std::uint64_t scratch_in_flight_ = 0;
  std::uint64_t scratch_held_ = 0;  // that, and what is kept of requests that have ended
  bool cached_first_ = true;  // false where the file system knows no RWF_NOWAIT
  bool bypass_ = true;        // false where it takes no direct reads though it lets files be opened for them
  unsigned held_ = 0;         // reads since the last that the page cache did not hold
};

}  // namespace solar::read
