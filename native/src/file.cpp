#include "solar/file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "patience.hpp"
#include "solar/far.hpp"
#include "solar/faults.hpp"

namespace solar {

namespace {

[[noreturn]] void fail_with_path(const std::string& path, const std::string& what, int code,
                                 const Patience& patience = {}) {
  throw Error(Kind::read, path + ": " + what + ": " + std::strerror(code) + patience.said(), code);
}

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

Identity identity_in(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_size), nanoseconds(status.st_mtim), static_cast<std::uint64_t>(status.st_ino),
          nanoseconds(status.st_ctim)};
}

int open_file(const std::string& path, int flags) noexcept {
  if (faults::any()) {
    errno = faults::meet(faults::Call::open, path, 0, UINT64_MAX).code;
    if (errno != 0) return -1;
  }
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// Why nothing is to be read of it; 0 where there is nothing against it.
int refusal(mode_t mode, bool only_plain) noexcept {
  if (S_ISDIR(mode)) return EISDIR;
  return only_plain && !S_ISREG(mode) ? ENOTSUP : 0;
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

std::string Identity::differs(const Identity& now) const {
  if (now.nbytes != nbytes) return "size " + std::to_string(nbytes) + " -> " + std::to_string(now.nbytes);
  if (now.mtime_ns != mtime_ns) return "modification time differs";
  return inode != 0 && now.inode != inode && now.ctime_ns != ctime_ns ? "another file has its place" : "";
}

Identity identity_of(const std::string& path) {
  if (Far::is_url(path)) return Far::get().look(path);
  if (faults::any()) faults::meet(faults::Call::look, path, 0, UINT64_MAX);
  struct stat status {};
  for (Patience patience; ::stat(path.c_str(), &status) != 0;) {
    const int code = errno;
    if (!patience.again(code)) fail_with_path(path, "cannot be looked at", code, patience);
  }
  return identity_in(status);
}

File File::plain(const std::string& path) { return File(path, false, true); }

File::File(const std::string& path, bool direct) : File(path, direct, false) {}

File::File(const std::string& path, bool direct, bool only_plain) : path_(path), far_(Far::is_url(path)) {
  if (far_) {
    identity_ = Far::get().look(path);
    return;
  }
  int flags = direct ? direct_flag : only_plain ? O_NONBLOCK : 0;  // a FIFO would wait for somebody to write to it
  for (Patience patience; descriptor_ < 0;) {
    descriptor_ = open_file(path, flags);
    if (descriptor_ >= 0) break;
    const int code = errno;
    if (code == EINVAL && direct && flags != 0) {  // the file system knows no direct reads
      flags = 0;
      continue;
    }
    if (code == EMFILE || code == ENFILE || !patience.again(code))
      fail_with_path(path_, "cannot be opened", code, patience);
    ++retries_;
  }
  if (direct && flags != 0) alignment_ = direct_alignment(descriptor_);
  if (flags != 0 && alignment_ == 0) ::fcntl(descriptor_, F_SETFL, 0);
  struct stat status {};
  const int code = ::fstat(descriptor_, &status) != 0 ? errno : refusal(status.st_mode, only_plain);
  if (code != 0) {
    ::close(descriptor_);
    fail_with_path(path_, code == ENOTSUP ? "is no plain file" : "cannot be read", code);
  }
  identity_ = identity_in(status);
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::expect(std::uint64_t offset, std::uint64_t nbytes) const noexcept {
  if (far_) {
    try {
      Far::get().expect(path_, identity_, offset, nbytes);
    } catch (const std::bad_alloc&) {  // then it is fetched when it is read
    }
    return;
  }
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
  if (far_) return false;
  if (::syscall(cachestat_call, descriptor_, &range, &pages, 0) != 0) return false;
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return pages.held >= (offset + nbytes - 1) / page - offset / page + 1;
}

bool File::unchanged() const noexcept {
  if (far_) return true;  // each answer says of which file it is
#ifdef AT_STATX_DONT_SYNC
  struct statx status {};
  const unsigned wanted = STATX_SIZE | STATX_MTIME;
  if (::statx(descriptor_, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &status) != 0) return true;  // reading tells
  const std::int64_t mtime_ns = std::int64_t{status.stx_mtime.tv_sec} * 1'000'000'000 + status.stx_mtime.tv_nsec;
  return status.stx_size == identity_.nbytes && mtime_ns == identity_.mtime_ns;
#else
  return true;
#endif
}

ssize_t File::read_some(const iovec* parts, std::size_t count, std::uint64_t offset, int flags) const noexcept {
  iovec fewer{};
  if (faults::any()) {
    std::uint64_t end = offset;
    for (std::size_t i = 0; i < count; ++i) end += parts[i].iov_len;
    if ((flags & RWF_NOWAIT) != 0 && faults::waits(faults::Call::read, path_, offset, end)) {
      // The answer is as if the page cache did not hold the bytes: the fault is for the call that waits for the
      // storage.
      errno = EAGAIN;
      return -1;
    }
    const faults::Effect effect = faults::meet(faults::Call::read, path_, offset, end);
    errno = effect.code;
    if (errno != 0) return -1;
    if (effect.most < end - offset) {
      fewer = {parts[0].iov_base, std::min<std::size_t>(parts[0].iov_len, effect.most)};
      parts = &fewer;
      count = 1;
    }
  }
  const auto at = static_cast<off_t>(offset);
  if (flags != 0) return ::preadv2(descriptor_, parts, static_cast<int>(count), at, flags);
  if (count == 1) return ::pread(descriptor_, parts[0].iov_base, parts[0].iov_len, at);
  return ::preadv(descriptor_, parts, static_cast<int>(count), at);
}

void File::read(std::uint64_t offset, MutableBytes out) const {
  if (far_) return Far::get().read_kept(path_, identity_, offset, out);
  Patience patience;
  while (!out.empty()) {
    const iovec to{out.data(), out.size()};
    const ssize_t got = read_some(&to, 1, offset);
    if (got < 0) {
      if (const int code = errno; !patience.again(code)) {
        fail_with_path(path_, "reading " + std::to_string(out.size()) + " bytes at offset " + std::to_string(offset),
                       code, patience);
      }
      continue;
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
