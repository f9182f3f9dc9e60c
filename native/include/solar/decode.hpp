// The decoders, one function each: `in` is what a filter stored, `out` is where its input goes.
//
// All return the number of bytes written, at most out.size(), and throw Error(Kind::codec) on damage or when
// out is too small. They keep no state and allocate nothing beyond what is named; any thread may call them.
#pragma once

#include "solar/bytes.hpp"
#include "solar/filter.hpp"

namespace solar {

// Entropy and dictionary coders.
std::size_t inflate_zlib(Bytes in, MutableBytes out);   // RFC 1950, adler32 verified
std::size_t inflate_gzip(Bytes in, MutableBytes out);   // RFC 1952, one or more members, crc32 and size verified
std::size_t decode_zstd(Bytes in, MutableBytes out);    // RFC 8878, one or more frames, checksum verified
std::size_t decode_lz4_block(Bytes in, MutableBytes out);
std::size_t decode_lzf(Bytes in, MutableBytes out);
std::size_t decode_blosclz(Bytes in, MutableBytes out);

// Containers of HDF5 filters and of blosc.
std::size_t decode_h5lz4(Bytes in, MutableBytes out);                                     // filter 32004
std::size_t decode_bitshuffle(Bytes in, MutableBytes out, const Filter& filter, Scratch&);  // filter 32008

// Filters 32001, one chunk of blosc 1 (or 2), and 32026, a contiguous frame of blosc 2. Of what is wanted whole blocks are
// decoded, and no others: their bytes in `out` are unspecified, and damage in them is not seen.
std::size_t decode_blosc(Bytes in, MutableBytes out, Scratch& scratch, Wanted* wanted);
std::size_t decode_blosc2(Bytes in, MutableBytes out, Scratch& scratch, Wanted* wanted);
inline std::size_t decode_blosc(Bytes in, MutableBytes out, Scratch& scratch) {
  return decode_blosc(in, out, scratch, nullptr);
}
inline std::size_t decode_blosc2(Bytes in, MutableBytes out, Scratch& scratch) {
  return decode_blosc2(in, out, scratch, nullptr);
}

// Rearrangements. REQUIRES: out.size() >= in.size(), no overlap.
// The byte shuffle; the tail that is no whole item is copied.
void unshuffle(Bytes in, MutableBytes out, std::size_t itemsize);
// The bit transpose of whole groups of 8 items, as the bitshuffle library does it. REQUIRES: in.size() % (8 * itemsize)
// == 0.
void bitunshuffle(Bytes in, MutableBytes out, std::size_t itemsize);
// The axes of a chunk. The values of the filter: bytes of an item, how many axes there are, which one was stored as the
// first, as the second, ..., and the length of each in `out`. What is wrong with them, in words; empty: nothing.
std::string transpose_problem(const Filter& filter);
// REQUIRES: nothing is wrong with the filter.
std::size_t untranspose(Bytes in, MutableBytes out, const Filter& filter);

// Integers and sums.
std::size_t decode_scaleoffset(Bytes in, MutableBytes out, const Filter& filter);
std::size_t decode_nbit(Bytes in, MutableBytes out, const Filter& filter);
std::uint32_t fletcher32(Bytes in);  // as HDF5 computes it; decode verifies the last four bytes
std::size_t decode_fletcher32(Bytes in, MutableBytes out);

}  // namespace solar
