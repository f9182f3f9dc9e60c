// Zarr's codec "transpose": the axes of a chunk were stored in another order, and go back.
#include <algorithm>
#include <array>
#include <cstring>

#include "solar/decode.hpp"

namespace solar {
namespace {

constexpr std::size_t most_transposed = 32;   // axes
constexpr std::size_t transposed_block = 32;  // items of each of two axes that are moved together, for the caches

// An axis of what comes out: its length, and the bytes from one item to the next where it was and where it goes.
struct TransposedAxis {
  std::size_t size, from, to;
};

struct TransposedAxes {
  std::array<TransposedAxis, most_transposed> axes;
  std::size_t count = 0;  // the last axis comes first
  std::size_t item = 0;   // bytes that stay together

  explicit TransposedAxes(const Filter& filter) {
    const std::size_t rank = filter.values[1];
    const std::uint32_t *const order = filter.values.data() + 2, *const shape = order + rank;
    item = filter.values[0];
    std::array<std::size_t, most_transposed> from{};
    std::size_t nbytes = item;
    for (std::size_t i = rank; i-- > 0; nbytes *= shape[order[i]]) from[order[i]] = nbytes;
    nbytes = item;
    for (std::size_t axis = rank; axis-- > 0; nbytes *= shape[axis]) {
      const std::size_t size = shape[axis];
      if (size == 1) continue;
      if (count > 0 && from[axis] == axes[count - 1].from * axes[count - 1].size) {
        axes[count - 1].size *= size;
      } else {
        axes[count++] = {size, from[axis], nbytes};
      }
    }
    if (count > 0 && axes[0].from == item) {  // the last axes stay where they are
      item *= axes[0].size;
      std::copy(axes.begin() + 1, axes.begin() + static_cast<std::ptrdiff_t>(count), axes.begin());
      --count;
    }
  }
};

// `nbytes` is a constant where that is worth it: then an item is moved by one instruction.
template <class Nbytes>
void move_block(const std::byte* in, std::byte* out, const TransposedAxis& one, const TransposedAxis& other,
                Nbytes nbytes) {
  for (std::size_t i = 0; i < one.size; i += transposed_block) {
    const std::size_t i_end = std::min(i + transposed_block, one.size);
    for (std::size_t j = 0; j < other.size; j += transposed_block) {
      const std::size_t j_end = std::min(j + transposed_block, other.size);
      for (std::size_t a = i; a < i_end; ++a)
        for (std::size_t b = j; b < j_end; ++b)
          std::memcpy(out + a * one.to + b * other.to, in + a * one.from + b * other.from, nbytes);
    }
  }
}

void move_items(const std::byte* in, std::byte* out, const TransposedAxis& one, const TransposedAxis& other,
                std::size_t nbytes) {
  switch (nbytes) {
    case 1: return move_block(in, out, one, other, std::integral_constant<std::size_t, 1>());
    case 2: return move_block(in, out, one, other, std::integral_constant<std::size_t, 2>());
    case 4: return move_block(in, out, one, other, std::integral_constant<std::size_t, 4>());
    case 8: return move_block(in, out, one, other, std::integral_constant<std::size_t, 8>());
    default: return move_block(in, out, one, other, nbytes);
  }
}

}  // namespace

std::string transpose_problem(const Filter& filter) {
  const auto& values = filter.values;
  const std::size_t rank = values.size() < 2 ? 0 : values[1];
  if (rank == 0 || rank > most_transposed || values.size() != 2 + 2 * rank) return "has no valid number of axes";
  std::uint64_t nbytes = values[0], seen = 0;
  for (std::size_t i = 0; i < rank; ++i) {
    if (values[2 + i] < rank) seen |= std::uint64_t{1} << values[2 + i];
    if (__builtin_mul_overflow(nbytes, std::uint64_t{values[2 + rank + i]}, &nbytes)) return "is of too large a chunk";
  }
  if (seen != (std::uint64_t{1} << rank) - 1) return "has no valid order of axes";
  return nbytes == 0 || nbytes >> 32 != 0 ? "is of no valid size of a chunk" : "";
}

std::size_t untranspose(Bytes in, MutableBytes out, const Filter& filter) {
  std::uint64_t nbytes = filter.values[0];
  for (std::size_t i = filter.values.size() / 2 + 1; i < filter.values.size(); ++i) nbytes *= filter.values[i];
  if (in.size() != nbytes || out.size() < nbytes) {
    throw Error(Kind::codec, "the chunk has " + std::to_string(in.size()) + " bytes where " + std::to_string(nbytes) +
                                 " are expected");
  }
  TransposedAxes all(filter);
  auto& axes = all.axes;
  // The axis that is the last one of what comes out, and that which was the last one, are walked together.
  constexpr TransposedAxis none{1, 0, 0};
  const TransposedAxis last = all.count > 0 ? axes[0] : none;
  const auto least = std::min_element(axes.begin() + 1,
                                      axes.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(all.count, 1)),
                                      [](const auto& one, const auto& other) { return one.from < other.from; });
  const bool two = all.count > 1;
  const TransposedAxis was_last = two ? *least : none;
  if (two) *least = axes[--all.count];
  std::array<std::size_t, most_transposed> at{};
  for (std::size_t from = 0, to = 0;;) {
    move_items(in.data() + from, out.data() + to, was_last, last, all.item);
    std::size_t axis = 1;
    for (; axis < all.count; ++axis) {
      from += axes[axis].from;
      to += axes[axis].to;
      if (++at[axis] < axes[axis].size) break;
      from -= axes[axis].from * axes[axis].size;
      to -= axes[axis].to * axes[axis].size;
      at[axis] = 0;
    }
    if (axis >= all.count) return nbytes;
  }
}

}  // namespace solar
