// NEON, which every AArch64 processor has: 4 integers at a time.
//
// There is no gather: what `dense` looks up in its tables comes lane by lane.
// All around it goes in vectors.
#include "codec/interpolation.hpp"
#include "codec/patches.hpp"

#if defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_neon.h>

#include <cstring>

namespace solar::codec {
namespace {

// Where four fields of `width` bits lie in 16 bytes, of which the first
// `skipped` bits are none of theirs. A field begins in one of 8 bits of a byte,
// so that one of more than 25 bits may have a fifth byte; what is asked for
// behind the 16th byte comes as 0.
struct Four {
  Four(unsigned width, unsigned skipped) {
    const std::uint32_t begins[4] = {skipped, skipped + width, skipped + 2 * width, skipped + 3 * width};
    const uint32x4_t bits = vld1q_u32(begins), all = vdupq_n_u32(0x01010101);
    const int32x4_t within = vreinterpretq_s32_u32(vandq_u32(bits, vdupq_n_u32(7)));
    low = vreinterpretq_u8_u32(vmlaq_u32(vdupq_n_u32(0x03020100), vshrq_n_u32(bits, 3), all));
    high = vaddq_u8(low, vdupq_n_u8(4));
    right = vnegq_s32(within);
    left = vsubq_s32(vdupq_n_s32(32), within);
  }
  uint8x16_t low, high;
  int32x4_t right, left;  // shifts: negative ones go right, by 32 gives 0
};

template <bool wide>
inline int32x4_t four_from(const std::byte* from, const Four& at, uint32x4_t mask) {
  const uint8x16_t all = vld1q_u8(reinterpret_cast<const std::uint8_t*>(from));
  uint32x4_t got = vshlq_u32(vreinterpretq_u32_u8(vqtbl1q_u8(all, at.low)), at.right);
  if (wide) got = vorrq_u32(got, vshlq_u32(vreinterpretq_u32_u8(vqtbl1q_u8(all, at.high)), at.left));
  return vreinterpretq_s32_u32(vandq_u32(got, mask));
}

// 32 fields of `width` bits; eight of them take `width` bytes.
template <bool wide, class Use>
inline void each_four_of(const std::byte* words, unsigned width, Use use) {
  const Four even(width, 0), odd(width, 4 * width % 8);
  const uint32x4_t mask = vshlq_u32(vdupq_n_u32(0xffffffff), vdupq_n_s32(static_cast<int>(width) - 32));
  for (std::size_t i = 0; i < 4; ++i, words += width) {
    use(8 * i, four_from<wide>(words, even, mask));
    use(8 * i + 4, four_from<wide>(words + width / 2, odd, mask));
  }
}
template <class Use>
inline void each_four(const std::byte* words, unsigned width, Use use) {
  width > 25 ? each_four_of<true>(words, width, use) : each_four_of<false>(words, width, use);
}

inline void fields(const std::byte* words, unsigned width, std::int32_t* out, std::int32_t less) {
  const int32x4_t half = vdupq_n_s32(less);
  each_four(words, width, [=](std::size_t at, int32x4_t got) { vst1q_s32(out + at, vsubq_s32(got, half)); });
}

inline void add_low(const std::byte* words, unsigned width, std::int32_t* out) {
  const int32x4_t by = vdupq_n_s32(static_cast<int>(width));
  each_four(words, width, [=](std::size_t at, int32x4_t got) {
    vst1q_s32(out + at, vaddq_s32(vshlq_s32(vld1q_s32(out + at), by), got));
  });
}

// For each set of eight lanes, which bytes of the next words each of them
// takes; one that takes none, 255, gets 0.
struct Taken {
  alignas(16) std::uint8_t bytes[256][16];
  std::uint8_t nbytes[256];
};
constexpr Taken taken = [] {
  Taken table{};
  for (unsigned set = 0; set < 256; ++set) {
    std::uint8_t next = 0;
    for (unsigned i = 0; i < 16; ++i) table.bytes[set][i] = set >> i / 2 & 1 ? next++ : std::uint8_t{255};
    table.nbytes[set] = next;
  }
  return table;
}();

inline uint32x4_t looked_up(const std::uint32_t* places, uint32x4_t at) {
  uint32x4_t found = vdupq_n_u32(places[vgetq_lane_u32(at, 0)]);
  found = vld1q_lane_u32(places + vgetq_lane_u32(at, 1), found, 1);
  found = vld1q_lane_u32(places + vgetq_lane_u32(at, 2), found, 2);
  return vld1q_lane_u32(places + vgetq_lane_u32(at, 3), found, 3);
}

// Lanes in registers, as far as there are any.
class Wide {
 public:
  explicit Wide(const Lanes& of) : at_(of.at), end_(of.end) {
    for (int i = 0; i < 8; ++i) {
      states_[i] = vld1q_u32(of.states + 4 * i);
      bits_[i] = vld1q_u32(of.bits + 4 * i);
      counts_[i] = vreinterpretq_s32_u32(vld1q_u32(of.counts + 4 * i));
    }
  }
  void put(Lanes& to) const {
    for (int i = 0; i < 8; ++i) {
      vst1q_u32(to.states + 4 * i, states_[i]);
      vst1q_u32(to.bits + 4 * i, bits_[i]);
      vst1q_u32(to.counts + 4 * i, vreinterpretq_u32_s32(counts_[i]));
    }
    to.at = at_;
  }
  // Puts a symbol for each lane into `out`.
  void step(const std::uint32_t* places, std::int32_t* out) {
    step8<0>(places, out);
    step8<1>(places, out);
    step8<2>(places, out);
    step8<3>(places, out);
  }
  // Whether any symbol since the last call was the escape.
  bool escaped() {
    const int32x4_t least = least_;
    least_ = vdupq_n_s32(0);
    return vminvq_s32(least) == escape;
  }

