// Calls a function with a value of the C++ type of a Number.
//
// The function is called once, and what it throws passes through. Error(codec) for a type that is not encoded.
#pragma once

#include <cstdint>

#include "codec/format.hpp"

namespace solar::codec {

template <class Function>
auto with_type(Number number, Function function) {
  switch (number) {
    case Number::float32:
      return function(float{});
    case Number::float64:
      return function(double{});
    case Number::int8:
      return function(std::int8_t{});
    case Number::uint8:
      return function(std::uint8_t{});
    case Number::int16:
      return function(std::int16_t{});
    case Number::uint16:
      return function(std::uint16_t{});
    case Number::int32:
      return function(std::int32_t{});
    case Number::uint32:
      return function(std::uint32_t{});
    case Number::int64:
      return function(std::int64_t{});
    case Number::uint64:
      return function(std::uint64_t{});
    default:
      throw Error(Kind::codec, "neither booleans nor float16 can be encoded");
  }
}

}  // namespace solar::codec
