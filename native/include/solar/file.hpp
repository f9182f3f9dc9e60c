// The only door to the file system: a read-only file, its identity, and reads that are whole or an Error.
//
// A File is immutable after opening; any thread may read from it. No lock is taken on the file (parallel file systems).
#pragma once

#include <cstdint>
#include <string>

#include "solar/bytes.hpp"

namespace solar {

class File {
 public:
  // O_RDONLY | O_CLOEXEC; Error(read, errno) names the path. `direct`: past the page cache, where the file system can.
  explicit File(const std::string& path, bool direct = false);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const noexcept { return path_; }
  int descriptor() const noexcept { return descriptor_; }
  std::uint64_t nbytes() const noexcept { return nbytes_; }        // at the time of opening
  std::int64_t mtime_ns() const noexcept { return mtime_ns_; }

  // 0: reads go through the page cache. Else they pass it by, and offset, size and address of each must be multiples of
  // this: such a File is read by its descriptor only.
  std::size_t alignment() const noexcept { return alignment_; }

  // Says that these bytes will be read soon; a hint.
  void expect(std::uint64_t offset, std::uint64_t nbytes) const noexcept;
  // True when the page cache holds all these bytes; false when it does not, or the kernel does not say.
  bool cached(std::uint64_t offset, std::uint64_t nbytes) const noexcept;
  // Fills `out` from `offset`: continues short reads, repeats EINTR; the end of the file is an Error.
  void read(std::uint64_t offset, MutableBytes out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::size_t alignment_ = 0;
  std::uint64_t nbytes_ = 0;
  std::int64_t mtime_ns_ = 0;
};

}  // namespace solar