 private:
  template <int i>
  void step8(const std::uint32_t* places, std::int32_t* out) {
    constexpr std::uint16_t bit_of[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const int32x4_t enough = vdupq_n_s32(table_bits);
    const uint32x4_t low = vcltq_s32(counts_[2 * i], enough), high = vcltq_s32(counts_[2 * i + 1], enough);
    const unsigned set = vaddvq_u16(vandq_u16(vcombine_u16(vmovn_u32(low), vmovn_u32(high)), vld1q_u16(bit_of)));
    const uint16x8_t words = vreinterpretq_u16_u8(vqtbl1q_u8(next16(), vld1q_u8(taken.bytes[set])));
    at_ += taken.nbytes[set];
    step4<2 * i>(places, vmovl_u16(vget_low_u16(words)), low, out + 8 * i);
    step4<2 * i + 1>(places, vmovl_u16(vget_high_u16(words)), high, out + 8 * i + 4);
  }
  template <int i>
  void step4(const std::uint32_t* places, uint32x4_t words, uint32x4_t few, std::int32_t* out) {
    const uint32x4_t bits = vorrq_u32(bits_[i], vshlq_u32(words, counts_[i]));
    const int32x4_t counts = vaddq_s32(counts_[i], vreinterpretq_s32_u32(vandq_u32(few, vdupq_n_u32(16))));
    const uint32x4_t place = looked_up(places, states_[i]);
    const int32x4_t width = vreinterpretq_s32_u32(vandq_u32(vshrq_n_u32(place, 8), vdupq_n_u32(255)));
    const uint32x4_t mine = vbicq_u32(bits, vshlq_u32(vdupq_n_u32(0xffffffff), width));
    states_[i] = vsraq_n_u32(mine, place, 16);
    bits_[i] = vshlq_u32(bits, vnegq_s32(width));
    counts_[i] = vsubq_s32(counts, width);
    const int32x4_t symbol = vshrq_n_s32(vreinterpretq_s32_u32(vshlq_n_u32(place, 24)), 24);
    least_ = vminq_s32(least_, symbol);
    vst1q_s32(out, symbol);
  }
  uint8x16_t next16() const {
    std::uint8_t words[16] = {};
    if (end_ - at_ >= 16) [[likely]]
      return vld1q_u8(reinterpret_cast<const std::uint8_t*>(at_));
    if (at_ < end_) std::memcpy(words, at_, static_cast<std::size_t>(end_ - at_));
    return vld1q_u8(words);
  }

  uint32x4_t states_[8], bits_[8];
  int32x4_t counts_[8], least_ = vdupq_n_s32(0);
  const std::byte *at_, *end_;  // at_ may go behind end_: the words there are 0
};

inline int32x4_t running(int32x4_t sums) {
  const int32x4_t zero = vdupq_n_s32(0);
  sums = vaddq_s32(sums, vextq_s32(zero, sums, 3));
  return vaddq_s32(sums, vextq_s32(zero, sums, 2));
}

constexpr std::size_t vector_values = 4;
inline int32x4_t load(const std::int32_t* from) { return vld1q_s32(from); }

// Four integers as float32, or as integers of 16 bits.
struct Reals {
  static constexpr std::size_t itemsize = 4;
  explicit Reals(const Restore& how)
      : step(vdupq_n_f32(static_cast<float>(how.step))), base(vdupq_n_f32(static_cast<float>(how.base))) {}
  void put(int32x4_t whole, std::byte* out) const {
    const float32x4_t made = vfmaq_f32(base, vcvtq_f32_s32(whole), step);
    vst1q_u8(reinterpret_cast<std::uint8_t*>(out), vreinterpretq_u8_f32(made));
  }
  float32x4_t step, base;
};
struct Shorts {
  static constexpr std::size_t itemsize = 2;
  explicit Shorts(const Restore& how)
      : step(vdupq_n_u32(static_cast<std::uint32_t>(how.whole_step))),
        base(vdupq_n_u32(static_cast<std::uint32_t>(how.whole_base))) {}
  void put(int32x4_t whole, std::byte* out) const {
    const uint32x4_t made = vmlaq_u32(base, vreinterpretq_u32_s32(whole), step);
    vst1_u8(reinterpret_cast<std::uint8_t*>(out), vreinterpret_u8_u16(vmovn_u32(made)));
  }
  uint32x4_t step, base;
};
struct Counts {
  static constexpr std::size_t itemsize = 4;
  explicit Counts(const Restore& how)
      : step(vdupq_n_u32(static_cast<std::uint32_t>(how.whole_step))),
        base(vdupq_n_u32(static_cast<std::uint32_t>(how.whole_base))),
        all(vdupq_n_u32(static_cast<std::uint32_t>(held_of(how.number).all))),
        sign(vdupq_n_u32(static_cast<std::uint32_t>(held_of(how.number).sign))) {}
  void put(int32x4_t whole, std::byte* out) const {
    const uint32x4_t made = vandq_u32(vmlaq_u32(base, vreinterpretq_u32_s32(whole), step), all);
    const int32x4_t value = vreinterpretq_s32_u32(vsubq_u32(veorq_u32(made, sign), sign));
    vst1q_u8(reinterpret_cast<std::uint8_t*>(out), vreinterpretq_u8_f32(vcvtq_f32_s32(value)));
  }
  uint32x4_t step, base, all, sign;
};

// One row: `x` sums along it, `y` adds `line`; what comes of it is the new line; it goes on into `plane` if there is
// one, added to what is there if `z`; whole vectors are put into `out`.
template <class Put>
inline void sum_row(const std::int32_t* residuals, std::size_t count, bool x, bool y, std::int32_t* line,
                    std::int32_t* plane, bool z, const Put& to, std::byte* out) {
  int32x4_t before = vdupq_n_s32(0);
  for (std::size_t i = 0; i < count; i += 4) {
    int32x4_t sums = vld1q_s32(residuals + i);  // what is behind the row is read, and not used
    if (x) {
      sums = vaddq_s32(running(sums), before);
      before = vdupq_laneq_s32(sums, 3);
    }
    if (y) sums = vaddq_s32(sums, vld1q_s32(line + i));
    vst1q_s32(line + i, sums);
    if (plane != nullptr) {
      if (z) sums = vaddq_s32(sums, vld1q_s32(plane + i));
      vst1q_s32(plane + i, sums);
    }
    if (i + 4 <= count) to.put(sums, out + i * Put::itemsize);
  }
}

// Known points and what lies behind each of them, foretold from four, in turn.
constexpr std::size_t interleaved = 4;
inline void interleave(const std::int32_t* known, const std::int32_t* residuals, std::int32_t* out) {
  const int32x4_t a = vld1q_s32(known - 1), b = vld1q_s32(known), c = vld1q_s32(known + 1), d = vld1q_s32(known + 2);
  const int32x4_t middle = vaddq_s32(b, c), nine = vaddq_s32(vshlq_n_s32(middle, 3), middle);
  const int32x4_t sum = vsubq_s32(vaddq_s32(nine, vdupq_n_s32(8)), vaddq_s32(a, d));
  vst2q_s32(out, {{b, vaddq_s32(vshrq_n_s32(sum, 4), vshlq_n_s32(vld1q_s32(residuals), 4))}});
}

#include "codec/fast_patches.hpp"
#include "codec/fast.hpp"

}  // namespace

bool has_neon() { return true; }

const Kernels& neon_kernels() { return decoding_set; }

}  // namespace solar::codec

#else

namespace solar::codec {
bool has_neon() { return false; }
const Kernels& neon_kernels() { return plain_kernels(); }
}  // namespace solar::codec

#endif
