// Writes what unpack reads: for each block of 32 residuals as many bits each as the largest of them needs.
#include <algorithm>
#include <array>
#include <utility>

#include "codec/draft.hpp"
#include "codec/encoding.hpp"

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

// 32 fields of so many bits: in the unrolled loop every shift is known to the compiler.
template <unsigned width>
void put_block(const std::uint32_t* values, std::uint32_t more, std::byte* out) {
  std::uint64_t held = 0;
#pragma GCC unroll 32
  for (unsigned i = 0; i < block; ++i) {
    const unsigned bits = i * width % 32;
    held |= static_cast<std::uint64_t>(values[i] + more) << bits;
    if (bits + width < 32) continue;
    const auto word = static_cast<std::uint32_t>(held);
    std::memcpy(out + i * width / 32 * 4, &word, 4);
    held >>= 32;
  }
}

using Put = void (*)(const std::uint32_t*, std::uint32_t, std::byte*);
constexpr auto puts = []<std::size_t... width>(std::index_sequence<width...>) {
  return std::array<Put, sizeof...(width)>{put_block<width>...};
}
(std::make_index_sequence<33>{});

}  // namespace

void put_fields(const std::uint32_t* values, unsigned width, std::uint32_t more, std::byte* out) {
  puts[width](values, more, out);
}

std::vector<std::byte> pack_tile(const Ints& residuals) {
  const std::size_t blocks = residuals.size() / block;
  std::vector<std::uint8_t> widths(blocks);
  encoding_kernels().widths(residuals.data(), blocks, widths.data());
  const auto becomes = widths_used(widths);
  std::array<std::uint8_t, 33> pick{};
  std::vector<std::byte> out(16 + (blocks + 7) / 8 * 4);
  std::size_t picks = 0, words = 0;
  std::array<bool, 33> used{};
  for (std::uint8_t& width : widths) used[width = becomes[width]] = true;
  for (unsigned w = 0; w <= 32; ++w)
    if (used[w]) {
      pick[w] = static_cast<std::uint8_t>(picks);
      out[picks++] = static_cast<std::byte>(w);
    }
  for (std::size_t b = 0; b < blocks; ++b) {
    out[16 + b / 2] |= static_cast<std::byte>(pick[widths[b]] << 4 * (b % 2));
    words += widths[b];
  }
  std::size_t at = out.size();
  out.resize(at + 4 * words);
  const auto* const fields = reinterpret_cast<const std::uint32_t*>(residuals.data());
  for (std::size_t b = 0; b < blocks; ++b) {
    const unsigned width = widths[b];
    if (width == 0) continue;
    put_fields(fields + b * block, width, 1u << (width - 1), out.data() + at);
    at += 4 * width;
  }
  return out;
}

}  // namespace solar::codec
