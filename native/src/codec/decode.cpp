// Decoding: each tile's residuals, then its integers, then its values in their places, then those kept bit for bit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "codec/kernels.hpp"
#include "codec/number.hpp"
#include "codec/patches.hpp"
#include "codec/tile.hpp"

namespace solar {
namespace codec {
namespace {

// Reserved for the learned predictor, which wrote chunks once (io/FORMAT.md).
constexpr unsigned first_learned = 24, last_learned = 25;

std::size_t padded(std::size_t values) { return (values + block - 1) / block * block; }

// Widths of the blocks, and how many words they take.
std::size_t widths_of(Cursor& at, std::size_t blocks, std::uint8_t* widths) {
  const Bytes map = at.take(16), picks = at.take((blocks + 7) / 8 * 4);
  for (const std::byte width : map)
    if (std::to_integer<unsigned>(width) > 32) damaged("a block's width is impossible");
  std::size_t words = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const unsigned pick = std::to_integer<unsigned>(picks[i / 2]) >> 4 * (i % 2) & 15;
    widths[i] = std::to_integer<std::uint8_t>(map[pick]);
    words += widths[i];
  }
  return words;
}

void unpack_tile(Bytes bytes, std::size_t values, const Work& work, std::int32_t* out) {
  Cursor at(bytes, Kind::codec, "a tile of the chunk");
  std::uint8_t widths[most_blocks];
  const std::size_t blocks = padded(values) / block, words = widths_of(at, blocks, widths);
  const Bytes fields = at.take(4 * words);
  work.kernels.unpack(fields.data(), work.end, widths, blocks, out);
}

Lanes lanes_of(Bytes starts, Bytes words) {
  Lanes lanes{};
  for (std::size_t i = 0; i < codec::lanes; ++i) {
    const std::uint32_t start = load_le<std::uint16_t>(starts.data() + 2 * i);
    lanes.states[i] = start & (table_size - 1);
    lanes.bits[i] = start >> table_bits;
    lanes.counts[i] = 16 - table_bits;
  }
  lanes.at = words.data();
  lanes.end = words.data() + words.size();
  return lanes;
}

// The blocks' classes from their differences; returns the words of lowest bits they ask for.
std::size_t classes_of(const std::int8_t* differences, Residuals& from, std::uint8_t* classes, std::uint32_t& tables) {
  std::int32_t last = 0;
  std::size_t low = 0;
  for (std::size_t i = 0; i < from.blocks; ++i) {
    std::int32_t difference = differences[i];
    if (difference == escape) {
      if (from.escape_count == 0) damaged("it lacks an escaped class");
      difference = load_le<std::int32_t>(from.escapes);
      from.escapes += 4;
      --from.escape_count;
    }
    last = add(last, difference) & (most_classes - 1);
    classes[i] = static_cast<std::uint8_t>(last);
    low += static_cast<std::size_t>(low_bits_of(classes[i]));
    tables |= 1u << table_of(classes[i]);
  }
  return low;
}

// To residuals; with `sums`, through them to values.
void dense_tile(Bytes bytes, std::size_t values, const Work& work, std::int32_t* out, const Sums* sums = nullptr) {
  Cursor at(bytes, Kind::codec, "a tile of the chunk");
  if (!work.tabled) damaged("a tile asks for tables and the chunk names none");
  const std::uint32_t words = at.u32(), escapes = at.u32();
  const Bytes starts = at.take(2 * lanes),
              stream = at.take((std::size_t{words} + 1) / 2 * 4).first(2 * std::size_t{words});
  const Bytes tail = at.take(at.left());
  if (tail.size() / 4 < escapes) damaged("a tile lacks escaped values");
  const Bytes escaped = tail.last(4 * std::size_t{escapes});

  std::int8_t differences[most_blocks + lanes];
  std::uint8_t classes[most_blocks];
  Residuals from{work.coding.places, classes, padded(values) / block, tail.data(), work.end, escaped.data(), escapes};
  Lanes of = lanes_of(starts, stream);
  work.coding.make(1u << class_table);
  work.kernels.symbols(of, work.coding.places + class_table * table_size, (from.blocks + lanes - 1) / lanes,
                       differences);
  std::uint32_t tables = 0;
  const std::size_t low = classes_of(differences, from, classes, tables);
  if (4 * low != tail.size() - escaped.size()) damaged("a tile has not the bits its classes ask for");
  work.coding.make(tables);
  if (!(sums != nullptr ? work.kernels.dense_lorenzo(of, from, out, *sums) : work.kernels.residuals(of, from, out)))
    damaged("a tile lacks escaped values");
}

void integers_of(Bytes bytes, TileCoder coder, std::size_t values, const Work& work, std::int32_t* out) {
  if (coder == TileCoder::pack)
    unpack_tile(bytes, values, work, out);
  else
    dense_tile(bytes, values, work, out);
}

template <class Bits>
void repeat_as(const std::byte* value, std::size_t count, std::byte* to) {
  Bits bits;
  std::memcpy(&bits, value, sizeof bits);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
}

// One value, so often.
void repeat(const std::byte* value, std::size_t itemsize, std::size_t count, std::byte* to) {
  switch (itemsize) {
    case 1: return repeat_as<std::uint8_t>(value, count, to);
    case 2: return repeat_as<std::uint16_t>(value, count, to);
    case 4: return repeat_as<std::uint32_t>(value, count, to);
    default: return repeat_as<std::uint64_t>(value, count, to);
  }
}

// Runs of equal values kept bit for bit, in the tile's own order.
void put_runs(Bytes runs, std::size_t count, std::size_t itemsize, const Grid::PlacedTile& place,
              const TileOutput& out) {
  const std::size_t each = 4 + word_of(itemsize), row = place.extent.x;
  std::byte value[8];
  std::size_t behind = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* run = runs.data() + i * each;
    const std::size_t first = load_le<std::uint16_t>(run), length = load_le<std::uint16_t>(run + 2);
    if (first < behind || length > place.extent.values() || first + length > place.extent.values())
      damaged("values kept bit for bit are not in order");
    behind = first + length;
    out.put(run + 4, 1, value);
    for (std::size_t v = first; v < behind;) {
      const std::size_t x = v % row, some = std::min(behind - v, row - x);
      repeat(value, out.itemsize, some, out.row(place, v / row) + x * out.itemsize);
      v += some;
    }
  }
}

void fill_tile(Bytes bytes, std::size_t itemsize, const Grid::PlacedTile& place, const TileOutput& out) {
  if (bytes.size() < word_of(itemsize)) damaged("a constant tile has no value");
  std::byte* const first = out.row(place, 0);
  const std::size_t row = place.extent.x * out.itemsize;
  std::byte value[8];
  out.put(bytes.data(), 1, value);
  repeat(value, out.itemsize, place.extent.x, first);
  for (std::size_t y = 1; y < place.extent.y * std::size_t{place.extent.z}; ++y)
    std::memcpy(out.row(place, y), first, row);
}

void copy_tile(Bytes bytes, std::size_t itemsize, const Grid::PlacedTile& place, const TileOutput& out) {
  const std::size_t row = place.extent.x * itemsize;
  if (bytes.size() < place.extent.values() * itemsize) damaged("a raw tile is cut short");
  for (std::size_t y = 0; y < place.extent.y * std::size_t{place.extent.z}; ++y)
    out.put(bytes.data() + y * row, place.extent.x, out.row(place, y));
}

// REQUIRES: a coder of residuals.
void restore_tile(Bytes bytes, const Entry& entry, const Grid::PlacedTile& place, const Work& work,
                  const TileOutput& out) {
  std::int32_t *const first = work.integers, *const second = first + most_values + slack;
  const std::size_t values = place.extent.values();
  const bool ordered = is_patched(entry.predictor);
  Restore how = work.restore;
  const Rows rows{out.row(place, 0), out.itemsize * out.grid.shape[3],
                  out.itemsize * out.grid.shape[3] * out.grid.shape[2]};
  const Sums sums{place.extent, entry.predictor & 7u, entry.origin, second, how, rows};
  if (entry.predictor < first_interpolation && entry.coder == TileCoder::dense && place.extent.x >= 16)
    return dense_tile(bytes, values, work, first, &sums);
  integers_of(bytes, entry.coder, values, work, ordered ? second : first);
  if (ordered) work.kernels.to_rows(second, place.extent, first);
  if (!is_interpolation(entry.predictor)) return work.kernels.lorenzo(first, sums);
  const std::int32_t* made = work.kernels.interpolate(first, place.extent, stride_of(entry.predictor), entry.origin,
                                                      second, second + most_values + slack);
  how.step /= 16;
  for (std::size_t z = 0; z < place.extent.z; ++z)
    for (std::size_t y = 0; y < place.extent.y; ++y, made += place.extent.x)
      work.kernels.restore(made, place.extent.x, how, rows.at(z, y));
}

void decode_tile(const Checked& chunk, std::size_t tile, const Grid& grid, const Work& work, const TileOutput& out) {
  const Entry entry = chunk.entry(tile);
  const Grid::PlacedTile place = grid.place(tile);
  const std::size_t itemsize = itemsize_of(chunk.header.number);
  const Bytes bytes = chunk.bytes_of(tile);
  const std::size_t kept = std::size_t{entry.runs} * (4 + word_of(itemsize));
  if (kept > bytes.size()) damaged("a tile lacks values kept bit for bit");
  check_predictor(entry, chunk.header.quanta);
  const Bytes coded = bytes.first(bytes.size() - kept);
  switch (entry.coder) {
    case TileCoder::raw: copy_tile(coded, itemsize, place, out); break;
    case TileCoder::constant: fill_tile(coded, itemsize, place, out); break;
    case TileCoder::pack:
    case TileCoder::dense: restore_tile(coded, entry, place, work, out); break;
    default: damaged("a tile's coder is unknown");
  }
  put_runs(bytes.last(kept), entry.runs, itemsize, place, out);
}

// The tables the chunk asks for: its own, solar's, or those of the filter.
void take_tables(const Checked& chunk, Bytes given, Coding& coding) {
  if (chunk.header.tables == 0) return;
  for (const Bytes candidate : {chunk.tables, builtin_tables(), given})
    if (!candidate.empty() && tables_checksum(candidate) == chunk.header.tables) return coding.take(candidate);
  throw Error(Kind::codec,
              "the chunk's coding tables are not those of its data set's filter: it was copied from another file, or "
              "the filter's values were changed");
}

void check_steps(const Header& header) {
  if (header.quanta != Quanta::real) return;
  const double most =
      header.number == Number::float32 ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
  for (const std::uint64_t bits : {header.step, header.base})
    if (!(std::fabs(std::bit_cast<double>(bits)) <= most)) damaged("its step is no number");
}

}  // namespace

