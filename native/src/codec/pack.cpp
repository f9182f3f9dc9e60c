// Writes what unpack reads: for each block of 32 residuals as many bits each as the largest of them needs.
#include <algorithm>
#include <array>
#include <bit>

#include "codec/draft.hpp"

namespace solar::codec {
namespace {

// At most 16 widths: those whose blocks lose least become the next wider one.
std::array<std::uint8_t, 33> widths_used(const std::vector<std::uint8_t>& widths) {
  std::array<std::size_t, 33> blocks{};
  for (const std::uint8_t width : widths) ++blocks[width];
  std::array<std::uint8_t, 33> becomes;
  for (std::size_t w = 0; w < 33; ++w) becomes[w] = static_cast<std::uint8_t>(w);
  const auto used = [&] { return std::ranges::count_if(blocks, [](std::size_t n) { return n > 0; }); };
  while (used() > 16) {
    std::size_t best = 0, wider = 0, least = ~std::size_t{0};
    for (std::size_t w = 0; w < 33; ++w) {
      if (blocks[w] == 0) continue;
      std::size_t next = w + 1;
      while (next < 33 && blocks[next] == 0) ++next;
      if (next < 33 && blocks[w] * (next - w) < least) least = blocks[w] * (next - w), best = w, wider = next;
    }
    blocks[wider] += blocks[best];
    blocks[best] = 0;
    for (std::uint8_t& to : becomes)
      if (to == best) to = static_cast<std::uint8_t>(wider);
  }
  return becomes;
}

}  // namespace

unsigned width_of(const std::int32_t* residuals) {
  std::uint32_t any = 0, size = 0;
  for (std::size_t i = 0; i < block; ++i) {
    any |= static_cast<std::uint32_t>(residuals[i]);
    size |= static_cast<std::uint32_t>(residuals[i] ^ residuals[i] >> 31);
  }
  return any == 0 ? 0 : 1 + static_cast<unsigned>(std::bit_width(size));
}

void put_fields(const std::uint32_t* fields, unsigned width, std::byte* out) {
  std::uint64_t held = 0;
  unsigned bits = 0;
  for (std::size_t i = 0; i < block; ++i) {
    held |= static_cast<std::uint64_t>(fields[i]) << bits;
    bits += width;
    if (bits >= 32) {
      const auto word = static_cast<std::uint32_t>(held);
      std::memcpy(out, &word, 4);
      out += 4;
      held >>= 32;
      bits -= 32;
    }
  }
}

std::vector<std::byte> pack_tile(const std::vector<std::int32_t>& residuals) {
  const std::size_t blocks = residuals.size() / block;
  std::vector<std::uint8_t> widths(blocks);
  for (std::size_t b = 0; b < blocks; ++b)
    widths[b] = static_cast<std::uint8_t>(width_of(residuals.data() + b * block));
  const auto becomes = widths_used(widths);
  std::array<std::uint8_t, 33> pick{};
  std::vector<std::byte> out(16 + (blocks + 7) / 8 * 4);
  std::size_t picks = 0, words = 0;
  for (std::uint8_t& width : widths) width = becomes[width];
  for (unsigned w = 0; w <= 32; ++w)
    if (std::ranges::find(widths, w) != widths.end()) {
      pick[w] = static_cast<std::uint8_t>(picks);
      out[picks++] = static_cast<std::byte>(w);
    }
  for (std::size_t b = 0; b < blocks; ++b) {
    out[16 + b / 2] |= static_cast<std::byte>(pick[widths[b]] << 4 * (b % 2));
    words += widths[b];
  }
  std::size_t at = out.size();
  out.resize(at + 4 * words);
  for (std::size_t b = 0; b < blocks; ++b) {
    const unsigned width = widths[b];
    if (width == 0) continue;
    std::uint32_t fields[block];
    for (std::size_t i = 0; i < block; ++i)
      fields[i] = static_cast<std::uint32_t>(residuals[b * block + i]) + (1u << (width - 1));
    put_fields(fields, width, out.data() + at);
    at += 4 * width;
  }
  return out;
}

}  // namespace solar::codec
