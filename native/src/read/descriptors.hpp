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

  // The file, open and still the one that was inspected; else Error(read).
  std::shared_ptr<const File> open(const SourceFile& wanted);

 private:
  using Files = std::list<std::shared_ptr<const File>>;

  std::size_t limit_;
  bool direct_;
  Files files_;                                                    // most recently used first
  std::unordered_map<std::string_view, Files::iterator> by_path_;  // keys live in the files
};

// How many descriptors one of `threads` threads may keep in each of its two Descriptors.
std::size_t descriptor_limit(unsigned threads);

}  // namespace solar::read
