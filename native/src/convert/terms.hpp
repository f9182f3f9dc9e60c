// (value - mean) / deviation along a row. There is no product in it that a compiler could contract.
//
// The functions write within the row that they are given and own nothing. A deviation of zero divides as IEEE 754 says.
// They throw nothing, and threads may call them at once for different rows.
#pragma once

#include <cstddef>
#include <type_traits>

namespace solar::converting {

// A term along a row: absent, the same value everywhere, or a value for each item, every `step`-th of them.
struct Absent {};
template <class T>
struct Same {
  T value;
  T operator[](std::size_t) const { return value; }
};
template <class T>
struct Each {
  const T* __restrict values;
  T operator[](std::size_t i) const { return values[i]; }
};
template <class T>
struct Every {
  const T* __restrict values;
  std::ptrdiff_t step;
  T operator[](std::size_t i) const { return values[static_cast<std::ptrdiff_t>(i) * step]; }
};

template <class T>
struct Row {
  const T* values = nullptr;  // nullptr: absent
  std::ptrdiff_t step = 0;
};

template <class T, class Use>
void with(const Row<T>& row, const Use& use) {
  if (row.values == nullptr) {
    use(Absent{});
  } else if (row.step == 0) {
    use(Same<T>{*row.values});
  } else if (row.step == 1) {
    use(Each<T>{row.values});
  } else {
    use(Every<T>{row.values, row.step});
  }
}

// A function of its own, and terms by value: only then is it clear that nothing else changes while `row` is written.
template <class T, class Mean, class Deviation>
[[gnu::noinline]] void normalise_with(T* __restrict row, std::size_t items, Mean mean, Deviation deviation) {
  for (std::size_t i = 0; i < items; ++i) {
    T value = row[i];
    if constexpr (!std::is_same_v<Mean, Absent>) value = value - mean[i];
    if constexpr (!std::is_same_v<Deviation, Absent>) value = value / deviation[i];
    row[i] = value;
  }
}

template <class T>
void normalise(T* row, std::size_t items, const Row<T>& mean, const Row<T>& deviation) {
  if constexpr (std::is_floating_point_v<T>) {  // other items are only moved
    if (mean.values == nullptr && deviation.values == nullptr) return;
    with(mean, [&](const auto m) { with(deviation, [&](const auto d) { normalise_with(row, items, m, d); }); });
  }
}

}  // namespace solar::converting
