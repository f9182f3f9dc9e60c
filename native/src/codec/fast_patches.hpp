// From the order of patches to rows and back, in whole vectors.
//
// Each file that includes this does so once, inside its unnamed namespace, behind its target pragma if it has one. So
// no function here is ever taken for another machine's, and there is no include guard.

// Calls `row(in_rows, in_patches, count)` for each row of each patch. Most patches are whole: there the compiler knows
// how often, and how many values a row has.
template <std::size_t wide, std::size_t high, class Row>
[[gnu::always_inline]] inline void each_row_of(Extent tile, std::size_t depth, Row row) {
  const std::size_t pitch = tile.x, plane = pitch * tile.y, whole = pitch / wide * wide, rest = pitch - whole;
  std::size_t at = 0;
  for (std::size_t z = 0; z < tile.z; z += depth)
    for (std::size_t y = 0; y < tile.y; y += high) {
      const std::size_t deep = depth < tile.z - z ? depth : tile.z - z, rows = high < tile.y - y ? high : tile.y - y;
      const std::size_t first = z * plane + y * pitch;
      for (std::size_t x = 0; x < whole; x += wide)
        for (std::size_t i = 0; i < deep; ++i, at += rows * wide) {
          const std::size_t corner = first + i * plane + x;
          if (rows == high)
#pragma GCC unroll 8
            for (std::size_t j = 0; j < high; ++j) row(corner + j * pitch, at + j * wide, wide);
          else
            for (std::size_t j = 0; j < rows; ++j) row(corner + j * pitch, at + j * wide, wide);
        }
      for (std::size_t i = 0; i < deep && rest > 0; ++i)
        for (std::size_t j = 0; j < rows; ++j, at += rest) row(first + i * plane + j * pitch + whole, at, rest);
    }
}

template <class Row>
[[gnu::always_inline]] inline void each_row(Extent tile, Row row) {
  if (tile.z == 1) return each_row_of<8, 8>(tile, 1, row);
  each_row_of<4, 4>(tile, 4, row);
}

[[maybe_unused]] void to_rows(const std::int32_t* __restrict from, Extent tile, std::int32_t* __restrict to) {
  each_row(
      tile, [=](std::size_t in_rows, std::size_t in_patches, std::size_t count)
                __attribute__((always_inline)) { std::memcpy(to + in_rows, from + in_patches, 4 * count); });
}
