// What a writer learns of its data set: patterns of patches, by their principal components.
#include <algorithm>
#include <array>
#include <cmath>

#include "codec/draft.hpp"
#include "codec/kernels.hpp"
#include "codec/learned.hpp"

namespace solar::codec {
namespace {

using Patch = std::array<double, patch_values>;
using Square = std::vector<Patch>;  // symmetric

constexpr std::size_t most_patches = 4096;  // looked at: a pattern has 64 values
constexpr std::size_t looked_tiles = 8;     // to choose among bases by

// The patches of a tile; what the last ones lack repeats its edges.
std::vector<Patch> cut(const std::int32_t* integers, Extent tile) {
  const Extent grid = patches_along(tile), patch = patch_of(tile);
  std::vector<Patch> patches(grid.values());
  for (std::size_t p = 0; p < patches.size(); ++p)
    for (std::uint32_t i = 0; i < patch_values; ++i) {
      const auto at = [](std::size_t first, std::uint32_t place, std::uint32_t side, std::uint32_t length) {
        return std::min<std::size_t>(first * side + place, length - 1);
      };
      const std::size_t x = at(p % grid.x, i % patch.x, patch.x, tile.x),
                        y = at(p / grid.x % grid.y, i / patch.x % patch.y, patch.y, tile.y),
                        z = at(p / grid.x / grid.y, i / patch.x / patch.y, patch.z, tile.z);
      patches[p][i] = integers[(z * tile.y + y) * tile.x + x];
    }
  return patches;
}

double dot(const Patch& a, const Patch& b) {
  double sum = 0;
  for (std::size_t i = 0; i < patch_values; ++i) sum += a[i] * b[i];
  return sum;
}

// Turns two rows and columns of a symmetric matrix so that what they share is 0; `vectors` turn with them.
void turn(Square& of, Square& vectors, std::size_t p, std::size_t q) {
  if (std::fabs(of[p][q]) < 1e-300) return;
  const double half = (of[q][q] - of[p][p]) / (2 * of[p][q]);
  const double tangent = (half < 0 ? -1 : 1) / (std::fabs(half) + std::sqrt(half * half + 1));
  const double cosine = 1 / std::sqrt(tangent * tangent + 1), sine = tangent * cosine;
  const auto mix = [=](double& a, double& b) {
    const double before = a;
    a = cosine * before - sine * b;
    b = sine * before + cosine * b;
  };
  for (std::size_t i = 0; i < patch_values; ++i) mix(of[i][p], of[i][q]);
  for (std::size_t i = 0; i < patch_values; ++i) mix(of[p][i], of[q][i]);
  for (std::size_t i = 0; i < patch_values; ++i) mix(vectors[p][i], vectors[q][i]);
}

// The directions of a symmetric matrix, the largest first (Jacobi's way).
Square directions_of(Square of) {
  Square vectors(patch_values, Patch{});
  for (std::size_t i = 0; i < patch_values; ++i) vectors[i][i] = 1;
  for (int sweep = 0; sweep < 8; ++sweep)
    for (std::size_t p = 0; p < patch_values; ++p)
      for (std::size_t q = p + 1; q < patch_values; ++q) turn(of, vectors, p, q);
  std::vector<std::size_t> order(patch_values);
  for (std::size_t i = 0; i < patch_values; ++i) order[i] = i;
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return of[a][a] > of[b][b]; });
  Square sorted;
  for (const std::size_t i : order) sorted.push_back(vectors[i]);
  return sorted;
}

// A constant, then the principal components of the patches less their means; bright patches count little more.
Square directions(const std::vector<Patch>& patches) {
  Square shared(patch_values, Patch{});
  for (Patch patch : patches) {
    double mean = 0, square = 0;
    for (const double value : patch) mean += value / patch_values;
    for (double& value : patch) value -= mean, square += value * value / patch_values;
    const double scale = 1 / (1 + square);
    for (std::size_t i = 0; i < patch_values; ++i)
      for (std::size_t j = 0; j < patch_values; ++j) shared[i][j] += scale * patch[i] * patch[j];
  }
  Square known = directions_of(shared);
  Patch constant;
  constant.fill(1 / std::sqrt(static_cast<double>(patch_values)));
  known.insert(known.begin(), constant);
  return known;
}

// What is left of a patch, about, once its parts along the first so many directions are gone.
double left_of(const std::vector<Patch>& patches, const Square& known, std::size_t count) {
  double left = 0;
  for (Patch patch : patches) {
    for (std::size_t k = 0; k < count; ++k) {
      const double part = dot(patch, known[k]);
      for (std::size_t i = 0; i < patch_values; ++i) patch[i] -= part * known[k][i];
    }
    left += dot(patch, patch);
  }
  return std::sqrt(left / static_cast<double>(patches.size() * patch_values)) + 0.3;
}

Basis basis_of(const std::vector<Patch>& patches, const Square& known, std::size_t count, int finer, bool deep) {
  double largest = 0;
  for (std::size_t k = 0; k < count; ++k)
    for (const double value : known[k]) largest = std::max(largest, std::fabs(value));
  const double unit = 127 / largest;
  Basis basis;
  basis.count = count;
  basis.deep = deep;
  // A latent's step of 3.5 deviations of the rest is about the best.
  const double coarse = std::nearbyint(std::log2(unit / (3.5 * left_of(patches, known, count))));
  basis.shift = static_cast<unsigned>(std::clamp(coarse + finer, 0.0, static_cast<double>(most_shift)));
  for (std::size_t k = 0; k < count; ++k)
    for (std::size_t i = 0; i < patch_values; ++i)
      basis.patterns[k][i] = static_cast<std::int32_t>(std::nearbyint(unit * known[k][i]));
  return basis;
}

