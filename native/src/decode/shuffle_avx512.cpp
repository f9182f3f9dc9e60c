// AVX-512 with byte shuffles: 64 bytes at a time.
#include "shuffling.hpp"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,prefer-vector-width=512")

namespace solar {
namespace {

constexpr std::size_t width = 64;
#include "transpose.hpp"

}  // namespace

const ShuffleKernels& avx512_shuffle() {
  static constexpr ShuffleKernels set{width, join_planes, join_bits};
  return set;
}

}  // namespace solar
#pragma GCC pop_options

#else

namespace solar {
const ShuffleKernels& avx512_shuffle() { return plain_shuffle(); }
}  // namespace solar

#endif
