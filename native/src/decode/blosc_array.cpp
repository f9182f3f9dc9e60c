#include "blosc_array.hpp"

#include <algorithm>

namespace solar::blosc {
namespace {

constexpr std::size_t kMostAxes = 8;

using Index = std::array<std::size_t, kMostAxes>;

// An array is cut into chunks, a chunk into blocks; both from the origin, so the last ones stick out.
struct Shape {
  std::size_t axes = 0;
  std::size_t itemsize = 0;
  Index array{}, chunk{}, block{};
};

void expect_in_shape(Cursor& in, std::size_t mark) {
  if (in.u8() != mark) damaged("the shape of a blosc array is damaged");
}

void read_lengths(Cursor& in, std::size_t axes, bool wide, Index& lengths) {
  expect_in_shape(in, 0x90 + axes);
  for (std::size_t i = 0; i < axes; ++i) {
    expect_in_shape(in, wide ? 0xd3 : 0xd2);
    lengths[i] = wide ? load_be64(in.take(8).data()) : load_be32(in.take(4).data());
  }
}

Shape read_shape(Bytes metalayer, std::size_t itemsize) {
  Cursor in(metalayer, Kind::codec, "the shape of a blosc array");
  Shape shape;
  in.skip(1);
  if (const unsigned version = in.u8(); version != 0) unsupported("blosc array version " + std::to_string(version));
  shape.axes = in.u8();
  shape.itemsize = itemsize;
  if (shape.axes == 0 || shape.axes > kMostAxes)
    unsupported("a blosc array of " + std::to_string(shape.axes) + " axes");
  read_lengths(in, shape.axes, true, shape.array);
  read_lengths(in, shape.axes, false, shape.chunk);
  read_lengths(in, shape.axes, false, shape.block);
  return shape;
}

// The bytes of the array. With the order block <= chunk <= array nothing else can be larger than twice that per axis.
std::size_t checked_nbytes(const Shape& shape, std::size_t most) {
  std::size_t nbytes = shape.itemsize;
  for (std::size_t i = 0; i < shape.axes; ++i) {
    if (shape.block[i] == 0 || shape.block[i] > shape.chunk[i])
      damaged("a block of a blosc array is larger than a chunk");
    if (shape.chunk[i] > shape.array[i]) unsupported("a chunk larger than its blosc array");
    if (nbytes > most / shape.array[i]) damaged("the output is larger than its space");
    nbytes *= shape.array[i];
  }
  return nbytes;
}

std::size_t parts(std::size_t whole, std::size_t part) { return (whole - 1) / part + 1; }

// Moves `index` to the next in C order; false after the last.
bool advance(Index& index, const Index& lengths, std::size_t axes) {
  for (std::size_t i = axes; i-- > 0;) {
    if (++index[i] < lengths[i]) return true;
    index[i] = 0;
  }
  return false;
}

// Where a block lies in the array, and the runs of bytes that are in one piece both here and there.
class Box {
 public:
  // `extent`: how much of the block is inside the array.
  Box(const Shape& shape, const Index& origin, const Index& extent)
      : extent_(extent), axis_(shape.axes - 1) {
    std::size_t inside = shape.itemsize;  // bytes of one step along the axis at hand
    std::size_t stored = shape.itemsize;
    for (std::size_t i = shape.axes; i-- > 0;) {
      steps_[i] = inside;
      stored_steps_[i] = stored;
      begin_ += origin[i] * inside;
      inside *= shape.array[i];
      stored *= shape.block[i];
    }
    while (axis_ > 0 && shape.block[axis_] == shape.array[axis_]) --axis_;
    run_ = extent[axis_] * steps_[axis_];
    nbytes_ = stored;
  }

  std::size_t begin() const { return begin_; }
  bool in_one_piece() const { return run_ == nbytes_; }
  std::size_t nbytes() const { return nbytes_; }

  // Whether anything of it is wanted. Most blocks lie before or behind all that is: that is seen without a look at runs.
  bool any(const Wanted& wanted) const {
    std::size_t end = begin_ + run_;
    for (std::size_t i = 0; i < axis_; ++i) end += (extent_[i] - 1) * steps_[i];
    if (!wanted.any(begin_, end)) return false;
    bool found = false;
    for_each_run(
        [&](std::size_t, std::size_t to, std::size_t nbytes) { found = found || wanted.any(to, to + nbytes); });
    return found;
  }

  // Calls visit(from, to, nbytes) for each run: its place in the block and in the array.
  template <class Visit>
  void for_each_run(Visit visit) const {
    Index index{};
    do {
      std::size_t from = 0, to = begin_;
      for (std::size_t i = 0; i < axis_; ++i) {
        from += index[i] * stored_steps_[i];
        to += index[i] * steps_[i];
      }
      visit(from, to, run_);
    } while (advance(index, extent_, axis_));
  }