double bits_of(const Basis& basis, const std::vector<const Integers*>& tiles) {
  const Projector projector(basis);
  double bits = 0;
  for (const Integers* tile : tiles) {
    const Latents found = latents_for(basis, projector, tile->values, tile->extent, Coder::dense);
    bits += found.bits;
  }
  return bits;
}

}  // namespace

Projector::Projector(const Basis& basis) : basis_(basis) {
  const double scale = std::ldexp(1.0, -static_cast<int>(basis.shift));
  double sums[most_patterns][most_patterns];
  for (std::size_t a = 0; a < basis.count; ++a) {
    for (std::size_t i = 0; i < patch_values; ++i) inverse_[a][i] = scale * basis.patterns[a][i];
    for (std::size_t b = 0; b < basis.count; ++b) {
      sums[a][b] = 0;
      for (std::size_t i = 0; i < patch_values; ++i)
        sums[a][b] += scale * scale * basis.patterns[a][i] * basis.patterns[b][i];
    }
  }
  // Patterns are near to orthogonal: elimination needs no search for the largest.
  for (std::size_t a = 0; a < basis.count; ++a) {
    const double own = sums[a][a] > 1e-12 ? 1 / sums[a][a] : 0;
    for (std::size_t b = 0; b < basis.count; ++b) sums[a][b] *= own;
    for (double& value : inverse_[a]) value *= own;
    for (std::size_t other = 0; other < basis.count; ++other) {
      if (other == a) continue;
      const double times = sums[other][a];
      for (std::size_t b = 0; b < basis.count; ++b) sums[other][b] -= times * sums[a][b];
      for (std::size_t i = 0; i < patch_values; ++i) inverse_[other][i] -= times * inverse_[a][i];
    }
  }
}

Ints Projector::latents(const std::int32_t* integers, Extent tile) const {
  const std::vector<Patch> patches = cut(integers, tile);
  Ints found = blocks_of(basis_.count * patches.size());
  for (std::size_t k = 0; k < basis_.count; ++k)
    for (std::size_t p = 0; p < patches.size(); ++p) {
      double sum = 0;
      for (std::size_t i = 0; i < patch_values; ++i) sum += inverse_[k][i] * patches[p][i];
      found[k * patches.size() + p] = static_cast<std::int32_t>(std::clamp(std::nearbyint(sum), -0x1p28, 0x1p28));
    }
  return found;
}

Latents latents_for(const Basis& basis, const Projector& projector, const Ints& integers, Extent extent, Coder coder) {
  const Ints latents = projector.latents(integers.data(), extent);
  const Extent grid = patches_along(extent);
  Latents best;
  best.predictor = first_learned;
  double least = -1;
  for (const unsigned axes : {0u, 1u, 3u, 7u}) {
    if ((axes == 3 && grid.y == 1) || (axes == 7 && grid.z == 1)) continue;
    Ints parted = latents;
    part_latents(parted.data(), grid, basis.count, axes);
    const double bits = estimate(parted, coder);
    if (least >= 0 && bits >= least) continue;
    least = bits;
    best.axes = axes;
    best.latents = std::move(parted);
  }
  Ints left = blocks_of(extent.values()), ordered = blocks_of(extent.values());
  foretell(basis, extent, latents.data(), left.data());
  for (std::size_t i = 0; i < extent.values(); ++i) left[i] = sub(integers[i], left[i]);
  to_patches(left.data(), extent, ordered.data());
  const double in_rows = estimate(left, coder), in_order = estimate(ordered, coder);
  if (in_order < in_rows) best.predictor = last_learned;
  best.residuals = in_order < in_rows ? std::move(ordered) : std::move(left);
  best.bits = least + std::min(in_rows, in_order) + 64;
  return best;
}

Basis learn(const std::vector<Integers>& tiles, std::size_t most) {
  std::vector<const Integers*> alike;
  std::size_t deep = 0;
  for (const Integers& tile : tiles) deep += tile.extent.z > 1;
  for (const Integers& tile : tiles)
    if ((tile.extent.z > 1) == (2 * deep > tiles.size())) alike.push_back(&tile);
  if (alike.empty()) return {};
  std::vector<Patch> patches;
  for (const Integers* tile : alike)
    std::ranges::copy(cut(tile->values.data(), tile->extent), std::back_inserter(patches));
  std::vector<Patch> some;
  const std::size_t hop = patches.size() / most_patches + 1;
  for (std::size_t p = 0; p < patches.size(); p += hop) some.push_back(patches[p]);
  const Square known = directions(some);
  std::vector<const Integers*> looked;
  for (std::size_t i = 0; i < alike.size(); i += alike.size() / looked_tiles + 1) looked.push_back(alike[i]);
  Basis best;
  double least = -1;
  for (std::size_t count = 1; count <= most; count *= 2)
    for (const int finer : {0, 1, 2}) {
      const Basis basis = basis_of(some, known, count, finer, 2 * deep > tiles.size());
      if (std::ranges::any_of(looked, [&](const Integers* tile) { return !basis.fits(tile->extent); })) continue;
      const double bits = bits_of(basis, looked);
      if (least >= 0 && bits >= least) continue;
      least = bits;
      best = basis;
    }
  return best;
}

}  // namespace solar::codec
