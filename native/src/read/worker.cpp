#include "worker.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace solar::read {

namespace {

constexpr std::uint64_t request_limit = 1 << 20;  // joining more than this saves nothing
constexpr std::uint32_t joined_limit = 128;       // pieces; with a gap each, still far from IOV_MAX
constexpr std::uint64_t gap_limit = request_limit;
constexpr std::uint64_t gap_in_memory = 4 << 10;   // what copying from the page cache costs as much as a request
constexpr std::uint64_t scratch_limit = 64 << 20;  // of all requests in flight, should chunks be large
constexpr std::uint64_t scratch_kept = 4 << 20;    // of each request, for the next
constexpr std::size_t most_slots = 64;             // small windows in flight
constexpr unsigned trusted = 256;                  // reads held by the page cache, after which the next will be
constexpr std::uint64_t least_trusted = 16 << 10;  // bytes of a read that is worth the look at the clock
constexpr std::uint64_t slow_ns = 20'000;          // a read from memory takes less, and
constexpr std::uint64_t slow_rate = 2;             // is faster: bytes in a nanosecond

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// A number in [0, 1) that looks random, the same for all offsets of a region.
double draw(std::uint64_t offset) {
  const std::uint64_t mixed = (offset / request_limit + 1) * 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio
  return static_cast<double>(mixed >> 32) / 4294967296.0;
}

ssize_t read_parts(int descriptor, const std::vector<iovec>& parts, std::size_t from, std::uint64_t offset) {
  const auto at = static_cast<off_t>(offset);
  if (parts.size() - from == 1) return ::pread(descriptor, parts[from].iov_base, parts[from].iov_len, at);
  return ::preadv(descriptor, &parts[from], static_cast<int>(parts.size() - from), at);
}

}  // namespace

