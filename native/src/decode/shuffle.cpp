// Byte and bit shuffles: planes of bytes, or of bits, joined to items again.
#include "codec/kernels.hpp"
#include "shuffling.hpp"
#include "solar/decode.hpp"

namespace solar {
namespace {

constexpr std::size_t width = 16;
#include "transpose.hpp"

// Eight rows of a byte each, in a word: byte j is row j. They become columns.
std::uint64_t transpose_bits(std::uint64_t x) noexcept {
  const auto swap = [&x](unsigned shift, std::uint64_t mask) {
    const std::uint64_t moved = (x ^ (x >> shift)) & mask;
    x ^= moved ^ (moved << shift);
  };
  swap(7, 0x00aa00aa00aa00aa);
  swap(14, 0x0000cccc0000cccc);
  swap(28, 0x00000000f0f0f0f0);
  return x;
}

void join_few_bits(const std::byte* rows, std::size_t row, std::size_t itemsize, std::byte* out) {
  for (std::size_t n = 0; n < row; ++n)
    for (std::size_t k = 0; k < itemsize; ++k) {
      std::uint64_t bits = 0;
      for (std::size_t j = 0; j < 8; ++j) bits |= std::to_integer<std::uint64_t>(rows[(8 * k + j) * row + n]) << (8 * j);
      bits = transpose_bits(bits);
      for (std::size_t j = 0; j < 8; ++j) out[(8 * n + j) * itemsize + k] = static_cast<std::byte>(bits >> (8 * j));
    }
}

// The widest vectors that `length` fills; null: it is too short for any.
const ShuffleKernels* kernels_for(std::size_t length) {
  for (const ShuffleKernels& one : shuffle_kernels())
    if (length >= one.width) return &one;
  return nullptr;
}

}  // namespace

const ShuffleKernels& plain_shuffle() {
  static constexpr ShuffleKernels set{width, join_planes, join_bits};
  return set;
}

const std::vector<ShuffleKernels>& shuffle_kernels() {
  static const std::vector<ShuffleKernels> all = [] {
    std::vector<ShuffleKernels> found;
    if (codec::has_avx512()) found.push_back(avx512_shuffle());
    if (codec::has_avx2()) found.push_back(avx2_shuffle());
    found.push_back(plain_shuffle());
    return found;
  }();
  return all;
}

void unshuffle(Bytes in, MutableBytes out, std::size_t itemsize) {
  const std::size_t items = itemsize ? in.size() / itemsize : 0, done = items * itemsize;
  if (const ShuffleKernels* kernels = kernels_for(items)) {
    kernels->join_planes(in.data(), items, itemsize, out.data());
  } else {
    for (std::size_t item = 0; item < items; ++item)
      for (std::size_t k = 0; k < itemsize; ++k) out[item * itemsize + k] = in[k * items + item];
  }
  if (in.size() > done) std::memcpy(out.data() + done, in.data() + done, in.size() - done);
}

void bitunshuffle(Bytes in, MutableBytes out, std::size_t itemsize) {
  const std::size_t row = itemsize ? in.size() / itemsize / 8 : 0;  // bytes of a row of bits: one for 8 items
  if (const ShuffleKernels* kernels = kernels_for(row)) return kernels->join_bits(in.data(), row, itemsize, out.data());
  join_few_bits(in.data(), row, itemsize, out.data());
}

}  // namespace solar
