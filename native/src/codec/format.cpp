#include "codec/format.hpp"

#include <algorithm>
#include <string>

#include "decode/zstd_checksum.hpp"

namespace solar::codec {
namespace {

// The numbers' codes in a chunk; a code is never given to another number.
constexpr struct {
  std::uint8_t code;
  Number number;
  std::uint8_t itemsize;
} numbers[] = {{1, Number::float32, 4}, {2, Number::float64, 8}, {3, Number::int8, 1},  {4, Number::uint8, 1},
               {5, Number::int16, 2},   {6, Number::uint16, 2},  {7, Number::int32, 4}, {8, Number::uint32, 4},
               {9, Number::int64, 8},   {10, Number::uint64, 8}};

std::size_t parts(std::size_t length, std::size_t part) { return (length + part - 1) / part; }

void check_kind(const Header& header) {
  if (header.flags & 0xffff & ~std::uint32_t{tables_inline}) damaged("it asks for what this solar does not know");
  const bool fits = header.quanta == Quanta::real      ? is_real(header.number)
                    : header.quanta == Quanta::integer ? !is_real(header.number)
                                                       : header.number == Number::float32;
  if (!fits) damaged("its quanta are not for its type");
  if (header.tile.z == 0 || header.tile.y == 0 || header.tile.x == 0 || header.tile.values() > most_values)
    damaged("its tiles have no possible size");
  if (((header.flags & tables_inline) != 0) != (header.tables_nbytes != 0)) damaged("its tables contradict its flags");
}

// Bytes of the array; at most `most`.
std::size_t size_of(const Header& header, std::size_t most) {
  std::size_t nbytes = itemsize_of(header.number);
  for (const std::uint32_t length : header.shape)
    if (length == 0) return 0;
  for (const std::uint32_t length : header.shape)
    if (__builtin_mul_overflow(nbytes, std::size_t{length}, &nbytes) || nbytes > most)
      throw Error(Kind::codec, "the chunk holds more than the " + std::to_string(most) + " bytes expected");
  return nbytes;
}

}  // namespace

Header parse_header(Bytes chunk) {
  Cursor at(chunk, Kind::codec, "the chunk");
  if (at.u32() != magic)
    throw Error(Kind::codec, "the chunk does not begin with SLC1: it is damaged or of another filter");
  const std::uint8_t major = at.u8();
  if (major > major_version || major == 0)
    throw Error(Kind::codec, "the chunk is of version " + std::to_string(major) + ", this solar reads up to version " +
                                 std::to_string(major_version));
  at.skip(1);  // minor
  Header header;
  const std::uint8_t code = at.u8();
  const auto* found = std::ranges::find(numbers, code, [](const auto& entry) { return entry.code; });
  if (found == std::end(numbers)) damaged("its type is unknown");
  header.number = found->number;
  const std::uint8_t quanta = at.u8();
  if (quanta > 2) damaged("its quanta are unknown");
  header.quanta = static_cast<Quanta>(quanta);
  header.flags = at.u32();
  header.tables_nbytes = at.u32();
  for (std::uint32_t& length : header.shape) length = at.u32();
  header.tile = {at.u16(), 0, 0};
  header.tile.y = at.u16();
  header.tile.x = at.u16();
  at.skip(2);
  header.bound = std::bit_cast<double>(at.u64());
  header.step = at.u64();
  header.base = at.u64();
  header.tables = at.u64();
  header.nbytes = at.u32();
  at.skip(4);
  return header;
}

void damaged(const char* what) { throw Error(Kind::codec, std::string("the chunk is damaged: ") + what); }

std::size_t itemsize_of(Number number) {
  const auto* found = std::ranges::find(numbers, number, [](const auto& entry) { return entry.number; });
  if (found == std::end(numbers)) throw Error(Kind::codec, "neither booleans nor float16 can be encoded");
  return found->itemsize;
}

void store(const Header& header, std::byte* out) {
  const auto put = [&out]<class T>(T value) {
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  };
  const auto* found = std::ranges::find(numbers, header.number, [](const auto& entry) { return entry.number; });
  put(magic);
  put(major_version);
  put(minor_version);
  put(found->code);
  put(static_cast<std::uint8_t>(header.quanta));
  put(header.flags);
  put(header.tables_nbytes);
  for (const std::uint32_t length : header.shape) put(length);
  for (const std::uint32_t length : {header.tile.z, header.tile.y, header.tile.x})
    put(static_cast<std::uint16_t>(length));
  put(std::uint16_t{0});
  put(header.bound);
  put(header.step);
  put(header.base);
  put(header.tables);
  put(header.nbytes);
  put(std::uint32_t{0});
}

void store(const Entry& entry, std::byte* out) {
  std::memcpy(out, &entry.offset, 4);
  out[4] = static_cast<std::byte>(entry.predictor);
  out[5] = static_cast<std::byte>(entry.coder);
  std::memcpy(out + 6, &entry.runs, 2);
  std::memcpy(out + 8, &entry.origin, 4);
}

Entry Checked::entry(std::size_t tile) const {
  const std::byte* at = entries + tile * entry_nbytes;
  return {load_le<std::uint32_t>(at), std::to_integer<std::uint8_t>(at[4]), static_cast<TileCoder>(at[5]),
          load_le<std::uint16_t>(at + 6), load_le<std::int32_t>(at + 8)};
}

Bytes Checked::bytes_of(std::size_t tile) const {
  const std::size_t begin = 4 * std::size_t{entry(tile).offset};
  const std::size_t end = tile + 1 < tiles ? 4 * std::size_t{entry(tile + 1).offset} : all.size() - checksum_nbytes;
  return all.subspan(begin, end - begin);
}

Checked check(Bytes chunk, std::size_t out_nbytes) {
  if (chunk.size() < header_nbytes + checksum_nbytes) throw Error(Kind::codec, "the chunk is cut short");
  const Header header = parse_header(chunk);
  if (header.nbytes != chunk.size())
    throw Error(Kind::codec, "the chunk has " + std::to_string(chunk.size()) + " bytes where it says " +
                                 std::to_string(header.nbytes) + ": it is cut short or damaged");
  const Bytes summed = chunk.first(chunk.size() - checksum_nbytes);
  if (load_le<std::uint64_t>(chunk.data() + summed.size()) != zstd::xxhash64(summed)) damaged("its checksum is wrong");
  check_kind(header);
  const std::size_t nbytes = size_of(header, out_nbytes);
  if (out_nbytes != any_size && nbytes != out_nbytes)
    throw Error(Kind::codec, "the chunk holds " + std::to_string(nbytes) + " bytes where " +
                                 std::to_string(out_nbytes) + " are expected");
  const std::size_t left = summed.size() - header_nbytes;
  if (header.tables_nbytes % 4 || header.tables_nbytes > left) damaged("its tables do not fit");
  const std::size_t tiles = nbytes == 0 ? 0 : Grid(header).tiles();
  if (tiles > (left - header.tables_nbytes) / entry_nbytes) damaged("its directory does not fit");
  const Checked checked{header, chunk.subspan(header_nbytes, header.tables_nbytes),
                        chunk.data() + header_nbytes + header.tables_nbytes, tiles, chunk};
  std::size_t last = header_nbytes + header.tables_nbytes + tiles * entry_nbytes;
  for (std::size_t i = 0; i < tiles; ++i) {
    const std::size_t begin = 4 * std::size_t{checked.entry(i).offset};
    if (begin < last || begin > summed.size()) damaged("its tiles are not in order");
    last = begin;
  }
  return checked;
}

Grid::Grid(const Header& header) : tile(header.tile) {
  std::ranges::copy(header.shape, shape);
  n[0] = shape[0];
  n[1] = parts(shape[1], tile.z);
  n[2] = parts(shape[2], tile.y);
  n[3] = parts(shape[3], tile.x);
}

Grid::PlacedTile Grid::place(std::size_t index) const {
  const std::size_t x = index % n[3] * tile.x, y = index / n[3] % n[2] * tile.y,
                    z = index / (n[3] * n[2]) % n[1] * tile.z;
  const std::size_t w = index / (n[3] * n[2] * n[1]);
  const auto cut = [](std::size_t length, std::size_t from, std::size_t most) {
    return static_cast<std::uint32_t>(std::min(length - from, most));
  };
  return {{cut(shape[1], z, tile.z), cut(shape[2], y, tile.y), cut(shape[3], x, tile.x)},
          ((w * shape[1] + z) * shape[2] + y) * shape[3] + x};
}

}  // namespace solar::codec
