// Drafts of a whole chunk: how it is cut into tiles, and which predictors are worth a try in each.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "codec/draft.hpp"

namespace solar::codec {
namespace {

// A tile of fewer values than this spends some percent of its bytes on what lies beside the values.
constexpr std::size_t few_values = 2048;

// Axes of one value go; what is more than four axes becomes the first. That is not cut: where it would leave tiles of
// few values, it becomes one with the second.
void fold(const std::vector<std::size_t>& shape, Header& header) {
  std::vector<std::size_t> axes;
  for (const std::size_t length : shape)
    if (length != 1) axes.push_back(length);
  std::size_t first = 1;
  while (axes.size() > 3) {
    if (__builtin_mul_overflow(first, axes.front(), &first)) throw Error(Kind::codec, "too many values for one chunk");
    axes.erase(axes.begin());
  }
  axes.insert(axes.begin(), 3 - axes.size(), 1);
  std::size_t inner = 1;
  for (const std::size_t length : axes) inner = std::min(few_values, length) * std::min(few_values, inner);
  if (first > 1 && inner < few_values && __builtin_mul_overflow(std::exchange(first, 1), axes[0], &axes[0]))
    throw Error(Kind::codec, "too many values for one chunk");
  axes.insert(axes.begin(), first);
  std::size_t values = 1;
  for (std::size_t i = 0; i < 4; ++i) {
    if (axes[i] > 0xffffffff) throw Error(Kind::codec, "an axis of " + std::to_string(axes[i]) + " values is too long");
    header.shape[i] = static_cast<std::uint32_t>(axes[i]);
    values *= axes[i];
  }
  if (values * itemsize_of(header.number) > 0xe0000000)
    throw Error(Kind::codec, std::to_string(values) + " values are too many for one chunk of less than 4 GB");
}

// About equal parts of at most `most`, in multiples of 8 where there are several.
std::uint32_t part(std::uint32_t length, std::size_t most) {
  const auto room = static_cast<std::uint32_t>(std::max<std::size_t>(1, most));
  if (length <= room) return std::max(1u, length);
  const std::uint32_t parts = (length + room - 1) / room, each = (length + parts - 1) / parts;
  return std::min(room, (each + 7) / 8 * 8);
}

// The same, but in multiples of 8 and one more: interpolation then ends on a point it begins with.
std::uint32_t odd_part(std::uint32_t length, std::size_t most) {
  return length <= most ? std::max(1u, length) : part(length, most - 1) + 1;
}

// Along one axis, what is left of a tile's values once the others are taken.
std::uint32_t rest(std::uint32_t length, std::size_t taken) { return part(length, most_values / taken); }

Extent usual_tile(const std::uint32_t* shape) {
  const bool deep = shape[1] > 1, wide = shape[2] > 1;
  Extent tile{1, 1, part(shape[3], deep ? 64 : wide ? 128 : most_values)};
  tile.y = part(shape[2], (deep ? 2048 : most_values) / tile.x);
  tile.z = rest(shape[1], tile.x * tile.y);
  if (tile.z == shape[1] && tile.y < shape[2]) tile.y = rest(shape[2], tile.x * tile.z);
  if (tile.y == shape[2] && tile.x < shape[3]) tile.x = rest(shape[3], tile.y * tile.z);
  return tile;
}

// For interpolation in space: near to a cube, or as thick as the field where that is thin.
Extent round_tile(const std::uint32_t* shape) {
  const bool thin = shape[1] <= 17;
  Extent tile{thin ? shape[1] : 1, 1, odd_part(shape[3], thin ? 81 : 33)};
  const std::size_t most = thin ? most_values / (std::size_t{tile.x} * tile.z) : 33;
  tile.y = odd_part(shape[2], most - (most - 1) % 8);
  if (!thin) tile.z = rest(shape[1], tile.x * tile.y);
  return tile;
}

// A block is a patch of two rows: what is close together in it is closer, and an edge crosses fewer of them.
Extent narrow_tile(const std::uint32_t* shape) {
  Extent tile{part(shape[1], 32), 1, std::min(16u, shape[3])};
  tile.y = rest(shape[2], tile.x * tile.z);
  if (tile.y == shape[2]) tile.z = rest(shape[1], tile.x * tile.y);
  return tile;
}

std::uint32_t predictors(Predictor predictor, Extent tile) {
  if (predictor == Predictor::interpolation) return interpolations;
  if (predictor != Predictor::tried && predictor != Predictor::patches) return 1u << static_cast<unsigned>(predictor);
  std::uint32_t tried = predictor == Predictor::patches ? in_patches : lorenzos | interpolations | in_patches;
  if (tile.z == 1) tried &= ~(1u << 7 | 1u << (patched + 7));
  if (tile.z == 1 && tile.y == 1) tried &= ~(1u << 3 | 1u << (patched + 3));
  if (tile.z == 1 && tile.y == 1 && predictor == Predictor::tried) tried &= ~in_patches;  // the order is the same
  return tried;
}

void check_bound(double bound) {
  if (!(bound >= 0) || bound > std::numeric_limits<double>::max())
    throw Error(Kind::codec, "a bound must be a number of 0 (bit for bit) or more, not " + std::to_string(bound));
}

// Of tiles from all over a chunk: their bits for each value, which predictors were best, and in how many of the values
// interpolation was; all but `bits` without the order of patches.
struct Look {
  double bits = 0, bits_in_rows = 0, interpolated = 0;
  std::uint32_t best_in_rows = 0;
};

}  // namespace

// An array's tiles of one extent, whose drafts are made when they are asked for.
class Tiling {
 public:
  Tiling(const Array& array, const Quantiser& how, Coder coder, const Header& header, std::uint32_t tried)
      : array_(array),
        how_(how),
        coder_(coder),
        grid_(header),
        tried_(tried),
        drafts_(grid_.tiles()) {}

