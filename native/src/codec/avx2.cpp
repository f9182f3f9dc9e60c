// AVX2 with FMA: 8 integers at a time.
#include "codec/encoding.hpp"
#include "codec/interpolation.hpp"
#include "codec/patches.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,popcnt,lzcnt")

namespace solar::codec {
namespace avx2 {  // avx512.cpp has the same names
namespace {

#include "codec/look_up.hpp"

__m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void store8(std::int32_t* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }

// 32 fields of `width` bits; eight of them take `width` bytes.
template <class Use>
inline void each_quarter(const std::byte* words, unsigned width, Use use) {
  const __m256i bits =
      _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(static_cast<int>(width)));
  const __m256i word = _mm256_srli_epi32(bits, 5), next = _mm256_add_epi32(word, _mm256_set1_epi32(1));
  const __m256i right = _mm256_and_si256(bits, _mm256_set1_epi32(31));
  const __m256i left = _mm256_sub_epi32(_mm256_set1_epi32(32), right);
  const __m256i mask = _mm256_srl_epi32(_mm256_set1_epi32(-1), _mm_cvtsi32_si128(static_cast<int>(32 - width)));
  for (std::size_t quarter = 0; quarter < 4; ++quarter) {
    const __m256i all = load(words + quarter * width);
    const __m256i low = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(all, word), right);
    const __m256i high = _mm256_sllv_epi32(_mm256_permutevar8x32_epi32(all, next), left);
    use(8 * quarter, _mm256_and_si256(_mm256_or_si256(low, high), mask));
  }
}

inline void fields(const std::byte* words, unsigned width, std::int32_t* out, std::int32_t less) {
  const __m256i half = _mm256_set1_epi32(less);
  each_quarter(words, width, [=](std::size_t at, __m256i got) { store8(out + at, _mm256_sub_epi32(got, half)); });
}

inline void add_low(const std::byte* words, unsigned width, std::int32_t* out) {
  const __m128i by = _mm_cvtsi32_si128(static_cast<int>(width));
  each_quarter(words, width, [=](std::size_t at, __m256i got) {
    store8(out + at, _mm256_add_epi32(_mm256_sll_epi32(load(out + at), by), got));
  });
}

// For each set of eight lanes, which of the next words each of them takes.
struct Ranks {
  std::uint8_t of[256][8];
};
constexpr Ranks ranks = [] {
  Ranks table{};
  for (unsigned set = 0; set < 256; ++set)
    for (unsigned i = 0; i < 8; ++i)
      table.of[set][i] = static_cast<std::uint8_t>(__builtin_popcount(set & ((1u << i) - 1)));
  return table;
}();

// Lanes in registers.
class Wide {
 public:
  explicit Wide(const Lanes& of) : at_(of.at), end_(of.end) {
    for (int i = 0; i < 4; ++i) {
      states_[i] = load(of.states + 8 * i);
      bits_[i] = load(of.bits + 8 * i);
      counts_[i] = load(of.counts + 8 * i);
    }
  }
  void put(Lanes& to) const {
    for (int i = 0; i < 4; ++i) {
      store8(reinterpret_cast<std::int32_t*>(to.states + 8 * i), states_[i]);
      store8(reinterpret_cast<std::int32_t*>(to.bits + 8 * i), bits_[i]);
      store8(reinterpret_cast<std::int32_t*>(to.counts + 8 * i), counts_[i]);
    }
    to.at = at_;
  }
  // Puts a symbol for each lane into `out`.
  void step(const std::uint32_t* places, std::int32_t* out) {
    step8<0>(places, out);
    step8<1>(places, out + 8);
    step8<2>(places, out + 16);
    step8<3>(places, out + 24);
  }
  // Whether any symbol since the last call was the escape.
  bool escaped() {
    const __m256i least = least_;
    least_ = _mm256_setzero_si256();
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(least, _mm256_set1_epi32(escape))) != 0;
  }

 private:
  template <int i>
  void step8(const std::uint32_t* places, std::int32_t* out) {
    const __m256i few = _mm256_cmpgt_epi32(_mm256_set1_epi32(table_bits), counts_[i]);
    const auto set = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(few)));
    const __m256i rank = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(ranks.of[set])));
    const __m256i words = _mm256_and_si256(_mm256_permutevar8x32_epi32(next8(), rank), few);
    const __m256i bits = _mm256_or_si256(bits_[i], _mm256_sllv_epi32(words, counts_[i]));
    const __m256i counts = _mm256_add_epi32(counts_[i], _mm256_and_si256(few, _mm256_set1_epi32(16)));
    at_ += 2 * static_cast<unsigned>(__builtin_popcount(set));
    const __m256i place = looked_up(places, states_[i]);
    const __m256i width = _mm256_and_si256(_mm256_srli_epi32(place, 8), _mm256_set1_epi32(255));
    const __m256i taken = _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), width), bits);
    states_[i] = _mm256_add_epi32(_mm256_srli_epi32(place, 16), taken);
    bits_[i] = _mm256_srlv_epi32(bits, width);
    counts_[i] = _mm256_sub_epi32(counts, width);
    const __m256i symbol = _mm256_srai_epi32(_mm256_slli_epi32(place, 24), 24);
    least_ = _mm256_min_epi32(least_, symbol);
    store8(out, symbol);
  }
  __m256i next8() const {
    if (end_ - at_ >= 16) [[likely]]
      return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at_)));
    alignas(16) std::byte words[16] = {};
    if (at_ < end_) std::memcpy(words, at_, static_cast<std::size_t>(end_ - at_));
    return _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(words)));
  }

  __m256i states_[4], bits_[4], counts_[4], least_ = _mm256_setzero_si256();
  const std::byte *at_, *end_;  // at_ may go behind end_: the words there are 0
};

