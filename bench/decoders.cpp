// Times our decoders and those of libraries in turns, over the same chunks, in one thread: bench/decoders.py says which.
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "solar/decode.hpp"

using solar::Bytes;
using solar::MutableBytes;

namespace {

// How a function is called; bench/decoders.py has the same names in the same order.
enum Kind : std::int32_t { ours, rearrange, lz4, zstd, deflate, zlib, blosc2, bitshuffle, parts };

struct Call {
  std::int32_t kind;
  std::int32_t decoder;  // of ours, in the order of decode_ours
  std::int32_t itemsize;
  std::int32_t coder;  // of a bitshuffle container: as `values` of its filter
  void* function;
  void* context;  // that a library keeps from chunk to chunk
  void* unshuffle;  // the bit unshuffle of a library that is put together with its coder
};

template <class Result, class... Of>
Result of(void* function, Of... arguments) {
  return reinterpret_cast<Result (*)(Of...)>(function)(arguments...);
}

std::size_t of_coder(const Call& call, bool lz, Bytes in, MutableBytes out) {
  if (lz)
    return static_cast<std::size_t>(of<int>(call.function, in.data(), out.data(), static_cast<int>(in.size()),
                                            static_cast<int>(out.size())));
  return of<std::size_t>(call.function, call.context, out.data(), out.size(), in.data(), in.size());
}

// A container of bitshuffle by the parts of one library: its coder, then its unshuffle.
std::size_t by_parts(const Call& call, Bytes in, MutableBytes out) {
  alignas(64) static std::byte space[1 << 16];
  solar::Cursor cursor(in, solar::Kind::codec, "a container");
  cursor.skip(8);
  const std::size_t block = solar::load_be32(cursor.take(4).data());
  for (std::size_t at = 0; at < out.size(); at += block) {
    const std::size_t nbytes = std::min(block, out.size() - at);
    const Bytes stored = cursor.take(solar::load_be32(cursor.take(4).data()));
    if (of_coder(call, call.coder == 2, stored, {space, nbytes}) != nbytes) return 0;
    of<std::int32_t>(call.unshuffle, call.itemsize, static_cast<std::int32_t>(nbytes), space, out.data() + at);
  }
  return out.size();
}

std::size_t run(const Call& call, Bytes in, MutableBytes out) {
  const auto itemsize = static_cast<std::size_t>(call.itemsize), items = out.size() / itemsize;
  switch (call.kind) {
    case ours: return of<std::size_t>(call.function, &call, in, out);
    case rearrange:
      of<std::int32_t>(call.function, call.itemsize, static_cast<std::int32_t>(in.size()), in.data(), out.data());
      return in.size();
    case lz4: return of_coder(call, true, in, out);
    case zstd: return of_coder(call, false, in, out);
    case deflate: {
      std::size_t made = 0;
      return of<int>(call.function, call.context, in.data(), in.size(), out.data(), out.size(), &made) ? 0 : made;
    }
    case zlib: {
      std::size_t made = out.size();
      return of<int>(call.function, out.data(), &made, in.data(), in.size()) ? 0 : made;
    }
    case blosc2:
      return static_cast<std::size_t>(of<int>(call.function, in.data(), static_cast<int>(in.size()), out.data(),
                                              static_cast<int>(out.size())));
    case bitshuffle:
      of<std::int64_t>(call.function, in.data() + 12, out.data(), items, itemsize,
                       solar::load_be32(in.data() + 8) / itemsize);
      return out.size();
    default: return by_parts(call, in, out);
  }
}

double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Chunks {
  std::int64_t number;
  const std::byte* const* in;
  const std::int64_t* stored;
  std::byte* const* out;
  const std::int64_t* nbytes;
};

}  // namespace

#define SHOWN extern "C" [[gnu::visibility("default")]]

SHOWN std::size_t decode_ours(const Call* call, Bytes in, MutableBytes out) {
  static solar::Scratch scratch;
  const auto itemsize = static_cast<std::size_t>(call->itemsize);
  switch (call->decoder) {
    case 0: return solar::unshuffle(in, out, itemsize), in.size();
    case 1: return solar::bitunshuffle(in, out, itemsize), in.size();
    case 2: return solar::decode_lz4_block(in, out);
    case 3: return solar::decode_zstd(in, out);
    case 4: return solar::inflate_zlib(in, out);
    case 5: return solar::decode_blosc(in, out, scratch);
    default: {
      static solar::Filter filter{32008, 0, {0, 4, 0, 0, 0}};
      filter.values[2] = static_cast<std::uint32_t>(call->itemsize);
      filter.values[4] = static_cast<std::uint32_t>(call->coder);
      return solar::decode_bitshuffle(in, out, filter, scratch);
    }
  }
}

// Decodes all chunks; false if one is not filled.
SHOWN bool decode_all(const Call* call, const Chunks* chunks) {
  for (std::int64_t i = 0; i < chunks->number; ++i) {
    const Bytes in(chunks->in[i], static_cast<std::size_t>(chunks->stored[i]));
    const MutableBytes out(chunks->out[i], static_cast<std::size_t>(chunks->nbytes[i]));
    if (run(*call, in, out) != out.size()) return false;
  }
  return true;
}

// seconds[round * number + call] of decoding all chunks `repeats` times. Each round begins with another call.
SHOWN void measure(const Call* calls, std::int64_t number, const Chunks* chunks, std::int64_t repeats,
                   std::int64_t rounds, double* seconds) {
  for (std::int64_t round = 0; round < rounds; ++round)
    for (std::int64_t turn = 0; turn < number; ++turn) {
      const std::int64_t which = (round + turn) % number;
      const double start = now();
      for (std::int64_t i = 0; i < repeats; ++i) decode_all(calls + which, chunks);
      seconds[round * number + which] = (now() - start) / static_cast<double>(repeats);
    }
}
