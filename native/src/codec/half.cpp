// Chunks of float32 into halves: decoded once, then rounded to nearest, ties to even.
#include <bit>

#include "codec/format.hpp"
#include "solar/codec.hpp"

namespace solar {
namespace {

std::uint16_t float16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // 65520 and more round to infinity
  if (size >= 0x38800000)
    return static_cast<std::uint16_t>(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
  // Below 2^-14 the unit of 0.5's last place is that of the denormal halves: the addition rounds.
  return static_cast<std::uint16_t>(sign |
                                    (std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000));
}

std::uint16_t bfloat16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

std::size_t decode_codec_half(Bytes in, MutableBytes out, Half16 kind, Bytes tables, Scratch& scratch, Path path) {
  if (codec_number(in) != Number::float32) throw Error(Kind::codec, "only chunks of float32 become halves");
  scratch.a.resize(2 * out.size());
  decode_codec(in, scratch.a, tables, scratch, path);
  for (std::size_t i = 0; i < out.size() / 2; ++i) {
    const float value = load_le<float>(scratch.a.data() + 4 * i);
    const std::uint16_t half = kind == Half16::float16 ? float16_of(value) : bfloat16_of(value);
    std::memcpy(out.data() + 2 * i, &half, 2);
  }
  return out.size();
}

}  // namespace solar