// Of all tiles, also those that need none: decoders elsewhere are only given what check_tiles lets pass.
void check_predictor(const Entry& entry, Quanta quanta) {
  if (entry.predictor >= first_learned && entry.predictor <= last_learned)
    throw Error(Kind::codec,
                "the chunk was written with the learned predictor, which solar no longer reads: decompress its file with "
                "solar 0.1.0, or compress the original again");
  if (entry.predictor > last_interpolation && !is_patched(entry.predictor))
    damaged("its predictor is unknown");
  if (is_interpolation(entry.predictor) && quanta != Quanta::real) damaged("what is interpolated is no real number");
}

Restore restore_of(const Header& header, bool cast) {
  return {header.quanta,
          cast ? sizeof(float) : itemsize_of(header.number),
          std::bit_cast<double>(header.step),
          std::bit_cast<double>(header.base),
          header.step,
          header.base,
          header.number,
          cast};
}

void TileOutput::put(const std::byte* stored, std::size_t count, std::byte* to) const {
  if (!how.cast) {
    std::memcpy(to, stored, count * itemsize);
    return;
  }
  with_type(how.number, [=]<class T>(T) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(load_le<T>(stored + i * sizeof(T)));
      std::memcpy(to + i * sizeof value, &value, sizeof value);
    }
  });
}

