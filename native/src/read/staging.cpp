// How a Worker reads a Request of a file that is staged.
//
// Blocks are read whole, so that samples that share one are both found again: what is read from afar is up to a block
// longer on either side. Only blocks that pieces touch are written, for only these have their place in the stage.
#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "worker.hpp"

namespace solar::read {

namespace {

// Whether each block that a piece touches is so.
template <class Holds>
bool all_blocks(const Request& request, Holds holds) {
  for (std::uint32_t i = request.begin; i < request.end; ++i) {
    if (!holds(request.blocks(i))) return false;
  }
  return true;
}

// Those before the limit.
Stage::Blocks within(Stage::Blocks of, std::uint64_t limit) {
  return {std::min(of.first, limit), std::min(of.end, limit)};
}

}  // namespace

// Decides where the bytes come from. From the stage only what it has all of: else there were two requests for one.
void Worker::choose(Request& request) {
  const Source& source = *request.job->batch.source;
  if (source.staged.empty()) return;
  const Staged& staged = source.staged[request.job->batch.file_index(request.first())];
  if (staged.stage == nullptr || staged.stage->lost() != 0) return;
  Stage& stage = *staged.stage;
  std::shared_ptr<const File> file = stage_files_.open(staged.stage);
  if (file == nullptr) return;
  const Stage::Blocks whole = Stage::Blocks::of(request.offset, request.left);
  const auto there = [&](Stage::Blocks of) {
    if (of.count() == 0) return true;
    const auto own = std::span(entries_).subspan(of.first - whole.first, of.count());
    return std::find(own.begin(), own.end(), 0U) == own.end();
  };
  request.staged = &staged;
  if (all_blocks(request, [&](Stage::Blocks of) { return stage.checked(of); })) {
    request.way = Way::near;
  } else if (!stage.entries(*file, whole, entries_)) {
    return;
  } else if (all_blocks(request, there)) {
    request.way = Way::check;
  } else if (stage.stopped() == 0 && !all_blocks(request, [&](Stage::Blocks of) { return there(within(of, staged.limit)); })) {
    request.way = Way::put;
  }
  if (request.way == Way::near || request.way == Way::check) request.file = std::move(file);
}

// Like read_through: true when the bytes are here, false when they are on their way.
bool Worker::read_staged(Request& request) {
  try {
    if (request.way == Way::near) {
      fit_scratch(request, request.stored_nbytes());
      request.lay_out(scrap_.data());
    } else {
      if (request.way == Way::put) request.file = open(request, files_);
      std::byte* const memory = window(request, request.window_nbytes(Stage::block_nbytes));
      request.lay_out_whole(memory, Stage::block_nbytes, request.staged->stage->nbytes());
    }
    return read_laid_out(request);
  } catch (const Error&) {
    read_again(request);
    return true;
  }
}

// All bytes are there: has them checked or written where they are to be, and puts every piece into place.
void Worker::landed(Request& request) {
  if (request.way == Way::check && !sound(request)) read_again(request);
  if (request.way == Way::put) put_staged(request);
  request.deliver(bench_);
}

bool Worker::sound(Request& request) {
  Stage& stage = *request.staged->stage;
  const Bytes bytes(static_cast<const std::byte*>(request.window.iov_base), request.window.iov_len);
  const Stage::Blocks whole = Stage::Blocks::of(request.offset - bytes.size(), bytes.size());
  if (!stage.entries(*request.file, whole, entries_)) return false;
  bool all = true;  // each is looked at, so that all that are damaged are dropped
  for (std::uint32_t i = request.begin; i < request.end; ++i) {
    all &= stage.check(request.blocks(i), whole.first, bytes, entries_);
  }
  return all;
}

void Worker::put_staged(Request& request) {
  const Bytes bytes(static_cast<const std::byte*>(request.window.iov_base), request.window.iov_len);
  const Stage::Blocks whole = Stage::Blocks::of(request.offset - bytes.size(), bytes.size());
  runs_.clear();
  for (std::uint32_t i = request.begin; i < request.end; ++i) {
    const Stage::Blocks of = within(request.blocks(i), request.staged->limit);
    if (of.count() == 0) continue;
    if (!runs_.empty() && of.first >= runs_.back().first && of.first <= runs_.back().end) {
      runs_.back().end = std::max(runs_.back().end, of.end);
    } else {
      runs_.push_back(of);
    }
  }
  done_.stage_written += request.staged->stage->put(runs_, whole.first, bytes);
}

// Reads what the pieces ask for from their own file, as if there were no stage: that names the error if it fails, too.
void Worker::read_again(Request& request) {
  const bool lost = request.way == Way::near || (request.way == Way::check && request.left > 0);
  if (lost) request.staged->stage->lose(EIO);
  request.start(*request.job, request.begin, request.end);
  request.file = open(request, files_);
  const DecodedFile* const decoded = decoded_of(request);
  if (decoded == nullptr) count(request);
  const std::uint64_t nbytes = request.stored_nbytes();
  request.scratch.fit(nbytes);
  scratch_in_flight_ += nbytes - request.scratch_nbytes;
  request.scratch_nbytes = nbytes;
  request.lay_out(scrap_.data());
  decoded != nullptr ? decode_parts(request, *decoded) : read_blocking(request);
}

}  // namespace solar::read
