#include "solar/file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace solar {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int code) {
  throw Error(Kind::read, path + ": " + what + ": " + std::strerror(code), code);
}

int open_file(const std::string& path, int flags) noexcept {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

#ifdef O_DIRECT
constexpr int direct_flag = O_DIRECT;
#else
constexpr int direct_flag = 0;
#endif

// What direct reads must be multiples of; 0 when the file system or its storage knows none.
std::size_t direct_alignment([[maybe_unused]] int descriptor) noexcept {
#ifdef STATX_DIOALIGN
  constexpr std::uint32_t largest = 64 << 10;
  struct statx status {};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0) {
    const std::uint32_t both = std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
    return both <= largest ? both : 0;
  }
#endif
  return 4096;
}

}  // namespace

File::File(const std::string& path, bool direct) : path_(path) {
  if (direct && direct_flag != 0) {
    descriptor_ = open_file(path, direct_flag);
    if (descriptor_ >= 0) alignment_ = direct_alignment(descriptor_);
    if (descriptor_ >= 0 && alignment_ == 0) ::fcntl(descriptor_, F_SETFL, 0);
  }
  if (descriptor_ < 0) descriptor_ = open_file(path, 0);
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

void File::expect(std::uint64_t offset, std::uint64_t nbytes) const noexcept {
  static_cast<void>(
      ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(nbytes), POSIX_FADV_WILLNEED));
}

bool File::cached(std::uint64_t offset, std::uint64_t nbytes) const noexcept {
  constexpr long cachestat_call = 451;  // since Linux 6.5; newer than many a libc
  struct {
    std::uint64_t offset, nbytes;
  } range{offset, nbytes};
  struct {
    std::uint64_t held, dirty, writeback, evicted, recently_evicted;
  } pages{};
  if (nbytes == 0) return true;
  if (::syscall(cachestat_call, descriptor_, &range, &pages, 0) != 0) return false;
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return pages.held >= (offset + nbytes - 1) / page - offset / page + 1;
}

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
