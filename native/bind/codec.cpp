// Binds the bounded codec: chunks of arrays and back, tables, what a chunk says, and the comparison of two arrays.

#include "solar/codec.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string_view>

namespace nb = nanobind;

namespace {

using solar::Number;
using Read = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Written = nb::ndarray<nb::c_contig, nb::device::cpu>;

constexpr std::array<std::pair<std::string_view, solar::Coder>, 3> coders{
    {{"auto", solar::Coder::smaller}, {"pack", solar::Coder::pack}, {"dense", solar::Coder::dense}}};
constexpr std::array<std::pair<std::string_view, solar::Predictor>, 7> predictors{
    {{"auto", solar::Predictor::tried},
     {"none", solar::Predictor::none},
     {"x", solar::Predictor::x},
     {"xy", solar::Predictor::xy},
     {"xyz", solar::Predictor::xyz},
     {"interpolation", solar::Predictor::interpolation},
     {"patches", solar::Predictor::patches}}};
constexpr std::array<std::pair<std::string_view, solar::Path>, 4> paths{{{"plain", solar::Path::plain},
                                                                         {"avx2", solar::Path::avx2},
                                                                         {"avx512", solar::Path::avx512},
                                                                         {"neon", solar::Path::neon}}};

template <class Table>
auto named(const Table& table, std::string_view name, const char* what) {
  std::string known;
  for (const auto& [key, value] : table) {
    if (key == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(key);
  }
  throw nb::value_error((std::string(what) + " must be one of " + known + ", not " + std::string(name)).c_str());
}

template <class Any>
Number number_of(const Any& array) {
  const auto type = array.dtype();
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
  };
  using Code = nb::dlpack::dtype_code;
  if (is(Code::Float, 32)) return Number::float32;
  if (is(Code::Float, 64)) return Number::float64;
  const std::pair<int, std::pair<Number, Number>> whole[] = {{8, {Number::int8, Number::uint8}},
                                                             {16, {Number::int16, Number::uint16}},
                                                             {32, {Number::int32, Number::uint32}},
                                                             {64, {Number::int64, Number::uint64}}};
  for (const auto& [bits, kinds] : whole) {
    if (is(Code::Int, bits)) return kinds.first;
    if (is(Code::UInt, bits)) return kinds.second;
  }
  throw nb::type_error("only float32, float64 and integers of 8 to 64 bits can be encoded");
}

solar::Array native_array(const Read& array) {
  solar::Array native{array.data(), number_of(array), {}};
  for (std::size_t i = 0; i < array.ndim(); ++i) native.shape.push_back(array.shape(i));
  return native;
}

solar::Bytes view(const nb::bytes& bytes) { return {static_cast<const std::byte*>(bytes.data()), bytes.size()}; }

nb::bytes to_python(const std::vector<std::byte>& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

nb::bytes encode(const Read& array, double bound, const std::string& coder, const std::string& predictor,
                 const nb::bytes& tables, const nb::bytes& marks, const nb::bytes& limits) {
  const solar::Array native = native_array(array);
  const solar::Coder by = named(coders, coder, "coder");
  const solar::Predictor from = named(predictors, predictor, "predictor");
  std::vector<std::byte> chunk;
  {
    nb::gil_scoped_release released;
    chunk = solar::encode(native, bound, by, from, view(tables), {view(marks), view(limits)});
  }
  return to_python(chunk);
}

bool is_float16(const Written& array) {
  return array.dtype().code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && array.dtype().bits == 16;
}

// Memory of the decoder, kept for the thread's next call.
solar::Scratch& scratch() {
  static thread_local solar::Scratch kept;
  return kept;
}

bool is_whole(Number number) { return number < Number::float16; }

// float32 as float16, whole numbers as float32, and all as they are.
bool may_become(Number number, const Written& out) {
  if (is_float16(out)) return number == Number::float32;
  return number == number_of(out) || (is_whole(number) && number_of(out) == Number::float32);
}

void decode_one(solar::Bytes chunk, solar::MutableBytes out, const Written& like, solar::Bytes tables,
                solar::Path path) {
  if (is_float16(like))
    solar::decode_codec_half(chunk, out, solar::Half16::float16, tables, scratch(), path);
  else if (number_of(like) != solar::codec_number(chunk))
    solar::decode_codec_cast(chunk, out, tables, scratch(), path);
  else
    solar::decode_codec(chunk, out, tables, scratch(), path);
}

void decode_into(const std::vector<nb::bytes>& stored, const Written& out, const nb::bytes& tables,
                 const std::string& path) {
  const solar::Path by = path.empty() ? solar::codec_paths().back() : named(paths, path, "path");
  std::vector<solar::Bytes> chunks;
  for (const nb::bytes& chunk : stored) {
    chunks.push_back(view(chunk));
    if (may_become(solar::codec_number(chunks.back()), out)) continue;
    solar::describe_codec(chunks.back());  // damage is not the caller's mistake: its error comes first
    throw nb::type_error("out has another type than the chunk");
  }
  if (chunks.empty() || out.nbytes() % chunks.size() != 0)
    throw nb::value_error("out has no equal part for each chunk");
  const std::size_t each = out.nbytes() / chunks.size();
  nb::gil_scoped_release released;
  for (std::size_t i = 0; i < chunks.size(); ++i)
    decode_one(chunks[i], {static_cast<std::byte*>(out.data()) + i * each, each}, out, view(tables), by);
}

void decode_single(const nb::bytes& stored, const Written& out, const nb::bytes& tables, const std::string& path) {
  decode_into({stored}, out, tables, path);
}

nb::bytes train(const std::vector<Read>& arrays, double bound, const std::string& predictor, const nb::bytes& marks,
                const nb::bytes& limits) {
  std::vector<solar::Array> native;
  for (const Read& array : arrays) native.push_back(native_array(array));
  const solar::Predictor from = named(predictors, predictor, "predictor");
  std::vector<std::byte> tables;
  {
    nb::gil_scoped_release released;
    tables = solar::train(native, bound, from, {view(marks), view(limits)});
  }
  return to_python(tables);
}

nb::dict describe(const nb::bytes& stored) {
  const solar::Chunk chunk = solar::describe_codec(view(stored));
  nb::dict said;
  said["shape"] = nb::make_tuple(chunk.shape[0], chunk.shape[1], chunk.shape[2], chunk.shape[3]);
  said["tile"] = nb::make_tuple(chunk.tile[0], chunk.tile[1], chunk.tile[2]);
  said["bound"] = chunk.bound;
  said["step"] = chunk.step;
  said["lossless"] = (chunk.flags >> 16 & 1) != 0;
  said["lattice"] = (chunk.flags >> 17 & 1) != 0;
  said["tables"] = chunk.tables;
  said["tables_inline"] = (chunk.flags & 1) != 0;
  said["raw"] = chunk.tiles_raw;
  said["constant"] = chunk.tiles_constant;
  said["pack"] = chunk.tiles_pack;
  said["dense"] = chunk.tiles_dense;
  said["interpolated"] = chunk.tiles_interpolated;
  said["patched"] = chunk.tiles_patched;
  said["kept"] = chunk.outliers;
  return said;
}

using Rows = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Lengths = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> owned(std::vector<T>&& values) {
  auto* const kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
  return {kept->data(), {kept->size()}, owner};
}

auto check_chunks(const Rows& rows, const Lengths& lengths, const Read& like, std::size_t nbytes,
                  const nb::bytes& tables) {
  const Number number = number_of(like);
  const std::size_t stride = rows.shape(1);
  if (lengths.shape(0) != rows.shape(0)) throw nb::value_error("each row must have a length");
  std::vector<std::uint8_t> found(rows.shape(0));
  {
    nb::gil_scoped_release released;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::int64_t length = lengths.data()[i];
      if (length < 0 || static_cast<std::size_t>(length) > stride)
        throw solar::Error(solar::Kind::codec, "a chunk is longer than its row");
      const auto* const row = reinterpret_cast<const std::byte*>(rows.data()) + i * stride;
      const solar::Bytes chunk{row, static_cast<std::size_t>(length)};
      found[i] = static_cast<std::uint8_t>(solar::check_codec(chunk, number, nbytes, view(tables)));
    }
  }
  return owned(std::move(found));
}

auto codec_places(const nb::bytes& tables) { return owned(solar::codec_places(view(tables))); }

nb::tuple compare(const Read& original, const Read& restored, double bound) {
  if (number_of(original) != number_of(restored) || original.nbytes() != restored.nbytes())
    throw nb::value_error("the two arrays must have the same type and size");
  const Number number = number_of(original);
  solar::Difference found;
  {
    nb::gil_scoped_release released;
    found = solar::compare(original.data(), restored.data(), number, original.size(), bound);
  }
  return nb::make_tuple(found.beyond, found.first, found.largest);
}

nb::tuple path_names() {
  nb::list names;
  for (const solar::Path path : solar::codec_paths())
    for (const auto& [name, value] : paths)
      if (value == path) names.append(nb::str(name.data(), name.size()));
  return nb::tuple(names);
}

}  // namespace

