// The filter pipeline of a chunk: stored bytes in, raw bytes out.
//
// A Pipeline is immutable and may be used by any number of threads; each brings its own Scratch.
// Input is hostile: every decoder writes only inside `out`, reads only inside `in`, and throws
// Error(Kind::codec) otherwise. No allocation is larger than the chunk (plus a small constant) whatever the bytes say.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "solar/bytes.hpp"

namespace solar {

namespace codec {
struct Coding;
}

// Zarr's codecs that HDF5 has no filter for, by numbers of our own: solar._native.zarr_filters() is the same to Python.
inline constexpr std::uint16_t gzip_filter = 65533, crc32c_filter = 65532, transpose_filter = 65531;

// As the filter message of the file gives it. `flags` bit 0: optional.
struct Filter {
  std::uint16_t id = 0;
  std::uint16_t flags = 0;
  std::vector<std::uint32_t> values;
};

// Memory reused from chunk to chunk by one thread. a and b hold what is between two filters; c is free for the
// decoder of a container.
struct Scratch {
  std::vector<std::byte> a, b, c;
  std::shared_ptr<codec::Coding> coding;  // tables of the bounded codec, kept for the next chunk
};

// What of a decoded chunk somebody wants: bytes in ascending ranges, apart from one another.
struct Wanted {
  struct Range {
    std::uint64_t begin, end;
  };
  std::span<const Range> ranges;
  std::size_t nbytes = 0;  // that were decoded for them

  bool any(std::uint64_t begin, std::uint64_t end) const {
    const auto at = std::partition_point(ranges.begin(), ranges.end(), [=](Range one) { return one.end <= begin; });
    return at != ranges.end() && at->begin < end;
  }
};

// Whether any of these bytes must be decoded: all are, where nobody says what is wanted.
inline bool is_wanted(const Wanted* wanted, std::uint64_t begin, std::uint64_t end) {
  return wanted == nullptr || wanted->any(begin, end);
}

class Pipeline {
 public:
  Pipeline() = default;
  // `nbytes` is the raw size of a whole chunk, `itemsize` the size of one element.
  Pipeline(std::vector<Filter> filters, std::size_t itemsize, std::size_t nbytes);

  bool empty() const noexcept { return filters_.empty(); }
  std::size_t size() const noexcept { return filters_.size(); }
  // Decodes one chunk to exactly nbytes. `mask`: bit i set = filter i was not applied to this chunk.
  // REQUIRES: out.size() == nbytes. `out` is unspecified after a throw.
  // `wanted`: the decoder may leave out what is not; what `out` has there is unspecified.
  void decode(Bytes stored, std::uint32_t mask, MutableBytes out, Scratch& scratch, Wanted* wanted = nullptr) const;
  // Whether decode() may leave out anything: chunks of one filter that decodes its tiles or blocks each for itself.
  bool decodes_parts() const noexcept;

  // Empty when every filter can be decoded here, else why not ("filter 32013 (zfp) has no native decoder").
  static std::string unsupported(const std::vector<Filter>& filters, std::size_t itemsize);

  // What the filter of this number is called; empty where nobody here knows.
  static std::string name_of(std::uint16_t id);

 private:
  std::vector<Filter> filters_;
  std::size_t itemsize_ = 1;
  std::size_t nbytes_ = 0;
};

}  // namespace solar
