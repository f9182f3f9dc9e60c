// Fuzzes every decoder of filters, alone and one after another, as a chunk of a hostile file asks for them.
//
// The input: u8 filters (modulo 4, and one more), for each a u8 for its number and a u8 for how many values it has,
// each a u32; u8 itemsize, u32 bytes of the chunk, u8 mask; the rest is the chunk as it is stored. What
// tests/corpus/make.py writes is such. Whatever is in it, decoding ends in an Error(codec) or in all bytes, and these
// are the same whatever was in memory before.
#include <array>
#include <optional>

#include "fuzz.hpp"
#include "solar/filter.hpp"

namespace {

using solar::Bytes;
using solar::Filter;

// 4 (szip) is one that is not decoded here.
constexpr std::array<std::uint16_t, 13> numbers{1, 2, 3, 5, 6, 32000, 32001, 32004, 32008, 32015, 32026, 333, 4};
constexpr std::size_t most_values = 40, most_nbytes = 1 << 16;

std::vector<Filter> filters_of(fuzz::Input& input) {
  std::vector<Filter> filters(1 + input.upto(3));
  for (Filter& filter : filters) {
    filter.id = numbers[input.upto(numbers.size() - 1)];
    filter.values.resize(input.upto(most_values));
    for (std::uint32_t& value : filter.values) value = input.take<std::uint32_t>();
  }
  return filters;
}

std::optional<fuzz::Values> decoded(const solar::Pipeline& pipeline, Bytes stored, std::uint32_t mask,
                                    std::size_t nbytes, std::byte before, solar::Scratch& scratch) {
  fuzz::Values out(nbytes, before);
  for (auto* memory : {&scratch.a, &scratch.b, &scratch.c}) std::ranges::fill(*memory, before);
  try {
    pipeline.decode(stored, mask, out, scratch);
    return out;
  } catch (const solar::Error& error) {
    fuzz::require(error.kind() == solar::Kind::codec, "a damaged chunk is an error of another kind");
    return {};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::vector<Filter> filters = filters_of(input);
  const std::size_t itemsize = 1 + input.upto(63), nbytes = input.upto(most_nbytes);
  const std::uint32_t mask = input.upto(15);
  if (!solar::Pipeline::unsupported(filters, itemsize).empty()) return 0;
  const solar::Pipeline pipeline(filters, itemsize, nbytes);
  const Bytes rest = input.rest();
  const fuzz::Values stored(rest.begin(), rest.end());  // alone in its memory: a byte read beyond is seen
  solar::Scratch scratch, fresh;
  const auto one = decoded(pipeline, stored, mask, nbytes, std::byte{0}, scratch);
  const auto again = decoded(pipeline, stored, mask, nbytes, std::byte{255}, scratch);
  const auto anew = decoded(pipeline, stored, mask, nbytes, std::byte{90}, fresh);
  fuzz::require(one == again && one == anew, "a chunk decodes to what was in memory before");
  return 0;
}
