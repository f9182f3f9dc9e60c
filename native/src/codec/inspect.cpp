// What is asked about chunks and machines, and the comparison that trusts no codec.
#include <algorithm>
#include <cmath>
#include <string>

#include "codec/kernels.hpp"
#include "codec/number.hpp"
#include "codec/patches.hpp"
#include "codec/quantise.hpp"

namespace solar {
namespace codec {
namespace {

// Kept apart from the encoder's own check on purpose: in wider arithmetic, and without its rules for denormals.
template <class T>
Difference compare_typed(const T* original, const T* restored, std::size_t values, double bound) {
  Difference found{0, 0, 0};
  for (std::size_t i = 0; i < values; ++i) {
    if (std::memcmp(original + i, restored + i, sizeof(T)) == 0) continue;
    bool fits = false;
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isfinite(original[i]) && std::isfinite(restored[i])) {
        const long double distance =
            std::fabs(static_cast<long double>(original[i]) - static_cast<long double>(restored[i]));
        fits = bound > 0 && distance <= static_cast<long double>(bound) && within(original[i], restored[i], bound);
        found.largest = std::max(found.largest, static_cast<double>(distance));
      }
    } else {
      const auto a = static_cast<__int128>(original[i]), b = static_cast<__int128>(restored[i]);
      const auto distance = static_cast<unsigned __int128>(a < b ? b - a : a - b);
      fits = static_cast<long double>(distance) <= static_cast<long double>(bound);
      found.largest = std::max(found.largest, static_cast<double>(distance));
    }
    if (!fits && found.beyond++ == 0) found.first = i;
  }
  return found;
}

}  // namespace

const Kernels& kernels(Path path) {
  if (path == Path::avx512 && has_avx512()) return avx512_kernels();
  if (path == Path::avx2 && has_avx2()) return avx2_kernels();
  if (path == Path::neon && has_neon()) return neon_kernels();
  if (path == Path::plain) return plain_kernels();
  throw Error(Kind::codec, "this machine has not the instructions asked for");
}

}  // namespace codec

std::vector<Path> codec_paths() {
  std::vector<Path> paths{Path::plain};
  if (codec::has_avx2()) paths.push_back(Path::avx2);
  if (codec::has_avx512()) paths.push_back(Path::avx512);
  if (codec::has_neon()) paths.push_back(Path::neon);
  return paths;
}

Chunk describe_codec(Bytes in) {
  const codec::Checked checked = codec::check(in, codec::any_size);
  const codec::Header& header = checked.header;
  Chunk chunk{};
  chunk.number = header.number;
  std::ranges::copy(header.shape, chunk.shape);
  chunk.tile[0] = header.tile.z;
  chunk.tile[1] = header.tile.y;
  chunk.tile[2] = header.tile.x;
  chunk.flags = header.flags;
  chunk.bound = header.bound;
  chunk.step =
      header.quanta == codec::Quanta::integer ? static_cast<double>(header.step) : std::bit_cast<double>(header.step);
  chunk.tables = header.tables;
  std::size_t* const counts[] = {&chunk.tiles_raw, &chunk.tiles_constant, &chunk.tiles_pack, &chunk.tiles_dense};
  for (std::size_t i = 0; i < checked.tiles; ++i) {
    const codec::Entry entry = checked.entry(i);
    if (static_cast<std::size_t>(entry.coder) > 3) codec::damaged("a tile's coder is unknown");
    ++*counts[static_cast<std::size_t>(entry.coder)];
    chunk.tiles_interpolated += codec::is_interpolation(entry.predictor);
    chunk.tiles_patched += codec::is_patched(entry.predictor);
    chunk.outliers += entry.runs;
  }
  return chunk;
}

Number codec_number(Bytes in) { return codec::parse_header(in).number; }

Difference compare(const void* original, const void* restored, Number number, std::size_t values, double bound) {
  return codec::with_type(number, [&]<class T>(T) {
    return codec::compare_typed(static_cast<const T*>(original), static_cast<const T*>(restored), values, bound);
  });
}

}  // namespace solar
