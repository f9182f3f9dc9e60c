// Encoding: drafts of all tiles, the tables for them, then bytes.
#include <algorithm>
#include <memory>
#include <string>

#include "codec/draft.hpp"
#include "codec/kernels.hpp"
#include "decode/zstd_checksum.hpp"

namespace solar {
namespace codec {
namespace {

constexpr std::uint32_t lorenzos = 1u << 0 | 1u << 1 | 1u << 3 | 1u << 7, interpolation = 1u << 8;

// Axes of one value go; what is more than four axes becomes the first.
void fold(const std::vector<std::size_t>& shape, Header& header) {
  std::vector<std::size_t> axes;
  for (const std::size_t length : shape)
    if (length != 1) axes.push_back(length);
  std::size_t first = 1;
  while (axes.size() > 3) {
    if (__builtin_mul_overflow(first, axes.front(), &first)) throw Error(Kind::codec, "too many values for one chunk");
    axes.erase(axes.begin());
  }
  axes.insert(axes.begin(), 3 - axes.size(), 1);
  axes.insert(axes.begin(), first);
  std::size_t values = 1;
  for (std::size_t i = 0; i < 4; ++i) {
    if (axes[i] > 0xffffffff) throw Error(Kind::codec, "an axis of " + std::to_string(axes[i]) + " values is too long");
    header.shape[i] = static_cast<std::uint32_t>(axes[i]);
    values *= axes[i];
  }
  if (values * itemsize_of(header.number) > 0xe0000000)
    throw Error(Kind::codec, std::to_string(values) + " values are too many for one chunk of less than 4 GB");
}

// About equal parts of at most `most`, in multiples of 8 where there are several.
std::uint32_t part(std::uint32_t length, std::size_t most) {
  const auto room = static_cast<std::uint32_t>(std::max<std::size_t>(1, most));
  if (length <= room) return std::max(1u, length);
  const std::uint32_t parts = (length + room - 1) / room, each = (length + parts - 1) / parts;
  return std::min(room, (each + 7) / 8 * 8);
}

Extent tile_for(const std::uint32_t* shape) {
  const bool deep = shape[1] > 1, wide = shape[2] > 1;
  Extent tile{1, 1, part(shape[3], deep ? 64 : wide ? 128 : most_values)};
  tile.y = part(shape[2], (deep ? 2048 : most_values) / tile.x);
  tile.z = part(shape[1], most_values / (tile.x * tile.y));
  if (tile.z == shape[1] && tile.y < shape[2]) tile.y = part(shape[2], most_values / (tile.x * tile.z));
  if (tile.y == shape[2] && tile.x < shape[3]) tile.x = part(shape[3], most_values / (tile.y * tile.z));
  return tile;
}

std::uint32_t predictors(Predictor predictor, const Header& header) {
  if (predictor != Predictor::tried) return 1u << static_cast<unsigned>(predictor);
  std::uint32_t tried = lorenzos | interpolation;
  if (header.tile.z == 1) tried &= ~(1u << 7);
  if (header.tile.z == 1 && header.tile.y == 1) tried &= ~(1u << 3);
  return tried;
}

std::size_t word_of(std::size_t itemsize) { return std::max<std::size_t>(itemsize, 4); }

void append(std::vector<std::byte>& out, const void* from, std::size_t nbytes) {
  const std::size_t at = out.size();
  out.resize(at + nbytes);
  if (nbytes > 0) std::memcpy(out.data() + at, from, nbytes);
}

std::vector<std::byte> raw_tile(const Array& array, const Grid& grid, std::size_t tile) {
  std::vector<std::byte> bytes((grid.place(tile).extent.values() * itemsize_of(array.number) + 3) / 4 * 4);
  gather(array, grid, tile, bytes.data());
  return bytes;
}

// The smaller of what the coder allows; nothing when neither is smaller than raw.
std::vector<std::byte> coded(const Draft& draft, Coder coder, const Encoding* encoding, Entry& entry) {
  std::vector<std::byte> packed, dense;
  if (coder != Coder::dense) packed = pack_tile(draft.residuals);
  if (coder != Coder::pack) dense = dense_tile(draft.residuals, *encoding);
  const bool take = coder == Coder::pack || (coder == Coder::smaller && packed.size() <= dense.size());
  entry.coder = take ? TileCoder::pack : TileCoder::dense;
  return take ? packed : dense;
}

std::vector<std::byte> tile_bytes(const Array& array, const Grid& grid, std::size_t tile, const Draft& draft,
                                  Coder coder, const Encoding* encoding, Entry& entry) {
  const std::size_t itemsize = itemsize_of(array.number),
                    raw = (grid.place(tile).extent.values() * itemsize + 3) / 4 * 4;
  std::vector<std::byte> bytes;
  if (draft.constant) {
    entry.coder = TileCoder::constant;
    append(bytes, &draft.bits, word_of(itemsize));
    return bytes;
  }
  if (!draft.raw && draft.runs.size() < 65536) {
    bytes = coded(draft, coder, encoding, entry);
    for (const Run& run : draft.runs) {
      append(bytes, &run.first, 2);
      append(bytes, &run.length, 2);
      append(bytes, &run.bits, word_of(itemsize));
    }
    entry.predictor = draft.predictor;
    entry.origin = draft.origin;
    entry.runs = static_cast<std::uint16_t>(draft.runs.size());
    if (bytes.size() < raw) return bytes;
  }
  entry = {.coder = TileCoder::raw};
  return raw_tile(array, grid, tile);
}

// The tables the chunk is coded with, and whether they lie in it.
struct Chosen {
  std::vector<std::byte> packed;
  bool inside = false;
};

Chosen choose_tables(const std::vector<Draft>& drafts, Bytes given) {
  if (!given.empty()) return {{given.begin(), given.end()}, false};
  std::vector<const Draft*> all;
  for (const Draft& draft : drafts)
    if (!draft.residuals.empty()) all.push_back(&draft);
  const Bytes builtin = builtin_tables();
  const AllFrequencies own = trained(all);
  std::vector<std::byte> packed = pack_tables(own);
  const auto with = [&](const AllFrequencies& tables) { return cost(all, *std::make_unique<Encoding>(tables)); };
  if (with(own) + packed.size() * 8 * 256 < with(parse_tables(builtin))) return {packed, true};
  return {{builtin.begin(), builtin.end()}, false};
}

void put_header(Header& header, const std::vector<Entry>& entries, std::vector<std::byte>& out) {
  if (out.size() + checksum_nbytes > 0xffffffff) throw Error(Kind::codec, "the chunk is too large");
  header.nbytes = static_cast<std::uint32_t>(out.size() + checksum_nbytes);
  store(header, out.data());
  for (std::size_t i = 0; i < entries.size(); ++i)
    store(entries[i], out.data() + header_nbytes + header.tables_nbytes + i * entry_nbytes);
  const std::uint64_t sum = zstd::xxhash64(out);
  append(out, &sum, sizeof sum);
}

void check_bound(double bound) {
  if (!(bound >= 0) || bound > std::numeric_limits<double>::max())
    throw Error(Kind::codec, "a bound must be a number of 0 (bit for bit) or more, not " + std::to_string(bound));
}

}  // namespace

void gather(const Array& array, const Grid& grid, std::size_t tile, std::byte* out) {
  const Grid::Place place = grid.place(tile);
  const std::size_t itemsize = itemsize_of(array.number), row = place.extent.x * itemsize;
  const auto* from = static_cast<const std::byte*>(array.values);
  for (std::size_t z = 0; z < place.extent.z; ++z)
    for (std::size_t y = 0; y < place.extent.y; ++y, out += row)
      std::memcpy(out, from + itemsize * (place.first + (z * grid.shape[2] + y) * grid.shape[3]), row);
}

Drafts draft(const Array& array, double bound, Predictor predictor, Coder coder) {
  check_bound(bound);
  Drafts drafts;
  Header& header = drafts.header;
  header.number = array.number;
  fold(array.shape, header);
  header.tile = tile_for(header.shape);
  header.bound = bound;
  std::size_t values = 1;
  for (const std::uint32_t length : header.shape) values *= length;
  const Quantiser how = quantiser_for(array.values, array.number, values, bound);
  header.quanta = how.quanta;
  header.step = how.quanta == Quanta::integer ? static_cast<std::uint64_t>(how.whole_step)
                                              : std::bit_cast<std::uint64_t>(how.step);
  header.base = how.quanta == Quanta::integer ? static_cast<std::uint64_t>(how.whole_base)
                                              : std::bit_cast<std::uint64_t>(how.base);
  header.flags = (bound == 0 ? lossless : 0u) | (how.lattice ? lattice : 0u);
  const Grid grid(header);
  std::vector<std::byte> gathered(most_values * itemsize_of(array.number));
  const std::size_t tiles = values == 0 ? 0 : grid.tiles();
  std::uint32_t tried = predictors(predictor, header);
  const auto make = [&](std::size_t tile) {
    gather(array, grid, tile, gathered.data());
    return draft_tile(gathered.data(), array.number, grid.place(tile).extent, how, tried, coder);
  };
  if (predictor == Predictor::tried &&
      tiles > 12) {  // interpolation costs most to try: a few tiles tell whether it pays
    bool pays = false;
    for (const std::size_t tile : {std::size_t{0}, tiles / 4, tiles / 2, 3 * tiles / 4})
      pays |= make(tile).predictor >= first_interpolation;
    if (!pays) tried &= ~interpolation;
  }
  for (std::size_t tile = 0; tile < tiles; ++tile) drafts.tiles.push_back(make(tile));
  return drafts;
}

}  // namespace codec

std::vector<std::byte> encode(const Array& array, double bound, Coder coder, Predictor predictor, Bytes tables) {
  using namespace codec;
  Drafts drafts = draft(array, bound, predictor, coder);
  const Grid grid(drafts.header);
  Chosen chosen;
  std::unique_ptr<Encoding> encoding;
  if (coder != Coder::pack) {
    chosen = choose_tables(drafts.tiles, tables);
    encoding = std::make_unique<Encoding>(parse_tables(chosen.packed));
  }
  std::vector<Entry> entries(drafts.tiles.size());
  std::vector<std::vector<std::byte>> parts;
  bool dense = false;
  for (std::size_t tile = 0; tile < entries.size(); ++tile) {
    parts.push_back(tile_bytes(array, grid, tile, drafts.tiles[tile], coder, encoding.get(), entries[tile]));
    dense |= entries[tile].coder == TileCoder::dense;
  }
  Header& header = drafts.header;
  if (dense) header.tables = tables_checksum(chosen.packed);
  if (dense && chosen.inside) header.flags |= tables_inline;
  if (dense && chosen.inside) header.tables_nbytes = static_cast<std::uint32_t>(chosen.packed.size());
  std::vector<std::byte> out(header_nbytes);
  append(out, chosen.packed.data(), header.tables_nbytes);
  out.resize(out.size() + entries.size() * entry_nbytes);
  for (std::size_t tile = 0; tile < entries.size(); ++tile) {
    entries[tile].offset = static_cast<std::uint32_t>(out.size() / 4);
    append(out, parts[tile].data(), parts[tile].size());
  }
  put_header(header, entries, out);
  return out;
}

std::vector<std::byte> train(const std::vector<Array>& arrays, double bound, Predictor predictor) {
  using namespace codec;
  std::vector<Drafts> drafts;
  std::vector<const Draft*> all;
  for (const Array& array : arrays) drafts.push_back(draft(array, bound, predictor, Coder::dense));
  for (const Drafts& chunk : drafts)
    for (const Draft& tile : chunk.tiles)
      if (!tile.residuals.empty()) all.push_back(&tile);
  return pack_tables(trained(all));
}

std::vector<std::uint32_t> client_data(Bytes tables) {
  std::vector<std::uint32_t> values(2 + (tables.size() + 3) / 4);
  values[0] = 1;
  values[1] = static_cast<std::uint32_t>(tables.size());
  if (!tables.empty()) std::memcpy(values.data() + 2, tables.data(), tables.size());
  return values;
}

}  // namespace solar
