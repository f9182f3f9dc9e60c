// AVX-512 with byte shuffles: 64 bytes at a time.
#include "shuffling.hpp"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,prefer-vector-width=512")

namespace solar {
namespace avx512 {  // shuffle_avx2.cpp has the same names
namespace {

constexpr std::size_t width = 64;
#include "transpose.hpp"

}  // namespace
}  // namespace avx512

const ShuffleKernels& avx512_shuffle() {
  static constexpr ShuffleKernels set{avx512::width, avx512::join_planes, avx512::join_bits};
  return set;
}

}  // namespace solar
#pragma GCC pop_options

#else

namespace solar {
const ShuffleKernels& avx512_shuffle() { return plain_shuffle(); }
}  // namespace solar

#endif
