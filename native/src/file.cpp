#include "solar/file.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace solar {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int code) {
  throw Error(Kind::read, path + ": " + what + ": " + std::strerror(code), code);
}

}  // namespace

File::File(const std::string& path) : path_(path) {
  do {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail(path_, "cannot be opened", errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || S_ISDIR(status.st_mode)) {
    const int code = S_ISDIR(status.st_mode) ? EISDIR : errno;
    ::close(descriptor_);
    fail(path_, "cannot be read", code);
  }
  nbytes_ = static_cast<std::uint64_t>(status.st_size);
  mtime_ns_ = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

File::~File() { ::close(descriptor_); }

void File::read(std::uint64_t offset, MutableBytes out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      fail(path_, "reading " + std::to_string(out.size()) + " bytes at offset " + std::to_string(offset), errno);
    }
    if (got == 0) {
      throw Error(Kind::read, path_ + ": the file ends at byte " + std::to_string(offset) + ", " +
                                  std::to_string(out.size()) + " bytes short of what its index promises");
    }
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace solar
