// Fuzzes the plug-in as libhdf5 calls it: the filter's values of a hostile file, and chunks to decode or to encode.
//
// The input: u16 values (modulo 1024), each a u32; u8, whether chunks are decoded and whether the chunk is made to name
// the tables of these values; the rest is the chunk. No call takes the process down or gives memory it did not fill.
#include <optional>

#include "codec/tables.hpp"
#include "fuzz.hpp"
#include "plugin/hdf5.hpp"
#include "plugin/settings.hpp"

extern "C" const void* H5PLget_plugin_info();

namespace {

using solar::Bytes;

constexpr std::size_t most_values = 1023, tables_at = 64;

std::optional<fuzz::Values> filtered(Bytes chunk, const std::vector<unsigned>& values, unsigned flags) {
  static const auto* filter = static_cast<const solar::plugin::FilterClass*>(H5PLget_plugin_info());
  void* buffer = std::malloc(std::max<std::size_t>(chunk.size(), 1));
  if (!chunk.empty()) std::memcpy(buffer, chunk.data(), chunk.size());
  std::size_t room = chunk.size();
  const std::size_t nbytes = filter->filter(flags, values.size(), values.data(), chunk.size(), &room, &buffer);
  std::optional<fuzz::Values> found;
  if (nbytes > 0) found.emplace(static_cast<std::byte*>(buffer), static_cast<std::byte*>(buffer) + nbytes);
  std::free(buffer);
  return found;
}

// The chunk says that it needs the tables among the values.
void name_tables(fuzz::Values& chunk, const std::vector<unsigned>& values) {
  try {
    const Bytes tables = solar::plugin::parse(values).tables;
    const std::uint64_t sum = tables.empty() ? 0 : solar::codec::tables_checksum(tables);
    if (chunk.size() >= tables_at + sizeof sum) std::memcpy(chunk.data() + tables_at, &sum, sizeof sum);
  } catch (const solar::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  std::vector<unsigned> values(input.take<std::uint16_t>() % (most_values + 1));
  for (unsigned& value : values) value = input.take<std::uint32_t>();
  const bool reading = !input.flag(), named = input.flag();
  const Bytes rest = input.rest();
  fuzz::Values chunk(rest.begin(), rest.end());
  if (named) name_tables(chunk, values);
  if (reading) fuzz::seal(chunk);
  const auto found = filtered(chunk, values, reading ? solar::plugin::reading : 0);
  fuzz::require(filtered(chunk, values, reading ? solar::plugin::reading : 0) == found, "two calls give two answers");
  if (!found || reading) return 0;
  const auto back = filtered(*found, values, solar::plugin::reading);
  fuzz::require(back.has_value() && back->size() == chunk.size(), "what was encoded is not decoded");
  return 0;
}
