#include "grid.hpp"

namespace solar::read {

namespace {

std::uint64_t product(const Source& source, std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || result > INT64_MAX) {
    throw Error(Kind::layout, source.name + ": its shape or chunk shape is too large to exist");
  }
  return result;
}

}  // namespace

Grid::Grid(const Source& source, const Form& form) {
  const std::size_t rank = source.row_shape.size();
  if (rank >= max_rank || form.chunk.size() != rank + 1) {
    throw Error(Kind::layout, source.name + ": a chunk of " + std::to_string(form.chunk.size()) +
                                  " dimensions for rows of " + std::to_string(rank));
  }
  // From the innermost dimension outwards: a dimension joins the one inside it when that one is spanned by the chunk.
  Dim inner{source.itemsize, source.itemsize, 1, 1, 1};
  std::array<Dim, max_rank> reversed;
  for (std::size_t d = rank; d-- > 0;) {
    const std::uint64_t shape = source.row_shape[d];
    const std::uint64_t chunk = form.chunk[d + 1];
    if (shape == 0) return;
    if (chunk == 0) throw Error(Kind::layout, source.name + ": a chunk dimension is 0");
    if (inner.shape == inner.chunk) {
      inner.shape = product(source, shape, inner.shape);
      inner.chunk = product(source, chunk, inner.chunk);
    } else {
      reversed[rank_++] = inner;
      inner = Dim{shape, chunk, 1, product(source, inner.shape, inner.row_stride),
                  product(source, inner.chunk, inner.chunk_stride)};
    }
  }
  reversed[rank_++] = inner;
  chunk_row_nbytes_ = product(source, inner.chunk, inner.chunk_stride);
  product(source, inner.shape, inner.row_stride);
  tiles_ = 1;
  for (std::size_t d = 0; d < rank_; ++d) {
    dims_[d] = reversed[rank_ - 1 - d];
    dims_[d].tiles = (dims_[d].shape - 1) / dims_[d].chunk + 1;
    tiles_ *= dims_[d].tiles;  // at most the row's bytes
  }
}

Grid::Box Grid::box(std::uint64_t t) const {
  Box b;
  for (std::size_t d = rank_; d-- > 0;) {
    const Dim& dim = dims_[d];
    const std::uint64_t start = dim.tiles == 1 ? 0 : t % dim.tiles * dim.chunk;
    if (dim.tiles != 1) t /= dim.tiles;
    b.row_at += start * dim.row_stride;
    b.extent[d] = std::min(dim.chunk, dim.shape - start);
  }
  return b;
}

Tile Grid::tile(std::uint64_t t) const {
  const Box b = box(t);
  Tile tile{b.row_at, 1, true};
  for (std::size_t d = 0; d < rank_; ++d) {
    tile.nbytes += (b.extent[d] - 1) * dims_[d].chunk_stride;
    if (d + 1 < rank_ && b.extent[d] > 1) tile.whole = false;
  }
  return tile;
}

}  // namespace solar::read
