#include "descriptors.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/resource.h>

#include "patience.hpp"

namespace solar::read {

namespace {

constexpr std::uint64_t descriptor_check_ns = 100'000'000;

bool same(const File& file, const SourceFile& wanted) { return wanted.was.differs(file.identity()).empty(); }

std::shared_ptr<const File> open_checked(const SourceFile& wanted, bool direct) {
  auto file = std::make_shared<const File>(wanted.path, direct);
  wanted.check(file->identity());
#ifdef O_NOATIME
  // Saves a twentieth of a small read. Only the owner may, and others lose nothing: the result does not matter.
  static_cast<void>(::fcntl(file->descriptor(), F_SETFL, ::fcntl(file->descriptor(), F_GETFL) | O_NOATIME));
#endif
  return file;
}

}  // namespace

// Whether what is open is what was inspected. One that was written to since is opened anew, which says so.
bool Descriptors::still(Open& open, const SourceFile& wanted, std::uint64_t now_ns) const {
  if (!same(*open.file, wanted)) return false;  // of another inspection
  if (now_ns - open.looked_ns < descriptor_check_ns) return true;
  open.looked_ns = now_ns;
  return open.file->unchanged();
}

std::shared_ptr<const File> Descriptors::open(const SourceFile& wanted, std::uint64_t now_ns) {
  auto at = files_.begin();
  if (at == files_.end() || at->file->path() != wanted.path) {
    const auto found = by_path_.find(wanted.path);
    at = found == by_path_.end() ? files_.end() : found->second;
  }
  if (at != files_.end()) {
    if (still(*at, wanted, now_ns)) {
      if (at != files_.begin()) files_.splice(files_.begin(), files_, at);
      return files_.front().file;
    }
    drop(at);
  }
  while (files_.size() >= limit_) drop(std::prev(files_.end()));
  std::shared_ptr<const File> file;
  for (Patience patience; file == nullptr;) {
    try {
      file = open_checked(wanted, direct_);
    } catch (const Error& error) {
      if (error.code() != EMFILE && error.code() != ENFILE) throw;
      by_path_.clear();  // the rest of the program needs them
      files_.clear();
      if (!patience.again(error.code())) throw Error(error.kind(), error.what() + patience.said(), error.code());
      ++retries;
    }
  }
  retries += file->retries();
  files_.push_front({file, now_ns});
  by_path_.emplace(file->path(), files_.begin());
  return file;
}

void Descriptors::forget(const std::string& path) {
  if (const auto found = by_path_.find(path); found != by_path_.end()) drop(found->second);
}

void Descriptors::drop(Files::iterator at) {
  by_path_.erase(at->file->path());
  files_.erase(at);
}

std::size_t descriptor_limit(unsigned threads) {
  rlimit limit{};
  rlim_t all = 1024;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) all = std::min<rlim_t>(all, limit.rlim_cur / 2);
  return std::max<std::size_t>(all / 2 / threads, 4);
}

}  // namespace solar::read
