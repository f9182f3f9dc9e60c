// How a Worker reads a Request: past the page cache or through it, and again after what may pass.
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "patience.hpp"
#include "worker.hpp"

namespace solar::read {

namespace {

constexpr std::uint64_t region = 1 << 20;          // of which all is read past the page cache, or nothing
constexpr std::size_t most_slots = 64;             // small windows in flight
constexpr std::size_t slot_nbytes = 128 << 10;     // at most, of each
constexpr std::uint64_t least_trusted = 16 << 10;  // bytes of a read that is worth the look at the clock
constexpr std::uint64_t slow_ns = 20'000;          // a read from memory takes less, and
constexpr std::uint64_t slow_rate = 2;             // is faster: bytes in a nanosecond

// A number in [0, 1) that looks random, the same for all offsets of a region.
double draw(std::uint64_t offset) {
  const std::uint64_t mixed = (offset / region + 1) * 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio
  return static_cast<double>(mixed >> 32) / 4294967296.0;
}

}  // namespace

void Worker::read(Request& request) {
  charge(*request.job);
  try {
    choose(request);
    const DecodedFile* const decoded = decoded_of(request);
    const bool near = request.way == Way::near || request.way == Way::check;
    const bool here = decoded != nullptr && !near ? read_decoded(request, *decoded)
                      : request.way != Way::plain ? read_staged(request)
                      : bypasses(request)         ? read_past(request)
                                                  : read_through(request);
    if (!here) return;  // in flight
    landed(request);
  } catch (...) {
    request.job->fail(caught(request.job->batch, request.first()));
  }
  end(request);
}

// True when it is to be read past the page cache; then its file is open for that.
bool Worker::bypasses(Request& request) {
  if (!bypass_ || draw(request.offset) >= request.job->batch.source->bypass) return false;
  if (Far::is_url(request.job->batch.file(request.first()).path)) return false;
  request.file = open(request, direct_files_);
  return request.file->alignment() != 0 && !request.file->cached(request.offset, request.left);
}

// Returns false, as read_through does when the bytes are on their way.
bool Worker::read_past(Request& request) {
  count(request);
  const std::size_t alignment = request.file->alignment();
  if (request.aligned(alignment)) {
    request.lay_out(scrap_.data());
  } else {
    request.lay_out_window(window(request, request.window_nbytes(alignment)), alignment);
  }
  const iovec* const parts = request.windowed() ? &request.window : request.parts.data();
  const std::size_t count = request.windowed() ? 1 : request.parts.size();
  queue(request, parts, count, request.offset - request.lead);
  return false;
}

// Memory for a window: of a small one, a slot of a block that all requests share, so that it may lie in a huge page.
std::byte* Worker::window(Request& request, std::uint64_t nbytes) {
  const std::size_t block = block_nbytes(request);
  if (nbytes <= slot_nbytes && (index(request) + 1) * slot_nbytes <= block) {
    return slots_.fit(block).data() + index(request) * slot_nbytes;
  }
  fit_scratch(request, nbytes);
  return request.scratch.data();
}

// Of the bytes of scratch that the request's Job allows, those that the block takes: none where they are few.
std::size_t Worker::block_nbytes(const Request& request) const noexcept {
  const std::size_t block = std::min(requests_.size(), most_slots) * slot_nbytes;
  return block <= std::min(scratch_, request.job->batch.scratch) / 2 ? block : 0;
}

void Worker::count(Request& request) noexcept {
  const std::uint64_t more = std::exchange(request.begins, false) || request.file->far() ? 1 : 0;
  ++done_.calls;
  done_.requests += more;
  done_.bytes_read += request.left;
  if (request.file->alignment() != 0) done_.bypassed += more;
  if (request.way == Way::near || request.way == Way::check) {
    done_.stage_requests += more;
    done_.stage_bytes += request.left;
  }
}

bool Worker::read_through(Request& request) {
  request.file = open(request, files_);
  fit_scratch(request, request.stored_nbytes());
  request.lay_out(scrap_.data());
  return read_laid_out(request);
}

bool Worker::read_laid_out(Request& request) {
  count(request);
  if (request.file->far()) {
    queue(request, &request.parts[request.part], request.parts.size() - request.part, request.offset);
    return false;
  }
  if (held_ >= trusted && request.left >= least_trusted) {
    read_trusting(request);
    return true;
  }
  if (cached_first_ && read_at_once(request)) {
    held_ = std::min(held_ + 1, trusted);
    return true;
  }
  held_ = 0;
  queue(request, &request.parts[request.part], request.parts.size() - request.part, request.offset);
  return false;
}

// Takes what the page cache holds; true when that was all.
bool Worker::read_at_once(Request& request) {
  while (request.left > 0) {
    const ssize_t got = request.file->read_some(&request.parts[request.part], request.parts.size() - request.part,
                                                request.offset, RWF_NOWAIT);
    if (got <= 0) {
      if (got < 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS)) cached_first_ = false;
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

// `failed`: errno of a read of it before, or 0. What cannot be read at once is read part by part: what nobody asked for
// (a hole) may be what fails.
void Worker::read_blocking(Request& request, int failed) {
  Patience patience;
  bool apart = false, tried = false;  // here: io_uring may refuse what a plain read gives
  while (request.left > 0) {
    const std::size_t parts = request.parts.size() - request.part;
    if (request.file->far() && failed != 0) fail(request, "cannot be read: " + why_, failed);
    if (failed != 0 && !try_again(request, failed, patience)) {
      const iovec& here = request.parts[request.part];
      const bool alone = tried && (apart || parts == 1);
      if (alone && !is_scrap(here)) {
        fail(request, std::string("cannot be read: ") + std::strerror(failed) + patience.said(), failed);
      }
      if (alone) request.advance(here.iov_len);
      apart = tried;
      failed = 0;
      continue;
    }
    tried = true;
    if (request.file->far()) {
      read_far(request);
      continue;
    }
    const ssize_t got = request.file->read_some(&request.parts[request.part], apart ? 1 : parts, request.offset);
    failed = got < 0 ? errno : 0;
    if (got > 0) {
      request.advance(static_cast<std::uint64_t>(got));
      patience = {};
    } else if (got == 0) {
      fail(request, "the file ends here, " + std::to_string(request.left) + " bytes short of its index", 0);
    }
  }
}

// The next part of it, waited for. Who fetches makes a request again where that may help.
void Worker::read_far(Request& request) {
  const iovec& part = request.parts[request.part];
  const MutableBytes out(static_cast<std::byte*>(part.iov_base), part.iov_len);
  Far::get().read(request.file->path(), request.file->identity(), request.offset, out);
  request.advance(part.iov_len);
}

// Waits until the read may be made again; false where it may not. A handle that the server forgot is had anew.
bool Worker::try_again(Request& request, int failed, Patience& patience) {
  if (request.job->failed.load(std::memory_order_relaxed)) fail(request, "given up", failed);
  if (!patience.again(failed)) return false;
  ++done_.retries;
  if (failed != ESTALE) return true;
  files_.forget(request.file->path());
  direct_files_.forget(request.file->path());
  request.file = open(request, files_);
  return true;
}

// Takes in a result: bytes read, or minus errno. What failed or brought too little is read again, blocking and through
// the page cache: that finishes it or names the error.
void Worker::land(Request& request, std::int64_t result) {
  const bool direct = request.file->alignment() != 0;
  const bool refused = direct && result == -EINVAL;
  if (refused) bypass_ = false;
  const auto got = static_cast<std::uint64_t>(std::max<std::int64_t>(result, 0));
  const std::uint64_t before = direct ? request.lead : 0;
  if (got > before) request.advance(std::min(got - before, request.left));
  if (request.left == 0) return;
  if (direct) request.file = open(request, files_);
  read_blocking(request, result < 0 && !refused ? static_cast<int>(-result) : 0);
}

void Worker::fail(const Request& request, const std::string& what, int code) const {
  const ReadPlan& batch = request.job->batch;
  std::uint32_t i = request.begin;
  while (i + 1 < request.end && batch.pieces[i].offset + batch.pieces[i].nbytes <= request.offset) ++i;
  const Piece& piece = batch.pieces[i];
  const std::uint64_t at = request.offset > piece.offset ? request.offset - piece.offset : 0;
  throw Error(Kind::read, batch.where(piece, at) + ": " + what, code);
}

// The error at hand, for the Job. That there is no memory says of itself neither for what nor what to do.
std::exception_ptr Worker::caught(const ReadPlan& batch, const Piece& piece) {
  const std::exception_ptr error = std::current_exception();
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    try {
      const std::string what = ": no memory to read and decode it; give the loader a smaller buffer or fewer `ahead`";
      return std::make_exception_ptr(Error(Kind::read, batch.where(piece, 0) + what, ENOMEM));
    } catch (const std::bad_alloc&) {  // nor for these words
      return error;
    }
  } catch (...) {
    return error;
  }
}

}  // namespace solar::read
