// Residuals of the interpolation, each foretold from what the decoder will have by then.
#include <algorithm>
#include <cmath>

#include "codec/draft.hpp"
#include "codec/encoding.hpp"
#include "codec/interpolation.hpp"

namespace solar::codec {
namespace {

// So many values, or a few more, are looked at together. If one of them asks for a closer look, smaller groups are.
constexpr std::size_t batch = 256;

std::size_t points(std::size_t length, std::size_t step) { return (length + step - 1) / step; }

bool quick(const float* values, const std::int32_t* foretold, std::size_t count, const Aim& aim,
           std::int32_t* residuals, std::int32_t* made) {
  return encoding_kernels().residuals32(values, foretold, count, aim, residuals, made);
}
bool quick(const double* values, const std::int32_t* foretold, std::size_t count, const Aim& aim,
           std::int32_t* residuals, std::int32_t* made) {
  return encoding_kernels().residuals64(values, foretold, count, aim, residuals, made);
}

void thin_row(const float* values, std::size_t count, float* out) { encoding_kernels().thin32(values, count, out); }
void thin_row(const double* values, std::size_t count, double* out) { encoding_kernels().thin64(values, count, out); }

// The points known so far lie closely packed in a grid, which grows along one axis after another as the decoder's does.
template <class T>
class Growing {
 public:
  Growing(const T* values, Extent extent, const Quantiser& how, const Guard<T>& guard, std::int32_t* residuals)
      : values_(values),
        extent_(extent),
        how_(how),
        guard_(guard),
        residuals_(residuals),
        one_(extent.values()),
        other_(one_.size()) {
    how_.step = how.step / 16;
  }

  std::int32_t run(std::uint32_t stride) {
    z_ = points(extent_.z, stride), y_ = points(extent_.y, stride), x_ = points(extent_.x, stride);
    const std::int32_t origin = anchors(stride);
    for (std::size_t h = stride / 2; h > 0; h /= 2) {
      if (points(extent_.z, h) > z_) grow_z(h);
      if (points(extent_.y, h) > y_) grow_y(h);
      if (points(extent_.x, h) > x_) grow_x(h);
    }
    std::ranges::sort(kept);
    return origin;
  }

  std::vector<std::uint16_t> kept;  // positions of values that nothing stands for

 private:
  // A row of points to be foretold; with `known`, they lie between its points.
  struct Row {
    std::size_t first, step, count;
    std::int32_t* to;
    const std::int32_t* known;
    std::size_t known_count;
  };

  std::int32_t anchors(std::uint32_t stride) {
    const double start = (static_cast<double>(values_[0]) - how_.base) * (1 / how_.step);
    const std::int32_t origin = std::fabs(start) < 0x1p26 ? static_cast<std::int32_t>(std::nearbyint(start)) : 0;
    std::int32_t last = origin;
    std::size_t i = 0;
    for (std::size_t z = 0; z < extent_.z; z += stride)
      for (std::size_t y = 0; y < extent_.y; y += stride)
        for (std::size_t x = 0; x < extent_.x; x += stride) one_[i++] = last = look(at(z, y, x), last, *residuals_++);
    return origin;
  }

  std::size_t at(std::size_t z, std::size_t y, std::size_t x) const { return (z * extent_.y + y) * extent_.x + x; }

  // One value: its residual, and what the decoder makes of it.
  std::int32_t look(std::size_t position, std::int32_t foretold, std::int32_t& residual) {
    const T value = values_[position];
    const double sixteenths = (static_cast<double>(value) - how_.base) * (1 / how_.step);
    const double away = std::nearbyint((sixteenths - foretold) * 0.0625);
    const bool near = std::fabs(sixteenths) < 0x1p26 && std::fabs(away) < 0x1p26;
    residual = near ? static_cast<std::int32_t>(away) : 0;
    const std::int32_t made = add(foretold, 16 * residual);
    if (!near || !stands(value, restored<T>(made, how_), how_.bound, guard_))
      kept.push_back(static_cast<std::uint16_t>(position));
    return made;
  }

  // Its foretold values are in place: behind those of the rows before it.
  void push(const Row& row) {
    if (row.step == 2)
      thin_row(values_ + row.first, row.count, line_.data() + held_);
    else
      for (std::size_t i = 0; i < row.count; ++i) line_[held_ + i] = values_[row.first + row.step * i];
    held_ += row.count;
    rows_.push_back(row);
    if (held_ >= batch) flush();
  }
  std::int32_t* room(std::size_t count) {
    if (foretold_.size() < held_ + count)
      foretold_.resize(held_ + count), line_.resize(held_ + count), made_.resize(held_ + count);
    return foretold_.data() + held_;
  }
  void flush() {
    if (!quick(line_.data(), foretold_.data(), held_, aim(), residuals_, made_.data()) ||
        guard_.concerns(line_.data(), held_))
      look_closer();
    const std::int32_t* made = made_.data();
    for (const Row& row : rows_) {
      if (row.known == nullptr)
        std::copy_n(made, row.count, row.to);
      else
        encoding_kernels().weave(row.known, made, row.count, row.known_count > row.count, row.to);
      made += row.count;
    }
    residuals_ += held_;
    held_ = 0;
    rows_.clear();
  }

