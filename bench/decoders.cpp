// Times our decoders and those of libraries in turns, over the same chunks, in one thread: bench/decoders.py says which.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "solar/decode.hpp"

namespace {

using solar::Bytes;
using solar::MutableBytes;

// What a function is like; bench/decoders.py has the same names in the same order.
enum Kind : std::int32_t {
  solar_unshuffle, solar_bitunshuffle, solar_lz4, solar_zstd, solar_inflate, solar_blosc, solar_bitshuffle,
  lib_unshuffle, lib_bitunshuffle, lib_lz4, lib_zstd, lib_deflate, lib_zlib, lib_blosc, lib_blosc2, lib_bitshuffle,
};

struct Call {
  std::int32_t kind;
  std::int32_t itemsize;
  std::int32_t compressor;  // of a bitshuffle container: 2 LZ4, 3 zstd
  std::int32_t block_items;
  void* function;  // of a library
  void* context;   // that it keeps from chunk to chunk; ours keeps its Scratch
};

template <class Result, class... Of>
Result of(const Call& call, Of... arguments) {
  return reinterpret_cast<Result (*)(Of...)>(call.function)(arguments...);
}

// A container's header: be64 bytes of all, be32 bytes of a block.
constexpr std::size_t head = 12;

std::size_t ours(const Call& call, Bytes in, MutableBytes out) {
  static solar::Scratch scratch;
  const auto itemsize = static_cast<std::size_t>(call.itemsize);
  switch (call.kind) {
    case solar_unshuffle: return solar::unshuffle(in, out, itemsize), in.size();
    case solar_bitunshuffle: return solar::bitunshuffle(in, out, itemsize), in.size();
    case solar_lz4: return solar::decode_lz4_block(in, out);
    case solar_zstd: return solar::decode_zstd(in, out);
    case solar_inflate: return solar::inflate_zlib(in, out);
    case solar_blosc: return solar::decode_blosc(in, out, scratch);
    default: {
      static solar::Filter filter{32008, 0, {0, 4, 0, 0, 0}};
      filter.values[2] = static_cast<std::uint32_t>(itemsize);
      filter.values[4] = static_cast<std::uint32_t>(call.compressor);
      return solar::decode_bitshuffle(in, out, filter, scratch);
    }
  }
}

std::size_t theirs(const Call& call, Bytes in, MutableBytes out) {
  const auto* const from = reinterpret_cast<const char*>(in.data());
  auto* const to = reinterpret_cast<char*>(out.data());
  const auto nbytes = static_cast<std::int32_t>(in.size()), room = static_cast<std::int32_t>(out.size());
  const auto itemsize = static_cast<std::size_t>(call.itemsize);
  switch (call.kind) {
    case lib_unshuffle: return of<std::int32_t>(call, call.itemsize, nbytes, from, to), in.size();
    case lib_bitunshuffle:
      return of<std::int64_t>(call, from, to, in.size() / itemsize, itemsize, in.size() / itemsize), in.size();
    case lib_lz4: return of<std::int32_t>(call, from, to, nbytes, room);
    case lib_zstd: return of<std::size_t>(call, call.context, to, out.size(), from, in.size());
    case lib_deflate: {
      std::size_t made = 0;
      return of<int>(call, call.context, from, in.size(), to, out.size(), &made) ? 0 : made;
    }
    case lib_zlib: {
      unsigned long made = out.size();
      return of<int>(call, to, &made, from, static_cast<unsigned long>(in.size())) ? 0 : made;
    }
    case lib_blosc: return of<int>(call, from, to, out.size(), 1);
    case lib_blosc2: return of<int>(call, call.context, from, nbytes, to, room);
    default:
      of<std::int64_t>(call, from + head, to, out.size() / itemsize, itemsize,
                       static_cast<std::size_t>(call.block_items));
      return out.size();
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

bool decode(const Call& call, const Chunks& chunks) {
  for (std::int64_t i = 0; i < chunks.number; ++i) {
    const Bytes in(chunks.in[i], static_cast<std::size_t>(chunks.stored[i]));
    const MutableBytes out(chunks.out[i], static_cast<std::size_t>(chunks.nbytes[i]));
    if ((call.kind < lib_unshuffle ? ours : theirs)(call, in, out) != out.size()) return false;
  }
  return true;
}

}  // namespace

// Decodes all chunks by one of the calls; false if it does not fill each.
extern "C" [[gnu::visibility("default")]] bool decode_once(const Call* call, const Chunks* chunks) {
  return decode(*call, *chunks);
}

// seconds[round * calls + call] of decoding all chunks `repeats` times. Each round begins with another call.
extern "C" [[gnu::visibility("default")]] void measure(const Call* calls, std::int64_t number, const Chunks* chunks,
                                                       std::int64_t repeats, std::int64_t rounds, double* seconds) {
  for (std::int64_t round = 0; round < rounds; ++round)
    for (std::int64_t turn = 0; turn < number; ++turn) {
      const std::int64_t which = (round + turn) % number;
      const double start = now();
      for (std::int64_t i = 0; i < repeats; ++i) decode(calls[which], *chunks);
      seconds[round * number + which] = (now() - start) / static_cast<double>(repeats);
    }
}