inline __m256i running(__m256i sums) {
  sums = _mm256_add_epi32(sums, _mm256_slli_si256(sums, 4));
  sums = _mm256_add_epi32(sums, _mm256_slli_si256(sums, 8));
  const __m256i low = _mm256_permute2x128_si256(sums, sums, 0x08);  // the low half's sums, to the high half
  return _mm256_add_epi32(sums, _mm256_shuffle_epi32(low, 0xff));
}

constexpr std::size_t vector_values = 8;

// Eight integers as float32, or as integers of 16 bits.
struct Reals {
  static constexpr std::size_t itemsize = 4;
  explicit Reals(const Restore& how)
      : step(_mm256_set1_ps(static_cast<float>(how.step))), base(_mm256_set1_ps(static_cast<float>(how.base))) {}
  void put(__m256i whole, std::byte* out) const {
    _mm256_storeu_ps(reinterpret_cast<float*>(out), _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), step, base));
  }
  __m256 step, base;
};
struct Shorts {
  static constexpr std::size_t itemsize = 2;
  explicit Shorts(const Restore& how)
      : step(_mm256_set1_epi32(static_cast<int>(how.whole_step))),
        base(_mm256_set1_epi32(static_cast<int>(how.whole_base))) {}
  void put(__m256i whole, std::byte* out) const {
    const __m256i made = _mm256_add_epi32(_mm256_mullo_epi32(whole, step), base);
    const __m256i low = _mm256_and_si256(made, _mm256_set1_epi32(0xffff));
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
  }
  __m256i step, base;
};
struct Counts {
  static constexpr std::size_t itemsize = 4;
  explicit Counts(const Restore& how)
      : step(_mm256_set1_epi32(static_cast<int>(how.whole_step))),
        base(_mm256_set1_epi32(static_cast<int>(how.whole_base))),
        all(_mm256_set1_epi32(held_of(how.number).all)),
        sign(_mm256_set1_epi32(held_of(how.number).sign)) {}
  void put(__m256i whole, std::byte* out) const {
    const __m256i made = _mm256_and_si256(_mm256_add_epi32(_mm256_mullo_epi32(whole, step), base), all);
    const __m256i value = _mm256_sub_epi32(_mm256_xor_si256(made, sign), sign);
    _mm256_storeu_ps(reinterpret_cast<float*>(out), _mm256_cvtepi32_ps(value));
  }
  __m256i step, base, all, sign;
};

// One row: `x` sums along it, `y` adds `line`; what comes of it is the new line; it goes on into `plane` if there is
// one, added to what is there if `z`; whole vectors are put into `out`.
template <class Put>
inline void sum_row(const std::int32_t* residuals, std::size_t count, bool x, bool y, std::int32_t* line,
                    std::int32_t* plane, bool z, const Put& to, std::byte* out) {
  const __m256i last = _mm256_set1_epi32(7);
  __m256i before = _mm256_setzero_si256();
  for (std::size_t i = 0; i < count; i += 8) {
    __m256i sums = load(residuals + i);  // what is behind the row is read, and not used
    if (x) {
      sums = _mm256_add_epi32(running(sums), before);
      before = _mm256_permutevar8x32_epi32(sums, last);
    }
    if (y) sums = _mm256_add_epi32(sums, load(line + i));
    store8(line + i, sums);
    if (plane != nullptr) {
      if (z) sums = _mm256_add_epi32(sums, load(plane + i));
      store8(plane + i, sums);
    }
    if (i + 8 <= count) to.put(sums, out + i * Put::itemsize);
  }
}

// Known points and what lies behind each of them, foretold from four, in turn.
constexpr std::size_t interleaved = 8;
inline void interleave(const std::int32_t* known, const std::int32_t* residuals, std::int32_t* out) {
  const __m256i a = load(known - 1), b = load(known), c = load(known + 1), d = load(known + 2);
  const __m256i middle = _mm256_add_epi32(b, c), nine = _mm256_add_epi32(_mm256_slli_epi32(middle, 3), middle);
  const __m256i sum = _mm256_sub_epi32(_mm256_add_epi32(nine, _mm256_set1_epi32(8)), _mm256_add_epi32(a, d));
  const __m256i between = _mm256_add_epi32(_mm256_srai_epi32(sum, 4), _mm256_slli_epi32(load(residuals), 4));
  const __m256i low = _mm256_unpacklo_epi32(b, between), high = _mm256_unpackhi_epi32(b, between);
  store8(out, _mm256_permute2x128_si256(low, high, 0x20));
  store8(out + 8, _mm256_permute2x128_si256(low, high, 0x31));
}

#include "codec/fast_patches.hpp"
#include "codec/fast.hpp"
#include "codec/fast_encoding.hpp"

}  // namespace
}  // namespace avx2

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("lzcnt");
}

const Kernels& avx2_kernels() { return avx2::decoding_set; }

const EncodingKernels& avx2_encoding() { return avx2::encoding_set; }

}  // namespace solar::codec
#pragma GCC pop_options

#else

namespace solar::codec {
bool has_avx2() { return false; }
const Kernels& avx2_kernels() { return plain_kernels(); }
const EncodingKernels& avx2_encoding() { return plain_encoding(); }
}  // namespace solar::codec

#endif
