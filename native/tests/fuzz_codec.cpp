// Fuzzes the decoder of our codec: never a crash, and the same answer from every path, however it is asked.
//
// The input is a chunk. It is tried as it is, and once more with its length and checksum put right, or nothing would
// ever come behind these two. What decodes also passes the checks for decoders elsewhere, is kept as it is stored, and
// comes as halves or cast to float32, the same by every path. How many decoded, and how many of them held tiles in the
// order of patches, is printed at the end.
#include <algorithm>
#include <bit>
#include <optional>

#include "codec/number.hpp"
#include "fuzz.hpp"
#include "plugin/hdf5.hpp"
#include "plugin/settings.hpp"

extern "C" const void* H5PLget_plugin_info();

namespace {

using solar::Bytes;
using Answer = std::optional<fuzz::Values>;

constexpr std::size_t most_nbytes = 1 << 22;  // more is slow, and no different

// Printed when the process ends, as the fuzzer's own counts are.
struct Count {
  unsigned long long decoded = 0, patched = 0;
  ~Count() { std::fprintf(stderr, "decoded: %llu, patched: %llu\n", decoded, patched); }
} count;

// 0: it says nothing.
std::size_t decoded_nbytes(Bytes chunk) {
  try {
    const solar::Chunk said = solar::describe_codec(chunk);
    const auto type = std::ranges::find(solar::plugin::types(), said.number, &solar::plugin::Type::number);
    std::size_t nbytes = type->nbytes;
    for (const std::uint32_t length : said.shape)
      if (__builtin_mul_overflow(nbytes, std::size_t{length}, &nbytes)) return most_nbytes + 1;
    return nbytes;
  } catch (const solar::Error&) {
    return 0;
  }
}

template <class Decode>
Answer answer(std::size_t nbytes, int before, Decode decode) {
  static solar::Scratch scratch;
  fuzz::Values out(nbytes, static_cast<std::byte>(before));
  try {
    fuzz::require(decode(out, scratch) == nbytes, "not all bytes are written");
    return out;
  } catch (const solar::Error& error) {
    fuzz::require(error.kind() == solar::Kind::codec, "a damaged chunk is an error of another kind");
    return {};
  }
}

Answer by_path(Bytes chunk, std::size_t nbytes, solar::Path path, int before) {
  return answer(nbytes, before, [&](fuzz::Values& out, solar::Scratch& scratch) {
    return solar::decode_codec(chunk, out, {}, scratch, path);
  });
}

Answer by_plugin(Bytes chunk) {
  static const auto* filter = static_cast<const solar::plugin::FilterClass*>(H5PLget_plugin_info());
  void* buffer = std::malloc(chunk.size());
  std::memcpy(buffer, chunk.data(), chunk.size());
  std::size_t room = chunk.size();
  const unsigned values[] = {1, 0};
  const std::size_t nbytes = filter->filter(solar::plugin::reading, 2, values, chunk.size(), &room, &buffer);
  Answer answer;
  if (nbytes > 0) answer.emplace(static_cast<std::byte*>(buffer), static_cast<std::byte*>(buffer) + nbytes);
  std::free(buffer);
  return answer;
}

void try_halves(Bytes chunk, std::size_t nbytes) {
  for (const solar::Half16 kind : {solar::Half16::float16, solar::Half16::bfloat16}) {
    Answer plain;
    for (const solar::Path path : solar::codec_paths()) {
      const Answer found = answer(nbytes / 2, 85, [&](fuzz::Values& out, solar::Scratch& scratch) {
        return solar::decode_codec_half(chunk, out, kind, {}, scratch, path);
      });
      if (path == solar::Path::plain) plain = found;
      fuzz::require(found.has_value() && found == plain, "halves differ by the path");
    }
  }
}

// What a cast of the decoded numbers gives.
fuzz::Values cast(const fuzz::Values& values, solar::Number number) {
  return solar::codec::with_type(number, [&]<class T>(T) {
    std::vector<float> out;
    for (std::size_t at = 0; at < values.size(); at += sizeof(T))
      out.push_back(static_cast<float>(solar::load_le<T>(values.data() + at)));
    const auto* const bytes = reinterpret_cast<const std::byte*>(out.data());
    return fuzz::Values(bytes, bytes + out.size() * sizeof(float));
  });
}

void try_casting(Bytes chunk, const fuzz::Values& plain) {
  const fuzz::Values wanted = cast(plain, solar::codec_number(chunk));
  for (const solar::Path path : solar::codec_paths()) {
    const Answer found = answer(wanted.size(), 85, [&](fuzz::Values& out, solar::Scratch& scratch) {
      return solar::decode_codec_cast(chunk, out, {}, scratch, path);
    });
    fuzz::require(found == wanted, "what is decoded as float32 is no cast of what is decoded");
  }
}

// Ranges that the chunk's own bytes say are as they are in all of it.
void try_wanted(Bytes chunk, const fuzz::Values& plain) {
  std::vector<solar::Wanted::Range> ranges;
  for (std::size_t i = 0, at = 0; i < chunk.size(); ++i) {
    at += 37 * std::to_integer<std::size_t>(chunk[i]);
    if (at >= plain.size()) break;
    ranges.push_back({at, std::min(plain.size(), at + 1 + i)});
    at = ranges.back().end;
  }
  for (const solar::Path path : solar::codec_paths()) {
    const Answer found = answer(plain.size(), 85, [&](fuzz::Values& out, solar::Scratch& scratch) {
      solar::Wanted wanted{ranges};
      return solar::decode_codec(chunk, out, {}, scratch, path, &wanted);
    });
    fuzz::require(found.has_value(), "what decodes does not where a part of it is wanted");
    for (const auto [begin, end] : ranges)
      fuzz::require(std::memcmp(found->data() + begin, plain.data() + begin, end - begin) == 0,
                    "a part is another one");
  }
}

// What every decoder elsewhere relies on.
void try_keeping(Bytes chunk, std::size_t nbytes) {
  const solar::Number number = solar::codec_number(chunk);
  const auto type = std::ranges::find(solar::plugin::types(), number, &solar::plugin::Type::number);
  const std::size_t room = chunk.size() + 16;
  const solar::Filter filter{solar::kept_filter, 0, {type->code, static_cast<std::uint32_t>(nbytes), 0, 77}};
  try {
    solar::check_codec(chunk, number, nbytes, {});
    fuzz::Values kept(room);
    fuzz::require(solar::keep_codec(chunk, kept, filter) == room, "a kept chunk has not all bytes");
    fuzz::require(std::equal(chunk.begin(), chunk.end(), kept.begin()), "a kept chunk is another one");
  } catch (const solar::Error& error) {
    fuzz::broken(std::string("what decodes is not kept: ") + error.what());
  }
}

void try_all(Bytes chunk) {
  const std::size_t nbytes = decoded_nbytes(chunk);
  if (nbytes > most_nbytes) return;
  const Answer plain = by_path(chunk, nbytes, solar::Path::plain, 0);
  for (const solar::Path path : solar::codec_paths())
    fuzz::require(by_path(chunk, nbytes, path, 255) == plain, "values differ by the path");
  const Answer plugin = by_plugin(chunk);
  fuzz::require(nbytes > 0 ? plugin == plain : !plugin, "the plug-in's values differ");
  if (!plain || nbytes == 0) return;
  try_keeping(chunk, nbytes);
  try_wanted(chunk, *plain);
  const solar::Chunk said = solar::describe_codec(chunk);
  ++count.decoded;
  count.patched += said.tiles_patched > 0;
  if (said.number == solar::Number::float32) try_halves(chunk, nbytes);
  if (!solar::codec::is_real(said.number)) try_casting(chunk, *plain);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Bytes given = std::as_bytes(std::span(data, size));
  fuzz::Values chunk(given.begin(), given.end());
  try_all(chunk);
  if (fuzz::seal(chunk)) try_all(chunk);
  return 0;
}
