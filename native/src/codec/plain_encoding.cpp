// The encoder's loops for whatever the compiler was told of this machine, and the choice among them.
#include <type_traits>

#include "codec/encoding.hpp"
#include "codec/interpolation.hpp"

namespace solar::codec {
namespace {

#include "codec/fast_encoding.hpp"

}  // namespace

const EncodingKernels& plain_encoding() { return encoding_set; }

const EncodingKernels& encoding_kernels() {
  static const EncodingKernels& best = has_avx512() ? avx512_encoding()
                                       : has_avx2() ? avx2_encoding()
                                                    : plain_encoding();
  return best;
}

}  // namespace solar::codec
