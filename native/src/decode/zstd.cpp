// zstd frames and blocks (RFC 8878, 3.1.1). The entropy coders and the sequences are in the files beside this one.
#include <algorithm>
#include <memory>

#include "solar/decode.hpp"
#include "zstd_bits.hpp"
#include "zstd_checksum.hpp"
#include "zstd_huffman.hpp"
#include "zstd_sequences.hpp"

namespace solar {
namespace zstd {
namespace {

constexpr std::uint32_t kMagic = 0xFD2FB528;
constexpr std::uint32_t kSkippable = 0x184D2A50;  // and the fifteen numbers after it
constexpr std::size_t kBlockMax = 128 * 1024;

// What a thread keeps between calls: only memory, every frame begins anew.
struct Workspace {
  Huffman huffman;
  SequenceTables tables;
  std::array<std::byte, kBlockMax + copy_slack> literals;
};

Workspace& workspace() {
  thread_local const std::unique_ptr<Workspace> mine = std::make_unique<Workspace>();
  return *mine;
}

enum class LiteralKind { raw, repeated, coded, coded_as_before };

struct LiteralHeader {
  LiteralKind kind;
  std::size_t nbytes;  // decoded
  std::size_t stored;
  bool four_streams;
};

LiteralHeader read_literal_header(Cursor& in) {
  const std::uint32_t first = in.u8();
  const auto kind = static_cast<LiteralKind>(first & 3);
  const unsigned format = first >> 2 & 3;
  if (kind == LiteralKind::raw || kind == LiteralKind::repeated) {
    const unsigned more = format == 1 ? 1 : format == 3 ? 2 : 0;
    const std::size_t bits = (first | in.uint(more) << 8) >> (more > 0 ? 4 : 3);
    return {kind, bits, kind == LiteralKind::raw ? bits : 1, false};
  }
  const unsigned width = format < 2 ? 10 : format == 2 ? 14 : 18;
  const std::uint64_t bits = (first | in.uint(format < 2 ? 2 : format + 1) << 8) >> 4;
  const std::uint64_t mask = (1u << width) - 1;
  return {kind, bits & mask, bits >> width & mask, format != 0};
}

// One compressed block, appended to `out`.
class Block {
 public:
  Block(Workspace& space, Bytes in, Output& out) : space_(space), cursor_(in, Kind::codec, "a block"), out_(out) {}

  void decode() {
    const LiteralHeader header = read_literal_header(cursor_);
    if (header.nbytes > kBlockMax) damaged("a block has more literals than a block may have");
    const Bytes stored = cursor_.take(header.stored);
    const Bytes sequences = cursor_.take(cursor_.left());
    const bool only_literals = sequences.size() == 1 && sequences[0] == std::byte{0};
    if (only_literals && header.nbytes <= out_.room()) {
      decode_literals(header, stored, {out_.at, header.nbytes});
      out_.at += header.nbytes;
    } else {
      decode_sequences(sequences, literals(header, stored, sequences), space_.tables, out_);
    }
  }

 private:
  Literals literals(const LiteralHeader& header, Bytes stored, Bytes sequences) {
    const std::byte* at = space_.literals.data();
    if (header.kind == LiteralKind::raw) {
      at = stored.data();  // the sequences lie behind them: wide copies may read there
      return {at, at + stored.size(), sequences.data() + sequences.size()};
    }
    decode_literals(header, stored, {space_.literals.data(), header.nbytes});
    return {at, at + header.nbytes, at + space_.literals.size()};
  }

  void decode_literals(const LiteralHeader& header, Bytes stored, MutableBytes to) {
    switch (header.kind) {
      case LiteralKind::raw: std::ranges::copy(stored, to.begin()); return;
      case LiteralKind::repeated: std::ranges::fill(to, stored[0]); return;
      case LiteralKind::coded: space_.huffman.read(stored); break;
      case LiteralKind::coded_as_before:
        if (space_.huffman.empty()) damaged("the first Huffman table refers to one before");
        break;
    }
    header.four_streams ? space_.huffman.decode_four(stored, to) : space_.huffman.decode_one(stored, to);
  }

  Workspace& space_;
  Cursor cursor_;
  Output& out_;
};

struct FrameHeader {
  bool checksum = false;
  bool sized = false;
  std::uint64_t nbytes = 0;
};

FrameHeader read_frame_header(Cursor& in) {
  const unsigned flags = in.u8();
  const bool single_segment = (flags & 0x20) != 0;
  if ((flags & 0x08) != 0) damaged("a reserved bit of the frame header is set");
  if (!single_segment) in.skip(1);  // the window: here history is all of the output
  static constexpr std::size_t kDictionaryWidths[] = {0, 1, 2, 4};
  if (in.uint(kDictionaryWidths[flags & 3]) != 0) damaged("the frame needs a dictionary");
  const unsigned format = flags >> 6;
  const std::size_t width = format > 0 ? std::size_t{1} << format : single_segment ? 1 : 0;
  FrameHeader header;
  header.checksum = (flags & 0x04) != 0;
  header.sized = width > 0;
  header.nbytes = in.uint(width) + (width == 2 ? 256 : 0);
  return header;
}

void decode_block(Workspace& space, Cursor& in, unsigned type, std::size_t nbytes, Output& out) {
  if (nbytes > kBlockMax) damaged("a block is larger than a block may be");
  if (type == 0) {
    out.append(in.take(nbytes).data(), nbytes);
  } else if (type == 1) {
    if (nbytes > out.room()) damaged("the output is larger than its space");
    const auto value = static_cast<std::byte>(in.u8());
    std::fill_n(out.at, nbytes, value);
    out.at += nbytes;
  } else if (type == 2) {
    const std::byte* const begin = out.at;
    Block(space, in.take(nbytes), out).decode();
    if (static_cast<std::size_t>(out.at - begin) > kBlockMax) damaged("a block is larger than a block may be");
  } else {
    damaged("a block has the reserved type");
  }
}

// Appends one frame's content. The bytes before it in `out` are not its history.
void decode_frame(Workspace& space, Cursor& in, Output& out) {
  const FrameHeader header = read_frame_header(in);
  if (header.sized && header.nbytes > out.room()) damaged("the output is larger than its space");
  out.begin = out.at;
  space.huffman.clear();
  space.tables.begin_frame();
  for (bool last = false; !last;) {
    const auto block = static_cast<std::uint32_t>(in.uint(3));
    last = (block & 1) != 0;
    decode_block(space, in, block >> 1 & 3, block >> 3, out);
  }
  const Bytes content(out.begin, out.at);
  if (header.sized && header.nbytes != content.size()) damaged("a frame has not the size it says");
  if (header.checksum && in.u32() != static_cast<std::uint32_t>(xxhash64(content))) damaged("the checksum is wrong");
}

}  // namespace
}  // namespace zstd

std::size_t decode_zstd(Bytes in, MutableBytes out) {
  Cursor cursor(in, Kind::codec, "a frame");
  zstd::Output output{out.data(), out.data(), out.data() + out.size()};
  while (cursor.left() > 0) {
    const std::uint32_t magic = cursor.u32();
    if (magic == zstd::kMagic) {
      zstd::decode_frame(zstd::workspace(), cursor, output);
    } else if (magic >> 4 == zstd::kSkippable >> 4) {
      cursor.skip(cursor.u32());
    } else {
      damaged("this is no frame");
    }
  }
  return static_cast<std::size_t>(output.at - out.data());
}

}  // namespace solar
