// AVX-512 with VBMI2 (Ice Lake, Zen 4 and later): 16 integers at a time.
#include "codec/encoding.hpp"
#include "codec/interpolation.hpp"
#include "codec/patches.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

// gcc 12 takes the undefined operands of its own intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx2,fma,bmi,bmi2,popcnt,lzcnt,prefer-vector-width=512")

namespace solar::codec {
namespace avx512 {  // avx2.cpp has the same names
namespace {

#include "codec/look_up.hpp"

// 32 fields of `width` bits from `words`, of which 64 bytes behind each half's first may be read.
template <class Use>
inline void each_half(const std::byte* words, unsigned width, Use use) {
  const __m512i bits = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                          _mm512_set1_epi32(static_cast<int>(width)));
  const __m512i word = _mm512_srli_epi32(bits, 5), next = _mm512_add_epi32(word, _mm512_set1_epi32(1));
  const __m512i mask = _mm512_srl_epi32(_mm512_set1_epi32(-1), _mm_cvtsi32_si128(static_cast<int>(32 - width)));
  for (std::size_t half = 0; half < 2; ++half) {
    const __m512i all = _mm512_loadu_si512(words + 2 * half * width);
    const __m512i low = _mm512_permutexvar_epi32(word, all), high = _mm512_permutexvar_epi32(next, all);
    use(16 * half, _mm512_and_si512(_mm512_shrdv_epi32(low, high, bits), mask));
  }
}

inline void fields(const std::byte* words, unsigned width, std::int32_t* out, std::int32_t less) {
  const __m512i half = _mm512_set1_epi32(less);
  each_half(words, width,
            [=](std::size_t at, __m512i got) { _mm512_storeu_si512(out + at, _mm512_sub_epi32(got, half)); });
}

inline void add_low(const std::byte* words, unsigned width, std::int32_t* out) {
  const __m128i by = _mm_cvtsi32_si128(static_cast<int>(width));
  each_half(words, width, [=](std::size_t at, __m512i got) {
    const __m512i high = _mm512_loadu_si512(out + at);
    _mm512_storeu_si512(out + at, _mm512_add_epi32(_mm512_sll_epi32(high, by), got));
  });
}

inline __m512i looked_up(const std::uint32_t* places, __m512i at) {
  const __m256i low = looked_up(places, _mm512_castsi512_si256(at));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), looked_up(places, _mm512_extracti64x4_epi64(at, 1)), 1);
}

// Lanes in registers.
class Wide {
 public:
  explicit Wide(const Lanes& of) : at_(of.at), end_(of.end) {
    for (int i = 0; i < 2; ++i) {
      states_[i] = _mm512_loadu_si512(of.states + 16 * i);
      bits_[i] = _mm512_loadu_si512(of.bits + 16 * i);
      counts_[i] = _mm512_loadu_si512(of.counts + 16 * i);
    }
  }
  void put(Lanes& to) const {
    for (int i = 0; i < 2; ++i) {
      _mm512_storeu_si512(to.states + 16 * i, states_[i]);
      _mm512_storeu_si512(to.bits + 16 * i, bits_[i]);
      _mm512_storeu_si512(to.counts + 16 * i, counts_[i]);
    }
    to.at = at_;
  }
  // Puts a symbol for each lane into `out`.
  void step(const std::uint32_t* places, std::int32_t* out) {
    step16<0>(places, out);
    step16<1>(places, out + 16);
  }
  // Whether any symbol since the last call was the escape.
  bool escaped() {
    const __m512i least = least_;
    least_ = _mm512_setzero_si512();
    return _mm512_cmpeq_epi32_mask(least, _mm512_set1_epi32(escape)) != 0;
  }

 private:
  template <int i>
  void step16(const std::uint32_t* places, std::int32_t* out) {
    const __mmask16 few = _mm512_cmplt_epu32_mask(counts_[i], _mm512_set1_epi32(table_bits));
    const __m512i words = _mm512_maskz_expand_epi32(few, next16()), none = _mm512_setzero_si512();
    const __m512i bits = _mm512_or_si512(bits_[i], _mm512_sllv_epi32(words, counts_[i]));
    const __m512i counts = _mm512_mask_add_epi32(counts_[i], few, counts_[i], _mm512_set1_epi32(16));
    at_ += 2 * static_cast<unsigned>(__builtin_popcount(few));
    const __m512i place = looked_up(places, states_[i]);
    const __m512i width = _mm512_srli_epi32(place, 8);  // in its lowest five bits: double shifts look at no others
    const __m512i rest = _mm512_shldv_epi32(_mm512_set1_epi32(-1), none, width);
    states_[i] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(place, 16), bits, rest, 0xf4);  // base | (bits & ~rest)
    bits_[i] = _mm512_shrdv_epi32(bits, none, width);
    counts_[i] = _mm512_sub_epi32(counts, _mm512_and_si512(width, _mm512_set1_epi32(31)));
    const __m512i symbol = _mm512_srai_epi32(_mm512_slli_epi32(place, 24), 24);
    least_ = _mm512_min_epi32(least_, symbol);
    _mm512_storeu_si512(out, symbol);
  }
  __m512i next16() const {
    if (end_ - at_ >= 32) [[likely]]
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at_)));
    const auto left = at_ < end_ ? static_cast<unsigned>(end_ - at_) / 2 : 0u;
    const auto there = static_cast<__mmask16>((1u << left) - 1);
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, at_));
  }

  __m512i states_[2], bits_[2], counts_[2], least_ = _mm512_setzero_si512();
  const std::byte *at_, *end_;  // at_ may go behind end_: the words there are 0
};