  std::size_t tiles() const { return drafts_.size(); }
  Extent extent() const { return grid_.tile; }

  // Looks at about so many values. The tiles not looked at will be tried with what was best in these.
  Look look(std::size_t values) {
    const std::size_t each = grid_.tile.values();
    const std::size_t looked = std::clamp<std::size_t>((values + each - 1) / each, 1, tiles());
    Look seen;
    double count = 0;
    Votes votes{}, votes_in_rows{};
    for (std::size_t i = 0; i < looked; ++i) {
      const std::size_t tile = (2 * i + 1) * tiles() / (2 * looked);
      const Draft& draft = at(tile);
      const auto inside = static_cast<double>(grid_.place(tile).extent.values());
      count += inside;
      const double bits = size(draft);
      const bool ordered = draft.bits_in_rows >= 0;
      seen.bits += bits;
      seen.bits_in_rows += ordered ? beside(draft) + draft.bits_in_rows : bits;
      if (draft.residuals.empty()) continue;
      const unsigned in_rows = ordered ? draft.predictor_in_rows : draft.predictor;
      ++votes[draft.predictor];
      ++votes_in_rows[in_rows];
      if (is_interpolation(in_rows)) seen.interpolated += inside;
    }
    seen.best_in_rows = best_of(votes_in_rows);
    if ((best_of(votes) & tried_) != 0) tried_ &= best_of(votes);
    for (double* const sum : {&seen.bits, &seen.bits_in_rows, &seen.interpolated}) *sum /= count;
    return seen;
  }

  Draft take(std::size_t tile) {
    at(tile);
    Draft draft = std::move(*drafts_[tile]);
    drafts_[tile].reset();
    return draft;
  }

 private:
  using Votes = std::array<std::size_t, last_patched + 1>;

  static std::uint32_t best_of(const Votes& votes) {
    std::uint32_t best = 0;
    for (unsigned predictor = 0; predictor < votes.size(); ++predictor)
      if (!is_interpolation(predictor)) best |= std::uint32_t{votes[predictor] > 0} << predictor;
    const auto* const first = votes.data();
    const auto* const stride = std::max_element(first + first_interpolation, first + last_interpolation + 1);
    if (*stride > 0) best |= 1u << (stride - first);  // strides differ little: one is enough
    return best;
  }
  const Draft& at(std::size_t tile) {
    if (!drafts_[tile]) {
      gathered_.resize(grid_.tile.values() * itemsize_of(array_.number));
      gather(array_, grid_, tile, gathered_.data());
      drafts_[tile] = draft_tile(gathered_.data(), array_.number, grid_.place(tile).extent, how_, tried_, coder_);
    }
    return *drafts_[tile];
  }
  // In bits, about: what lies beside a tile's residuals and what is kept, and all of it.
  double beside(const Draft& draft) const {
    const auto blocks = static_cast<double>(draft.residuals.size() / block);
    return 8.0 * entry_nbytes + (coder_ == Coder::pack ? 128 + 4 * blocks : 700);
  }
  double size(const Draft& draft) const {
    const auto itemsize = static_cast<double>(itemsize_of(array_.number));
    const double kept = 8 * (4 + std::max(4.0, itemsize)) * static_cast<double>(draft.runs.size());
    if (draft.constant) return 8.0 * entry_nbytes + 8 * itemsize + kept;
    return beside(draft) + kept + estimate(draft.residuals, coder_);
  }

