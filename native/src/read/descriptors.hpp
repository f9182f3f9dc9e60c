// Open files of one thread: opened when first needed, closed when others are needed more (least recently used first).
//
// Each thread has its own, because threads that read through one descriptor wait for each other's reference count.
#pragma once

#include <list>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "solar/file.hpp"
#include "solar/source.hpp"

namespace solar::read {

class Descriptors {
 public:
  // `direct`: open past the page cache, where the file system can.
  Descriptors(std::size_t limit, bool direct) : limit_(limit), direct_(direct) {}

  // The file, open and still the one that was inspected; else Error(read). Of one that is open that is asked from time
  // to time: `now_ns`.
  std::shared_ptr<const File> open(const SourceFile& wanted, std::uint64_t now_ns);
  // It is opened anew when it is wanted next.
  void forget(const std::string& path);

  std::uint64_t retries = 0;  // that opening took, for the owner to count

 private:
  struct Open {
    std::shared_ptr<const File> file;
    std::uint64_t looked_ns;  // when it was last known to be unchanged
  };
  using Files = std::list<Open>;

  bool still(Open& open, const SourceFile& wanted, std::uint64_t now_ns) const;
  void drop(Files::iterator at);

  std::size_t limit_;
  bool direct_;
  Files files_;                                                    // most recently used first
  std::unordered_map<std::string_view, Files::iterator> by_path_;  // keys live in the files
};

// How many descriptors one of `threads` threads may keep in each of its two Descriptors.
std::size_t descriptor_limit(unsigned threads);

}  // namespace solar::read
