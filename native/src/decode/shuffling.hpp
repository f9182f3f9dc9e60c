// The loops of the two shuffles, once for each set of instructions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace solar {

struct ShuffleKernels {
  std::size_t width;  // of a vector, in bytes
  // out[item * itemsize + k] = planes[k * items + item]. REQUIRES: items >= width, itemsize > 0.
  void (*join_planes)(const std::byte* planes, std::size_t items, std::size_t itemsize, std::byte* out);
  // Bit j of byte k of item i comes from bit i of row 8k + j, which has `row` bytes. REQUIRES: row >= width.
  void (*join_bits)(const std::byte* rows, std::size_t row, std::size_t itemsize, std::byte* out);
};

const ShuffleKernels& plain_shuffle();   // SSE2 or NEON, which every 64-bit machine has
const ShuffleKernels& avx2_shuffle();    // REQUIRES: codec::has_avx2()
const ShuffleKernels& avx512_shuffle();  // REQUIRES: codec::has_avx512()

// Those of this machine, the widest first: one after another they take what is too short for the one before.
const std::vector<ShuffleKernels>& shuffle_kernels();

}  // namespace solar
