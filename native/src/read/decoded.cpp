// How a Worker reads what a stage keeps decoded, where the stage does not have it: chunks are read from their own file and
// decoded, each once for all threads that want it at a time, and given to the stage whole.
#include "solar/decoded.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "worker.hpp"

namespace solar {

void DecodedFile::check(std::uint64_t block_nbytes, std::uint64_t file_nbytes) const {
  const std::size_t chunks = begin.size();
  bool sound = offset.size() == chunks && stored.size() == chunks && mask.size() == chunks && form.size() == chunks;
  for (const Form& one : forms) {
    sound = sound && one.nbytes > 0 && one.nbytes % block_nbytes == 0 && one.decodes <= one.nbytes;
  }
  std::uint64_t end = 0;
  for (std::size_t k = 0; sound && k < chunks; ++k) {
    const auto of = static_cast<std::size_t>(form[k]);
    sound = form[k] >= 0 && of < forms.size() && begin[k] % block_nbytes == 0 && begin[k] >= end && begin[k] <= nbytes &&
            forms[of].nbytes <= nbytes - begin[k] && stored[k] <= file_nbytes && offset[k] <= file_nbytes - stored[k];
    if (sound) end = begin[k] + forms[of].nbytes;
  }
  if (!sound) throw Error(Kind::layout, "the chunks that a stage keeps decoded do not fit each other or their file");
}

// The chunk of the first byte, and those that follow it as far as `end`, of so many bytes together.
DecodedFile::Run DecodedFile::run(std::uint64_t byte, std::uint64_t end, std::uint64_t most) const noexcept {
  const auto next = std::upper_bound(begin.begin(), begin.end(), byte);
  Run found{static_cast<std::size_t>(next - begin.begin()) - 1};
  found.begin = begin[found.first];
  found.nbytes = form_of(found.first).nbytes;
  for (std::size_t k = found.first + 1; k < begin.size(); ++k, ++found.chunks) {
    const bool goes_on = begin[k] == found.begin + found.nbytes && begin[k] < end;
    if (!goes_on || found.nbytes + form_of(k).nbytes > most) break;
    found.nbytes += form_of(k).nbytes;
  }
  return found;
}

namespace read {

namespace {

constexpr std::uint64_t together_nbytes = 256 << 10;  // of chunks that are decoded, and given to a stage, together

}  // namespace

const DecodedFile* Worker::decoded_of(const Request& request) const noexcept {
  const ReadPlan& batch = request.job->batch;
  return batch.source->decoded.empty() ? nullptr : batch.source->decoded[batch.file_index(request.first())].get();
}

// Like read_through; all bytes are here afterwards.
bool Worker::read_decoded(Request& request, const DecodedFile& from) {
  request.file = open(request, files_);
  fit_scratch(request, request.stored_nbytes());
  request.lay_out(scrap_.data());
  decode_parts(request, from);
  request.way = Way::plain;
  return true;
}

// Fills what was laid out. Of chunks in holes nothing is read. Small chunks one after another are decoded together.
void Worker::decode_parts(Request& request, const DecodedFile& from) {
  const ReadPlan& batch = request.job->batch;
  std::uint32_t i = request.begin;
  while (request.left > 0) {
    if (is_scrap(request.parts[request.part])) {
      request.advance(request.parts[request.part].iov_len);
      continue;
    }
    while (i + 1 < request.end && batch.pieces[i].offset + batch.pieces[i].nbytes <= request.offset) ++i;
    flight(request).set(Flight::word(request.job->ticket, i), since_ns_);
    DecodedFile::Run run = from.run(request.offset, wanted_end(request), together_nbytes);
    const bool there = request.way == Way::put && cut_alike(*request.staged, from, run);
    const auto decode = [&](MutableBytes raw) {
      if (!there || !read_there(*request.staged, run, raw)) decode_run(request, from, run, raw);
    };
    if (run.chunks > 1) {
      const MutableBytes raw = bench_.raw.fit(run.nbytes);
      decode(raw);
      fill_parts(request, raw, run.begin);
    } else {
      // Below 0: others name chunks by a row.
      const auto number = -1 - static_cast<std::int64_t>(batch.file_index(batch.pieces[i]));
      const Recent::Key key{batch.source, number, run.begin};
      const auto held = bench_.recent->get(key, run.nbytes, decode);
      fill_parts(request, {held.data(), run.nbytes}, run.begin);
    }
  }
}

// Where what is wanted of a request from here on ends, or a hole that may hold a chunk begins.
std::uint64_t Worker::wanted_end(const Request& request) const noexcept {
  std::uint64_t end = request.offset;
  for (std::size_t k = request.part; k < request.parts.size(); ++k) {
    const iovec& part = request.parts[k];
    if (is_scrap(part) && part.iov_len >= Stage::block_nbytes) break;
    end += part.iov_len;
  }
  return end;
}

// Fills parts from here on as far as these bytes, which are of `begin` on, reach.
void Worker::fill_parts(Request& request, Bytes bytes, std::uint64_t begin) {
  while (request.left > 0 && request.offset < begin + bytes.size()) {
    const iovec& part = request.parts[request.part];
    const std::uint64_t within = request.offset - begin;
    const std::uint64_t here = std::min<std::uint64_t>(part.iov_len, bytes.size() - within);
    if (!is_scrap(part)) std::memcpy(part.iov_base, bytes.data() + within, here);
    request.advance(here);
  }
}

// Leaves those chunks of a run that the stage has as it has the first, or has not. Whether it has them.
bool Worker::cut_alike(const Staged& staged, const DecodedFile& from, DecodedFile::Run& run) {
  const auto file = staged.stage->lost() == 0 ? stage_files_.open(staged.stage) : nullptr;
  const Stage::Blocks whole = Stage::Blocks::of(run.begin, run.nbytes);
  if (file == nullptr || !staged.stage->entries(*file, whole, entries_)) return false;
  const auto has = [&](std::uint64_t begin, std::uint64_t nbytes) {
    const Stage::Blocks of = Stage::Blocks::of(begin, nbytes);
    const auto own = std::span(entries_).subspan(of.first - whole.first, of.count());
    return std::find(own.begin(), own.end(), 0U) == own.end();
  };
  std::uint64_t nbytes = from.form_of(run.first).nbytes;
  const bool there = has(run.begin, nbytes);
  for (std::size_t k = 1; k < run.chunks; ++k) {
    const std::uint64_t more = from.form_of(run.first + k).nbytes;
    if (has(run.begin + nbytes, more) != there) run.chunks = k;
    if (k < run.chunks) nbytes += more;
  }
  run.nbytes = nbytes;
  return there;
}

// Reads chunks one after another, decodes them, and gives them to the stage if that is to have them.
void Worker::decode_run(const Request& request, const DecodedFile& from, const DecodedFile::Run& run, MutableBytes raw) {
  std::uint64_t begin = UINT64_MAX, end = 0, sum = 0;
  for (std::size_t k = run.first; k < run.first + run.chunks; ++k) {
    begin = std::min(begin, from.offset[k]);
    end = std::max(end, from.offset[k] + from.stored[k]);
    sum += from.stored[k];
  }
  const bool at_once = end - begin <= 2 * sum;
  std::size_t k = run.first;
  const MutableBytes stored = bench_.kept.fit(at_once ? end - begin : sum);
  try {
    if (at_once) read_stored(request, begin, stored);
    std::uint64_t done = 0;
    for (; k < run.first + run.chunks; ++k) {
      const MutableBytes own = stored.subspan(at_once ? from.offset[k] - begin : done, from.stored[k]);
      if (!at_once) read_stored(request, from.offset[k], own);
      done += from.stored[k];
      const DecodedFile::Form& form = from.form_of(k);
      decode_chunk(form, from.mask[k], own, raw.subspan(from.begin[k] - run.begin, form.nbytes));
    }
  } catch (const Error& error) {
    const ReadPlan& batch = request.job->batch;
    std::uint32_t i = request.begin;
    while (i + 1 < request.end && batch.pieces[i].offset + batch.pieces[i].nbytes <= from.begin[k]) ++i;
    Piece there = batch.pieces[i];
    there.offset = from.offset[k];
    throw Error(error.kind(), batch.where(there, 0) + ": " + error.what(), error.code());
  }
  if (request.way != Way::put) return;
  const Stage::Blocks whole = Stage::Blocks::of(run.begin, run.nbytes);
  done_.stage_written += request.staged->stage->put(std::span(&whole, 1), whole.first, raw.first(run.nbytes));
}

void Worker::read_stored(const Request& request, std::uint64_t offset, MutableBytes out) {
  request.file->read(offset, out);
  done_.requests += 1;
  done_.calls += 1;
  done_.bytes_read += out.size();
}

void Worker::decode_chunk(const DecodedFile::Form& form, std::uint32_t mask, Bytes stored, MutableBytes raw) {
  const auto begin = std::chrono::steady_clock::now();
  form.pipeline.decode(stored, mask, raw.first(form.decodes), bench_.filters);
  std::memset(raw.data() + form.decodes, 0, raw.size() - form.decodes);
  bench_.decode_ns += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
  bench_.chunks_decoded += 1;
  bench_.bytes_decoded += form.decodes;
}

// Reads chunks that the stage has; false where they are not what was written.
bool Worker::read_there(const Staged& staged, const DecodedFile::Run& run, MutableBytes raw) {
  Stage& stage = *staged.stage;
  const Stage::Blocks whole = Stage::Blocks::of(run.begin, run.nbytes);
  const auto file = stage_files_.open(staged.stage);
  if (file == nullptr || !stage.entries(*file, whole, entries_)) return false;
  try {
    file->read(run.begin, raw.first(run.nbytes));
  } catch (const Error&) {  // they are decoded
    return false;
  }
  done_.requests += 1;
  done_.calls += 1;
  done_.stage_requests += 1;
  done_.bytes_read += run.nbytes;
  done_.stage_bytes += run.nbytes;
  return stage.check(whole, whole.first, raw.first(run.nbytes), entries_);
}

}  // namespace read
}  // namespace solar