 private:
  Index extent_;
  Index steps_{}, stored_steps_{};
  std::size_t axis_;  // the outermost axis of a run
  std::size_t begin_ = 0;
  std::size_t run_ = 0;
  std::size_t nbytes_ = 0;  // of the whole block
};

class Decoder {
 public:
  Decoder(const Shape& shape, MutableBytes out, Scratch& scratch, Wanted* wanted)
      : shape_(shape), out_(out), scratch_(scratch), wanted_(wanted) {
    for (std::size_t i = 0; i < shape.axes; ++i) {
      blocks_[i] = parts(shape.chunk[i], shape.block[i]);
      chunk_nbytes_ *= blocks_[i];
      block_nbytes_ *= shape.block[i];
    }
    block_nbytes_ *= shape.itemsize;
    chunk_nbytes_ *= block_nbytes_;
  }

  // `where` counts chunks along each axis.
  void decode(Chunk& chunk, const Index& where) {
    if (chunk.nbytes() != chunk_nbytes_ || chunk.block_nbytes() != block_nbytes_) {
      damaged("a chunk of a blosc array has not the size it must have");
    }
    if (chunk.is_one_value()) return fill(chunk, where);
    // Behind the space of the filters: the first block where later ones refer to it, and the one at hand.
    const std::size_t space = chunk.space_nbytes();
    const std::size_t kept = chunk.refers_to_first() ? block_nbytes_ : 0;
    scratch_.c.resize(std::max(scratch_.c.size(), space + kept + block_nbytes_));
    const MutableBytes memory = scratch_.c;
    const MutableBytes first = memory.subspan(space, kept);
    Index at{};
    std::size_t block = 0;
    do {
      Index origin{}, extent{};
      if (!find(shape_.block, where, at, origin, extent)) continue;
      const Box box(shape_, origin, extent);
      const bool keep = block == 0 && kept > 0;
      if (wanted_ != nullptr) {
        if (!keep && !box.any(*wanted_)) continue;
        wanted_->nbytes += box.nbytes();
      }
      const bool direct = !keep && box.in_one_piece();
      const MutableBytes aside = keep ? first : memory.subspan(space + kept, block_nbytes_);
      const MutableBytes to = direct ? out_.subspan(box.begin(), block_nbytes_) : aside;
      chunk.decode_block(block, to, first, memory.first(space));
      if (!direct) box.for_each_run([&](std::size_t from, std::size_t begin, std::size_t nbytes) {
        std::memcpy(out_.data() + begin, to.data() + from, nbytes);
      });
    } while (++block, advance(at, blocks_, shape_.axes));
  }

 private:
  // As if the chunk were one block: its own may be many and tiny.
  void fill(const Chunk& chunk, const Index& where) {
    Shape whole = shape_;
    whole.block = whole.chunk;
    Index origin{}, extent{};
    find(whole.block, where, {}, origin, extent);
    const Box box(whole, origin, extent);
    if (wanted_ != nullptr) {
      if (!box.any(*wanted_)) return;
      wanted_->nbytes += box.nbytes();
    }
    box.for_each_run(
        [&](std::size_t, std::size_t begin, std::size_t nbytes) { chunk.fill(out_.subspan(begin, nbytes)); });
  }

  // Where a block of `lengths` begins and how much of it is inside the array; false when it is padding only.
  bool find(const Index& lengths, const Index& chunk, const Index& block, Index& origin, Index& extent) const {
    for (std::size_t i = 0; i < shape_.axes; ++i) {
      const std::size_t in_chunk = block[i] * lengths[i];
      origin[i] = chunk[i] * shape_.chunk[i] + in_chunk;
      if (origin[i] >= shape_.array[i]) return false;
      extent[i] = std::min({lengths[i], shape_.chunk[i] - in_chunk, shape_.array[i] - origin[i]});
    }
    return true;
  }

  const Shape& shape_;
  MutableBytes out_;
  Scratch& scratch_;
  Wanted* wanted_;  // null: all of it
  Index blocks_{};
  std::size_t block_nbytes_ = 1;
  std::size_t chunk_nbytes_ = 1;
};

}  // namespace

std::size_t decode_array(Frame& frame, Bytes metalayer, MutableBytes out, Scratch& scratch, Wanted* wanted) {
  const Shape shape = read_shape(metalayer, frame.itemsize());
  if (std::ranges::count(shape.array.begin(), shape.array.begin() + static_cast<std::ptrdiff_t>(shape.axes), 0u) > 0)
    return 0;
  const std::size_t nbytes = checked_nbytes(shape, out.size());
  Index grid{}, where{};
  std::size_t chunks = 1;
  for (std::size_t i = 0; i < shape.axes; ++i) chunks *= grid[i] = parts(shape.array[i], shape.chunk[i]);
  if (chunks != frame.chunks()) damaged("a blosc array has not the chunks it must have");
  Decoder decoder(shape, out.first(nbytes), scratch, wanted);
  std::size_t i = 0;
  do {
    Chunk chunk = frame.chunk(i++);
    decoder.decode(chunk, where);
  } while (advance(where, grid, shape.axes));
  return nbytes;
}

}  // namespace solar::blosc
