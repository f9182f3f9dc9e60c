// What the tests of files that lie elsewhere share: threads that fetch what is ordered, and such files.
#pragma once

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "reads.hpp"
#include "solar/far.hpp"

namespace reads {

inline const std::string url = "test://here/one";  // what is known of one is kept: another file has another URL

// Fetches what is ordered of one file of these bytes, until the test ends.
class Fetchers {
 public:
  explicit Fetchers(Values bytes, unsigned threads = 4) : bytes_(std::move(bytes)) {
    Far::get().begin(64 << 20);
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Fetchers() {
    Far::get().end();
    threads_.clear();
  }
  Identity identity() const { return {bytes_.size(), 7, 0, 0}; }
  std::atomic<std::uint64_t> fetched{0}, nbytes{0}, refuse_from{UINT64_MAX};

 private:
  void work() {
    while (const auto order = Far::get().take()) {
      if (order->nbytes == 0) {
        Far::get().give(order->number, identity());
      } else if (order->offset >= refuse_from) {
        Far::get().refuse(order->number, EREMOTEIO, "the test refuses");
      } else {
        ++fetched;
        nbytes += order->nbytes;
        Far::get().give(order->number, Bytes(bytes_).subspan(order->offset, order->nbytes));
      }
    }
  }
  Values bytes_;
  std::vector<std::jthread> threads_;
};

// The same Source, of which the only file lies elsewhere.
inline std::shared_ptr<Source> from_afar(const Source& source, const std::string& name = url) {
  auto made = std::make_shared<Source>(source);
  made->mappings = nullptr;
  made->bypass = 0;
  for (SourceFile& file : made->files) file = {name, {file.was.nbytes, 7, 0, 0}};
  return made;
}

inline Values bytes_of(const std::string& path) {
  const File file(path);
  Values bytes(file.nbytes());
  file.read(0, bytes);
  return bytes;
}

}  // namespace reads
