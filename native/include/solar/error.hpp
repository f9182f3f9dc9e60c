// One exception for everything that can go wrong in native code.
//
// `kind` chooses the Python class (solar/errors.py); bind/module.cpp translates, nothing else does.
// The message is complete by itself: what was asked, what was found, where. An Error is a value and may be thrown again
// in another thread.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace solar {

enum class Kind { layout, plan, read, codec };

class Error : public std::runtime_error {
 public:
  Error(Kind kind, const std::string& message, int code = 0)
      : std::runtime_error(message), kind_(kind), code_(code) {}

  Kind kind() const noexcept { return kind_; }
  int code() const noexcept { return code_; }  // errno for Kind::read, else 0

 private:
  Kind kind_;
  int code_;
};

}  // namespace solar
