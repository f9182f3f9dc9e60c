// Whether files are still those that were inspected.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "solar/source.hpp"

namespace solar {

namespace {

constexpr std::size_t looked_at_alone = 256;  // files: for fewer no thread is worth its start

// The identity of a file now. Nothing where it cannot be had, if that is no error: who reads it is told.
std::optional<Identity> look(const std::string& path, bool gone) {
  try {
    return identity_of(path);
  } catch (const Error& error) {
    if (!gone) return std::nullopt;
    if (error.code() != ENOENT && error.code() != ENOTDIR) throw;
    throw Error(Kind::read, path + ": there is no such file any more; put it back, or make the H5Dataset again",
                error.code());
  }
}

// Several threads take the files in their order; what is wrong with the first bad one is kept, and none behind it begun.
class Look {
 public:
  Look(std::span<const SourceFile> files, bool gone) : files_(files), gone_(gone), bad_(files.size()) {}

  void work() {
    for (std::size_t i = next_++; i < bad_; i = next_++) {
      try {
        if (const auto now = look(files_[i].path, gone_)) files_[i].check(*now);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (i >= bad_) continue;
        bad_ = i;
        error_ = std::current_exception();
      }
    }
  }

  void check() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::span<const SourceFile> files_;
  bool gone_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::size_t> bad_;
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

void SourceFile::check(const Identity& now) const {
  if (const std::string what = was.differs(now); !what.empty()) {
    throw Error(Kind::read, path + ": changed since it was inspected: " + what + "; make the H5Dataset again");
  }
}

void check_unchanged(std::span<const SourceFile> files, bool gone, unsigned threads) {
  Look looking(files, gone);
  {
    const std::size_t others = std::min<std::size_t>(threads, files.size() / looked_at_alone);
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < others; ++i) workers.emplace_back([&looking] { looking.work(); });
    looking.work();
  }
  looking.check();
}

}  // namespace solar
