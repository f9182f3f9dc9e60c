#include "descriptors.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/resource.h>

namespace solar::read {

namespace {

bool same(const File& file, const SourceFile& wanted) {
  return file.nbytes() == wanted.nbytes && file.mtime_ns() == wanted.mtime_ns;
}

std::shared_ptr<const File> open_checked(const SourceFile& wanted, bool direct) {
  auto file = std::make_shared<const File>(wanted.path, direct);
  if (!same(*file, wanted)) {
    const std::string what = file->nbytes() != wanted.nbytes
                                 ? "size " + std::to_string(wanted.nbytes) + " -> " + std::to_string(file->nbytes())
                                 : "modification time differs";
    throw Error(Kind::read, wanted.path + ": changed since it was inspected: " + what + "; run inspect again");
  }
#ifdef O_NOATIME
  // Saves a twentieth of a small read. Only the owner may, and others lose nothing: the result does not matter.
  static_cast<void>(::fcntl(file->descriptor(), F_SETFL, ::fcntl(file->descriptor(), F_GETFL) | O_NOATIME));
#endif
  return file;
}

}  // namespace

std::shared_ptr<const File> Descriptors::open(const SourceFile& wanted) {
  if (!files_.empty() && files_.front()->path() == wanted.path && same(*files_.front(), wanted)) return files_.front();
  if (const auto found = by_path_.find(wanted.path); found != by_path_.end()) {
    const auto at = found->second;
    if (same(**at, wanted)) {
      files_.splice(files_.begin(), files_, at);
      return files_.front();
    }
    by_path_.erase(found);  // of another inspection
    files_.erase(at);
  }
  while (files_.size() >= limit_) {
    by_path_.erase(files_.back()->path());
    files_.pop_back();
  }
  std::shared_ptr<const File> file;
  try {
    file = open_checked(wanted, direct_);
  } catch (const Error& error) {
    if (error.code() != EMFILE && error.code() != ENFILE) throw;
    by_path_.clear();  // the rest of the program needs them
    files_.clear();
    file = open_checked(wanted, direct_);
  }
  files_.push_front(file);
  by_path_.emplace(file->path(), files_.begin());
  return file;
}

std::size_t descriptor_limit(unsigned threads) {
  rlimit limit{};
  rlim_t all = 1024;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) all = std::min<rlim_t>(all, limit.rlim_cur / 2);
  return std::max<std::size_t>(all / 2 / threads, 4);
}

}  // namespace solar::read
