#include "blosc_frame.hpp"

#include <algorithm>

#include "blosc_array.hpp"
#include "solar/decode.hpp"

namespace solar::blosc {
namespace {

constexpr char kFrameMagic[] = "b2frame";  // with its zero
constexpr unsigned kVersion = 2;

// The fixed part is MessagePack whose marks never change: fields are found by their place.
enum Places : std::size_t {
  kMagicPlace = 2,
  kHeaderSize = 11,
  kFrameSize = 16,
  kGeneralFlags = 25,
  kFrameType = 26,
  kSize = 30,
  kStoredSize = 39,
  kItemSize = 48,
  kBlockSize = 53,
  kChunkSize = 58,
  kMetalayers = 87,
};

std::uint16_t read_be16(Cursor& in) { return __builtin_bswap16(in.u16()); }
std::uint32_t read_be32(Cursor& in) { return load_be32(in.take(4).data()); }

void expect_in_frame(Cursor& in, unsigned mark) {
  if (in.u8() != mark) damaged("a blosc frame's metalayers are damaged");
}

}  // namespace

Frame::Frame(Bytes in, std::size_t most) {
  if (in.size() < kMetalayers || std::memcmp(in.data() + kMagicPlace, kFrameMagic, sizeof kFrameMagic) != 0) {
    damaged("this is no blosc frame");
  }
  const auto be32 = [&](std::size_t place) { return std::size_t{load_be32(in.data() + place)}; };
  const auto be64 = [&](std::size_t place) { return std::size_t{load_be64(in.data() + place)}; };
  const auto flags = std::to_integer<unsigned>(in[kGeneralFlags]);
  if ((flags & 15) != kVersion) unsupported("blosc frame version " + std::to_string(flags & 15));
  if ((flags >> 4 & 3) != 1) unsupported("a blosc frame without 64-bit offsets");
  if ((flags & 64) != 0) unsupported("a blosc frame with chunks of different sizes");
  if ((std::to_integer<unsigned>(in[kFrameType]) & 15) != 0) unsupported("a blosc frame that is a directory");
  if (be64(kFrameSize) > in.size()) damaged("a blosc frame is cut short");
  Cursor cursor(in.first(be64(kFrameSize)), Kind::codec, "a blosc frame");
  header_ = cursor.take(be32(kHeaderSize));
  chunks_ = cursor.take(be64(kStoredSize));
  nbytes_ = be64(kSize);
  itemsize_ = be32(kItemSize);
  block_nbytes_ = be32(kBlockSize);
  chunk_nbytes_ = be32(kChunkSize);
  unspent_ = chunks_.size();
  if (nbytes_ == 0) return;
  if (itemsize_ == 0 || chunk_nbytes_ == 0) damaged("a blosc frame has a size of zero");
  read_offsets(cursor.take(cursor.left()), most);
}

void Frame::read_offsets(Bytes index, std::size_t most) {
  const std::size_t count = (nbytes_ - 1) / chunk_nbytes_ + 1;
  if (count > most / sizeof(std::int64_t) + 16) damaged("a blosc frame has too many chunks");
  Chunk chunk(index);
  if (chunk.nbytes() != count * sizeof(std::int64_t)) damaged("a blosc frame's index has not the size it must have");
  offsets_.resize(count);
  Scratch scratch;
  chunk.decode(std::as_writable_bytes(std::span(offsets_)), scratch);
}

Chunk Frame::chunk(std::size_t i) {
  const std::int64_t offset = offsets_[i];
  if (offset < 0) {  // no chunk is stored: the highest byte says what it would be
    const std::size_t nbytes = std::min(chunk_nbytes_, nbytes_ - i * chunk_nbytes_);
    return Chunk::of_special(static_cast<unsigned>(offset >> 56 & 127), nbytes, block_nbytes_, itemsize_);
  }
  Cursor cursor(chunks_, Kind::codec, "a blosc frame");
  cursor.skip(static_cast<std::size_t>(offset));
  Chunk chunk(cursor.take(cursor.left()));
  if (chunk.stored_nbytes() > unspent_) damaged("blosc chunks overlap");
  unspent_ -= chunk.stored_nbytes();
  return chunk;
}

Bytes Frame::metalayer(std::string_view name) const {
  Cursor in(header_, Kind::codec, "a blosc frame's header");
  in.skip(kMetalayers);
  expect_in_frame(in, 0x93);
  expect_in_frame(in, 0xcd);
  in.skip(2);
  expect_in_frame(in, 0xde);
  for (unsigned left = read_be16(in); left > 0; --left) {
    const unsigned mark = in.u8();
    if (mark >> 5 != 5) damaged("a blosc frame's metalayers are damaged");
    const Bytes key = in.take(mark & 31);
    expect_in_frame(in, 0xd2);
    const std::size_t place = read_be32(in);
    if (!std::ranges::equal(key, std::as_bytes(std::span(name)))) continue;
    Cursor content(header_, Kind::codec, "a blosc frame's header");
    content.skip(place);
    expect_in_frame(content, 0xc6);
    return content.take(read_be32(content));
  }
  return {};
}

}  // namespace solar::blosc

namespace solar {

std::size_t decode_blosc2(Bytes in, MutableBytes out, Scratch& scratch, Wanted* wanted) {
  blosc::Frame frame(in, out.size());
  if (wanted != nullptr) wanted->nbytes = 0;
  for (const char* name : {"b2nd", "caterva"}) {
    const Bytes shape = frame.metalayer(name);
    if (!shape.empty()) return blosc::decode_array(frame, shape, out, scratch, wanted);
  }
  if (frame.nbytes() > out.size()) damaged("the output is larger than its space");
  std::size_t at = 0;
  for (std::size_t i = 0; i < frame.chunks(); ++i) {
    blosc::Chunk chunk = frame.chunk(i);
    if (chunk.nbytes() != std::min(frame.chunk_nbytes(), frame.nbytes() - at)) {
      damaged("a blosc chunk has not the size it must have");
    }
    chunk.decode(out.subspan(at, chunk.nbytes()), scratch, wanted, at);
    at += chunk.nbytes();
  }
  return at;
}

}  // namespace solar