void bind_codec(nb::module_& module) {
  using namespace nb::literals;
  module.def("encode", &encode, "array"_a.noconvert(), "bound"_a, "coder"_a = "auto", "predictor"_a = "auto",
             "tables"_a = nb::bytes("", 0), "marks"_a = nb::bytes("", 0), "limits"_a = nb::bytes("", 0));
  module.def("decode_many", &decode_into, "stored"_a, "out"_a.noconvert(), "tables"_a = nb::bytes("", 0),
             "path"_a = "");
  module.def("decode_into", &decode_single, "stored"_a, "out"_a.noconvert(), "tables"_a = nb::bytes("", 0),
             "path"_a = "");
  module.def("train", &train, "arrays"_a, "bound"_a, "predictor"_a = "auto",
             "marks"_a = nb::bytes("", 0), "limits"_a = nb::bytes("", 0));
  module.def("describe_codec", &describe, "stored"_a);
  module.def("check_chunks", &check_chunks, "rows"_a.noconvert(), "lengths"_a.noconvert(), "like"_a.noconvert(),
             "nbytes"_a, "tables"_a = nb::bytes("", 0));
  module.def("codec_places", &codec_places, "tables"_a = nb::bytes("", 0));
  module.def("compare", &compare, "original"_a.noconvert(), "restored"_a.noconvert(), "bound"_a);
  module.def(
      "client_data", [](const nb::bytes& tables) { return solar::client_data(view(tables)); }, "tables"_a);
  module.def("codec_filter", [] { return solar::codec_filter; });
  module.def("codec_paths", &path_names);
}
