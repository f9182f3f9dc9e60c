#include "blosc_chunk.hpp"

#include <algorithm>
#include <bit>

#include "copy.hpp"
#include "solar/decode.hpp"

namespace solar::blosc {
namespace {

constexpr unsigned kBlosc1 = 2;  // format versions
constexpr unsigned kAlpha = 3;
constexpr unsigned kNewest = 5;

enum Flags : unsigned { kShuffle = 1, kCopied = 2, kBitShuffle = 4, kDelta = 8, kUnsplit = 16 };
enum Blosc2Flags : unsigned { kDictionary = 1, kLazy = 8 };
enum Filters : unsigned { kNoFilter, kByteShuffleFilter, kBitShuffleFilter, kDeltaFilter, kTruncatedFilter };
enum Codecs : unsigned { kBloscLz, kLz4, kSnappy, kZlib, kZstd };

std::size_t decompress_stream(unsigned codec, Bytes in, MutableBytes out) {
  switch (codec) {
    case kBloscLz: return decode_blosclz(in, out);
    case kLz4: return decode_lz4_block(in, out);
    case kSnappy: unsupported("the compressor snappy");
    case kZlib: return inflate_zlib(in, out);
    case kZstd: return decode_zstd(in, out);
    default: unsupported("compressor " + std::to_string(codec));
  }
}

void repeat(Bytes value, MutableBytes out) {
  if (value.empty() || out.size() % value.size() != 0) damaged("a repeated value does not fill its block");
  for (std::size_t i = 0; i < out.size(); i += value.size()) std::memcpy(out.data() + i, value.data(), value.size());
}

}  // namespace

void unsupported(const std::string& what) { throw Error(Kind::codec, what + " has no native decoder"); }

Chunk::Chunk(Bytes in) {
  Cursor cursor(in, Kind::codec, "a blosc chunk");
  version_ = cursor.u8();
  if (version_ < kBlosc1 || version_ > kNewest) unsupported("blosc format version " + std::to_string(version_));
  cursor.skip(1);
  const unsigned flags = cursor.u8();
  itemsize_ = cursor.u8();
  nbytes_ = cursor.u32();
  block_nbytes_ = cursor.u32();
  const std::size_t stored = cursor.u32();
  if (itemsize_ == 0 || (block_nbytes_ == 0 && nbytes_ > 0)) damaged("a blosc header has a size of zero");
  block_nbytes_ = std::min(block_nbytes_, nbytes_);
  codec_ = flags >> 5;
  copied_ = (flags & kCopied) != 0;
  split_ = (flags & kUnsplit) == 0;
  if ((flags & kShuffle) != 0 && (flags & kBitShuffle) != 0) {
    read_filters(cursor);
  } else {
    read_old_filters(flags);
  }
  header_nbytes_ = cursor.position();
  if (stored < header_nbytes_ || stored > in.size()) damaged("a blosc chunk is cut short");
  stored_ = in.first(stored);
  unspent_ = stored;
}

Chunk Chunk::of_special(unsigned special, std::size_t nbytes, std::size_t block_nbytes, std::size_t itemsize) {
  Chunk chunk;
  chunk.special_ = static_cast<Special>(special);
  if (special == 0 || special > 4 || chunk.special_ == Special::value)
    damaged("a blosc frame has an unknown special chunk");
  chunk.nbytes_ = nbytes;
  chunk.block_nbytes_ = std::min(block_nbytes, nbytes);
  chunk.itemsize_ = itemsize;
  if (chunk.block_nbytes_ == 0 && nbytes > 0) damaged("a blosc header has a size of zero");
  return chunk;
}

void Chunk::read_old_filters(unsigned flags) {
  if ((flags & kShuffle) != 0 && itemsize_ > 1) steps_[step_count_++] = {false, itemsize_};
  if ((flags & kBitShuffle) != 0) steps_[step_count_++] = {true, itemsize_};
  delta_ = (flags & kDelta) != 0;
}

// Six slots: the codes, two bytes of the compressor, the parameters, two bytes of flags.
void Chunk::read_filters(Cursor& in) {
  const Bytes codes = in.take(8);
  const Bytes parameters = in.take(6);
  in.skip(1);
  const unsigned flags = in.u8();
  if ((flags & kDictionary) != 0) unsupported("blosc with a dictionary");
  if ((flags & kLazy) != 0) unsupported("a lazy blosc chunk");
  const unsigned special = flags >> 4 & 7;
  if (special > 4) unsupported("blosc special value " + std::to_string(special));
  special_ = static_cast<Special>(special);
  for (std::size_t i = version_ == kAlpha ? 5 : 6; i-- > 0;) {
    const auto code = std::to_integer<unsigned>(codes[i]);
    const auto parameter = std::to_integer<std::size_t>(parameters[i]);
    if (code == kNoFilter || code == kTruncatedFilter) continue;
    if (code > kTruncatedFilter) unsupported("blosc filter " + std::to_string(code));
    // The reference of a delta is the chunk's first block as it is then: only finished blocks are at hand here.
    if (delta_) unsupported("blosc's delta after another filter");
    if (code == kDeltaFilter) delta_ = true;
    if (code == kByteShuffleFilter) steps_[step_count_++] = {false, parameter > 0 ? parameter : itemsize_};
    if (code == kBitShuffleFilter) steps_[step_count_++] = {true, itemsize_};
  }
}

std::size_t Chunk::blocks() const { return nbytes_ == 0 ? 0 : (nbytes_ - 1) / block_nbytes_ + 1; }

std::size_t Chunk::space_nbytes() const { return std::min<std::size_t>(step_count_, 2) * block_nbytes_; }

void Chunk::decode(MutableBytes out, Scratch& scratch, Wanted* wanted, std::size_t at) {
  if (wanted != nullptr && !wanted->any(at, at + nbytes_)) return;
  if (is_one_value()) {
    if (wanted != nullptr) wanted->nbytes += nbytes_;
    return fill(out);
  }
  if (copied_ && wanted == nullptr) {  // all blocks in one go
    Cursor cursor(stored_, Kind::codec, "a blosc chunk");
    cursor.skip(header_nbytes_);
    copy_plain(out.data(), cursor.take(nbytes_).data(), nbytes_);
    return;
  }
  scratch.c.resize(std::max(scratch.c.size(), space_nbytes()));
  const Bytes first = out.first(block_nbytes_);
  for (std::size_t block = 0; block < blocks(); ++block) {
    const std::size_t begin = block * block_nbytes_, nbytes = std::min(block_nbytes_, nbytes_ - begin);
    const bool is_reference = block == 0 && refers_to_first();
    if (!is_reference && !is_wanted(wanted, at + begin, at + begin + nbytes)) continue;
    decode_block(block, out.subspan(begin, nbytes), first, scratch.c);
    if (wanted != nullptr) wanted->nbytes += nbytes;
  }
}

void Chunk::decode_block(std::size_t block, MutableBytes out, Bytes first, MutableBytes space) {
  if (is_one_value()) return fill(out);
  if (copied_) {
    Cursor cursor(stored_, Kind::codec, "a blosc chunk");
    cursor.skip(header_nbytes_ + block * block_nbytes_);
    copy_plain(out.data(), cursor.take(out.size()).data(), out.size());
    return;
  }
  // From one half of the space to the other, and at last to `out`.
  const auto target = [&](std::size_t step) {
    return step == step_count_ ? out : space.subspan(step % 2 * block_nbytes_, out.size());
  };
  decode_streams(block, target(0));
  for (std::size_t step = 0; step < step_count_; ++step) undo(steps_[step], target(step), target(step + 1));
  if (delta_) undo_delta(block == 0, out, first);
}

// Blocks of many items are split: the bytes of each plane of a shuffle are a stream.
std::size_t Chunk::streams(std::size_t block_nbytes) const {
  if (!split_ || block_nbytes < block_nbytes_) return 1;
  if (version_ == kBlosc1 && (itemsize_ > 16 || block_nbytes / itemsize_ < 128)) return 1;
  return itemsize_;
}

void Chunk::decode_streams(std::size_t block, MutableBytes out) {
  Cursor cursor(stored_, Kind::codec, "a blosc chunk");
  cursor.skip(header_nbytes_ + 4 * block);
  const std::size_t start = cursor.u32();
  Cursor in(stored_, Kind::codec, "a blosc block");
  in.skip(start);
  const std::size_t count = streams(out.size());
  const std::size_t part = out.size() / count;
  if (part * count != out.size()) damaged("a blosc block cannot be split as it says");
  for (std::size_t i = 0; i < count; ++i) decode_stream(in, out.subspan(i * part, part));
  if (in.position() - start > unspent_) damaged("blosc blocks overlap");
  unspent_ -= in.position() - start;
}

void Chunk::decode_stream(Cursor& in, MutableBytes out) {
  const auto nbytes = static_cast<std::int32_t>(in.u32());
  if (nbytes <= 0 && version_ == kBlosc1) damaged("a blosc stream has no bytes");
  if (nbytes == 0) {
    std::ranges::fill(out, std::byte{0});
  } else if (nbytes < 0) {
    // A run of one byte; the size carries it.
    if ((in.u8() & 1) == 0 || nbytes < -255) damaged("a blosc stream has an unknown encoding");
    std::ranges::fill(out, static_cast<std::byte>(-nbytes));
  } else {
    const Bytes stored = in.take(static_cast<std::size_t>(nbytes));
    if (stored.size() > unspent_) damaged("blosc blocks overlap");
    if (stored.size() == out.size()) {
      std::ranges::copy(stored, out.begin());
    } else if (decompress_stream(codec_, stored, out) != out.size()) {
      damaged("a blosc stream is shorter than its block");
    }
  }
}

void Chunk::undo(const Step& step, Bytes in, MutableBytes out) const {
  if (!step.bits) return unshuffle(in, out, step.itemsize);
  // Blosc 1 leaves blocks alone that are no whole groups of eight items; blosc 2 leaves only the items behind the last.
  const std::size_t items = in.size() / step.itemsize;
  const std::size_t done = version_ == kBlosc1 && items % 8 != 0 ? 0 : items / 8 * 8 * step.itemsize;
  bitunshuffle(in.first(done), out.first(done), step.itemsize);
  std::ranges::copy(in.subspan(done), out.begin() + static_cast<std::ptrdiff_t>(done));
}

// The first block is xored with itself one item before, the others with the first.
void Chunk::undo_delta(bool is_first, MutableBytes out, Bytes first) const {
  const bool plain = itemsize_ <= 8 && std::has_single_bit(itemsize_);
  const std::size_t width = plain ? itemsize_ : itemsize_ % 8 == 0 ? 8 : 1;
  const std::size_t whole = out.size() / width * width;
  if (is_first) {
    for (std::size_t i = width; i < whole; ++i) out[i] ^= out[i - width];
  } else {
    for (std::size_t i = 0; i < whole; ++i) out[i] ^= first[i];
  }
}

void Chunk::fill(MutableBytes out) const {
  if (special_ == Special::value) {
    Cursor cursor(stored_, Kind::codec, "a blosc chunk");
    cursor.skip(header_nbytes_);
    return repeat(cursor.take(itemsize_), out);
  }
  std::ranges::fill(out, std::byte{0});
  if (special_ != Special::nans) return;
  const std::uint32_t single = 0x7FC00000;
  const std::uint64_t twice = 0x7FF8000000000000;
  if (itemsize_ == 4) return repeat(std::as_bytes(std::span(&single, 1)), out);
  if (itemsize_ == 8) return repeat(std::as_bytes(std::span(&twice, 1)), out);
  unsupported("a blosc chunk of NaNs of " + std::to_string(itemsize_) + " bytes");
}

}  // namespace solar::blosc

namespace solar {

std::size_t decode_blosc(Bytes in, MutableBytes out, Scratch& scratch, Wanted* wanted) {
  blosc::Chunk chunk(in);
  if (chunk.nbytes() > out.size()) damaged("the output is larger than its space");
  if (wanted != nullptr) wanted->nbytes = 0;
  chunk.decode(out.first(chunk.nbytes()), scratch, wanted);
  return chunk.nbytes();
}

}  // namespace solar
