// A line of chunks is all chunks of a part that cover the same rows. Lines says which line a row is in.
//
// A buffer that keeps chunks as they are stored holds lines: the chunks one after another, in the order of the source's
// arrays, each from a new page on. Lines is a value; any thread may use it. It refers to its Source, which must outlive
// it. REQUIRES, of all functions: the row is one of the source's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solar/source.hpp"

namespace solar::read {

inline std::uint32_t pages_of(std::uint64_t nbytes, std::uint64_t page_nbytes) noexcept {
  return static_cast<std::uint32_t>((nbytes + page_nbytes - 1) / page_nbytes);
}

struct Line {
  std::size_t number = 0;          // among all lines of the source
  std::size_t begin = 0, end = 0;  // in the source's arrays of chunks
};

class Lines {
 public:
  explicit Lines(const Source& source);

  std::size_t count() const noexcept { return first_.back(); }
  std::size_t number(std::int64_t row) const noexcept;
  Line of(std::int64_t row) const noexcept;
  // What the buffer needs to keep a line.
  std::size_t pages(const Line& line, std::uint64_t page_nbytes) const noexcept;

 private:
  std::size_t part(std::int64_t row) const noexcept;

  const Source* source_;
  std::vector<std::size_t> first_;         // line of each part, and all
  std::vector<std::uint64_t> rows_, tiles_;  // of a line of each form; rows 0: as many as its part has
};

}  // namespace solar::read
