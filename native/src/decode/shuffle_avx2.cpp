// AVX2: 32 bytes at a time.
#include "shuffling.hpp"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2")

namespace solar {
namespace {

constexpr std::size_t width = 32;
#include "transpose.hpp"

}  // namespace

const ShuffleKernels& avx2_shuffle() {
  static constexpr ShuffleKernels set{width, join_planes, join_bits};
  return set;
}

}  // namespace solar
#pragma GCC pop_options

#else

namespace solar {
const ShuffleKernels& avx2_shuffle() { return plain_shuffle(); }
}  // namespace solar

#endif
