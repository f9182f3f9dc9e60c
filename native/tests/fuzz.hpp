// What the fuzz targets share: numbers drawn from their input, promises, and a file that lies in memory.
//
// docs/fuzzing.md says what each target promises and how they are run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "decode/zstd_checksum.hpp"
#include "solar/bytes.hpp"

namespace fuzz {

using solar::Bytes;
using Values = std::vector<std::byte>;

// Ends the process, so that the input is kept: a promise was broken.
[[noreturn]] inline void broken(const std::string& what) {
  std::fprintf(stderr, "broken: %s\n", what.c_str());
  std::abort();
}

inline void require(bool holds, const char* what) {
  if (!holds) broken(what);
}

// Takes numbers from the front of the input; behind its end there are zeros.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(std::as_bytes(std::span(data, size))) {}

  template <class T>
  T take() {
    T value{};
    const std::size_t nbytes = std::min(sizeof value, left_.size());
    if (nbytes > 0) std::memcpy(&value, left_.data(), nbytes);
    left_ = left_.subspan(nbytes);
    return value;
  }
  std::size_t upto(std::size_t most) {
    return (most < 256 ? take<std::uint8_t>() : take<std::uint32_t>()) % (most + 1);
  }
  bool flag() { return upto(1) == 1; }
  // Mostly small, seldom any at all: one byte, or after 255 all eight.
  std::uint64_t number() {
    const auto small = take<std::uint8_t>();
    return small < 255 ? small : take<std::uint64_t>();
  }
  Bytes bytes(std::size_t most) {
    const Bytes taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  Bytes rest() { return bytes(left_.size()); }

 private:
  Bytes left_;
};

// A file without a folder: written anew for each input, and gone with the process.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error("no file in memory");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void write(Bytes bytes) const {
    const auto nbytes = static_cast<ssize_t>(bytes.size());
    if (::ftruncate(descriptor_, nbytes) != 0 || ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) != nbytes)
      throw std::runtime_error("no room for a file in memory");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// Puts right what a chunk of our codec says of its length and its sum. False: it has no room for them.
inline bool seal(Values& chunk) {
  constexpr std::size_t nbytes_at = 72, least = 88;
  if (chunk.size() < least) return false;
  const auto nbytes = static_cast<std::uint32_t>(chunk.size());
  std::memcpy(chunk.data() + nbytes_at, &nbytes, sizeof nbytes);
  const std::uint64_t sum = solar::zstd::xxhash64(Bytes(chunk).first(chunk.size() - sizeof(std::uint64_t)));
  std::memcpy(chunk.data() + chunk.size() - sizeof sum, &sum, sizeof sum);
  return true;
}

}  // namespace fuzz
