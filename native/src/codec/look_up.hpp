// Look-ups of places for vectors of states, loaded one by one: gathering them takes half as long again with eight
// lanes, and longer with sixteen, too (seen on Zen 5). For files that are compiled for AVX2 or more.
//
// Each of them includes this once, inside its unnamed namespace, behind its target pragma, so there is no include guard.
// Nothing is checked here: each state must be less than the length of `places`, which decoders see to when they make
// the table.

inline __m128i four(const std::uint32_t* places, __m128i at) {
  const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(at)),
             high = static_cast<std::uint64_t>(_mm_extract_epi64(at, 1));
  const __m128i one = _mm_cvtsi32_si128(static_cast<int>(places[low & 0xffffffff]));
  const __m128i two = _mm_cvtsi32_si128(static_cast<int>(places[high & 0xffffffff]));
  return _mm_unpacklo_epi64(_mm_insert_epi32(one, static_cast<int>(places[low >> 32]), 1),
                            _mm_insert_epi32(two, static_cast<int>(places[high >> 32]), 1));
}
inline __m256i looked_up(const std::uint32_t* places, __m256i at) {
  const __m128i low = four(places, _mm256_castsi256_si128(at));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), four(places, _mm256_extracti128_si256(at, 1)), 1);
}
