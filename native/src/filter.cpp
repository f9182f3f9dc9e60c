// The pipeline: a table of filters, and the loop that undoes them from the last to the first.
#include "solar/filter.hpp"

#include <algorithm>
#include <iterator>
#include <span>

#include "decode/checksum.hpp"
#include "decode/integers.hpp"
#include "solar/codec.hpp"
#include "solar/decode.hpp"

namespace solar {
namespace {

// A filter that is decoded natively is added here, and in names, problem, bound if it keeps the size, and undo.
enum Id : std::uint16_t {
  deflate = 1,
  shuffle = 2,
  fletcher = 3,
  nbit = 5,
  scaleoffset = 6,
  lzf = 32000,
  blosc = 32001,
  lz4 = 32004,
  bitshuffle = 32008,
  zstd = 32015,
  blosc2 = 32026,
};

constexpr std::size_t most_filters = 32;  // as many as a chunk's mask has bits

// Names for messages; those without a decoder are here so that the message can say more than a number.
struct Name {
  std::uint16_t id;
  const char* name;
};
constexpr Name names[] = {{deflate, "deflate"},
             {shuffle, "shuffle"},
             {fletcher, "fletcher32"},
             {4, "szip"},
             {nbit, "nbit"},
             {scaleoffset, "scaleoffset"},
             {305, "lzo"},
             {307, "bzip2"},
             {codec_filter, "solar"},
             {lzf, "lzf"},
             {blosc, "blosc"},
             {lz4, "lz4"},
             {bitshuffle, "bitshuffle"},
             {32013, "zfp"},
             {zstd, "zstd"},
             {32017, "sz"},
             {32018, "fcidecomp"},
             {32019, "jpeg"},
             {32024, "sz3"},
             {blosc2, "blosc2"},
             {32028, "sperr"},
             {gzip_filter, "gzip"},
             {crc32c_filter, "crc32c"},
             {transpose_filter, "transpose"},
             {kept_filter, "solar, as stored"},
             {cast_filter, "solar, as float32"}};

std::string title(const Filter& filter) {
  std::string text = "filter " + std::to_string(filter.id);
  const std::string name = Pipeline::name_of(filter.id);
  return name.empty() ? text : text + " (" + name + ")";
}

std::uint32_t value(const Filter& filter, std::size_t i) { return i < filter.values.size() ? filter.values[i] : 0; }

// The types of our codec's numbers, by their codes (io/FORMAT.md).
constexpr const char* types[] = {"",       "float32", "float64", "int8",  "uint8", "int16",
                                 "uint16", "int32",   "uint32",  "int64", "uint64"};
constexpr std::size_t type_at = 6;  // in a chunk

// The code that the filter's values tell behind the tables; 0: they tell none.
std::uint32_t told_type(const Filter& filter) {
  if (filter.values.size() < 2 || filter.values[0] != 1) return 0;
  const std::size_t at = 2 + (std::size_t{filter.values[1]} + 3) / 4;
  return value(filter, at) == 1 ? value(filter, at + 1) : 0;
}

// Bytes of another type would fill the chunk as well, and be wrong numbers. `chunk` was decoded: it has a type.
void check_told(Bytes chunk, std::uint32_t told) {
  const std::uint32_t found = std::to_integer<std::uint32_t>(chunk[type_at]);
  if (told == 0 || told == found || told >= std::size(types) || found >= std::size(types)) return;
  throw Error(Kind::codec, std::string("the chunk holds ") + types[found] + " in a data set of " + types[told]);
}

constexpr const char* no_decoder = "has no native decoder";

// Why `filter` is left to libhdf5; empty: it is not. Where libhdf5 would refuse the parameters, it shall say so itself.
std::string problem(const Filter& filter) {
  switch (filter.id) {
    case deflate:
      return filter.values.size() != 1 || value(filter, 0) > 9 ? "has no valid level" : "";
    case shuffle:
      return filter.values.size() != 1 || value(filter, 0) == 0 ? "has no valid item size" : "";
    case scaleoffset:
      return scaleoffset_problem(filter);
    case nbit:
      return nbit_problem(filter);
    case transpose_filter:
      return transpose_problem(filter);
    case bitshuffle: {
      const std::uint32_t compressor = value(filter, 4);
      if (filter.values.size() < 3 || value(filter, 2) == 0 || value(filter, 3) % 8) return "has no valid block size";
      return compressor != 0 && compressor != 2 && compressor != 3 ? "has a compressor without native decoder" : "";
    }
    case blosc:
    case blosc2: {
      const std::uint32_t compressor = value(filter, 6);
      return compressor == 3 || compressor > 5 ? "has a compressor without native decoder" : "";
    }
    case fletcher:
    case lzf:
    case lz4:
    case zstd:
    case codec_filter:
    case gzip_filter:
    case crc32c_filter:
      return {};
    default:
      return no_decoder;
  }
}

// Filters that leave the bytes as they are, or only shorten them: undone without a copy.
bool is_view(const Filter& filter) {
  return filter.id == fletcher || filter.id == crc32c_filter || (filter.id == shuffle && value(filter, 0) <= 1);
}

// An upper bound of the bytes before `active[0]` and its followers were applied, given that after undoing all of them
// there are `nbytes`. Exact for filters of fixed size; what a compressor made of a chunk is at most twice the chunk.
std::size_t bound(std::span<const Filter* const> before, std::size_t nbytes) {
  std::size_t bytes = nbytes;
  for (const Filter* filter : before) {
    if (filter->id == fletcher || filter->id == crc32c_filter) bytes += 4;
    else if (filter->id != shuffle && filter->id != transpose_filter) return 2 * nbytes + 65536;
  }
  return bytes;
}

std::size_t undo(const Filter& filter, Bytes in, MutableBytes out, Scratch& scratch, Wanted* wanted) {
  switch (filter.id) {
    case deflate:
      return inflate_zlib(in, out);
    case gzip_filter:
      return inflate_gzip(in, out);
    case shuffle:
      if (in.size() > out.size()) throw Error(Kind::codec, "more than expected");
      unshuffle(in, out, value(filter, 0));
      return in.size();
    case transpose_filter:
      return untranspose(in, out, filter);
    case nbit:
      return decode_nbit(in, out, filter);
    case scaleoffset:
      return decode_scaleoffset(in, out, filter);
    case lzf:
      return decode_lzf(in, out);
    case blosc: return decode_blosc(in, out, scratch, wanted);
    case lz4:
      return decode_h5lz4(in, out);
    case bitshuffle:
      return decode_bitshuffle(in, out, filter, scratch);
    case zstd:
      return decode_zstd(in, out);
    case codec_filter:
      decode_codec(in, out, filter, scratch, wanted);
      check_told(in, told_type(filter));
      return out.size();
    case kept_filter:
      return keep_codec(in, out, filter);
    case cast_filter:
      if (filter.values.empty()) throw Error(Kind::codec, "is not told what its chunks hold");
      decode_codec_cast(in, out, filter, scratch, wanted);
      check_told(in, filter.values.back());
      return out.size();
    case blosc2: return decode_blosc2(in, out, scratch, wanted);
    default:
      throw Error(Kind::codec, no_decoder);
  }
}

// Runs `step`; an error of it names the filter.
template <class Step>
auto named(const Filter& filter, Step step) {
  try {
    return step();
  } catch (const Error& error) {
    throw Error(error.kind(), title(filter) + ": " + error.what(), error.code());
  }
}

MutableBytes at_least(std::vector<std::byte>& memory, std::size_t nbytes) {
  if (memory.size() < nbytes) memory.resize(nbytes);
  return MutableBytes(memory).first(nbytes);
}

}  // namespace

Pipeline::Pipeline(std::vector<Filter> filters, std::size_t itemsize, std::size_t nbytes)
    : filters_(std::move(filters)), itemsize_(itemsize), nbytes_(nbytes) {
  if (filters_.size() == 1 && (filters_.front().id == kept_filter || filters_.front().id == cast_filter))
    return;  // which no file may ask for
  if (const auto reason = unsupported(filters_, itemsize_); !reason.empty()) throw Error(Kind::codec, reason);
}

bool Pipeline::decodes_parts() const noexcept {
  if (filters_.size() != 1) return false;
  const std::uint16_t id = filters_[0].id;
  return id == codec_filter || id == cast_filter || id == blosc || id == blosc2;
}

void Pipeline::decode(Bytes stored, std::uint32_t mask, MutableBytes out, Scratch& scratch, Wanted* wanted) const {
  if (wanted != nullptr) wanted->nbytes = out.size();
  const Filter* active[most_filters];
  std::size_t left = 0;
  for (std::size_t i = 0; i < filters_.size(); ++i)
    if ((mask >> i & 1) == 0) active[left++] = &filters_[i];

  Bytes bytes = stored;
  std::vector<std::byte>* free = &scratch.a;
  while (left > 0) {
    const Filter& filter = *active[--left];
    if (is_view(filter)) {
      if (filter.id == fletcher) bytes = named(filter, [&] { return check_fletcher32(bytes); });
      if (filter.id == crc32c_filter) bytes = named(filter, [&] { return check_crc32c(bytes); });
      continue;
    }
    const MutableBytes room = left == 0 ? out : at_least(*free, bound(std::span(active).first(left), nbytes_));
    bytes = room.first(named(filter, [&] { return undo(filter, bytes, room, scratch, left == 0 ? wanted : nullptr); }));
    free = free == &scratch.a ? &scratch.b : &scratch.a;
  }
  if (bytes.size() != out.size())
    throw Error(Kind::codec, "the chunk has " + std::to_string(bytes.size()) + " bytes where " +
                                 std::to_string(out.size()) + " are expected");
  if (bytes.data() != out.data() && !bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
}

std::string Pipeline::name_of(std::uint16_t id) {
  const auto* found = std::ranges::find(names, id, &Name::id);
  return found == std::end(names) ? "" : found->name;
}

std::string Pipeline::unsupported(const std::vector<Filter>& filters, std::size_t) {
  if (filters.size() > most_filters) return std::to_string(filters.size()) + " filters are more than a chunk may have";
  for (const Filter& filter : filters)
    if (const auto reason = problem(filter); !reason.empty())
      return title(filter) + (filter.id == nbit || filter.id == scaleoffset ? ": " : " ") + reason;
  return {};
}

}  // namespace solar
