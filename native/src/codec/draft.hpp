// A Draft is a tile on its way from values to bytes: residuals, and the runs of values that are kept beside them.
//
// Drafts makes the drafts of a chunk, each when it is taken, and once. It refers to the array and the marks, which must
// outlive it; the drafts own their memory. Nothing is shared, so any number of threads may encode, each its own chunk;
// memory that a thread keeps for its next tile belongs to that thread (kept.hpp). Every value of a draft comes back
// within the bound, or is in a run: who chooses among drafts decides about size, never about correctness. Error(codec)
// for a bound or a shape that no chunk can have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "codec/format.hpp"
#include "codec/guard.hpp"
#include "codec/kept.hpp"
#include "codec/patches.hpp"
#include "codec/quantise.hpp"
#include "codec/tables.hpp"
#include "solar/codec.hpp"

namespace solar::codec {

// Values of the same bits, kept as they are.
struct Run {
  std::uint16_t first, length;
  std::uint64_t bits;
};

template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

// Appends a value to the runs.
template <class T>
void keep(std::vector<Run>& runs, std::size_t at, T value) {
  const std::uint64_t bits = bits_of(value);
  if (!runs.empty() && runs.back().bits == bits && runs.back().first + runs.back().length == static_cast<int>(at))
    ++runs.back().length;
  else
    runs.push_back({static_cast<std::uint16_t>(at), 1, bits});
}

// Room for so many residuals, in whole blocks; zeros behind.
inline Ints blocks_of(std::size_t values) {
  Ints made((values + block - 1) / block * block);
  std::fill(made.begin() + static_cast<std::ptrdiff_t>(values), made.end(), 0);
  return made;
}

struct Draft {
  bool constant = false, raw = false;
  std::uint64_t bits = 0;  // of the constant
  std::uint8_t predictor = 0;
  std::int32_t origin = 0;
  Ints residuals;  // whole blocks, zeros at the end
  std::vector<Run> runs;
  // For one in the order of patches: about what it would have taken in rows, and by which predictor.
  double bits_in_rows = -1;
  std::uint8_t predictor_in_rows = 0;
};

// Predictors to be tried: bit i is predictor i.
inline constexpr std::uint32_t interpolations = 7u << 8;
inline constexpr std::uint32_t lorenzos = 1u << 0 | 1u << 1 | 1u << 3 | 1u << 7;
inline constexpr std::uint32_t in_patches = lorenzos << patched;

// Drafts one tile from its gathered values. `tried`: the predictors that may be chosen to be small with `coder`.
Draft draft_tile(const void* values, Number number, Extent extent, const Quantiser& how, std::uint32_t tried,
                 Coder coder);

// The draft of an interpolation: predictor 8, 9 or 10. float and double.
template <class T>
Draft interpolate(const T* values, Extent extent, const Quantiser& how, const Guard<T>& guard, unsigned predictor);

// The draft of a tile whose marks, if there are any, are quantised as all else is.
template <class T>
Draft draft_typed(const T* values, Extent extent, const Quantiser& how, const Guard<T>& guard, std::uint32_t tried,
                  Coder coder);

// About how many bits the coder needs for these residuals, and for all of a tile whose values have so many bytes each.
double estimate(const Ints& residuals, Coder coder);
inline double cost_of(const Draft& draft, std::size_t itemsize, Coder coder) {
  const std::size_t kept = draft.runs.size() * (4 + word_of(itemsize));
  return estimate(draft.residuals, coder) + 8.0 * static_cast<double>(kept);
}

// About how many bits a value takes in the best of Lorenzo's ways, as some of the values say; 0 of few values. What
// draft_typed() then finds for all of them is seldom less than `hope` times as much. float and double.
inline constexpr double hope = 0.8;
template <class T>
double sampled_bits(const T* values, std::size_t count, Extent extent, const Quantiser& how, Coder coder);

// A chunk's header without its lengths, and the drafts of its tiles, made when they are taken.
// REQUIRES: the array stays as long as this.
class Tiling;
class Drafts {
 public:
  Drafts(const Array& array, double bound, Predictor predictor, Coder coder, const Marks& marks);
  Drafts(Drafts&&) noexcept;
  ~Drafts();
  std::size_t tiles() const;
  Draft take(std::size_t tile);  // once each
  std::vector<Draft> all();      // likewise

  Header header;

 private:
  std::unique_ptr<Tiling> tiling_;  // nothing where there are no values
};
void gather(const Array& array, const Grid& grid, std::size_t tile, std::byte* out);

// The bytes of a tile's residuals, nothing where the coder cannot take them.
std::vector<std::byte> pack_tile(const Ints& residuals);
std::vector<std::byte> dense_tile(const Ints& residuals, const Encoding& encoding);

// 32 values plus `more`, each a field of `width` bits, the lowest first, into `width` words.
void put_fields(const std::uint32_t* values, unsigned width, std::uint32_t more, std::byte* out);

// Tables for these residuals, the better the more rounds; and how many bits they would take with given ones.
AllFrequencies trained(const std::vector<const Draft*>& drafts, int rounds);
std::uint64_t cost(const std::vector<const Draft*>& drafts, const Encoding& encoding);
// The class for each block, at most `reach` from the one its mean asks for.
inline constexpr int any_class = most_classes;
std::vector<std::uint8_t> classes(const Ints& residuals, const Encoding& encoding, int reach,
                                  std::uint64_t* bits = nullptr);

}  // namespace solar::codec