std::byte* TileOutput::row(const Grid::PlacedTile& place, std::size_t y) const {
  const std::size_t z = y / place.extent.y;
  return first + itemsize * (place.first + (z * grid.shape[2] + y % place.extent.y) * grid.shape[3]);
}

// Whether anything of a tile is.
bool TileOutput::is_in(const Wanted& wanted, const Grid::PlacedTile& place) const {
  for (std::size_t y = 0; y < place.extent.y * std::size_t{place.extent.z}; ++y) {
    const auto begin = static_cast<std::uint64_t>(row(place, y) - first);
    if (wanted.any(begin, begin + itemsize * place.extent.x)) return true;
  }
  return false;
}

void decode_checked(const Checked& chunk, MutableBytes out, Bytes tables, Scratch& scratch, const Kernels& kernels,
                    Wanted* wanted, bool cast) {
  check_steps(chunk.header);
  if (!scratch.coding) scratch.coding = std::make_shared<Coding>();
  take_tables(chunk, tables, *scratch.coding);
  const std::size_t integers = 3 * (most_values + slack) * sizeof(std::int32_t);
  if (scratch.c.size() < integers + 64) scratch.c.resize(integers + 64);
  std::byte* memory = scratch.c.data();
  memory += 64 - reinterpret_cast<std::uintptr_t>(memory) % 64;
  const Grid grid(chunk.header);
  const Work work{kernels,
                  *scratch.coding,
                  chunk.header.tables != 0,
                  restore_of(chunk.header, cast),
                  reinterpret_cast<std::int32_t*>(memory),
                  chunk.all.data() + chunk.all.size()};
  const TileOutput output{out.data(), work.restore.itemsize, grid, work.restore};
  if (wanted != nullptr) wanted->nbytes = 0;
  for (std::size_t tile = 0; tile < chunk.tiles; ++tile) {
    if (wanted != nullptr) {
      const Grid::PlacedTile place = grid.place(tile);
      if (!output.is_in(*wanted, place)) continue;
      wanted->nbytes += place.extent.values() * output.itemsize;
    }
    decode_tile(chunk, tile, grid, work, output);
  }
}

}  // namespace codec

