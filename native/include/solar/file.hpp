// The only door to the file system: a read-only file, its identity, and reads that are whole or an Error.
//
// A File is immutable after opening; any thread may read from it. No lock is taken on the file (parallel file systems).
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <sys/uio.h>

#include "solar/bytes.hpp"

namespace solar {

// What tells a file from another that has taken its place, or from what it was before somebody wrote to it.
//
// The device does not count: a file system that is mounted anew gets another number. Nor does an inode alone: some file
// systems (FUSE, CIFS) number their files anew now and then. A file that was put in the place of another has both another
// inode and another time of its last change, even where size and modification time were made the same.
struct Identity {
  std::uint64_t nbytes = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t inode = 0;  // 0: not known
  std::int64_t ctime_ns = 0;

  // What is otherwise now, in words; empty: it is the same file.
  std::string differs(const Identity& now) const;
};

// Of the file that has this path, or URL, now. Error(read, errno) where there is none; what may pass is tried again.
Identity identity_of(const std::string& path);

class File {
 public:
  // O_RDONLY | O_CLOEXEC; Error(read, errno) names the path. `direct`: past the page cache, where the file system can.
  // What may pass is tried again, but not where descriptors are wanting: the caller may have some to give back.
  explicit File(const std::string& path, bool direct = false);
  // What a URL names, and is taken to be: nobody is asked, for each answer says of which object it is.
  File(const std::string& url, const Identity& was) : path_(url), far_(true), identity_(was) {}
  // A file that somebody has named: what is no plain file, such as a FIFO, is an Error, and not waited for.
  static File plain(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const noexcept { return path_; }
  bool far() const noexcept { return far_; }  // a URL: see Far. It has no descriptor
  int descriptor() const noexcept { return descriptor_; }
  const Identity& identity() const noexcept { return identity_; }  // at the time of opening
  std::uint64_t nbytes() const noexcept { return identity_.nbytes; }
  unsigned retries() const noexcept { return retries_; }           // that opening took

  // 0: reads go through the page cache. Else they pass it by, and offset, size and address of each must be multiples of
  // this: such a File is read by its descriptor only.
  std::size_t alignment() const noexcept { return alignment_; }

  // Says that these bytes will be read soon; a hint.
  void expect(std::uint64_t offset, std::uint64_t nbytes) const noexcept;
  // True when the page cache holds all these bytes; false when it does not, or the kernel does not say.
  bool cached(std::uint64_t offset, std::uint64_t nbytes) const noexcept;
  // False when it was written to since it was opened, as far as the system knows without asking a server.
  bool unchanged() const noexcept;
  // Fills `out` from `offset`: continues short reads, tries again what may pass; the end of the file is an Error.
  void read(std::uint64_t offset, MutableBytes out) const;
  // preadv2: as many bytes as come, or -1 and errno.
  // REQUIRES: it is not far.
  ssize_t read_some(const iovec* parts, std::size_t count, std::uint64_t offset, int flags = 0) const noexcept;

 private:
  File(const std::string& path, bool direct, bool only_plain);

  std::string path_;
  bool far_ = false;
  int descriptor_ = -1;
  std::size_t alignment_ = 0;
  Identity identity_;
  unsigned retries_ = 0;
};

}  // namespace solar