  Aim aim() const { return {how_.step, how_.base, how_.bound, false}; }
  // Where one of the values held asks for it: in small parts, and in those one by one.
  void look_closer() {
    std::size_t next = 0, looked = 0;
    bool fine = false;
    for (const Row& row : rows_)
      for (std::size_t i = 0; i < row.count; ++i, ++next) {
        if (next == looked) {
          const std::size_t count = std::min(held_ - next, block);
          fine = quick(line_.data() + next, foretold_.data() + next, count, aim(), residuals_ + next,
                       made_.data() + next) &&
                 !guard_.concerns(line_.data() + next, count);
          looked += count;
        }
        if (!fine) made_[next] = look(row.first + i * row.step, foretold_[next], residuals_[next]);
      }
  }

  // Between rows that lie `pitch` apart, behind row p of so many.
  void foretell(const std::int32_t* known, std::size_t p, std::size_t rows, std::size_t pitch, std::size_t count) {
    const std::int32_t* const b = known + p * pitch;
    const int after = (p + 1 < rows) + (p + 2 < rows);
    const std::int32_t* const four[4] = {p > 0 ? b - pitch : b, b, after > 0 ? b + pitch : b,
                                         after > 1 ? b + 2 * pitch : b};
    encoding_kernels().between(four, p > 0, after, count, room(count));
  }
  void grow_z(std::size_t h) {
    const std::size_t length = points(extent_.z, h), plane = y_ * x_;
    for (std::size_t p = 0; p < length; ++p)
      for (std::size_t y = 0; y < y_; ++y) {
        std::int32_t* const to = other_.data() + p * plane + y * x_;
        if (p % 2 == 0) {
          std::copy_n(one_.data() + p / 2 * plane + y * x_, x_, to);
        } else {
          foretell(one_.data() + y * x_, p / 2, z_, plane, x_);
          push({at(p * h, y * 2 * h, 0), 2 * h, x_, to, nullptr, 0});
        }
      }
    z_ = length;
    turn();
  }
  void grow_y(std::size_t h) {
    const std::size_t length = points(extent_.y, h);
    for (std::size_t z = 0; z < z_; ++z)
      for (std::size_t p = 0; p < length; ++p) {
        const std::int32_t* const from = one_.data() + z * y_ * x_;
        std::int32_t* const to = other_.data() + (z * length + p) * x_;
        if (p % 2 == 0) {
          std::copy_n(from + p / 2 * x_, x_, to);
        } else {
          foretell(from, p / 2, y_, x_, x_);
          push({at(z * h, p * h, 0), 2 * h, x_, to, nullptr, 0});
        }
      }
    y_ = length;
    turn();
  }
  void grow_x(std::size_t h) {
    const std::size_t length = points(extent_.x, h), odd = length / 2;
    for (std::size_t row = 0; row < z_ * y_; ++row) {
      const std::int32_t* const known = one_.data() + row * x_;
      std::int32_t* const out = room(odd);
      const std::size_t inner = x_ > 2 ? x_ - 2 : 0;  // of which all four are there, but for the first
      const auto one = [&](std::size_t i) {
        const int after = (i + 1 < x_) + (i + 2 < x_);
        out[i] = halfway(i > 0 ? known[i - 1] : 0, known[i], after > 0 ? known[i + 1] : 0, after > 1 ? known[i + 2] : 0,
                         i > 0, after);
      };
      const std::int32_t* const four[4] = {known, known + 1, known + 2, known + 3};
      if (inner > 1) encoding_kernels().between(four, true, 2, inner - 1, out + 1);
      one(0);
      for (std::size_t i = std::max<std::size_t>(inner, 1); i < odd; ++i) one(i);
      push({at(row / y_ * h, row % y_ * h, h), 2 * h, odd, other_.data() + row * length, known, x_});
    }
    x_ = length;
    turn();
  }
  void turn() {
    if (held_ > 0) flush();
    std::swap(one_, other_);
  }

  const T* values_;
  Extent extent_;
  Quantiser how_;
  const Guard<T>& guard_;
  std::int32_t* residuals_;
  Ints one_, other_, foretold_, made_;
  std::vector<T> line_;
  std::vector<Row> rows_;
  std::size_t held_ = 0, z_ = 0, y_ = 0, x_ = 0;
};

}  // namespace

template <class T>
Draft interpolate(const T* values, Extent extent, const Quantiser& how, const Guard<T>& guard, unsigned predictor) {
  Draft draft;
  draft.predictor = static_cast<std::uint8_t>(predictor);
  draft.residuals = blocks_of(extent.values());
  Growing<T> growing(values, extent, how, guard, draft.residuals.data());
  draft.origin = growing.run(stride_of(predictor));
  for (const std::uint16_t at : growing.kept) keep(draft.runs, at, values[at]);
  return draft;
}

template Draft interpolate(const float*, Extent, const Quantiser&, const Guard<float>&, unsigned);
template Draft interpolate(const double*, Extent, const Quantiser&, const Guard<double>&, unsigned);

}  // namespace solar::codec
