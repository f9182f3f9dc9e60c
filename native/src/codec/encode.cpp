// Encoding: drafts of all tiles, the tables for them, then bytes.
#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <string>

#include "codec/draft.hpp"
#include "codec/kernels.hpp"
#include "decode/zstd_checksum.hpp"

namespace solar {
namespace codec {
namespace {

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
std::vector<std::byte> coded(const Ints& residuals, Coder coder, const Encoding* encoding, TileCoder& by) {
  std::vector<std::byte> packed, dense;
  if (coder != Coder::dense) packed = pack_tile(residuals);
  if (coder != Coder::pack) dense = dense_tile(residuals, *encoding);
  const bool take = coder == Coder::pack || (coder == Coder::smaller && packed.size() <= dense.size());
  by = take ? TileCoder::pack : TileCoder::dense;
  return take ? packed : dense;
}

std::vector<std::byte> tile_bytes(const Array& array, const Grid& grid, std::size_t tile, const Draft& draft,
                                  Coder coder, const Encoding* encoding, Entry& entry) {
  const std::size_t itemsize = itemsize_of(array.number),
                    raw = (grid.place(tile).extent.values() * itemsize + 3) / 4 * 4;
  std::vector<std::byte> bytes;
  if (!draft.raw && draft.runs.size() < 65536) {
    if (draft.constant) {
      entry.coder = TileCoder::constant;
      append(bytes, &draft.bits, word_of(itemsize));
    } else {
      bytes = coded(draft.residuals, coder, encoding, entry.coder);
    }
    for (const Run& run : draft.runs) {
      append(bytes, &run.first, 2);
      append(bytes, &run.length, 2);
      append(bytes, &run.bits, word_of(itemsize));
    }
    entry.predictor = draft.predictor;
    entry.origin = draft.origin;
    entry.runs = static_cast<std::uint16_t>(draft.runs.size());
    if (bytes.size() < raw || (draft.constant && draft.runs.empty())) return bytes;
  }
  entry = {.coder = TileCoder::raw};
  return raw_tile(array, grid, tile);
}

// The tables the chunk is coded with, and whether they lie in it.
struct Chosen {
  std::vector<std::byte> packed;
  bool inside = false;
};

Chosen choose_tables(const std::vector<Draft>& drafts) {
  std::vector<const Draft*> all;
  for (const Draft& draft : drafts)
    if (!draft.residuals.empty()) all.push_back(&draft);
  const Bytes builtin = builtin_tables();
  const AllFrequencies own = trained(all, 3);
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

// The values as they are, in tiles that are as large as can be. No chunk has to be larger.
struct Flat {
  explicit Flat(const Array& array, const Header& like) : header(like) {
    std::size_t values = 1;
    for (const std::size_t length : array.shape) values *= length;
    const auto all = static_cast<std::uint32_t>(values);
    for (std::size_t i = 0; i < 4; ++i) header.shape[i] = i < 3 ? 1 : all;
    header.tile = {1, 1, std::clamp<std::uint32_t>(all, 1, most_values)};
    tiles = values == 0 ? 0 : Grid(header).tiles();
    nbytes = header_nbytes + tiles * entry_nbytes + (values * itemsize_of(array.number) + 3) / 4 * 4 + checksum_nbytes;
  }
  Header header;
  std::size_t tiles, nbytes;
};

std::vector<std::byte> write(const Flat& flat, const Array& array) {
  Header header = flat.header;
  const Grid grid(header);
  std::vector<Entry> entries(flat.tiles);
  std::vector<std::byte> out(header_nbytes + flat.tiles * entry_nbytes);
  out.reserve(flat.nbytes);
  for (std::size_t tile = 0; tile < flat.tiles; ++tile) {
    entries[tile] = {.offset = static_cast<std::uint32_t>(out.size() / 4), .coder = TileCoder::raw};
    const std::vector<std::byte> bytes = raw_tile(array, grid, tile);
    append(out, bytes.data(), bytes.size());
  }
  put_header(header, entries, out);
  return out;
}

// The coding tables ready for use, kept for the next chunk with the same ones: making them takes as long as a small
// chunk.
const Encoding& encoding_of(Bytes packed) {
  thread_local std::vector<std::byte> known;
  thread_local std::unique_ptr<Encoding> made;
  if (made == nullptr || !std::ranges::equal(known, packed)) {
    made = std::make_unique<Encoding>(parse_tables(packed));
    known.assign(packed.begin(), packed.end());
  }
  return *made;
}

// The chunk, or nothing where it would take more than `most` bytes.
std::vector<std::byte> encode_once(const Array& array, double bound, Coder coder, Predictor predictor, Bytes tables,
                                   const Marks& marks, std::size_t most = std::numeric_limits<std::size_t>::max()) {
  Drafts drafts(array, bound, predictor, coder, marks);
  const Grid grid(drafts.header);
  const Flat flat(array, drafts.header);
  Chosen chosen{{tables.begin(), tables.end()}, false};
  const Encoding* encoding = nullptr;
  std::vector<Draft> held;  // all of them, where they say which tables are best
  if (coder != Coder::pack) {
    if (tables.empty()) held = drafts.all();
    if (tables.empty()) chosen = choose_tables(held);
    encoding = &encoding_of(chosen.packed);
  }
  std::vector<Entry> entries(drafts.tiles());
  std::vector<std::vector<std::byte>> parts;
  bool dense = false;
  std::size_t nbytes = header_nbytes + entries.size() * entry_nbytes + checksum_nbytes;
  for (std::size_t tile = 0; tile < entries.size(); ++tile) {
    const Draft draft = held.empty() ? drafts.take(tile) : std::move(held[tile]);
    parts.push_back(tile_bytes(array, grid, tile, draft, coder, encoding, entries[tile]));
    dense |= entries[tile].coder == TileCoder::dense;
    nbytes += parts.back().size();
    if (std::min(nbytes, flat.nbytes) > most) return {};
  }
  Header& header = drafts.header;
  if (dense) header.tables = tables_checksum(chosen.packed);
  if (dense && chosen.inside) header.tables_nbytes = static_cast<std::uint32_t>(chosen.packed.size());
  if (header.tables_nbytes > 0) header.flags |= tables_inline;
  if (flat.nbytes < nbytes + header.tables_nbytes) return write(flat, array);
  std::vector<std::byte> out(header_nbytes);
  out.reserve(nbytes + header.tables_nbytes);
  append(out, chosen.packed.data(), header.tables_nbytes);
  out.resize(out.size() + entries.size() * entry_nbytes);
  for (std::size_t tile = 0; tile < entries.size(); ++tile) {
    entries[tile].offset = static_cast<std::uint32_t>(out.size() / 4);
    append(out, parts[tile].data(), parts[tile].size());
  }
  put_header(header, entries, out);
  return out;
}

void check_marks(const Array& array, const Marks& marks) {
  const std::size_t itemsize = itemsize_of(array.number);
  const auto too_many = [&](Bytes of, std::size_t most) { return of.size() % itemsize != 0 || of.size() > most * itemsize; };
  if (too_many(marks.values, most_marks) || too_many(marks.limits, most_limits))
    throw Error(Kind::codec, "at most " + std::to_string(most_marks) + " marks of missing values and " +
                                 std::to_string(most_limits) + " limits, all of the array's own type, can be kept");
}

// Where every value comes back bit for bit, so do marks.
Marks needed_marks(const Array& array, double bound, const Marks& marks) {
  const bool whole = array.number != Number::float32 && array.number != Number::float64;
  return bound == 0 || (whole && bound < 1) ? Marks{} : marks;
}

// Whether the array may take fewer than so many bytes with every bit kept. Real numbers that are no multiples of anything
// seldom do, which a look at some of them shows.
bool may_be_exact_in(const Array& array, const Chunk& as, Coder coder, std::size_t nbytes) {
  if (array.number != Number::float32 && array.number != Number::float64) return true;
  std::size_t values = 1;
  for (const std::uint32_t length : as.shape) values *= length;
  const Quantiser how = quantiser_for(array.values, array.number, values, 0, {});
  if (!how.coded) return false;
  if (how.quanta != Quanta::bits) return true;
  const Extent extent{as.shape[1], as.shape[2], as.shape[3]};
  const double least = hope * sampled_bits(static_cast<const float*>(array.values), values, extent, how, coder);
  return least * static_cast<double>(values) <= 8.0 * static_cast<double>(nbytes);
}

// If there is a run beside the coder's bytes for so many values, or for fewer, a chunk that keeps every bit may be
// smaller.
constexpr std::size_t many = 32;

}  // namespace
}  // namespace codec

std::vector<std::byte> encode(const Array& array, double bound, Coder coder, Predictor predictor, Bytes tables,
                              const Marks& marks) {
  codec::check_marks(array, marks);
  const Marks kept = codec::needed_marks(array, bound, marks);
  std::vector<std::byte> chunk = codec::encode_once(array, bound, coder, predictor, tables, kept);
  if (kept.values.empty() && kept.limits.empty()) return chunk;
  const Chunk said = describe_codec(chunk);
  std::size_t values = 1;
  for (const std::uint32_t length : said.shape) values *= length;
  if (said.outliers * codec::many <= values || !codec::may_be_exact_in(array, said, coder, chunk.size())) return chunk;
  std::vector<std::byte> exact = codec::encode_once(array, 0, coder, predictor, tables, {}, chunk.size());
  return !exact.empty() && exact.size() < chunk.size() ? exact : chunk;
}

std::vector<std::byte> train(const std::vector<Array>& arrays, double bound, Predictor predictor, const Marks& marks) {
  for (const Array& array : arrays) codec::check_marks(array, marks);
  const Marks kept = arrays.empty() ? Marks{} : codec::needed_marks(arrays[0], bound, marks);
  std::vector<codec::Draft> drafts;
  for (const Array& array : arrays)
    std::ranges::move(codec::Drafts(array, bound, predictor, Coder::dense, kept).all(), std::back_inserter(drafts));
  std::vector<const codec::Draft*> all;
  for (const codec::Draft& tile : drafts)
    if (!tile.residuals.empty()) all.push_back(&tile);
  return codec::pack_tables(codec::trained(all, 8));
}

std::vector<std::uint32_t> client_data(Bytes tables) {
  std::vector<std::uint32_t> values(2 + (tables.size() + 3) / 4);
  values[0] = 1;
  values[1] = static_cast<std::uint32_t>(tables.size());
  if (!tables.empty()) std::memcpy(values.data() + 2, tables.data(), tables.size());
  return values;
}

}  // namespace solar
