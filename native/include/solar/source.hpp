// A Source says where the rows of one field lie. It is the native form of a Layout that is read directly.
//
// A Source does not change, and any thread may use it. It does not own its large arrays: `keep` owns them (numpy
// arrays, or a mapped cache). A part is one dataset of one file, or a line of a Zarr array, whose chunks may lie in a
// file each. Its data are a grid of chunks; contiguous data are a grid of one chunk without filters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "solar/decoded.hpp"
#include "solar/file.hpp"
#include "solar/filter.hpp"
#include "solar/stage.hpp"

namespace solar {

namespace read {
class Mappings;
}

// A Form is what several parts have in common. Most data sets have one.
struct Form {
  std::vector<std::uint64_t> chunk;  // chunk shape, rank = 1 + row rank; chunk[0] == 0: as many rows as the part has
  Pipeline pipeline;
  std::vector<std::byte> fill;       // empty: zeros
  std::uint64_t nbytes = 0;          // that a chunk decodes to, where its last row is not whole; 0: as many as its shape has
};

struct SourceFile {
  std::string path;
  Identity was;  // when it was inspected, and must be when it is opened for reading

  // Throws Error(read) unless `now` is the identity that the file had.
  void check(const Identity& now) const;
};

// Checks the identity of files, several at a time. Throws Error(read) for the first file that has changed or, if `gone`
// is true, that no longer exists (with errno).
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
  // Empty, or one for each file: not null where offsets are those of its chunks decoded, in its stage.
  std::vector<std::shared_ptr<const DecodedFile>> decoded;
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
  std::span<const std::int32_t> chunk_file;  // empty: each chunk lies in the file of its part
  std::shared_ptr<const void> keep;

  std::uint64_t row_nbytes() const;
  // The number of the file that holds this chunk of this part.
  std::size_t file_of(std::size_t part, std::size_t chunk) const {
    return static_cast<std::size_t>(chunk_file.empty() ? part_file[part] : chunk_file[chunk]);
  }
  // The bytes that offsets of a file are of.
  std::uint64_t nbytes_of(std::size_t file) const {
    return decoded.empty() || decoded[file] == nullptr ? files[file].was.nbytes : decoded[file]->nbytes;
  }
  // Allows its files to be mapped into memory. Called by the thread that makes the Source. REQUIRES: `files` is set.
  void map();
  // Throws Error(layout) unless all arrays fit each other and all data lie within their files. Called once, by the
  // thread that makes the Source, before any other uses it.
  void check() const;
};

}  // namespace solar