  const Array& array_;
  Quantiser how_;
  Coder coder_;
  Grid grid_;
  std::uint32_t tried_;
  std::vector<std::optional<Draft>> drafts_;
  std::vector<std::byte> gathered_;
};

namespace {

// The tiling that makes the chunk smallest, as far as some of its tiles tell. Others than the usual take longer to
// decode, and have to be worth it.
Tiling choose_tiling(const Array& array, const Quantiser& how, Coder coder, const Header& header) {
  const auto of = [&](Extent tile, std::uint32_t tried) {
    Header other = header;
    other.tile = tile;
    return Tiling(array, how, coder, other, tried);
  };
  Tiling usual = of(usual_tile(header.shape), predictors(Predictor::tried, usual_tile(header.shape)));
  if (!how.coded) return usual;
  const std::size_t values = std::max<std::size_t>(4, usual.tiles() / 16) * usual.extent().values();
  const Look seen = usual.look(values);
  const bool smooth = seen.interpolated > 0.1;
  if (seen.best_in_rows == 0 || header.shape[2] == 1 || (smooth && header.shape[1] == 1)) return usual;
  const Extent tile = smooth ? round_tile(header.shape) : narrow_tile(header.shape);
  if (coder != Coder::pack && tile.values() < most_values / 2) return usual;  // what `dense` has beside is much for few
  Tiling other = of(tile, seen.best_in_rows);
  const double worth = std::min(seen.bits, (smooth ? 0.96 : 0.87) * seen.bits_in_rows);
  if (other.look(values / 4).bits > 1.1 * worth) return usual;  // a first look ends most trials
  return other.look(values).bits < worth ? std::move(other) : std::move(usual);
}

}  // namespace

void gather(const Array& array, const Grid& grid, std::size_t tile, std::byte* out) {
  const Grid::PlacedTile place = grid.place(tile);
  const std::size_t itemsize = itemsize_of(array.number), row = place.extent.x * itemsize;
  const auto* from = static_cast<const std::byte*>(array.values);
  for (std::size_t z = 0; z < place.extent.z; ++z)
    for (std::size_t y = 0; y < place.extent.y; ++y, out += row)
      std::memcpy(out, from + itemsize * (place.first + (z * grid.shape[2] + y) * grid.shape[3]), row);
}

Drafts::Drafts(const Array& array, double bound, Predictor predictor, Coder coder, const Marks& marks) {
  check_bound(bound);
  header.number = array.number;
  fold(array.shape, header);
  header.tile = usual_tile(header.shape);
  header.bound = bound;
  std::size_t values = 1;
  for (const std::uint32_t length : header.shape) values *= length;
  const Quantiser how = quantiser_for(array.values, array.number, values, bound, marks);
  header.quanta = how.quanta;
  header.step = how.quanta == Quanta::integer ? static_cast<std::uint64_t>(how.whole_step)
                                              : std::bit_cast<std::uint64_t>(how.step);
  header.base = how.quanta == Quanta::integer ? static_cast<std::uint64_t>(how.whole_base)
                                              : std::bit_cast<std::uint64_t>(how.base);
  header.flags = (bound == 0 ? lossless : 0u) | (how.lattice ? lattice : 0u);
  if (values == 0) return;
  if (predictor == Predictor::tried)
    tiling_ = std::make_unique<Tiling>(choose_tiling(array, how, coder, header));
  else
    tiling_ = std::make_unique<Tiling>(array, how, coder, header, predictors(predictor, header.tile));
  header.tile = tiling_->extent();
}

Drafts::Drafts(Drafts&&) noexcept = default;
Drafts::~Drafts() = default;
std::size_t Drafts::tiles() const { return tiling_ ? tiling_->tiles() : 0; }
Draft Drafts::take(std::size_t tile) { return tiling_->take(tile); }
std::vector<Draft> Drafts::all() {
  std::vector<Draft> drafts;
  for (std::size_t tile = 0; tile < tiles(); ++tile) drafts.push_back(take(tile));
  return drafts;
}

}  // namespace solar::codec
