// Carries out reads with native threads: rows of a Source into memory the caller owns.
//
// submit() returns at once; wait() blocks until that ticket's rows are in place, or throws its first error.
// submit, wait, waiting_for, progress, abandon, stats and close may be called from any thread. Reads are sorted, joined when the
// gap between two costs less than a request, split over the threads, and land in the caller's memory without a copy
// where no decoding is needed.
// The caller keeps source and `out` alive until wait() returned or close() returned true.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "solar/boxes.hpp"
#include "solar/buffer.hpp"
#include "solar/codec.hpp"
#include "solar/source.hpp"

namespace solar {

namespace read {
class Lines;
}

// Counts of a ticket, or of all of a Reader's: those of a Reader are the sum over its tickets, to the last byte.
struct ReaderStats {
  std::uint64_t rows = 0;          // delivered
  std::uint64_t requests = 0;      // stretches of a file, or messages to a server: what a plan counts, see Task
  std::uint64_t calls = 0;         // of the system, or messages to a server: a long request takes several
  std::uint64_t buffer_hits = 0;   // rows of a batch that were in a buffer already: see Run
  std::uint64_t bypassed = 0;      // of these requests, made past the page cache
  std::uint64_t bytes_read = 0;    // asked of the file system, gaps included
  std::uint64_t bytes_mapped = 0;  // copied from mapped files instead
  std::uint64_t stage_requests = 0;  // of these requests, made to a stage: see Stage
  std::uint64_t stage_bytes = 0;     // of the bytes read, read from there
  std::uint64_t stage_written = 0;   // bytes written to one
  std::uint64_t retries = 0;       // calls of the system made again, for what failed may pass
  std::uint64_t chunks_decoded = 0;
  std::uint64_t bytes_decoded = 0;
  std::uint64_t read_ns = 0;    // summed over threads
  std::uint64_t decode_ns = 0;  // and of encoding, where a buffer packs its rows
};

// What each count is called, in the order in which they are told.
struct NamedCount {
  const char* name;
  std::uint64_t ReaderStats::* count;
};
inline constexpr std::array<NamedCount, 15> named_counts{{
    {"rows", &ReaderStats::rows},
    {"requests", &ReaderStats::requests},
    {"calls", &ReaderStats::calls},
    {"buffer_hits", &ReaderStats::buffer_hits},
    {"bypassed", &ReaderStats::bypassed},
    {"bytes_read", &ReaderStats::bytes_read},
    {"bytes_mapped", &ReaderStats::bytes_mapped},
    {"stage_requests", &ReaderStats::stage_requests},
    {"stage_bytes", &ReaderStats::stage_bytes},
    {"stage_written", &ReaderStats::stage_written},
    {"retries", &ReaderStats::retries},
    {"chunks_decoded", &ReaderStats::chunks_decoded},
    {"bytes_decoded", &ReaderStats::bytes_decoded},
    {"read_ns", &ReaderStats::read_ns},
    {"decode_ns", &ReaderStats::decode_ns},
}};

enum class Backend { automatic, pread, uring };

// What becomes of the rows of a ticket.
//
// fetch, load, pack and keep read in stretches, as a plan counts them: what is neighboured, or less than a gap apart, is read in
// one go, holes included, in as many requests as that takes. Rows that are runs of bytes are read alone; of others the
// whole line of chunks that they are in.
enum class Task : std::uint8_t {
  read,    // they are read to `out`
  fetch,   // the same, in stretches
  load,    // they are read to their page in the buffer, stretches being in the order of the rows
  pack,    // they are read and encoded to their page, if they fit it so (else it says that they do not)
  keep,    // the lines of chunks that begin with these rows are read to their pages in the buffer, as they are stored
  gather,  // they are copied from their page in the buffer to `out`
  unpack,  // they are decoded from their page, to `out`; REQUIRES: each fitted it
  decode,  // they are decoded from the line of chunks that the buffer keeps, to `out`
};

// How rows are encoded in a buffer: without loss, as arrays of these numbers.
struct Pack {
  Number number = Number::uint8;
  Predictor predictor = Predictor::none;

