// How a Worker reads what a stage keeps decoded, where the stage does not have it: chunks are read from their own file and
// decoded, each once for all threads that want it at a time, and given to the stage whole.
#include "solar/decoded.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

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

namespace read {

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

// Fills what was laid out. Of chunks in holes nothing is read.
void Worker::decode_parts(Request& request, const DecodedFile& from) {
  const ReadPlan& batch = request.job->batch;
  std::uint32_t i = request.begin;
  while (request.left > 0) {
    const iovec part = request.parts[request.part];
    if (is_scrap(part)) {
      request.advance(part.iov_len);
      continue;
    }
    while (i + 1 < request.end && batch.pieces[i].offset + batch.pieces[i].nbytes <= request.offset) ++i;
    flight(request).set(Flight::word(request.job->ticket, i), since_ns_);
    const DecodedFile::Chunk chunk = from.at(request.offset);
    const std::uint64_t within = request.offset - chunk.begin;
    const std::uint64_t here = std::min<std::uint64_t>(part.iov_len, chunk.form->nbytes - within);
    const Recent::Key key{batch.source, static_cast<std::int64_t>(batch.file_index(batch.pieces[i])), chunk.begin};
    const auto decode = [&](MutableBytes raw) { decode_chunk(request, batch.pieces[i], chunk, raw); };
    const auto held = bench_.recent->get(key, chunk.form->nbytes, decode);
    std::memcpy(part.iov_base, held.data() + within, here);
    request.advance(here);
  }
}

// Reads the chunk that a piece is of, decodes it, and gives it to the stage if that is to have it.
void Worker::decode_chunk(Request& request, const Piece& piece, const DecodedFile::Chunk& chunk, MutableBytes raw) {
  const MutableBytes stored = bench_.kept.fit(chunk.nbytes);
  try {
    request.file->read(chunk.offset, stored);
    const auto begin = std::chrono::steady_clock::now();
    chunk.form->pipeline.decode(stored, chunk.mask, raw.first(chunk.form->decodes), bench_.filters);
    bench_.decode_ns += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
  } catch (const Error& error) {
    throw Error(error.kind(), request.job->batch.where(piece, 0) + ": " + error.what(), error.code());
  }
  std::memset(raw.data() + chunk.form->decodes, 0, raw.size() - chunk.form->decodes);
  bench_.chunks_decoded += 1;
  bench_.bytes_decoded += chunk.form->decodes;
  done_.requests += 1;
  done_.calls += 1;
  done_.bytes_read += chunk.nbytes;
  if (request.way != Way::put) return;
  const Stage::Blocks whole = Stage::Blocks::of(chunk.begin, raw.size());
  done_.stage_written += request.staged->stage->put(std::span(&whole, 1), whole.first, raw);
}

}  // namespace read
}  // namespace solar