inline __m512i running(__m512i sums) {
  const __m512i zero = _mm512_setzero_si512();
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 15));
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 14));
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 12));
  return _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 8));
}

constexpr std::size_t vector_values = 16;
inline __m512i load(const std::int32_t* from) { return _mm512_loadu_si512(from); }

// Sixteen integers as float32, or as integers of 16 bits, or as float32 of integers of at most 32 bits.
struct Reals {
  static constexpr std::size_t itemsize = 4;
  explicit Reals(const Restore& how)
      : step(_mm512_set1_ps(static_cast<float>(how.step))), base(_mm512_set1_ps(static_cast<float>(how.base))) {}
  void put(__m512i whole, std::byte* out) const {
    _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), step, base));
  }
  __m512 step, base;
};
struct Shorts {
  static constexpr std::size_t itemsize = 2;
  explicit Shorts(const Restore& how)
      : step(_mm512_set1_epi32(static_cast<int>(how.whole_step))),
        base(_mm512_set1_epi32(static_cast<int>(how.whole_base))) {}
  void put(__m512i whole, std::byte* out) const {
    const __m512i made = _mm512_add_epi32(_mm512_mullo_epi32(whole, step), base);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(made));
  }
  __m512i step, base;
};
struct Counts {
  static constexpr std::size_t itemsize = 4;
  explicit Counts(const Restore& how)
      : step(_mm512_set1_epi32(static_cast<int>(how.whole_step))),
        base(_mm512_set1_epi32(static_cast<int>(how.whole_base))),
        all(_mm512_set1_epi32(held_of(how.number).all)),
        sign(_mm512_set1_epi32(held_of(how.number).sign)) {}
  void put(__m512i whole, std::byte* out) const {
    const __m512i made = _mm512_and_si512(_mm512_add_epi32(_mm512_mullo_epi32(whole, step), base), all);
    _mm512_storeu_ps(out, _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_xor_si512(made, sign), sign)));
  }
  __m512i step, base, all, sign;
};

// One row: `x` sums along it, `y` adds `line`; what comes of it is the new line; it goes on into `plane` if there is
// one, added to what is there if `z`; whole vectors are put into `out`.
template <class Put>
inline void sum_row(const std::int32_t* residuals, std::size_t count, bool x, bool y, std::int32_t* line,
                    std::int32_t* plane, bool z, const Put& to, std::byte* out) {
  const __m512i last = _mm512_set1_epi32(15);
  __m512i before = _mm512_setzero_si512();
  for (std::size_t i = 0; i < count; i += 16) {
    __m512i sums = _mm512_loadu_si512(residuals + i);  // what is behind the row is read, and not used
    if (x) {
      sums = _mm512_add_epi32(running(sums), before);
      before = _mm512_permutexvar_epi32(last, sums);
    }
    if (y) sums = _mm512_add_epi32(sums, _mm512_loadu_si512(line + i));
    _mm512_storeu_si512(line + i, sums);
    if (plane != nullptr) {
      if (z) sums = _mm512_add_epi32(sums, _mm512_loadu_si512(plane + i));
      _mm512_storeu_si512(plane + i, sums);
    }
    if (i + 16 <= count) to.put(sums, out + i * Put::itemsize);
  }
}

// Known points and what lies behind each of them, foretold from four, in turn.
constexpr std::size_t interleaved = 16;
inline void interleave(const std::int32_t* known, const std::int32_t* residuals, std::int32_t* out) {
  const __m512i a = _mm512_loadu_si512(known - 1), b = _mm512_loadu_si512(known), c = _mm512_loadu_si512(known + 1),
                d = _mm512_loadu_si512(known + 2), middle = _mm512_add_epi32(b, c);
  const __m512i nine = _mm512_add_epi32(_mm512_slli_epi32(middle, 3), middle);
  const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(nine, _mm512_set1_epi32(8)), _mm512_add_epi32(a, d));
  const __m512i between =
      _mm512_add_epi32(_mm512_srai_epi32(sum, 4), _mm512_slli_epi32(_mm512_loadu_si512(residuals), 4));
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  _mm512_storeu_si512(out, _mm512_permutex2var_epi32(b, low, between));
  _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi32(b, high, between));
}

#include "codec/fast_patches.hpp"
#include "codec/fast.hpp"
#include "codec/fast_encoding.hpp"

}  // namespace
}  // namespace avx512

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi2");
}

const Kernels& avx512_kernels() { return avx512::decoding_set; }

const EncodingKernels& avx512_encoding() { return avx512::encoding_set; }

}  // namespace solar::codec
#pragma GCC pop_options

#else

namespace solar::codec {
bool has_avx512() { return false; }
const Kernels& avx512_kernels() { return plain_kernels(); }
const EncodingKernels& avx512_encoding() { return plain_encoding(); }
}  // namespace solar::codec

#endif
