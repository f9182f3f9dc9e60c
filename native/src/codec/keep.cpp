// Chunks that are handed on as they are stored, for whoever decodes them elsewhere: checked, and zeros behind.
#include <algorithm>
#include <string>

#include "codec/format.hpp"
#include "codec/tile.hpp"
#include "solar/codec.hpp"

namespace solar {
namespace {

using codec::block;
using codec::damaged;
using codec::Entry;
using codec::TileCoder;

// The bytes that a packed tile's widths ask for.
std::size_t packed_nbytes(Bytes tile, std::size_t values) {
  Cursor at(tile, Kind::codec, "a tile of the chunk");
  const std::size_t blocks = (values + block - 1) / block;
  const Bytes map = at.take(16), picks = at.take((blocks + 7) / 8 * 4);
  for (const std::byte width : map)
    if (std::to_integer<unsigned>(width) > 32) damaged("a block's width is impossible");
  std::size_t words = 0;
  for (std::size_t i = 0; i < blocks; ++i)
    words += std::to_integer<unsigned>(map[std::to_integer<unsigned>(picks[i / 2]) >> 4 * (i % 2) & 15]);
  return map.size() + picks.size() + 4 * words;
}

std::size_t least_nbytes(Bytes tile, TileCoder coder, std::size_t values, std::size_t itemsize) {
  switch (coder) {
    case TileCoder::raw: return values * itemsize;
    case TileCoder::constant: return std::max<std::size_t>(itemsize, 4);
    case TileCoder::pack: return packed_nbytes(tile, values);
    case TileCoder::dense: return 8 + 2 * 32;  // its counts and its lanes' starts; the rest shows in decoding
    default: damaged("a tile's coder is unknown");
  }
}

void check_runs(Bytes runs, std::size_t each, std::size_t values) {
  std::size_t behind = 0;
  for (; !runs.empty(); runs = runs.subspan(each)) {
    const std::size_t first = load_le<std::uint16_t>(runs.data()), length = load_le<std::uint16_t>(runs.data() + 2);
    if (first < behind || first + length > values) damaged("values kept bit for bit are not in order");
    behind = first + length;
  }
}

void check_tile(const codec::Checked& chunk, std::size_t tile, std::size_t values) {
  const Entry entry = chunk.entry(tile);
  const std::size_t itemsize = codec::itemsize_of(chunk.header.number);
  const std::size_t each = 4 + std::max<std::size_t>(itemsize, 4), kept = entry.runs * each;
  const Bytes bytes = chunk.bytes_of(tile);
  if (kept > bytes.size()) damaged("a tile lacks values kept bit for bit");
  const Bytes coded = bytes.first(bytes.size() - kept);
  codec::check_predictor(entry, chunk.header.quanta);
  if (least_nbytes(coded, entry.coder, values, itemsize) > coded.size()) damaged("a tile is cut short");
  check_runs(bytes.last(kept), each, values);
}

}  // namespace

void codec::check_tiles(const Checked& chunk) {
  const Grid grid(chunk.header);
  for (std::size_t tile = 0; tile < chunk.tiles; ++tile) check_tile(chunk, tile, grid.place(tile).extent.values());
}

std::size_t keep_codec(Bytes in, MutableBytes out, const Filter& filter) {
  if (filter.values.size() != 4) throw Error(Kind::codec, "is not told what its chunks hold");
  const std::size_t nbytes = filter.values[1] | std::size_t{filter.values[2]} << 32;
  const codec::Checked chunk = codec::check(in, nbytes);
  constexpr std::size_t number_at = 6;
  if (std::to_integer<std::uint32_t>(in[number_at]) != filter.values[0])
    throw Error(Kind::codec, "the chunk holds numbers of another type than its data set");
  codec::check_tiles(chunk);
  const std::size_t room = out.size() - std::min(out.size(), sizeof filter.values[3]);
  if (in.size() > room)
    throw Error(Kind::codec, "the chunk has " + std::to_string(in.size()) + " bytes, more than the " +
                                 std::to_string(room) + " of the largest when its index was read");
  std::memcpy(out.data(), in.data(), in.size());
  std::memset(out.data() + in.size(), 0, room - in.size());
  std::memcpy(out.data() + room, &filter.values[3], out.size() - room);
  return out.size();
}

}  // namespace solar
