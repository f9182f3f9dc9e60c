// What a decoder elsewhere, on a device, is told of a chunk: that it is whole, and which tables it asks for.
#include <bit>
#include <cmath>

#include "codec/format.hpp"
#include "codec/tables.hpp"
#include "solar/codec.hpp"

namespace solar {
namespace {

TablesAt tables_at(const codec::Checked& chunk, Bytes given) {
  const std::uint64_t asked = chunk.header.tables;
  if (asked == 0) {
    for (std::size_t tile = 0; tile < chunk.tiles; ++tile)
      if (chunk.entry(tile).coder == codec::TileCoder::dense)
        codec::damaged("a tile asks for tables and the chunk names none");
    return TablesAt::nowhere;
  }
  if (!chunk.tables.empty() && codec::tables_checksum(chunk.tables) == asked) {
    codec::parse_tables(chunk.tables);
    return TablesAt::inside;
  }
  static const std::uint64_t builtin = codec::tables_checksum(codec::builtin_tables());
  if (asked == builtin) return TablesAt::builtin;
  if (!given.empty() && codec::tables_checksum(given) == asked) return TablesAt::given;
  throw Error(Kind::codec,
              "the chunk's coding tables are not those of its data set's filter: it was copied from another file, or "
              "the filter's values were changed");
}

}  // namespace

TablesAt check_codec(Bytes in, Number number, std::size_t nbytes, Bytes given) {
  const codec::Checked chunk = codec::check(in, nbytes);
  if (chunk.header.number != number)
    throw Error(Kind::codec, "the chunk holds numbers of another type than its data set");
  if (chunk.header.quanta == codec::Quanta::real)
    for (const std::uint64_t bits : {chunk.header.step, chunk.header.base})
      if (!std::isfinite(std::bit_cast<double>(bits))) codec::damaged("its step is no number");
  codec::check_tiles(chunk);
  return tables_at(chunk, given);
}

std::vector<std::uint32_t> codec_places(Bytes tables) {
  codec::Coding coding;
  coding.take(tables.empty() ? codec::builtin_tables() : tables);
  coding.make((1u << codec::table_count) - 1);
  return {std::begin(coding.places), std::end(coding.places)};
}

}  // namespace solar
