// Carries out reads with native threads: rows of a Source into memory the caller owns.
//
// submit() returns at once; wait() blocks until that ticket's rows are in place, or throws its first error.
// submit, wait, abandon, stats and close may be called from any thread. Reads are sorted, joined when the gap between
// two costs less than a request, split over the threads, and land in the caller's memory without a copy where no
// decoding is needed.
// The caller keeps source and `out` alive until wait() returned or close().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "solar/source.hpp"

namespace solar {

struct ReaderStats {
  std::uint64_t rows = 0;          // delivered
  std::uint64_t requests = 0;      // to the file system
  std::uint64_t bypassed = 0;      // of these requests, made past the page cache
  std::uint64_t bytes_read = 0;    // asked of the file system, gaps included
  std::uint64_t bytes_mapped = 0;  // copied from mapped files instead
  std::uint64_t chunks_decoded = 0;
  std::uint64_t bytes_decoded = 0;
  std::uint64_t read_ns = 0;       // summed over threads
  std::uint64_t decode_ns = 0;
};

enum class Backend { automatic, pread, uring };

class Reader {
 public:
  using Ticket = std::uint64_t;

  // threads >= 1; depth = requests in flight over all threads (io_uring), gap = bytes worth reading to save a request
  // to the storage.
  Reader(unsigned threads, unsigned depth, std::uint64_t gap, Backend backend);
  ~Reader();  // close()

  // REQUIRES: out.size() == rows.size() * source->row_nbytes(). A row out of range throws std::out_of_range here.
  Ticket submit(std::shared_ptr<const Source> source, std::span<const std::int64_t> rows, MutableBytes out);
  // Returns false when `limit` passed first (the ticket stays valid). A ticket is forgotten once waited for.
  bool wait(Ticket ticket, std::chrono::nanoseconds limit);
  // Nobody wants this ticket's rows: what has not begun is dropped, and so it soon ends, with Error(read) where rows
  // are missing. It is waited for like any other, for `out` is written to until then. An unknown ticket is ignored.
  void abandon(Ticket ticket) noexcept;
  // Drops what has not begun, finishes what has, joins the threads. Waiting after close throws Error(read).
  void close();

  Backend backend() const;  // which one runs
  ReaderStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
