#include "solar/stage.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <new>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

#include "decode/zstd_checksum.hpp"
#include "solar/faults.hpp"

namespace solar {

namespace {

constexpr std::uint64_t stage_page = 4 << 10;
constexpr std::uint64_t token_at = 16;   // of the last page
constexpr std::uint64_t kept_free = 20;  // this part of the disk

std::uint64_t in_pages(std::uint64_t nbytes) { return (nbytes + stage_page - 1) / stage_page * stage_page; }

// Never 0, which says that a block is not there.
std::uint32_t sum_of(Bytes bytes) noexcept {
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(zstd::xxhash64(bytes)));
}

Bytes block_of(std::uint64_t block, std::uint64_t from, Bytes bytes) noexcept {
  const std::uint64_t at = (block - from) * Stage::block_nbytes;
  return bytes.subspan(at, std::min<std::uint64_t>(Stage::block_nbytes, bytes.size() - at));  // a file's last is shorter
}

// The stage file, open to be written to for a moment: it is written to seldom, and there may be thousands.
class Writing {
 public:
  explicit Writing(const std::string& path) noexcept : path_(path) {
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor_ < 0) code_ = errno;
  }
  ~Writing() {
    if (descriptor_ >= 0) ::close(descriptor_);
    under_way.fetch_sub(nbytes_);
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

  int code() const noexcept { return code_; }
  bool is(const std::string& token, std::uint64_t at) noexcept {
    char there[16];
    if (code_ == 0 && (::pread(descriptor_, there, sizeof there, static_cast<off_t>(at)) != sizeof there ||
                       !std::equal(token.begin(), token.end(), there))) {
      code_ = ESTALE;
    }
    return code_ == 0;
  }
  // For so much, and what other threads are about to write.
  bool has_room(std::uint64_t nbytes) noexcept {
    nbytes_ = nbytes;
    nbytes = under_way.fetch_add(nbytes) + nbytes;
    struct statvfs disk {};
    if (code_ == 0 && ::fstatvfs(descriptor_, &disk) != 0) code_ = errno;
    if (code_ == 0 && disk.f_bavail * disk.f_frsize < nbytes + disk.f_blocks * disk.f_frsize / kept_free) code_ = ENOSPC;
    return code_ == 0;
  }
  void write(std::uint64_t offset, Bytes bytes) noexcept {
    if (code_ == 0 && faults::any()) code_ = faults::meet(faults::Call::write, path_, offset, offset + bytes.size()).code;
    while (code_ == 0 && !bytes.empty()) {
      const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) code_ = put < 0 ? errno : ENOSPC;
      if (put > 0) {
        offset += static_cast<std::uint64_t>(put);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
      }
    }
  }

 private:
  const std::string& path_;
  int descriptor_ = -1, code_ = 0;
  std::uint64_t nbytes_ = 0;
  static inline std::atomic<std::uint64_t> under_way{0};  // in this process
};

// What others may give back soon is no reason to give a disk up.
bool passes(int code) noexcept { return code == EMFILE || code == ENFILE || code == ENOMEM; }

}  // namespace

Stage::Stage(std::string path, std::string token, std::uint64_t nbytes)
    : path_(std::move(path)),
      token_(std::move(token)),
      nbytes_(nbytes),
      entries_begin_(in_pages(nbytes)),
      token_begin_(entries_begin_ + in_pages(entries_begin_ / block_nbytes * sizeof(std::uint32_t)) + token_at),
      file_nbytes_(token_begin_ - token_at + stage_page),
      checked_(entries_begin_ / block_nbytes / 64 + 1) {}

std::shared_ptr<const File> Stage::open() noexcept {
  if (lost() != 0) return nullptr;
  try {
    auto file = std::make_shared<const File>(path_);
    std::string token(token_.size(), '\0');
    if (file->nbytes() == file_nbytes_) file->read(token_begin_, std::as_writable_bytes(std::span(token)));
    if (token == token_) return file;
    lose(ESTALE);
  } catch (const Error& error) {
    if (!passes(error.code())) lose(error.code() != 0 ? error.code() : EIO);
  } catch (const std::bad_alloc&) {  // it is read from afar
  }
  return nullptr;
}

void Stage::lose(int code) noexcept {
  lost_ = code;
  stopped_ = code;
}

bool Stage::checked(Blocks of) const noexcept {
  for (std::uint64_t block = of.first; block < of.end; ++block) {
    if ((checked_[block / 64].load(std::memory_order_relaxed) >> block % 64 & 1) == 0) return false;
  }
  return true;
}

bool Stage::entries(const File& file, Blocks of, std::vector<std::uint32_t>& out) noexcept {
  try {
    out.resize(of.count());
    file.read(entry_offset(of.first), std::as_writable_bytes(std::span(out)));
    return true;
  } catch (const Error& error) {
    lose(error.code() != 0 ? error.code() : EIO);
  } catch (const std::bad_alloc&) {
  }
  return false;
}

bool Stage::check(Blocks of, std::uint64_t from, Bytes bytes, std::span<const std::uint32_t> entries) noexcept {
  bool sound = true;
  for (std::uint64_t block = of.first; block < of.end; ++block) {
    if (checked({block, block + 1})) continue;
    if (entries[block - from] == sum_of(block_of(block, from, bytes))) {
      checked_[block / 64].fetch_or(std::uint64_t{1} << block % 64, std::memory_order_relaxed);
    } else {
      drop(block);
      sound = false;
    }
  }
  return sound;
}

void Stage::drop(std::uint64_t block) noexcept {
  ++dropped_;
  const std::uint32_t none = 0;
  Writing file(path_);
  if (file.is(token_, token_begin_)) file.write(entry_offset(block), std::as_bytes(std::span(&none, 1)));
}

std::uint64_t Stage::put(std::span<const Blocks> runs, std::uint64_t from, Bytes bytes) noexcept {
  if (runs.empty() || stopped() != 0) return 0;
  Writing file(path_);
  std::uint64_t written = 0;
  std::vector<std::uint32_t> sums;
  if (file.is(token_, token_begin_) && file.has_room(bytes.size() + 2 * stage_page)) {
    for (const Blocks& run : runs) {
      const std::uint64_t at = (run.first - from) * block_nbytes;
      const Bytes own = bytes.subspan(at, std::min<std::uint64_t>(run.count() * block_nbytes, bytes.size() - at));
      file.write(run.first * block_nbytes, own);
      try {
        sums.resize(run.count());
      } catch (const std::bad_alloc&) {  // they are not there
        return written;
      }
      for (std::uint64_t block = run.first; block < run.end; ++block) {
        sums[block - run.first] = sum_of(block_of(block, from, bytes));
      }
      file.write(entry_offset(run.first), std::as_bytes(std::span(sums)));
      if (file.code() != 0) break;
      written += own.size();
    }
  }
  if (file.code() != 0 && !passes(file.code())) stopped_ = file.code();
  return written;
}

}  // namespace solar
