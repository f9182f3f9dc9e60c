// A Reader reads rows of a Source into memory of the caller, with threads of its own.
//
// submit() returns a ticket at once. wait() blocks until the rows of a ticket are in place, or throws the first error
// of the ticket. Any thread may call any function. The Reader sorts reads, joins two if the gap between them costs less
// than a request, and divides them among its threads. Bytes that need no decoding go to the caller's memory without a
// copy.
//
// The caller keeps the source and `out` alive until wait() has returned or close() has returned true.
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
#include "solar/convert.hpp"
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
  std::uint64_t ranks_ns = 0;  // that a Run waited for ranks of its node that had not come as far: their loops are slow
};

// What each count is called, in the order in which they are told.
struct NamedCount {
  const char* name;
  std::uint64_t ReaderStats::* count;
};
inline constexpr std::array<NamedCount, 16> named_counts{{
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
    {"ranks_ns", &ReaderStats::ranks_ns},
}};

inline void add(ReaderStats& sum, const ReaderStats& more) noexcept {
  for (const NamedCount& one : named_counts) sum.*one.count += more.*one.count;
}

// How reads are under way that the page cache does not answer: with the kernel's io_uring, or, where the kernel has or
// allows none, with threads that do nothing but wait for them.
enum class Backend { automatic, pread, uring };

// What becomes of the rows of a ticket.
//
// fetch, load, pack and keep read in stretches, as a plan counts them. A stretch is bytes of a file that are adjacent
// or less than a gap apart; it is read with its holes, in as many requests as it needs. A row that is one run of bytes
// is read alone. For other rows, the whole line of chunks is read.
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
struct FileOffset {
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
  FileOffset* after =
      nullptr;  // to load, to pack and to keep: where the last stretch ended, which goes on; then where this ends
  std::uint64_t scratch = UINT64_MAX;  // bytes that a thread may use beside, where one request needs no more
};

inline constexpr std::chrono::nanoseconds longest_wait = std::chrono::hours(24 * 365);

class Reader {
 public:
  using Ticket = std::uint64_t;
  using Positions = std::optional<std::span<const std::int64_t>>;
  static constexpr std::uint64_t most_scratch = 64 << 20;

  // threads >= 1; depth = requests in flight over all threads, gap = bytes worth reading to save a request
  // to the storage, scratch = bytes that a thread may have beside for what is on its way, where one request needs no more.
  Reader(unsigned threads, unsigned depth, std::uint64_t gap, Backend backend, std::uint64_t scratch = most_scratch);
  ~Reader();  // close(), unless that was given up before: then it leaves the threads, and what they use, as they are

  // Reads row i to slot i of `out`, or to slot positions[i]. A slot has source->row_nbytes() bytes. With positions,
  // `out` may have more slots than there are rows; slots that are not named stay as they are. With counts, reads
  // counts[i] rows from rows[i] on to as many consecutive slots. Throws std::out_of_range if a row does not exist, and
  // std::invalid_argument if `out` has the wrong size, or if positions are out of range or not unique.
  Ticket submit(std::shared_ptr<const Source> source, std::span<const std::int64_t> rows, MutableBytes out,
                Positions positions = {}, Positions counts = {});
  // Does the same for any work. The caller keeps the buffer alive as long as the source, and its keys held until the
  // ticket has ended.
  Ticket submit(const Work& work);
  // Converts samples that lie one after another, as work that reads nothing. The caller keeps both memories until the
  // ticket has ended. Throws std::invalid_argument where `out` does not have the size of what is made.
  Ticket convert(std::shared_ptr<const Conversion> conversion, Bytes samples, MutableBytes out);
  // Waits until the ticket has ended. Returns false if `limit` passes first; the ticket then stays valid. Otherwise the
  // ticket is forgotten, and `counts` is set to what it counted, even if wait() throws its error.
  bool wait(Ticket ticket, std::chrono::nanoseconds limit, ReaderStats* counts = nullptr);
  // Returns what the ticket waits for, as "file: dataset, sample 17, offset 123": the bytes that were asked for first,
  // or else the first bytes that nobody has asked for yet, and what the threads wait for instead. Returns an empty
  // string if the ticket waits for nothing or does not exist.
  std::string waiting_for(Ticket ticket) const;
  // Returns how many pieces of the tickets up to `last` are done, since the Reader was made, and how many there are.
  std::pair<std::uint64_t, std::uint64_t> progress(Ticket last) const;
  // Drops the work of this ticket that has not begun. The ticket ends soon, with Error(read) if rows are missing. The
  // caller must still wait for it, because `out` is written to until then. An unknown ticket is ignored.
  void abandon(Ticket ticket) noexcept;
  // Drops work that has not begun, finishes work that has, and joins the threads. Later calls of wait() throw
  // Error(read). Returns false if `limit` passes while a read does not return. The threads then still exist, and write
  // to the memory of their tickets if the read returns after all; close() may be called again.
  bool close(std::chrono::nanoseconds limit = std::chrono::nanoseconds::max());

  Backend backend() const;  // which one runs
  ReaderStats stats() const;
  std::uint64_t opened() const;  // files, ever: again and again where there are more than the system lets it keep open
  std::uint64_t wakes() const;  // how often a thread that had nothing to do woke

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
