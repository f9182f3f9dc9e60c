// One chunk of blosc 1 or 2: a header, and blocks that are filtered and compressed each for itself.
//
// A Chunk is a view of its bytes. Every stream's bytes are spent once: however the block starts lie, decoding
// takes time in the size of chunk and output.
#pragma once

#include <array>

#include "damaged.hpp"
#include "solar/bytes.hpp"
#include "solar/filter.hpp"

namespace solar::blosc {

[[noreturn]] void unsupported(const std::string& what);

// A chunk that is only one value, over and over.
enum class Special : std::uint8_t { none, zeros, nans, value, unset };

class Chunk {
 public:
  explicit Chunk(Bytes in);  // bytes behind the chunk are let be
  static Chunk of_special(unsigned special, std::size_t nbytes, std::size_t block_nbytes, std::size_t itemsize);

  std::size_t nbytes() const { return nbytes_; }
  std::size_t block_nbytes() const { return block_nbytes_; }
  std::size_t stored_nbytes() const { return stored_.size(); }
  std::size_t blocks() const;
  bool is_one_value() const { return special_ != Special::none; }
  bool refers_to_first() const { return delta_; }

  // What decode_block needs as `space`.
  std::size_t space_nbytes() const;
  // REQUIRES: `out` is as large as the block; `first` is block 0, decoded, where refers_to_first() and block > 0.
  void decode_block(std::size_t block, MutableBytes out, Bytes first, MutableBytes space);
  // Decodes the blocks of which anything is wanted; `at` is where the chunk begins in what `wanted` counts. Without
  // `wanted`, all of them. REQUIRES: out.size() == nbytes().
  void decode(MutableBytes out, Scratch& scratch, Wanted* wanted = nullptr, std::size_t at = 0);
  // REQUIRES: is_one_value().
  void fill(MutableBytes out) const;

 private:
  struct Step {
    bool bits;  // bit shuffle, else byte shuffle
    std::size_t itemsize;
  };

  Chunk() = default;
  void read_old_filters(unsigned flags);
  void read_filters(Cursor& in);
  std::size_t streams(std::size_t block_nbytes) const;
  void decode_streams(std::size_t block, MutableBytes out);
  void decode_stream(Cursor& in, MutableBytes out);
  void undo(const Step& step, Bytes in, MutableBytes out) const;
  void undo_delta(bool is_first, MutableBytes out, Bytes first) const;

  Bytes stored_;
  std::size_t header_nbytes_ = 0;
  std::size_t nbytes_ = 0;
  std::size_t block_nbytes_ = 0;
  std::size_t itemsize_ = 1;
  std::size_t unspent_ = 0;
  unsigned version_ = 0;
  unsigned codec_ = 0;
  bool copied_ = false;
  bool split_ = false;
  bool delta_ = false;
  Special special_ = Special::none;
  std::array<Step, 6> steps_{};  // in the order of undoing
  std::size_t step_count_ = 0;
};

}  // namespace solar::blosc
