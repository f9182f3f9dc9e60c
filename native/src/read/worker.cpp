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
constexpr std::uint64_t scratch_limit = 64 << 20;  // of all requests in flight, should chunks be large
constexpr std::uint64_t scratch_kept = 4 << 20;    // of each request, for the next

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

ssize_t read_parts(int descriptor, const std::vector<iovec>& parts, std::size_t from, std::uint64_t offset) {
  const auto at = static_cast<off_t>(offset);
  if (parts.size() - from == 1) return ::pread(descriptor, parts[from].iov_base, parts[from].iov_len, at);
  return ::preadv(descriptor, &parts[from], static_cast<int>(parts.size() - from), at);
}

void append(std::vector<iovec>& parts, std::byte* to, std::uint64_t nbytes) {
  if (!parts.empty() && static_cast<std::byte*>(parts.back().iov_base) + parts.back().iov_len == to) {
    parts.back().iov_len += nbytes;
  } else {
    parts.push_back({to, nbytes});
  }
}

}  // namespace

Worker::Worker(std::size_t files, std::uint64_t gap, std::unique_ptr<Ring> ring, std::function<void(Job&)> finished)
    : descriptors_(files), gap_(std::min(gap, gap_limit)), ring_(std::move(ring)), finished_(std::move(finished)) {
  requests_.resize(ring_ ? ring_->entries() : 1);
  for (std::size_t i = requests_.size(); i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
  scrap_.resize(gap_);
}

Worker::~Worker() {
  while (busy()) reap(true);
}

void Worker::run(Job& job, std::size_t unit) {
  const std::uint64_t begin_ns = now_ns();
  const Batch& batch = job.batch;
  const std::uint32_t end = batch.unit_begin[unit + 1];
  for (std::uint32_t i = batch.unit_begin[unit]; i < end;) {
    if (job.failed.load(std::memory_order_relaxed)) {
      finish(job, end - i);
      break;
    }
    if (batch.pieces[i].how == How::fill) {
      fill(batch, batch.pieces[i]);
      finish(job, 1);
      ++i;
      continue;
    }
    Request& request = free_request();
    request.job = &job;
    request.begin = i;
    request.end = i = join(batch, i, end);
    read(request);
  }
  submit();
  busy_ns_ += now_ns() - begin_ns;
  publish();
}

void Worker::reap(bool block) {
  const std::uint64_t begin_ns = now_ns();
  // For several at a time: waking for each costs more than it gives.
  if (block) ring_->wait(std::max(1U, in_flight_ / 4));
  std::uint64_t tag = 0;
  std::int32_t result = 0;
  while (ring_->take(tag, result)) arrived(requests_[tag], result);
  busy_ns_ += now_ns() - begin_ns;
  publish();
}

Worker::Request& Worker::free_request() {
  while (free_.empty()) {
    submit();
    if (free_.empty()) reap(true);
  }
  Request& request = requests_[free_.back()];
  free_.pop_back();
  return request;
}

// The end of the pieces that are read together with `begin`.
std::uint32_t Worker::join(const Batch& batch, std::uint32_t begin, std::uint32_t end) const noexcept {
  const Piece& first = batch.pieces[begin];
  std::uint64_t at = first.offset + first.nbytes;
  std::uint32_t i = begin + 1;
  for (; i < end && i - begin < joined_limit; ++i) {
    const Piece& piece = batch.pieces[i];
    if (piece.how == How::fill || piece.offset < at || piece.offset - at > gap_) break;
    if (piece.offset + piece.nbytes - first.offset > request_limit) break;
    if (piece.group != first.group && batch.file_index(piece) != batch.file_index(first)) break;
    at = piece.offset + piece.nbytes;
  }
  return i;
}

// Opens the file and lays out where the bytes go: straight to `out`, to scratch, or (gaps) to scrap.
void Worker::prepare(Request& request) {
  const Batch& batch = request.job->batch;
  const Piece* pieces = batch.pieces.data();
  const Piece& first = pieces[request.begin];
  request.parts.clear();
  request.part = 0;
  request.offset = first.offset;
  request.left = pieces[request.end - 1].offset + pieces[request.end - 1].nbytes - first.offset;
  open(request);
  std::byte* scratch = fit_scratch(request);
  std::uint64_t at = first.offset;
  for (std::uint32_t i = request.begin; i < request.end; ++i) {
    const Piece& piece = pieces[i];
    if (piece.offset > at) append(request.parts, scrap_.data(), piece.offset - at);
    at = piece.offset + piece.nbytes;
    if (piece.how == How::direct) {
      append(request.parts, batch.out.data() + piece.to, piece.nbytes);
    } else {
      append(request.parts, scratch, piece.nbytes);
      scratch += piece.nbytes;
    }
  }
  ++requests_made_;
  bytes_asked_ += request.left;
}

void Worker::open(Request& request) {
  const Batch& batch = request.job->batch;
  const Piece& first = batch.pieces[request.begin];
  try {
    request.file = descriptors_.open(batch.file(first));
  } catch (const Error& error) {
    const std::int64_t sample = batch.rows[first.first].row;
    const std::string asked = " (" + batch.source->name + ", sample " + std::to_string(sample) + ")";
    throw Error(error.kind(), error.what() + asked, error.code());
  }
}

// Memory for the pieces that do not go straight to `out`; waits for others to end when too much is in use.
std::byte* Worker::fit_scratch(Request& request) {
  std::uint64_t nbytes = 0;
  for (std::uint32_t i = request.begin; i < request.end; ++i) {
    const Piece& piece = request.job->batch.pieces[i];
    if (piece.how != How::direct) nbytes += piece.nbytes;
  }
  while (busy() && scratch_in_flight_ + nbytes > scratch_limit) {
    submit();
    if (busy()) reap(true);
  }
  std::byte* const scratch = request.scratch.fit(nbytes).data();
  request.scratch_nbytes = nbytes;
  scratch_in_flight_ += nbytes;
  return scratch;
}

void Worker::read(Request& request) {
  Job& job = *request.job;
  try {
    prepare(request);
    if (!ring_) {
      read_blocking(request);
    } else if (!cached_first_ || !read_cached(request)) {
      ring_->queue(request.file->descriptor(), &request.parts[request.part],
                   static_cast<unsigned>(request.parts.size() - request.part), request.offset,
                   static_cast<std::uint64_t>(&request - requests_.data()));
      ++in_flight_;
      return;
    }
    complete(request);
  } catch (...) {
    job.fail(std::current_exception());
  }
  end(request);
}

// Takes what the page cache holds; true when that was all.
bool Worker::read_cached(Request& request) {
  while (request.left > 0) {
    const ssize_t got = ::preadv2(request.file->descriptor(), &request.parts[request.part],
                                  static_cast<int>(request.parts.size() - request.part),
                                  static_cast<off_t>(request.offset), RWF_NOWAIT);
    if (got <= 0) {
      if (got < 0 && errno != EAGAIN && errno != EINTR) cached_first_ = false;
      return false;
    }
    advance(request, static_cast<std::uint64_t>(got));
  }
  return true;
}

void Worker::read_blocking(Request& request) {
  while (request.left > 0) {
    const ssize_t got = read_parts(request.file->descriptor(), request.parts, request.part, request.offset);
    if (got > 0) {
      advance(request, static_cast<std::uint64_t>(got));
    } else if (got == 0) {
      fail(request, "the file ends here, " + std::to_string(request.left) + " bytes short of its index", 0);
    } else if (errno != EINTR) {
      const int code = errno;
      fail(request, std::string("cannot be read: ") + std::strerror(code), code);
    }
  }
}

void Worker::submit() {
  if (!ring_ || ring_->submit()) return;
  std::uint64_t tag = 0;
  while (ring_->take_back(tag)) arrived(requests_[tag], 0);
}

void Worker::advance(Request& request, std::uint64_t nbytes) noexcept {
  request.offset += nbytes;
  request.left -= nbytes;
  while (nbytes > 0) {
    iovec& part = request.parts[request.part];
    const std::uint64_t n = std::min<std::uint64_t>(nbytes, part.iov_len);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + n;
    part.iov_len -= n;
    nbytes -= n;
    if (part.iov_len == 0) ++request.part;
  }
}

// All bytes are there: puts every piece into place.
void Worker::complete(Request& request) {
  const Batch& batch = request.job->batch;
  const std::byte* scratch = request.scratch.data();
  for (std::uint32_t i = request.begin; i < request.end; ++i) {
    const Piece& piece = batch.pieces[i];
    if (piece.how == How::direct) {
      deliver(batch, piece, {}, bench_);
    } else {
      deliver(batch, piece, {scratch, piece.nbytes}, bench_);
      scratch += piece.nbytes;
    }
  }
}

// A result of the ring. What failed or brought nothing is read again, blocking: that finishes it or names the error.
void Worker::arrived(Request& request, std::int32_t result) {
  Job& job = *request.job;
  --in_flight_;
  try {
    if (result > 0) advance(request, static_cast<std::uint64_t>(result));
    read_blocking(request);
    complete(request);
  } catch (...) {
    job.fail(std::current_exception());
  }
  end(request);
}

void Worker::end(Request& request) {
  scratch_in_flight_ -= std::exchange(request.scratch_nbytes, 0);
  request.scratch.keep(scratch_kept);
  request.file.reset();  // or it would stay open
  free_.push_back(static_cast<std::uint32_t>(&request - requests_.data()));
  finish(*request.job, request.end - request.begin);
}

void Worker::finish(Job& job, std::uint32_t pieces) {
  publish();  // first: who waited for the ticket finds its reads counted
  if (job.finish(pieces)) finished_(job);
}

void Worker::fail(const Request& request, const std::string& what, int code) const {
  const Batch& batch = request.job->batch;
  std::uint32_t i = request.begin;
  while (i + 1 < request.end && batch.pieces[i].offset + batch.pieces[i].nbytes <= request.offset) ++i;
  const Piece& piece = batch.pieces[i];
  const std::uint64_t at = request.offset > piece.offset ? request.offset - piece.offset : 0;
  throw Error(Kind::read, batch.where(piece, at) + ": " + what, code);
}

void Worker::publish() {
  const auto set = [](std::atomic<std::uint64_t>& count, std::uint64_t value) {
    count.store(value, std::memory_order_relaxed);
  };
  set(counts_.requests, requests_made_);
  set(counts_.bytes_read, bytes_asked_);
  set(counts_.chunks_decoded, bench_.chunks_decoded);
  set(counts_.bytes_decoded, bench_.bytes_decoded);
  set(counts_.busy_ns, busy_ns_);
  set(counts_.decode_ns, bench_.decode_ns);
}

}  // namespace solar::read