  // Whether a page that rows were packed to has one: one that is too large leaves only word of it.
  static bool fits(const std::byte* page) noexcept;
  // Bytes that encoding a row takes beside the row itself, at most.
  static std::uint64_t scratch(std::uint64_t row_nbytes, std::uint64_t itemsize) noexcept;
};

// A place in the files of a Source.
struct Place {
  std::size_t file = SIZE_MAX;  // none
  std::uint64_t offset = 0;
};

struct Work {
  Task task = Task::read;
  std::shared_ptr<const Source> source;
  std::span<const std::int64_t> rows;
  MutableBytes out;
  // Where samples are boxes, `rows` are their numbers, for messages alone, and here are where they lie, one after another.
  std::shared_ptr<const Boxes> boxes = nullptr;
  std::span<const std::int64_t> corners = {};
  // And the blocks, in ascending order, that are to give what they have of the boxes. None: all that these touch.
  std::optional<std::span<const std::int64_t>> blocks = {};
  std::optional<std::span<const std::int64_t>> positions;  // in `out`; trusted unless the task is to read
  // To read: how many rows from rows[i] on go to slots one after another, from positions[i] on. None: one each.
  std::optional<std::span<const std::int64_t>> counts;
  Buffer* buffer = nullptr;            // its keys are rows, of one page each; or lines, of as many as they need
  const read::Lines* lines = nullptr;  // to keep and to decode
  std::uint64_t gap = 0;
  std::optional<Pack> pack = std::nullopt;  // to pack
  Place* after =
      nullptr;  // to load, to pack and to keep: where the last stretch ended, which goes on; then where this ends
  std::uint64_t scratch = UINT64_MAX;  // bytes that a thread may use beside, where one request needs no more
};

inline constexpr std::chrono::nanoseconds longest_wait = std::chrono::hours(24 * 365);

class Reader {
 public:
  using Ticket = std::uint64_t;
  using Positions = std::optional<std::span<const std::int64_t>>;
  static constexpr std::uint64_t most_scratch = 64 << 20;

  // threads >= 1; depth = requests in flight over all threads (io_uring), gap = bytes worth reading to save a request
  // to the storage, scratch = bytes that a thread may have beside for what is on its way, where one request needs no more.
  Reader(unsigned threads, unsigned depth, std::uint64_t gap, Backend backend, std::uint64_t scratch = most_scratch);
  ~Reader();  // close(), unless that was given up before: then it leaves the threads, and what they use, as they are

  // Row i goes to slot i of `out`, of source->row_nbytes() each, or to slot positions[i]: then `out` may have more slots
  // than there are rows, and those that are not named are not touched. With counts, counts[i] rows from rows[i] on go
  // to as many slots. A row out of range throws std::out_of_range here, an `out` that does not fit, or positions that are
  // out of range or not unique, std::invalid_argument.
  Ticket submit(std::shared_ptr<const Source> source, std::span<const std::int64_t> rows, MutableBytes out,
                Positions positions = {}, Positions counts = {});
  // The same for any work. The buffer stays as the source does, and its keys as long as the ticket.
  Ticket submit(const Work& work);
  // Returns false when `limit` passed first (the ticket stays valid). A ticket is forgotten once waited for; `counts`
  // are then its own, also where it throws.
  bool wait(Ticket ticket, std::chrono::nanoseconds limit, ReaderStats* counts = nullptr);
  // "file: dataset, sample 17, offset 123" of bytes the ticket waits for: those longest on their way, else of the first
  // that nobody has asked for yet, and then what the threads wait for instead. Empty when it waits for nothing, or there
  // is no such ticket.
  std::string waiting_for(Ticket ticket) const;
  // How many pieces of the tickets up to this one are done, of all that this Reader ever had, and how many there are.
  std::pair<std::uint64_t, std::uint64_t> progress(Ticket last) const;
  // Nobody wants this ticket's rows: what has not begun is dropped, and so it soon ends, with Error(read) where rows
  // are missing. It is waited for like any other, for `out` is written to until then. An unknown ticket is ignored.
  void abandon(Ticket ticket) noexcept;
  // Drops what has not begun, finishes what has, joins the threads. Waiting after close throws Error(read).
  // Returns false when `limit` passed first, for a read that never returns: the threads are still there, and write to
  // their tickets' memory should it return after all. One may close again.
  bool close(std::chrono::nanoseconds limit = std::chrono::nanoseconds::max());

  Backend backend() const;  // which one runs
  ReaderStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
