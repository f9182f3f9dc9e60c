// The plug-in's entry points: libhdf5 loads them, and has chunks encoded and decoded by them.
//
// No exception leaves them: what goes wrong is told to libhdf5, and the chunk is refused. Any number of threads may
// call; memory for decoding is kept for each thread's next chunk.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "plugin/hdf5.hpp"
#include "plugin/settings.hpp"

namespace solar::plugin {
namespace {

// A chunk in memory of the library that called.
class Memory {
 public:
  Memory(const Library& hdf5, std::size_t nbytes) : owned_(hdf5.allocate(nbytes), {&hdf5}), nbytes_(nbytes) {
    if (owned_ == nullptr) throw Error(Kind::codec, "no memory is left for " + std::to_string(nbytes) + " bytes");
  }
  MutableBytes bytes() { return {static_cast<std::byte*>(owned_.get()), nbytes_}; }
  void* give() { return owned_.release(); }

 private:
  struct Release {
    const Library* hdf5;
    void operator()(void* memory) const { hdf5->release(memory); }
  };
  std::unique_ptr<void, Release> owned_;
  std::size_t nbytes_;
};

template <class Result, class Work>
Result told(const Library& hdf5, Result failed, Work work) noexcept {
  try {
    return work();
  } catch (const std::exception& error) {
    hdf5.tell(error.what());
  } catch (...) {
    hdf5.tell("an error without a name");
  }
  return failed;
}

// The values of a file may ask for any memory; but a chunk has a tile of 12 bytes or more for every 16384 numbers.
std::size_t possible_nbytes(const Asked& asked, Bytes stored) {
  constexpr std::size_t tile_nbytes = 12, most_of_tile = 16384;
  const std::size_t nbytes = asked.nbytes();
  if (nbytes / asked.type->nbytes / most_of_tile > stored.size() / tile_nbytes)
    throw Error(Kind::codec, "a chunk of " + std::to_string(stored.size()) + " bytes cannot hold the " +
                                 std::to_string(nbytes) + " that the filter's values say");
  return nbytes;
}

// As the values say; without them as the chunk does, which is checked to have these tiles.
std::size_t decoded_nbytes(const Settings& settings, Bytes stored) {
  if (settings.asked && settings.asked->type != nullptr) return possible_nbytes(*settings.asked, stored);
  const Chunk chunk = describe_codec(stored);
  const auto type = std::ranges::find(types(), chunk.number, &Type::number);
  std::size_t nbytes = type->nbytes;
  for (const std::uint32_t length : chunk.shape)
    if (__builtin_mul_overflow(nbytes, std::size_t{length}, &nbytes)) nbytes = 0;
  if (nbytes == 0) throw Error(Kind::codec, "the chunk holds no values, or too many");
  return nbytes;
}

Memory decoded(const Settings& settings, Bytes stored, const Library& hdf5) {
  static thread_local Scratch scratch;
  static const Path best = codec_paths().back();
  Memory out(hdf5, decoded_nbytes(settings, stored));
  decode_codec(stored, out.bytes(), settings.tables, scratch, best);
  return out;
}

Memory encoded(const Settings& settings, Bytes values, const Library& hdf5) {
  if (!settings.asked || settings.asked->type == nullptr)
    throw Error(Kind::codec,
                "the data set does not say how its chunks are encoded: it was made where this plug-in "
                "was missing, or for chunks that come ready made");
  const Asked& asked = *settings.asked;
  asked.check_writable();
  if (values.size() != asked.nbytes())
    throw Error(Kind::codec, "a chunk of " + std::to_string(values.size()) + " bytes came where the data set has " +
                                 std::to_string(asked.nbytes()));
  const std::vector<std::byte> chunk = encode({values.data(), asked.type->number, asked.chunk}, asked.bound,
                                              asked.coder, asked.predictor, settings.tables, {asked.marks, asked.limits});
  Memory out(hdf5, chunk.size());
  std::ranges::copy(chunk, out.bytes().begin());
  return out;
}

std::size_t filter(unsigned flags, std::size_t count, const unsigned values[], std::size_t nbytes, std::size_t* room,
                   void** buffer) noexcept {
  const Library& hdf5 = Library::around(__builtin_return_address(0));
  return told(hdf5, std::size_t{0}, [&] {
    const Settings settings = parse({values, count});
    const Bytes in(static_cast<const std::byte*>(*buffer), nbytes);
    Memory out = flags & reading ? decoded(settings, in, hdf5) : encoded(settings, in, hdf5);
    *room = out.bytes().size();
    hdf5.release(*buffer);
    *buffer = out.give();
    return *room;
  });
}

const Type* type_in(const Library& hdf5, Id type) {
  for (const Type& one : types())
    if (const Id theirs = hdf5.type_named(one.symbol); theirs != 0 && hdf5.equal(type, theirs) > 0) return &one;
  throw Error(Kind::codec,
              "only float32, float64 and integers of 8 to 64 bits, little-endian, can be encoded; leave "
              "this data set without the filter, or store another type");
}

// A filter before ours changes the bytes: they would still be taken for numbers, and the bound be one of nonsense.
void check_is_first(const Library& hdf5, Id properties) {
  unsigned flags = 0;
  std::size_t none = 0;
  const int first = hdf5.get_filter(properties, 0, &flags, &none, nullptr, 0, nullptr, nullptr);
  if (first != codec_filter)
    throw Error(Kind::codec, "filter " + std::to_string(first) +
                                 " comes before, so chunks are no numbers when they come here; leave it out (shuffle "
                                 "and scale-offset gain nothing)");
}

std::vector<std::size_t> chunk_in(const Library& hdf5, Id properties) {
  std::array<std::uint64_t, most_axes> lengths;
  const int axes = hdf5.get_chunk(properties, most_axes, lengths.data());
  if (axes < 1) throw Error(Kind::codec, "the data set has no chunks");
  const auto end = lengths.begin() + axes;
  if (std::any_of(lengths.begin(), end, [](std::uint64_t length) { return length > 0xffffffff; }))
    throw Error(Kind::codec, "a chunk has an axis of more than 2^32 - 1 values");
  return {lengths.begin(), end};
}

// What the data set is filled with where nothing was written says that nothing was measured.
std::vector<std::byte> fill_in(const Library& hdf5, Id properties, Id type, std::size_t nbytes) {
  int defined = 0;
  if (hdf5.fill_value_defined(properties, &defined) < 0 || defined != filled_by_the_user) return {};
  std::vector<std::byte> value(nbytes);
  if (hdf5.get_fill_value(properties, type, value.data()) < 0)
    throw Error(Kind::codec, "the data set's fill value cannot be had");
  return value;
}

// Completes the values of a data set that is being made: its type, and the shape of its chunks.
void complete(const Library& hdf5, Id properties, Id type) {
  if (!hdf5.can_be_asked())
    throw Error(Kind::codec,
                "this HDF5 library cannot be asked for the data set's type; it must be 1.10 or newer, "
                "and a shared library");
  std::array<unsigned, most_values> values;
  std::size_t count = values.size();
  unsigned flags = 0;
  if (hdf5.get_filter_by_id(properties, codec_filter, &flags, &count, values.data(), 0, nullptr, nullptr) < 0)
    throw Error(Kind::codec, "the filter's values cannot be had");
  if (count > values.size()) return;  // whoever gave so many knew all of them
  Settings settings = parse(std::span(values).first(count));
  if (!settings.asked) return;
  settings.asked->check_writable();
  check_is_first(hdf5, properties);
  settings.asked->type = type_in(hdf5, type);
  settings.asked->chunk = chunk_in(hdf5, properties);
  if (settings.asked->bound > 0 && settings.asked->marks.empty())
    settings.asked->marks = fill_in(hdf5, properties, type, settings.asked->type->nbytes);
  const std::vector<unsigned> all = values_of(settings);
  if (all.size() > most_values) throw Error(Kind::codec, "its tables are too many values for HDF5's tools");
  if (hdf5.modify_filter(properties, codec_filter, flags, all.size(), all.data()) < 0)
    throw Error(Kind::codec, "the filter's values cannot be set");
}

int set_local(Id properties, Id type, Id) noexcept {
  const Library& hdf5 = Library::around(__builtin_return_address(0));
  return told(hdf5, -1, [&] {
    complete(hdf5, properties, type);
    return 0;
  });
}

constexpr FilterClass described{class_version, codec_filter, 1,     1, "solar: numbers within a bound",
                                nullptr,       set_local,    filter};

}  // namespace
}  // namespace solar::plugin

extern "C" {

[[gnu::visibility("default")]] int H5PLget_plugin_type() { return solar::plugin::plugin_of_filters; }

[[gnu::visibility("default")]] const void* H5PLget_plugin_info() { return &solar::plugin::described; }
}
