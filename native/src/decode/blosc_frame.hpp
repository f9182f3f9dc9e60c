// A Frame is the contiguous frame of blosc 2: a header, chunks, and a chunk with their offsets.
//
// It is a view of its bytes, which must stay, with an index of its own; it belongs to one thread. The constructor
// checks the header and the offsets. What is damaged is Error(codec), and reading takes time and memory in the size of
// the frame and of the output, whatever the frame says.
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