Worker::Worker(std::size_t files, std::uint64_t gap, std::unique_ptr<Ring> ring, std::function<void(Job&)> finished)
    : files_(files, false),
      direct_files_(files, true),
      gap_(std::min(gap, gap_limit)),
      ring_(std::move(ring)),
      finished_(std::move(finished)) {
  requests_.resize(ring_ ? ring_->entries() : 1);
  for (std::size_t i = requests_.size(); i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
  flights_ = std::vector<Flight>(1 + requests_.size());
  scrap_.fit(hole_limit);
}

Worker::~Worker() {
  while (busy()) reap(true);
}

void Worker::run(Job& job, std::size_t unit) {
  begin();
  const Batch& batch = job.batch;
  const std::uint32_t end = batch.unit_begin[unit + 1];
  bool may_copy = batch.source->mappings != nullptr && batch.task == Task::read;
  for (std::uint32_t i = batch.unit_begin[unit]; i < end;) {
    charge(job);
    flights_[0].set(Flight::word(job.ticket, i), since_ns_);
    if (job.failed.load(std::memory_order_relaxed)) {
      pieces_done_ += end - i;
      break;
    }
    if (batch.pieces[i].how == How::fill || batch.from_buffer()) {
      put(job, batch.pieces[i]);
      ++pieces_done_;
      ++i;
      continue;
    }
    if (may_copy && batch.pieces[i].how != How::chunk) {
      if (const std::uint32_t copied = copy_mapped(job, i, end); copied > i) {
        pieces_done_ += copied - i;
        i = copied;
        continue;
      }
      may_copy = false;  // not warm: the rest of the unit need not ask again
    }
    Request& request = free_request();
    request.start(job, i, join(batch, i, end));
    i = request.end;
    read(request);
  }
  submit();
  settle();
  flights_[0].clear();
}

void Worker::reap(bool block) {
  begin();
  await(block);
  settle();
}

// Like reap, in the middle of a unit, too.
void Worker::await(bool block) {
  // For several at a time: waking for each costs more than it gives.
  if (block) ring_->wait(std::max(1U, in_flight_ / 4));
  std::uint64_t tag = 0;
  std::int32_t result = 0;
  while (ring_->take(tag, result)) arrived(requests_[tag], result);
}

// What is done from here on is timed; for whom, charge() says.
void Worker::begin() noexcept { since_ns_ = now_ns(); }

// What is done from here on is done for this Job.
void Worker::charge(Job& job) {
  if (charged_ != nullptr && charged_ != &job) settle();
  charged_ = &job;
}

// Tells the Job what was done for it, and then that its pieces are: who waited for the ticket finds all of it counted.
void Worker::settle() {
  Job* const job = std::exchange(charged_, nullptr);
  if (job == nullptr) return;
  const std::uint64_t now = now_ns();
  const std::uint64_t busy_ns = now - std::exchange(since_ns_, now);
  done_.chunks_decoded = std::exchange(bench_.chunks_decoded, 0);
  done_.bytes_decoded = std::exchange(bench_.bytes_decoded, 0);
  done_.decode_ns = std::exchange(bench_.decode_ns, 0);
  done_.read_ns = busy_ns - std::min(busy_ns, done_.decode_ns);
  counts_.add(done_);
  job->counts.add(done_);
  done_ = {};
  if (const std::uint32_t pieces = std::exchange(pieces_done_, 0); pieces > 0 && job->finish(pieces)) finished_(*job);
}

// A piece for which nothing is read.
void Worker::put(Job& job, const Piece& piece) noexcept {
  try {
    piece.how == How::fill ? fill(job.batch, piece) : deliver_held(job.batch, piece, bench_);
  } catch (...) {
    job.fail(std::current_exception());
  }
}

Request& Worker::free_request() {
  while (free_.empty()) {
    submit();
    if (free_.empty()) await(true);
  }
  Request& request = requests_[free_.back()];
  free_.pop_back();
  return request;
}

// Copies pieces from `begin` on that lie in one file and need no decoding out of its mapping; the end of those copied.
// REQUIRES: the Source has mappings, and the first piece needs no decoding.
std::uint32_t Worker::copy_mapped(Job& job, std::uint32_t begin, std::uint32_t end) {
  const Batch& batch = job.batch;
  const Piece* const pieces = batch.pieces.data();
  const std::size_t index = batch.file_index(pieces[begin]);
  const Mapping* mapping = nullptr;
  try {
    mapping = batch.source->mappings->warm(index, *files_.open(batch.source->files[index]));
  } catch (const Error&) {  // reading meets it again, and says where
  }
  if (mapping == nullptr) return begin;
  std::uint32_t copied = begin;
  std::uint64_t nbytes = 0;
  const bool whole = mapping->guarded([&] {
    for (; copied < end; ++copied) {
      const Piece& piece = pieces[copied];
      if (piece.how == How::fill || piece.how == How::chunk || batch.file_index(piece) != index) return;
      const Bytes stored = mapping->at(piece.offset, piece.nbytes);
      if (stored.empty()) return;
      flights_[0].move(Flight::word(job.ticket, copied));
      if (piece.how == How::direct) std::memcpy(batch.out.data() + piece.to, stored.data(), stored.size());
      deliver(batch, piece, stored, bench_);
      nbytes += stored.size();
    }
  });
  if (!whole) return begin;
  done_.bytes_mapped += nbytes;
  return copied;
}

// The end of the pieces that are read together with `begin`.
std::uint32_t Worker::join(const Batch& batch, std::uint32_t begin, std::uint32_t end) const noexcept {
  if (batch.in_stretches()) return end;  // a unit is a request
  const Piece& first = batch.pieces[begin];
  const std::uint64_t gap = held_ >= trusted ? std::min(gap_, gap_in_memory) : gap_;
  std::uint64_t at = first.offset + first.nbytes;
  std::uint32_t i = begin + 1;
  for (; i < end && i - begin < joined_limit; ++i) {
    const Piece& piece = batch.pieces[i];
    if (piece.how == How::fill || piece.offset < at || piece.offset - at > gap) break;
    if (piece.offset + piece.nbytes - first.offset > request_limit) break;
    if (piece.group != first.group && batch.file_index(piece) != batch.file_index(first)) break;
    at = piece.offset + piece.nbytes;
  }
  return i;
}

std::shared_ptr<const File> Worker::open(const Request& request, Descriptors& descriptors) {
  const Batch& batch = request.job->batch;
  const Piece& first = request.first();
  try {
    return descriptors.open(batch.file(first));
  } catch (const Error& error) {
    const std::int64_t sample = batch.rows[first.first].row;
    const std::string asked = " (" + batch.source->name + ", sample " + std::to_string(sample) + ")";
    throw Error(error.kind(), error.what() + asked, error.code());
  }
}

// Waits for other requests to end when too much is in use.
void Worker::fit_scratch(Request& request, std::uint64_t nbytes) {
  const std::uint64_t limit = std::min(scratch_limit, request.job->batch.scratch);
  while (busy() && scratch_in_flight_ + nbytes > limit) {
    submit();
    if (busy()) await(true);
  }
  charge(*request.job);
  request.scratch.fit(nbytes);
  request.scratch_nbytes = nbytes;
  scratch_in_flight_ += nbytes;
}

void Worker::read(Request& request) {
  charge(*request.job);
  try {
    if (!(bypasses(request) ? read_past(request) : read_through(request))) return;  // in flight
    request.deliver(bench_);
  } catch (...) {
    request.job->fail(std::current_exception());
  }
  end(request);
}

// True when it is to be read past the page cache; then its file is open for that.
bool Worker::bypasses(Request& request) {
  if (!bypass_ || draw(request.offset) >= request.job->batch.source->bypass) return false;
  request.file = open(request, direct_files_);
  return request.file->alignment() != 0 && !request.file->cached(request.offset, request.left);
}

// Like read_through: true when the bytes are here, false when they are on their way.
bool Worker::read_past(Request& request) {
  ++done_.bypassed;
  count(request);
  const std::size_t alignment = request.file->alignment();
  if (request.aligned(alignment)) {
    request.lay_out(scrap_.data());
  } else {
    request.lay_out_window(window(request, request.window_nbytes(alignment)), alignment);
  }
  const iovec* const parts = request.windowed() ? &request.window : request.parts.data();
  const std::size_t count = request.windowed() ? 1 : request.parts.size();
  if (ring_) {
    queue(request, parts, count);
    return false;
  }
  const auto from = static_cast<off_t>(request.offset - request.lead);
  const ssize_t got = ::preadv(request.file->descriptor(), parts, static_cast<int>(count), from);
  land(request, got < 0 ? -errno : got);
  return true;
}

// Memory for a window: of a small one, a slot of a block that all requests share, so that it may lie in a huge page.
std::byte* Worker::window(Request& request, std::uint64_t nbytes) {
  if (nbytes <= large_nbytes && index(request) < most_slots) {
    const std::size_t slots = std::min(requests_.size(), most_slots);
    return slots_.fit(slots * large_nbytes).data() + index(request) * large_nbytes;
  }
  fit_scratch(request, nbytes);
  return request.scratch.data();
}

void Worker::count(const Request& request) noexcept {
  ++done_.requests;
  done_.bytes_read += request.left;
}

bool Worker::read_through(Request& request) {
  request.file = open(request, files_);
  count(request);
  fit_scratch(request, request.stored_nbytes());
  request.lay_out(scrap_.data());
  if (held_ >= trusted && request.left >= least_trusted) {
    read_trusting(request);
    return true;
  }
  if (cached_first_ && read_at_once(request)) {
    held_ = std::min(held_ + 1, trusted);
    return true;
  }
  held_ = 0;
  if (!ring_) {
    read_blocking(request);
    return true;
  }
  queue(request, &request.parts[request.part], request.parts.size() - request.part);
  return false;
}

// Takes what the page cache holds; true when that was all.
bool Worker::read_at_once(Request& request) {
  while (request.left > 0) {
    const ssize_t got = ::preadv2(request.file->descriptor(), &request.parts[request.part],
                                  static_cast<int>(request.parts.size() - request.part),
                                  static_cast<off_t>(request.offset), RWF_NOWAIT);
    if (got <= 0) {
      if (got < 0 && errno != EAGAIN && errno != EINTR) cached_first_ = false;
      return false;
    }
    request.advance(static_cast<std::uint64_t>(got));
  }
  return true;
}

// Reads as if the page cache held it, and looks whether it did.
void Worker::read_trusting(Request& request) {
  const std::uint64_t most_ns = slow_ns + request.left / slow_rate;
  const std::uint64_t begin_ns = now_ns();
  read_blocking(request);
  if (now_ns() - begin_ns > most_ns) held_ = 0;
}

void Worker::read_blocking(Request& request) {
  while (request.left > 0) {
    const ssize_t got = read_parts(request.file->descriptor(), request.parts, request.part, request.offset);
    if (got > 0) {
      request.advance(static_cast<std::uint64_t>(got));
    } else if (got == 0) {
      fail(request, "the file ends here, " + std::to_string(request.left) + " bytes short of its index", 0);
    } else if (errno != EINTR) {
      const int code = errno;
      fail(request, std::string("cannot be read: ") + std::strerror(code), code);
    }
  }
}

void Worker::queue(Request& request, const iovec* parts, std::size_t count) {
  ring_->queue(request.file->descriptor(), parts, static_cast<unsigned>(count), request.offset - request.lead,
               index(request));
  flight(request).set(Flight::word(request.job->ticket, request.begin), since_ns_);
  ++in_flight_;
}

void Worker::submit() {
  if (!ring_ || ring_->submit()) return;
  std::uint64_t tag = 0;
  while (ring_->take_back(tag)) arrived(requests_[tag], 0);
}

// Takes in a result: bytes read, or minus errno. What failed or brought too little is read again, blocking and through
// the page cache: that finishes it or names the error.
void Worker::land(Request& request, std::int64_t result) {
  const bool direct = request.file->alignment() != 0;
  if (direct && result == -EINVAL) bypass_ = false;
  const auto got = static_cast<std::uint64_t>(std::max<std::int64_t>(result, 0));
  if (got > request.lead) request.advance(std::min(got - request.lead, request.left));
  if (request.left == 0) return;
  if (direct) request.file = open(request, files_);
  read_blocking(request);
}

void Worker::arrived(Request& request, std::int32_t result) {
  --in_flight_;
  charge(*request.job);
  try {
    land(request, result);
    request.deliver(bench_);
  } catch (...) {
    request.job->fail(std::current_exception());
  }
  end(request);
}

void Worker::end(Request& request) {
  scratch_in_flight_ -= std::exchange(request.scratch_nbytes, 0);
  request.scratch.keep(std::min(scratch_kept, request.job->batch.scratch / requests_.size()));
  request.file.reset();  // or it would stay open
  flight(request).clear();
  free_.push_back(static_cast<std::uint32_t>(index(request)));
  pieces_done_ += request.end - request.begin;
}

void Worker::fail(const Request& request, const std::string& what, int code) const {
  const Batch& batch = request.job->batch;
  std::uint32_t i = request.begin;
  while (i + 1 < request.end && batch.pieces[i].offset + batch.pieces[i].nbytes <= request.offset) ++i;
  const Piece& piece = batch.pieces[i];
  const std::uint64_t at = request.offset > piece.offset ? request.offset - piece.offset : 0;
  throw Error(Kind::read, batch.where(piece, at) + ": " + what, code);
}

}  // namespace solar::read
