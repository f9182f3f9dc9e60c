// The contiguous frame of blosc 2: a header, chunks, and a chunk with their offsets.
#pragma once

#include <string_view>
#include <vector>

#include "blosc_chunk.hpp"

namespace solar::blosc {

class Frame {
 public:
  // `most` bounds what is kept of the index: no frame worth reading into so many bytes has a larger one.
  Frame(Bytes in, std::size_t most);

  std::size_t nbytes() const { return nbytes_; }
  std::size_t itemsize() const { return itemsize_; }
  std::size_t chunk_nbytes() const { return chunk_nbytes_; }
  std::size_t chunks() const { return offsets_.size(); }
  // Each chunk may be asked for once: as with streams, bytes are spent.
  Chunk chunk(std::size_t i);
  // The content of a metalayer, empty when there is none of that name.
  Bytes metalayer(std::string_view name) const;

 private:
  void read_offsets(Bytes index, std::size_t most);

  Bytes header_;
  Bytes chunks_;
  std::size_t nbytes_ = 0;
  std::size_t itemsize_ = 0;
  std::size_t block_nbytes_ = 0;
  std::size_t chunk_nbytes_ = 0;
  std::size_t unspent_ = 0;
  std::vector<std::int64_t> offsets_;
};

}  // namespace solar::blosc
