// A DecodedFile says what a stage keeps of a file whose chunks are decoded: each chunk as its filters give it, one after
// another, each from the beginning of a block on. A Source that reads it names these offsets instead of the file's own,
// and has no filters. What the stage does not have is decoded from the file.
//
// It does not change, and any thread may use it. It does not own its arrays: `keep` owns them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "solar/filter.hpp"

namespace solar {

struct DecodedFile {
  // How chunks are decoded.
  struct Form {
    Pipeline pipeline;
    std::uint64_t nbytes = 0;   // of a chunk, in whole blocks
    std::uint64_t decodes = 0;  // of these, what comes out of its filters; behind it are zeros
  };
  // Chunks one after another.
  struct Run {
    std::size_t first = 0, chunks = 1;
    std::uint64_t begin = 0, nbytes = 0;
  };

  std::uint64_t nbytes = 0;  // of all of them, decoded
  std::vector<Form> forms;
  std::span<const std::uint64_t> begin;  // ascending, and of each chunk:
  std::span<const std::uint64_t> offset, stored;
  std::span<const std::uint32_t> mask;
  std::span<const std::int32_t> form;
  std::shared_ptr<const void> keep;

  // Throws Error(layout) unless the arrays fit each other, chunks lie apart, in whole blocks of `block_nbytes`, and all of
  // them lie within their file, of so many bytes.
  void check(std::uint64_t block_nbytes, std::uint64_t file_nbytes) const;
  const Form& form_of(std::size_t chunk) const noexcept { return forms[static_cast<std::size_t>(form[chunk])]; }
  // The chunk of a byte, and those that follow it and begin before `end`, of no more than so many bytes together.
  // REQUIRES: it is the byte of a chunk.
  Run run(std::uint64_t byte, std::uint64_t end, std::uint64_t most) const noexcept;
  // Whether all these bytes are of one chunk.
  bool has(std::uint64_t byte, std::uint64_t nbytes_of) const noexcept {
    if (begin.empty() || byte < begin.front()) return false;
    const Run chunk = run(byte, byte, 0);
    const std::uint64_t within = byte - chunk.begin;
    return within <= chunk.nbytes && nbytes_of <= chunk.nbytes - within;
  }
};

}  // namespace solar
