#include "plugin/settings.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "plugin/hdf5.hpp"

namespace solar::plugin {
namespace {

constexpr std::array<Type, 10> known{{{1, Number::float32, 4, "H5T_IEEE_F32LE_g"},
                                      {2, Number::float64, 8, "H5T_IEEE_F64LE_g"},
                                      {3, Number::int8, 1, "H5T_STD_I8LE_g"},
                                      {4, Number::uint8, 1, "H5T_STD_U8LE_g"},
                                      {5, Number::int16, 2, "H5T_STD_I16LE_g"},
                                      {6, Number::uint16, 2, "H5T_STD_U16LE_g"},
                                      {7, Number::int32, 4, "H5T_STD_I32LE_g"},
                                      {8, Number::uint32, 4, "H5T_STD_U32LE_g"},
                                      {9, Number::int64, 8, "H5T_STD_I64LE_g"},
                                      {10, Number::uint64, 8, "H5T_STD_U64LE_g"}}};
constexpr std::array predictors{Predictor::none,          Predictor::x,       Predictor::xy,      Predictor::xyz,
                                Predictor::interpolation, Predictor::patches, removed_predictor, Predictor::tried};
constexpr std::uint32_t version = 1, asked_version = 1, with_marks = 2;

[[noreturn]] void impossible(const char* what) {
  throw Error(Kind::codec, std::string("the filter's values are damaged: ") + what);
}

const Type* type_of(std::uint32_t code) {
  if (code == 0) return nullptr;
  const auto* found = std::ranges::find(known, code, &Type::code);
  if (found == known.end()) impossible("the type is unknown");
  return found;
}

std::vector<std::byte> parse_numbers(Cursor& at, const Type& type, std::size_t most) {
  const std::uint32_t count = at.u32();
  if (count > most) impossible("there are more marks than can be kept");
  std::vector<std::byte> numbers(count * type.nbytes);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t bits = at.u64();
    std::memcpy(numbers.data() + i * type.nbytes, &bits, type.nbytes);
  }
  return numbers;
}

void put_numbers(const std::vector<std::byte>& numbers, const Type& type, std::vector<unsigned>& values) {
  values.push_back(static_cast<unsigned>(numbers.size() / type.nbytes));
  for (std::size_t at = 0; at < numbers.size(); at += type.nbytes) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, numbers.data() + at, type.nbytes);
    values.push_back(static_cast<unsigned>(bits));
    values.push_back(static_cast<unsigned>(bits >> 32));
  }
}

Asked parse_asked(Cursor& at, std::uint32_t said) {
  Asked asked;
  asked.type = type_of(at.u32());
  const std::uint32_t coder = at.u32(), predictor = at.u32();
  if (coder > static_cast<std::uint32_t>(Coder::dense)) impossible("the coder is unknown");
  asked.coder = static_cast<Coder>(coder);
  const auto* found =
      std::ranges::find_if(predictors, [&](Predictor one) { return static_cast<std::uint32_t>(one) == predictor; });
  if (found == predictors.end()) impossible("the predictor is unknown");
  asked.predictor = *found;
  asked.bound = std::bit_cast<double>(at.u64());
  const std::uint32_t axes = at.u32();
  if (axes > most_axes || (axes == 0) != (asked.type == nullptr)) impossible("a chunk has no possible shape");
  for (std::uint32_t i = 0; i < axes; ++i) asked.chunk.push_back(at.u32());
  if (said != with_marks) return asked;
  if (asked.type == nullptr) impossible("marks are of no type");
  asked.marks = parse_numbers(at, *asked.type, most_marks);
  asked.limits = parse_numbers(at, *asked.type, most_limits);
  return asked;
}

}  // namespace

std::span<const Type> types() { return known; }

std::size_t Asked::nbytes() const {
  std::size_t nbytes = type->nbytes;
  for (const std::size_t length : chunk)
    if (__builtin_mul_overflow(nbytes, length, &nbytes)) impossible("a chunk is too large");
  return nbytes;
}

void Asked::check_writable() const {
  if (predictor == removed_predictor)
    throw Error(Kind::codec,
                "the data set asks for the learned predictor, which was removed after solar 0.1.0: write to a new data "
                "set with another predictor, such as auto");
}

Settings parse(std::span<const unsigned> values) {
  if (values.empty()) return {{}, Asked{}};
  Cursor at(std::as_bytes(values), Kind::codec, "the list of the filter's values");
  if (at.u32() != version) impossible("this solar reads version 1 of them");
  Settings settings;
  const std::uint32_t nbytes = at.u32();
  settings.tables = at.take(nbytes);
  at.skip((4 - nbytes % 4) % 4);
  const std::uint32_t said = at.left() > 0 ? at.u32() : 0;
  if (said == asked_version || said == with_marks) settings.asked = parse_asked(at, said);
  return settings;
}

std::vector<unsigned> values_of(const Settings& settings) {
  std::vector<unsigned> values = client_data(settings.tables);
  if (!settings.asked) return values;
  const Asked& asked = *settings.asked;
  const auto bound = std::bit_cast<std::uint64_t>(asked.bound);
  const bool marked = asked.type != nullptr && !(asked.marks.empty() && asked.limits.empty());
  values.insert(values.end(),
                {marked ? with_marks : asked_version, asked.type == nullptr ? 0 : asked.type->code, static_cast<unsigned>(asked.coder),
                 static_cast<unsigned>(asked.predictor), static_cast<unsigned>(bound),
                 static_cast<unsigned>(bound >> 32), static_cast<unsigned>(asked.chunk.size())});
  for (const std::size_t length : asked.chunk) values.push_back(static_cast<unsigned>(length));
  if (!marked) return values;
  put_numbers(asked.marks, *asked.type, values);
  put_numbers(asked.limits, *asked.type, values);
  return values;
}

}  // namespace solar::plugin
