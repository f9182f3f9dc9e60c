// Fuzzes the plug-in's decoder, as libhdf5 calls it, and every path of the decoder beneath: never a crash, and the same
// answer from all. Needs clang 17 or newer:
//
//     cmake -S native -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo
//       -DSOLAR_BUILD_PYTHON=OFF -DSOLAR_BUILD_FUZZ=ON "-DSOLAR_SANITIZE=address;undefined;fuzzer-no-link"
//     cmake --build build/fuzz --target fuzz_codec && mkdir build/fuzz/corpus
//     build/fuzz/fuzz_codec -max_total_time=600 -max_len=20000 build/fuzz/corpus tests/golden/codec
//
// The input is a chunk. It is tried as it is, and once more with its length and checksum put right, or nothing would
// ever come behind these two.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "decode/zstd_checksum.hpp"
#include "plugin/hdf5.hpp"
#include "plugin/settings.hpp"

extern "C" const void* H5PLget_plugin_info();

namespace {

using solar::Bytes;
using Answer = std::optional<std::vector<std::byte>>;

constexpr std::size_t most_nbytes = 1 << 22;  // more is slow, and no different

std::size_t decoded_nbytes(Bytes chunk) {
  try {
    const solar::Chunk said = solar::describe_codec(chunk);
    const auto type = std::ranges::find(solar::plugin::types(), said.number, &solar::plugin::Type::number);
    std::size_t nbytes = type->nbytes;
    for (const std::uint32_t length : said.shape)
      if (__builtin_mul_overflow(nbytes, std::size_t{length}, &nbytes)) return most_nbytes + 1;
    return nbytes;
  } catch (const solar::Error&) {
    return 0;
  }
}

Answer by_path(Bytes chunk, std::size_t nbytes, solar::Path path) {
  static solar::Scratch scratch;
  std::vector<std::byte> out(nbytes);
  try {
    solar::decode_codec(chunk, out, {}, scratch, path);
    return out;
  } catch (const solar::Error&) {
    return {};
  }
}

Answer by_plugin(Bytes chunk) {
  static const auto* filter = static_cast<const solar::plugin::FilterClass*>(H5PLget_plugin_info());
  void* buffer = std::malloc(chunk.size());
  std::memcpy(buffer, chunk.data(), chunk.size());
  std::size_t room = chunk.size();
  const unsigned values[] = {1, 0};
  const std::size_t nbytes = filter->filter(solar::plugin::reading, 2, values, chunk.size(), &room, &buffer);
  Answer answer;
  if (nbytes > 0) answer.emplace(static_cast<std::byte*>(buffer), static_cast<std::byte*>(buffer) + nbytes);
  std::free(buffer);
  return answer;
}

void try_all(Bytes chunk) {
  const std::size_t nbytes = decoded_nbytes(chunk);
  if (nbytes > most_nbytes) return;
  const Answer plain = by_path(chunk, nbytes, solar::Path::plain);
  for (const solar::Path path : solar::codec_paths())
    if (by_path(chunk, nbytes, path) != plain) std::abort();
  const Answer plugin = by_plugin(chunk);
  if (nbytes > 0 ? plugin != plain : plugin.has_value()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> chunk(size);
  std::memcpy(chunk.data(), data, size);
  try_all(chunk);
  if (size < 88) return 0;
  const auto nbytes = static_cast<std::uint32_t>(size);
  std::memcpy(chunk.data() + 72, &nbytes, sizeof nbytes);
  const std::uint64_t sum = solar::zstd::xxhash64(Bytes(chunk).first(size - 8));
  std::memcpy(chunk.data() + size - 8, &sum, sizeof sum);
  try_all(chunk);
  return 0;
}
