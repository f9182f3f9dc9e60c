// The bounded codec: arrays of numbers in, chunks of few bytes out, and back within a bound that holds for every value.
//
// io/FORMAT.md says every byte ("Bounded chunks"). A chunk is read on its own, but for tables that may lie in the
// client data of the file's filter. All functions are pure and may be called by any number of threads; memory is the
// caller's. Chunks are hostile: whatever the bytes say, decoding ends in bounded time and memory, right or in
// Error(Kind::codec).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "solar/bytes.hpp"
#include "solar/convert.hpp"
#include "solar/filter.hpp"

namespace solar {

// HDF5's number of the filter, of the range for testing; solar._native.codec_filter() is the same to Python.
inline constexpr std::uint16_t codec_filter = 333;

enum class Coder : std::uint8_t { smaller, pack, dense };

// Ours alone, and never in a file: chunks of codec_filter as they are stored, for whoever decodes them elsewhere. Its
// values: the code of their numbers' type (io/FORMAT.md), the bytes of a chunk's values, the low 32 bits first, and a
// number to be put behind each chunk.
inline constexpr std::uint16_t kept_filter = 65535;

// Ours alone as well: chunks of codec_filter whose whole numbers come as float32. Its values are those of codec_filter,
// and behind them the code of the numbers' type.
inline constexpr std::uint16_t cast_filter = 65534;

// How a value is foretold from those before it: Lorenzo's way along any of three axes (0 to 7: x 1, y 2, z 4), or by
// cubic interpolation; `patches`: whichever of Lorenzo's ways is smallest, in the order of patches; `tried` takes for
// each tile what makes it small.
enum class Predictor : std::uint8_t {
  none = 0,
  x = 1,
  xy = 3,
  xyz = 7,
  interpolation = 8,
  patches = 16,
  tried = 255
};

// Which of the decoders works; all give the same bytes. `plain` is the specification.
enum class Path : std::uint8_t { plain, avx2, avx512, neon };

// Values in C order, of any number but boolean and float16. 0 to 32 axes.
struct Array {
  const void* values;
  Number number;
  std::vector<std::size_t> shape;
};

// Numbers of the array's own type, as bytes. `values` say "nothing was measured": they come back bit for bit, and no
// other value becomes one. What is below a limit stays below it, and what is not does not get there.
struct Marks {
  Bytes values, limits;
};
inline constexpr std::size_t most_marks = 16, most_limits = 8;

// The chunk of `array`, every value of it within `bound` (0: bit for bit); NaN and infinities always bit for bit.
// `tables`: what train() gave, or empty. Throws Error(Kind::codec) when asked what cannot be kept: a bound that is
// no number, negative or infinite, too many values, or too many marks.
std::vector<std::byte> encode(const Array& array, double bound, Coder coder, Predictor predictor, Bytes tables = {},
                              const Marks& marks = {});

// Tables for chunks like these, for the filter's client data.
std::vector<std::byte> train(const std::vector<Array>& arrays, double bound, Predictor predictor,
                             const Marks& marks = {});

// The values of the filter with these tables, as encode and decode need them.
std::vector<std::uint32_t> client_data(Bytes tables);

// Decodes into `out`, which has the chunk's own type. Returns the bytes of all values: all of `out`, or it throws. Of
// what is wanted whole tiles are decoded, and no others: their bytes in `out` stay as they are.
std::size_t decode_codec(Bytes in, MutableBytes out, const Filter& filter, Scratch& scratch, Wanted* wanted = nullptr);
std::size_t decode_codec(Bytes in, MutableBytes out, Bytes tables, Scratch& scratch, Path path,
                         Wanted* wanted = nullptr);

// Decodes a chunk of whole numbers into float32, each rounded to nearest, as a cast does. REQUIRES: `out` ends with a
// whole float32.
std::size_t decode_codec_cast(Bytes in, MutableBytes out, const Filter& filter, Scratch& scratch,
                              Wanted* wanted = nullptr);
std::size_t decode_codec_cast(Bytes in, MutableBytes out, Bytes tables, Scratch& scratch, Path path,
                              Wanted* wanted = nullptr);

// Checks a chunk as far as can be without decoding it (dense tiles' streams are not followed), and copies it to `out`
// with zeros behind, and the filter's number in the last 4 bytes. Returns the bytes written: all of `out`; or throws.
std::size_t keep_codec(Bytes in, MutableBytes out, const Filter& filter);

// Decodes a chunk of float32 into float16 or bfloat16 (rounded to nearest, ties to even).
enum class Half16 : std::uint8_t { float16, bfloat16 };
std::size_t decode_codec_half(Bytes in, MutableBytes out, Half16 kind, Bytes tables, Scratch& scratch, Path path);

// The ways this machine can go, the fastest last.
std::vector<Path> codec_paths();

// What a chunk says of itself; its checksum and directory are checked.
struct Chunk {
  Number number;
  std::uint32_t shape[4], tile[3];
  std::uint32_t flags;
  double bound, step;
  std::uint64_t tables;  // their checksum; 0: none needed
  std::size_t tiles_raw, tiles_constant, tiles_pack, tiles_dense, tiles_interpolated, tiles_patched, outliers;
};
Chunk describe_codec(Bytes in);

// For a decoder elsewhere: checks all of a chunk that can be checked without decoding it, and says where its tables
// are. How dense tiles' streams end is not looked at: such a decoder must itself stay within the chunk and the array.
enum class TablesAt : std::uint8_t { nowhere, inside, builtin, given };
TablesAt check_codec(Bytes in, Number number, std::size_t nbytes, Bytes given);

// 17 tables of 1024 places, {symbol: 8 bits, width: 8, base: 16} each; of the built-in ones when `tables` is empty.
std::vector<std::uint32_t> codec_places(Bytes tables);

// The type alone, as the header says it: nothing else is looked at.
Number codec_number(Bytes in);

// How far `restored` is from `original`, of the same number and length, worked out without the codec.
struct Difference {
  std::uint64_t beyond;  // values further off than the bound, or not the same where that is asked
  std::uint64_t first;   // the position of the first of them
  double largest;        // of the differences between numbers, rounded up
};
Difference compare(const void* original, const void* restored, Number number, std::size_t values, double bound);

}  // namespace solar
