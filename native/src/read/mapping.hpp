// Files mapped into memory: what the page cache holds is copied without asking the kernel.
//
// A copy of 256 bytes takes a twentieth of the time of a read, one of 64 KB a third. But a page that is not in the cache
// would be read in the middle of the copy, one at a time, and a page beyond the end of a file that was cut short is a
// SIGBUS. So a mapping is used only while looks at random pages find them all cached, and every copy is guarded: a
// SIGBUS inside it makes the copy return false (reading in the ordinary way then names the error).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "solar/file.hpp"

namespace solar::read {

class Mapping {
 public:
  // Maps the whole file; null where that cannot be.
  static std::unique_ptr<Mapping> of(const File& file);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Whether the page cache holds the file, as far as a look at random pages, a tenth of a second old at most, can tell.
  bool warm(const File& file) const noexcept;

  // The mapped bytes, for use inside guarded() only; empty when the file is shorter.
  Bytes at(std::uint64_t offset, std::uint64_t nbytes) const noexcept;

  // Runs `copy`, which reads mapped bytes; false when it met bytes that are no more.
  // REQUIRES: nothing in `copy` needs a destructor to run, or is left half done for others when it is cut off.
  template <class Copy>
  bool guarded(Copy copy) const noexcept {
    return guard([](void* work) { (*static_cast<Copy*>(work))(); }, &copy);
  }

 private:
  Mapping(std::byte* begin, std::size_t nbytes) : begin_(begin), nbytes_(nbytes) {}
  bool guard(void (*call)(void*), void* work) const noexcept;
  bool look(const File& file) const noexcept;

  std::byte* begin_;
  std::size_t nbytes_;
  mutable std::atomic<std::int64_t> looked_ns_{0};
  mutable std::atomic<bool> warm_{false};
};

// The mappings of a Source's files, each made when first wanted. Any thread may ask.
class Mappings {
 public:
  explicit Mappings(std::size_t files) : slots_(files) {}

  // The mapping of file `index`, now open as `file`; null when there is none, or it is not warm.
  const Mapping* warm(std::size_t index, const File& file);

 private:
  struct Slot {
    std::once_flag once;
    std::unique_ptr<Mapping> mapping;
  };
  std::vector<Slot> slots_;
};

}  // namespace solar::read
