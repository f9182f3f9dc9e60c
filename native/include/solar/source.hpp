// Where the rows of one field lie: the native form of a Layout that is read directly.
//
// Immutable; any thread may use it. It does not own the big arrays: `keep` does (numpy arrays, or a mapped cache).
// A part is one dataset of one file. Its data are a grid of chunks; contiguous data are a grid of one chunk without filters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "solar/file.hpp"
#include "solar/filter.hpp"
#include "solar/stage.hpp"

namespace solar {

namespace read {
class Mappings;
}

// What parts have in common: most data sets have one Form.
struct Form {
  std::vector<std::uint64_t> chunk;  // chunk shape, rank = 1 + row rank; chunk[0] == 0: as many rows as the part has
  Pipeline pipeline;
  std::vector<std::byte> fill;       // empty: zeros
  std::uint64_t nbytes = 0;          // that a chunk decodes to, where its last row is not whole; 0: as many as its shape has
};

struct SourceFile {
  std::string path;
  Identity was;  // when it was inspected, and must be when it is opened for reading

  // Error(read) unless this is its identity.
  void check(const Identity& now) const;
};

// Looks at files by their paths, several at a time. Error(read) for the first of them that is another now; or, if that
// is asked, is gone (with errno).
void check_unchanged(std::span<const SourceFile> files, bool gone, unsigned threads);

struct Source {
  std::string name;                       // of the dataset, for messages
  std::string unit = "sample";            // what a row of it is to people: samples of several rows have other numbers
  std::vector<SourceFile> files;
  std::uint64_t itemsize = 0;
  std::uint32_t swap = 0;                 // 0: as stored; else reverse every `swap` bytes of the result
  // The share of its files that is read past the page cache, where that can be, unless the cache holds it already. It is
  // the same regions each time, so that the rest stays where all of it has no room.
  double bypass = 0;
  // Null: all bytes are read. Else what the page cache holds is copied from its files, mapped into memory.
  std::shared_ptr<read::Mappings> mappings;  // see map()
  std::vector<Staged> staged;  // empty, or one for each file
  std::vector<std::uint64_t> row_shape;   // shape without axis 0
  std::vector<Form> forms;
  std::span<const std::int32_t> part_file;
  std::span<const std::int32_t> part_form;
  std::span<const std::int64_t> part_first;   // parts + 1: first row of each part, and all rows
  std::span<const std::int64_t> part_chunks;  // parts + 1: first entry of each part in the chunk arrays
  std::span<const std::uint64_t> chunk_index;  // linear index in the part's grid, ascending within a part; empty: entry k of a part is chunk k
  std::span<const std::uint64_t> chunk_offset;
  std::span<const std::uint64_t> chunk_nbytes;
  std::span<const std::uint32_t> chunk_mask;
  std::shared_ptr<const void> keep;

  std::uint64_t row_nbytes() const;
  // Lets its files be mapped. REQUIRES: the files are set; called by the maker.
  void map();
  // Throws Error(layout) unless all arrays fit each other and no extent leaves its file. Called once, by the maker.
  void check() const;
};

}  // namespace solar
