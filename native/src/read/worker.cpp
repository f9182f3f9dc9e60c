#include "worker.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "solar/faults.hpp"

namespace solar::read {

namespace {

constexpr std::uint64_t gap_limit = request_limit;
constexpr std::uint64_t gap_in_memory = 4 << 10;   // what copying from the page cache costs as much as a request
constexpr std::uint64_t scratch_kept = 4 << 20;    // of each request, for the next
constexpr std::size_t from_afar = 4;  // times as many requests as of files here
constexpr std::chrono::nanoseconds alone = std::chrono::milliseconds(100);        // of a wait for what comes from afar,
constexpr std::chrono::nanoseconds beside_ring = std::chrono::microseconds(200);  // and while a ring reads, too

}  // namespace

std::uint64_t Worker::now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

Worker::Worker(WorkerFiles files, std::uint64_t gap, std::uint64_t scratch, Recent& recent, std::unique_ptr<Ring> ring,
               std::size_t depth, std::function<void(Job&)> finished)
    : files_(files.through, files.thread),
      direct_files_(files.past, files.thread),
      stage_files_(files.staged),
      gap_(std::min(gap, gap_limit)),
      ring_(std::move(ring)),
      finished_(std::move(finished)),
      scratch_(scratch) {
  // From afar more may be in flight than a ring takes: what fetches says how many are (solar/io/remote/fetch.py).
  requests_.resize(std::max<std::size_t>(ring_->entries(), from_afar * depth));
  for (std::size_t i = requests_.size(); i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
  flights_ = std::vector<Flight>(1 + requests_.size());
  scrap_.fit(hole_limit);
  bench_.recent = &recent;
}

Worker::~Worker() {
  while (busy()) reap(true);
}

// What it takes is no time of reading: `settle` has nothing to count.
void Worker::convert(Job& job, std::size_t unit) {
  try {
    if (!job.failed.load(std::memory_order_relaxed)) job.slices.convert(unit);
  } catch (...) {  // no memory for the walk
    job.fail(std::current_exception());
  }
  begin();
  charge(job);
  ++pieces_done_;
  settle();
}

void Worker::run(Job& job, std::size_t unit) {
  if (job.converts()) return convert(job, unit);
  begin();
  const ReadPlan& batch = job.batch;
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
  bench_.keep(scratch_ / 2);  // the other half is for chunks that were decoded last
  flights_[0].clear();
}

void Worker::reap(bool block) {
  begin();
  await(block);
  settle();
  bench_.keep(scratch_ / 2);  // the other half is for chunks that were decoded last
}

// Like reap, in the middle of a unit, too.
void Worker::await(bool block) {
  const unsigned near = in_flight_ - far_in_flight_;
  // For several at a time: waking for each costs more than it gives.
  if (block && near > 0 && far_in_flight_ == 0) ring_->wait(std::max(1U, near / 4));
  std::uint64_t tag = 0;
  std::int32_t result = 0;
  while (ring_->take(tag, result)) arrived(requests_[tag], result);
  if (far_in_flight_ > 0) take_far(!block ? std::chrono::nanoseconds(0) : near > 0 ? beside_ring : alone);
}

// Takes in what came from afar, waiting so long for the first.
void Worker::take_far(std::chrono::nanoseconds limit) {
  Far::Result one;
  while (mailbox_->take(one, limit)) {
    limit = std::chrono::nanoseconds(0);
    --far_in_flight_;
    why_ = std::move(one.why);
    arrived(requests_[one.tag], one.nbytes);
  }
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
  done_.retries += std::exchange(files_.retries, 0) + std::exchange(direct_files_.retries, 0);
  done_.read_ns = busy_ns - std::min(busy_ns, done_.decode_ns);
  counts_.add(done_);
  job->counts.add(done_);
  done_ = {};
  if (const std::uint32_t pieces = std::exchange(pieces_done_, 0); pieces > 0 && job->finish(pieces)) finished_(*job);
}

// A piece for which nothing is read.
void Worker::put(Job& job, const Piece& piece) noexcept {
  try {
    piece.how == How::fill ? deliver(job.batch, piece, {}, bench_) : deliver_held(job.batch, piece, bench_);
  } catch (...) {
    job.fail(caught(job.batch, piece));
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
  const ReadPlan& batch = job.batch;
  const Piece* const pieces = batch.pieces.data();
  const std::size_t index = batch.file_index(pieces[begin]);
  const Mapping* const mapping = mapping_of(batch, index);
  if (mapping == nullptr) return begin;
  const Stage* const stage = batch.source->staged.empty() ? nullptr : batch.source->staged[index].stage.get();
  std::uint32_t copied = begin;
  std::uint64_t nbytes = 0;
  const bool whole = mapping->guarded([&] {
    for (; copied < end; ++copied) {
      const Piece& piece = pieces[copied];
      if (piece.how == How::fill || piece.how == How::chunk || batch.file_index(piece) != index) return;
      if (stage != nullptr && !stage->checked(Stage::Blocks::of(piece.offset, piece.nbytes))) return;
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

// The mapping of a file, or of the stage that keeps its chunks decoded; null where it is not to be used now.
const Mapping* Worker::mapping_of(const ReadPlan& batch, std::size_t index) {
  const Source& source = *batch.source;
  try {
    if (source.decoded.empty() || source.decoded[index] == nullptr) {
      return source.mappings->warm(index, *files_.open(source.files[index], since_ns_));
    }
    const std::shared_ptr<Stage>& stage = source.staged[index].stage;
    const auto file = stage == nullptr || stage->lost() != 0 ? nullptr : stage_files_.open(stage);
    return file == nullptr ? nullptr : source.mappings->warm(index, *file);
  } catch (const std::exception&) {  // reading meets it again, and says where
    return nullptr;
  }
}

// The end of the pieces that are read together with `begin`.
std::uint32_t Worker::join(const ReadPlan& batch, std::uint32_t begin, std::uint32_t end) const noexcept {
  const bool far = Far::is_url(batch.file(batch.pieces[begin]).path);
  const std::uint64_t gap = far                ? (gap_ == 0 ? 0 : gap_from_afar)
                            : held_ >= trusted ? std::min(gap_, gap_in_memory)
                                               : gap_;
  return batch.joined(begin, end, gap);
}

std::shared_ptr<const File> Worker::open(const Request& request, Descriptors& descriptors) {
  const ReadPlan& batch = request.job->batch;
  const Piece& first = request.first();
  try {
    return descriptors.open(batch.file(first), since_ns_);
  } catch (const Error& error) {
    const std::int64_t sample = batch.sample(batch.rows[first.first]);
    const std::string asked = " (" + batch.source->name + ", " + batch.unit() + " " + std::to_string(sample) + ")";
    throw Error(error.kind(), error.what() + asked, error.code());
  }
}

// Bytes of all scratch that the request's Job allows, beside the block of small windows.
std::uint64_t Worker::scratch_of(const Request& request) const noexcept {
  return std::min(scratch_, request.job->batch.scratch) - block_nbytes(request);
}

// Waits for other requests to end when too much is in use. What those that have ended keep goes where it would be more.
void Worker::fit_scratch(Request& request, std::uint64_t nbytes) {
  const std::uint64_t limit = scratch_of(request);
  while (busy() && scratch_in_flight_ + nbytes > limit) {
    submit();
    if (busy()) await(true);
  }
  charge(*request.job);
  const std::uint64_t has = request.scratch.size();
  if (nbytes > has && scratch_held_ - has + nbytes > limit) {
    for (const std::uint32_t idle : free_) keep_scratch(requests_[idle], 0);
  }
  scratch_held_ -= has;
  request.scratch.fit(nbytes);
  scratch_held_ += request.scratch.size();
  request.scratch_nbytes = nbytes;
  scratch_in_flight_ += nbytes;
}

// Of a request that is not on its way.
void Worker::keep_scratch(Request& request, std::size_t most) noexcept {
  scratch_held_ -= request.scratch.size();
  request.scratch.keep(most);
  scratch_held_ += request.scratch.size();
}

void Worker::queue(Request& request, const iovec* parts, std::size_t count, std::uint64_t offset) {
  if (request.file->far()) {
    const File& file = *request.file;
    std::vector<iovec> wanted(parts, parts + count);
    // All holes would have the same memory, and several threads must not write to that at a time.
    for (iovec& part : wanted) {
      if (is_scrap(part)) part.iov_base = nullptr;
    }
    Far::get().order(file.path(), file.identity(), std::move(wanted), offset, index(request), mailbox_);
    ++far_in_flight_;
  } else {
    while (in_flight_ - far_in_flight_ >= ring_->entries()) {
      submit();
      await(true);
    }
    charge(*request.job);
    ring_->queue(*request.file, parts, static_cast<unsigned>(count), offset, index(request));
  }
  flight(request).set(Flight::word(request.job->ticket, request.begin), since_ns_);
  ++in_flight_;
}

void Worker::submit() {
  if (ring_->submit()) return;
  std::uint64_t tag = 0;
  while (ring_->take_back(tag)) arrived(requests_[tag], 0);
}

void Worker::arrived(Request& request, std::int64_t result) {
  --in_flight_;
  charge(*request.job);
  try {
    if (faults::any() && !request.file->far() && ring_->of_kernel()) {
      result = faults::result(request.file->path(), request.offset, request.offset + request.left,
                              static_cast<std::int32_t>(result));
    }
    try {
      land(request, result);
    } catch (const Error&) {
      if (request.way == Way::plain) throw;
      read_again(request);
    }
    landed(request);
  } catch (...) {
    request.job->fail(caught(request.job->batch, request.first()));
  }
  end(request);
}

void Worker::end(Request& request) {
  scratch_in_flight_ -= std::exchange(request.scratch_nbytes, 0);
  keep_scratch(request, scratch_held_ > scratch_of(request) ? 0 : scratch_kept);
  request.file.reset();  // or it would stay open
  flight(request).clear();
  free_.push_back(static_cast<std::uint32_t>(index(request)));
  pieces_done_ += request.end - request.begin;
}

}  // namespace solar::read
