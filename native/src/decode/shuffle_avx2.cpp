// AVX2: 32 bytes at a time.
#include "shuffling.hpp"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2")

namespace solar {
namespace avx2 {  // shuffle_avx512.cpp has the same names
namespace {

constexpr std::size_t width = 32;
#include "transpose.hpp"

}  // namespace
}  // namespace avx2

const ShuffleKernels& avx2_shuffle() {
  static constexpr ShuffleKernels set{avx2::width, avx2::join_planes, avx2::join_bits};
  return set;
}

}  // namespace solar
#pragma GCC pop_options

#else

namespace solar {
const ShuffleKernels& avx2_shuffle() { return plain_shuffle(); }
}  // namespace solar

#endif
