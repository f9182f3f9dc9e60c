// A matrix written with its rows as columns. Blocks of it are turned in vectors of 16 bytes, which every 64-bit machine
// has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace solar::converting {

template <class Item, std::size_t... I>
inline void zip(Item* v, std::index_sequence<I...>) {
  constexpr std::size_t n = sizeof...(I);
  Item zipped[n];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < n / 2; ++i) {
    zipped[2 * i] = __builtin_shufflevector(v[i], v[i + n / 2], (I / 2 + I % 2 * n)...);
    zipped[2 * i + 1] = __builtin_shufflevector(v[i], v[i + n / 2], (n / 2 + I / 2 + I % 2 * n)...);
  }
  std::memcpy(v, zipped, sizeof zipped);
}

// A square of as many rows as a vector has items. Zipping the upper rows with the lower ones, once for each bit of
// a row's number, turns it round.
template <class Item>
inline void transpose_block(const Item* __restrict in, std::size_t in_row, Item* __restrict out, std::size_t out_row) {
  constexpr std::size_t n = 16 / sizeof(Item);
  typedef Item Vector __attribute__((vector_size(16)));
  Vector v[n];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < n; ++i) std::memcpy(&v[i], in + i * in_row, sizeof v[i]);
#pragma GCC unroll 4
  for (std::size_t bit = 1; bit < n; bit *= 2) zip(v, std::make_index_sequence<n>{});
#pragma GCC unroll 16
  for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * out_row, &v[i], sizeof v[i]);
}

// Half A of the vectors zipped with half B.
template <std::size_t A, std::size_t B, class Vector, std::size_t... I>
inline Vector zip_halves(const Vector* v, std::index_sequence<I...>) {
  constexpr std::size_t n = sizeof...(I), a = A % 2 * n / 2, b = n + B % 2 * n / 2;
  return __builtin_shufflevector(v[A / 2], v[B / 2], (I % 2 == 0 ? a + I / 2 : b + I / 2)...);
}

// Rows of N items with nothing between them, the colours of pixels, to N runs of a vector each. Zipping the first half
// of all items with the second, once for each bit of the number of items in a vector, brings those of a run together.
template <class Item, std::size_t... Run>
inline void take_apart_block(const Item* __restrict in, Item* __restrict out, std::size_t out_row,
                             std::index_sequence<Run...>) {
  constexpr std::size_t runs = sizeof...(Run), n = 16 / sizeof(Item);
  typedef Item Vector __attribute__((vector_size(16)));
  Vector v[runs];
  std::memcpy(v, in, sizeof v);
#pragma GCC unroll 4
  for (std::size_t bit = 1; bit < n; bit *= 2) {
    const Vector zipped[runs] = {zip_halves<Run, Run + runs>(v, std::make_index_sequence<n>{})...};
    std::memcpy(v, zipped, sizeof v);
  }
  (std::memcpy(out + Run * out_row, &v[Run], sizeof v[Run]), ...);
}

template <std::size_t N, class Item>
void take_apart(const Item* __restrict in, Item* __restrict out, std::size_t out_row, std::size_t rows) {
  std::size_t done = 0;
  if constexpr (sizeof(Item) <= 8) {
    constexpr std::size_t n = 16 / sizeof(Item);
    for (; done + n <= rows; done += n)
      take_apart_block(in + done * N, out + done, out_row, std::make_index_sequence<N>{});
  }
  for (; done < rows; ++done)
    for (std::size_t j = 0; j < N; ++j) out[j * out_row + done] = in[done * N + j];
}

// The other way; a constant N lets the compiler use vectors.
template <std::size_t N, class Item>
void put_together(const Item* __restrict in, std::size_t in_row, Item* __restrict out, std::size_t columns) {
  for (std::size_t j = 0; j < columns; ++j)
    for (std::size_t i = 0; i < N; ++i) out[j * N + i] = in[i * in_row + j];
}

// out[j][i] = in[i][j] for i < rows, j < columns. Rows begin `in_row` and `out_row` items after one another.
template <class Item>
void transpose(const Item* __restrict in, std::size_t in_row, Item* __restrict out, std::size_t out_row,
               std::size_t rows, std::size_t columns) {
  if (columns == in_row) {
    switch (columns) {
      case 2: return take_apart<2>(in, out, out_row, rows);
      case 3: return take_apart<3>(in, out, out_row, rows);
      case 4: return take_apart<4>(in, out, out_row, rows);
    }
  }
  if (rows == out_row) {
    switch (rows) {
      case 2: return put_together<2>(in, in_row, out, columns);
      case 3: return put_together<3>(in, in_row, out, columns);
      case 4: return put_together<4>(in, in_row, out, columns);
    }
  }
  constexpr std::size_t n = sizeof(Item) > 8 ? 1 : 16 / sizeof(Item);
  const std::size_t whole_rows = n > 1 ? rows / n * n : 0, whole_columns = n > 1 ? columns / n * n : 0;
  if constexpr (n > 1) {
    for (std::size_t j = 0; j < whole_columns; j += n)
      for (std::size_t i = 0; i < whole_rows; i += n)
        transpose_block(in + i * in_row + j, in_row, out + j * out_row + i, out_row);
  }
  for (std::size_t j = 0; j < columns; ++j)
    for (std::size_t i = j < whole_columns ? whole_rows : 0; i < rows; ++i) out[j * out_row + i] = in[i * in_row + j];
}

}  // namespace solar::converting
