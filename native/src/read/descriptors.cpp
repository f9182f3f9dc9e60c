#include "descriptors.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/resource.h>

#include "patience.hpp"
#include "solar/far.hpp"

namespace solar::read {

namespace {

constexpr std::uint64_t descriptor_check_ns = 100'000'000;

bool same(const File& file, const SourceFile& wanted) { return wanted.was.differs(file.identity()).empty(); }

std::shared_ptr<const File> open_checked(const SourceFile& wanted, bool direct) {
  // Without its mark (a Layout of another machine has none) it is not known which answers are of it.
  if (Far::is_url(wanted.path) && wanted.was.inode != 0) return std::make_shared<const File>(wanted.path, wanted.was);
  auto file = std::make_shared<const File>(wanted.path, direct);
  wanted.check(file->identity());
#ifdef O_NOATIME
  // Saves a twentieth of a small read. Only the owner may, and others lose nothing: the result does not matter.
  static_cast<void>(::fcntl(file->descriptor(), F_SETFL, ::fcntl(file->descriptor(), F_GETFL) | O_NOATIME));
#endif
  return file;
}

}  // namespace

std::shared_ptr<const File> OpenFiles::open(const SourceFile& wanted, unsigned thread, std::uint64_t now_ns,
                                            std::uint64_t& retries) {
  const unsigned most = copies(), copy = thread % most;
  Shard& shard = shard_of(wanted.path);
  {
    const std::lock_guard lock(shard.mutex);
    const auto known = shard.by_path.find(wanted.path);
    if (known != shard.by_path.end() && (known->second.contains(copy) || known->second.size() >= most)) {
      const auto own = known->second.find(copy);
      const Files::iterator at = own == known->second.end() ? known->second.begin()->second : own->second;
      Open& open = *at;
      // Of another inspection, or written to since, it is opened anew, which says so.
      bool still = same(*open.file, wanted);
      if (still && now_ns - open.looked_ns >= descriptor_check_ns) {
        open.looked_ns = now_ns;
        still = open.file->unchanged();
      }
      if (still) {
        shard.files.splice(shard.files.begin(), shard.files, at);
        return open.file;
      }
      drop(shard, at);
    }
  }
  std::shared_ptr<const File> file = open_now(wanted, retries);  // which may take long
  if (open_.load(std::memory_order_relaxed) >= limit_) drop_all(copies());  // of when there were fewer files
  const std::lock_guard lock(shard.mutex);
  while (!shard.files.empty() && open_.load(std::memory_order_relaxed) >= limit_) drop(shard, std::prev(shard.files.end()));
  const auto known = shard.by_path.find(wanted.path);
  if (known != shard.by_path.end() && known->second.contains(copy)) drop(shard, known->second.at(copy));
  Files fresh{{wanted.path, copy, file, now_ns}};
  auto& own = shard.by_path[wanted.path];
  try {
    own.emplace(copy, fresh.begin());
  } catch (...) {
    if (own.empty()) shard.by_path.erase(wanted.path);
    throw;
  }
  shard.files.splice(shard.files.begin(), fresh);
  ++open_;
  paths_ += own.size() == 1;
  return file;
}

// How many descriptors each file has: threads that read through one wait for each other's reference count. Of many files
// threads seldom meet at one, and each open of a shared file system is a request to its metadata server.
unsigned OpenFiles::copies() const noexcept {
  const std::size_t paths = std::max<std::size_t>(1, paths_.load(std::memory_order_relaxed));
  return static_cast<unsigned>(std::clamp<std::size_t>(std::min(limit_, threads_ + paths - 1) / paths, 1, threads_));
}

std::shared_ptr<const File> OpenFiles::open_now(const SourceFile& wanted, std::uint64_t& retries) {
  for (Patience patience;;) {
    try {
      auto file = open_checked(wanted, direct_);
      ++opened_;
      retries += file->retries();
      return file;
    } catch (const Error& error) {
      if (error.code() != EMFILE && error.code() != ENFILE) throw;
      drop_all(0);  // the rest of the program needs them
      if (!patience.again(error.code())) throw Error(error.kind(), error.what() + patience.said(), error.code());
      ++retries;
    }
  }
}

void OpenFiles::forget(const std::string& path) {
  Shard& shard = shard_of(path);
  const std::lock_guard lock(shard.mutex);
  for (auto known = shard.by_path.find(path); known != shard.by_path.end(); known = shard.by_path.find(path)) {
    drop(shard, known->second.begin()->second);
  }
}

// Drops all descriptors of each file from this one on.
void OpenFiles::drop_all(unsigned copy) {
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    for (auto at = shard.files.begin(); at != shard.files.end();) {
      const auto next = std::next(at);
      if (at->copy >= copy) drop(shard, at);
      at = next;
    }
  }
}

// REQUIRES: the shard's mutex.
void OpenFiles::drop(Shard& shard, Files::iterator at) {
  const auto known = shard.by_path.find(at->path);
  known->second.erase(at->copy);
  if (known->second.empty()) {
    shard.by_path.erase(known);
    --paths_;
  }
  --open_;
  shard.files.erase(at);
}

std::shared_ptr<const File> Descriptors::open(const SourceFile& wanted, std::uint64_t now_ns) {
  const bool fresh = last_ != nullptr && now_ns - asked_ns_ < descriptor_check_ns;
  if (fresh && last_->path() == wanted.path && same(*last_, wanted)) return last_;
  last_ = all_.open(wanted, thread_, now_ns, retries);
  asked_ns_ = now_ns;
  return last_;
}

void Descriptors::forget(const std::string& path) {
  if (last_ != nullptr && last_->path() == path) last_.reset();
  all_.forget(path);
}

std::size_t descriptor_limit(unsigned threads) {
  rlimit limit{};
  rlim_t all = 1024;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) all = std::min<rlim_t>(all, limit.rlim_cur / 2);
  return std::max<std::size_t>(all / 2 - std::min<std::size_t>(all / 2, threads), 16);  // each holds one more
}

}  // namespace solar::read
