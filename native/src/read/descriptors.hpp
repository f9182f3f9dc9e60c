// Open files of all threads of a Reader: opened when first needed, closed when others are needed more (least recently used
// first).
//
// Threads that read through one descriptor wait for each other's reference count. So there are several descriptors of a
// file as long as there is room for them: of few files each thread has its own, and of many files all threads share one.
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "solar/file.hpp"
#include "solar/source.hpp"

namespace solar::read {

class OpenFiles {
 public:
  // Of at most so many files, for so many threads. `direct`: open past the page cache, where the file system can.
  OpenFiles(std::size_t limit, unsigned threads, bool direct) : limit_(limit), threads_(threads), direct_(direct) {}
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

  // The file, open and still the one that was inspected; else Error(read). Of one that is open that is asked from time to
  // time: `now_ns`. `retries` is increased by the calls made again.
  std::shared_ptr<const File> open(const SourceFile& wanted, unsigned thread, std::uint64_t now_ns, std::uint64_t& retries);
  // It is opened anew when it is wanted next.
  void forget(const std::string& path);
  std::uint64_t opened() const noexcept { return opened_.load(std::memory_order_relaxed); }

 private:
  struct Open {
    std::string path;
    unsigned copy;  // which of the descriptors of this file
    std::shared_ptr<const File> file;
    std::uint64_t looked_ns;  // when it was last known to be unchanged
  };
  using Files = std::list<Open>;
  struct alignas(64) Shard {
    std::mutex mutex;
    Files files;  // most recently used first
    std::unordered_map<std::string, std::map<unsigned, Files::iterator>> by_path;  // and by copy
  };

  Shard& shard_of(const std::string& path) { return shards_[std::hash<std::string>{}(path) % shards_.size()]; }
  std::shared_ptr<const File> open_now(const SourceFile& wanted, std::uint64_t& retries);
  unsigned copies() const noexcept;
  void drop(Shard& shard, Files::iterator at);
  void drop_all(unsigned copy);

  const std::size_t limit_;
  const unsigned threads_;
  const bool direct_;
  std::atomic<std::size_t> open_{0}, paths_{0};  // descriptors, and files that they are of
  std::atomic<std::uint64_t> opened_{0};         // files that were opened, ever
  std::array<Shard, 16> shards_;
};

// What one thread has of the open files: the last one, for which it asks nobody.
class Descriptors {
 public:
  Descriptors(OpenFiles& all, unsigned thread) : all_(all), thread_(thread) {}

  std::shared_ptr<const File> open(const SourceFile& wanted, std::uint64_t now_ns);
  void forget(const std::string& path);

  std::uint64_t retries = 0;  // that opening took, for the owner to count

 private:
  OpenFiles& all_;
  const unsigned thread_;
  std::shared_ptr<const File> last_;
  std::uint64_t asked_ns_ = 0;  // when it was asked for
};

// How many descriptors so many threads may keep, of files read by way of the page cache, and as many of those read past it.
std::size_t descriptor_limit(unsigned threads);

}  // namespace solar::read