std::size_t decode_codec(Bytes in, MutableBytes out, Bytes tables, Scratch& scratch, Path path, Wanted* wanted) {
  const codec::Checked chunk = codec::check(in, out.size());
  codec::decode_checked(chunk, out, tables, scratch, codec::kernels(path), wanted);
  return out.size();
}

std::size_t decode_codec_cast(Bytes in, MutableBytes out, Bytes tables, Scratch& scratch, Path path, Wanted* wanted) {
  const Number number = codec_number(in);
  if (codec::is_real(number)) throw Error(Kind::codec, "only chunks of whole numbers become float32");
  const codec::Checked chunk = codec::check(in, out.size() / sizeof(float) * codec::itemsize_of(number));
  codec::decode_checked(chunk, out, tables, scratch, codec::kernels(path), wanted, true);
  return out.size();
}

namespace {

// Those in the filter's values, if there are any.
Bytes tables_in(const Filter& filter) {
  const Bytes values = std::as_bytes(std::span(filter.values));
  if (filter.values.size() < 2 || filter.values[0] != 1 || filter.values[1] > values.size() - 8) return {};
  return values.subspan(8, filter.values[1]);
}

Path best_path() {
  static const Path best = codec_paths().back();
  return best;
}

}  // namespace

std::size_t decode_codec(Bytes in, MutableBytes out, const Filter& filter, Scratch& scratch, Wanted* wanted) {
  return decode_codec(in, out, tables_in(filter), scratch, best_path(), wanted);
}

std::size_t decode_codec_cast(Bytes in, MutableBytes out, const Filter& filter, Scratch& scratch, Wanted* wanted) {
  return decode_codec_cast(in, out, tables_in(filter), scratch, best_path(), wanted);
}

}  // namespace solar
