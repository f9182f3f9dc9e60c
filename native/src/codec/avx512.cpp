// AVX-512 with VBMI2 (Ice Lake, Zen 4 and later): 16 integers at a time.
#include "codec/encoding.hpp"
#include "codec/interpolation.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

// gcc 12 takes the undefined operands of its own intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx2,fma,bmi,bmi2,popcnt,lzcnt,prefer-vector-width=512")

namespace solar::codec {
namespace {

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
  // Puts a symbol for each lane into `out`; returns which are escapes.
  // They are found in bytes: gcc 12 joins two masks of 16 wrongly when it has to spill one (seen under TSan).
  std::uint32_t step(const std::uint32_t* places, std::int32_t* out) {
    const __m128i low = _mm512_cvtepi32_epi8(step16<0>(places, out));
    const __m128i high = _mm512_cvtepi32_epi8(step16<1>(places, out + 16));
    const __m256i escaped = _mm256_cmpeq_epi8(_mm256_set_m128i(high, low), _mm256_set1_epi8(escape));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(escaped));
  }

 private:
  template <int i>
  __m512i step16(const std::uint32_t* places, std::int32_t* out) {
    const __mmask16 few = _mm512_cmplt_epu32_mask(counts_[i], _mm512_set1_epi32(table_bits));
    const __m512i words = _mm512_maskz_expand_epi32(few, next16());
    bits_[i] = _mm512_or_si512(bits_[i], _mm512_sllv_epi32(words, counts_[i]));
    counts_[i] = _mm512_mask_add_epi32(counts_[i], few, counts_[i], _mm512_set1_epi32(16));
    at_ += 2 * static_cast<unsigned>(__builtin_popcount(few));
    const __m512i place = _mm512_i32gather_epi32(states_[i], places, 4);
    const __m512i width = _mm512_and_si512(_mm512_srli_epi32(place, 8), _mm512_set1_epi32(255));
    const __m512i rest = _mm512_srlv_epi32(bits_[i], width);
    const __m512i taken = _mm512_andnot_si512(_mm512_sllv_epi32(_mm512_set1_epi32(-1), width), bits_[i]);
    states_[i] = _mm512_add_epi32(_mm512_srli_epi32(place, 16), taken);
    bits_[i] = rest;
    counts_[i] = _mm512_sub_epi32(counts_[i], width);
    const __m512i symbol = _mm512_srai_epi32(_mm512_slli_epi32(place, 24), 24);
    _mm512_storeu_si512(out, symbol);
    return symbol;
  }
  __m512i next16() const {
    if (end_ - at_ >= 32) [[likely]]
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at_)));
    const auto left = at_ < end_ ? static_cast<unsigned>(end_ - at_) / 2 : 0u;
    const auto there = static_cast<__mmask16>((1u << left) - 1);
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, at_));
  }

  __m512i states_[2], bits_[2], counts_[2];
  const std::byte *at_, *end_;  // at_ may go behind end_: the words there are 0
};

inline __m512i running(__m512i sums) {
  const __m512i zero = _mm512_setzero_si512();
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 15));
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 14));
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 12));
  return _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 8));
}

// One row: `x` sums along it, `y` adds `line`; what comes of it is the new line; it goes on into `plane` if there is
// one, added to what is there if `z`.
inline void sum_row(const std::int32_t* residuals, std::size_t count, bool x, bool y, std::int32_t* line,
                    std::int32_t* plane, bool z) {
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
    if (plane == nullptr) continue;
    if (z) sums = _mm512_add_epi32(sums, _mm512_loadu_si512(plane + i));
    _mm512_storeu_si512(plane + i, sums);
  }
}

// Sixteen integers as float32.
inline void put_narrow(const std::int32_t* values, float step, float base, std::byte* out) {
  const __m512 whole = _mm512_cvtepi32_ps(_mm512_loadu_si512(values));
  _mm512_storeu_ps(out, _mm512_fmadd_ps(whole, _mm512_set1_ps(step), _mm512_set1_ps(base)));
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

#include "codec/fast.hpp"
#include "codec/fast_encoding.hpp"

}  // namespace

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi2");
}

const Kernels& avx512_kernels() {
  static constexpr Kernels set{unpack,
                               symbols,
                               residuals,
                               lorenzo,
                               interpolate,
                               restore,
                               quantise<float, std::uint32_t>,
                               quantise<double, std::uint64_t>};
  return set;
}

const EncodingKernels& avx512_encoding() { return encoding_set; }

}  // namespace solar::codec
#pragma GCC pop_options

#else

namespace solar::codec {
bool has_avx512() { return false; }
const Kernels& avx512_kernels() { return plain_kernels(); }
const EncodingKernels& avx512_encoding() { return plain_encoding(); }
}  // namespace solar::codec

#endif
