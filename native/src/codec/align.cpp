// Moves what quantising gives so that marks are among it. Where marks are strewn like noise, to keep each beside the
// coder's bytes would take more than all the rest.
#include <cmath>
#include <optional>

#include "codec/number.hpp"
#include "codec/quantise.hpp"

namespace solar::codec {
namespace {

constexpr int most_tries = 256;

// Bits for each value of a chunk that is quantised so: targets that are kept, and what a smaller step takes.
template <class T>
double cost(const Quantiser& how, double finer, std::span<const Target<T>> targets) {
  double bits = finer;
  for (const Target<T>& target : targets)
    if (!gives(target.value, how)) bits += target.bits;
  return bits;
}

// The best so far.
template <class T>
class Choice {
 public:
  Choice(const Quantiser& now, std::span<const Target<T>> targets)
      : best(now), targets_(targets), bits_(cost(now, 0, targets)) {}

  void consider(const Quantiser& how, double finer) {
    if (finer >= bits_) return;
    if (const double bits = cost(how, finer, targets_); bits < bits_) best = how, bits_ = bits;
  }
  bool needs_more() const { return bits_ > 0; }

  Quantiser best;

 private:
  std::span<const Target<T>> targets_;
  double bits_;
};

// Fewer multiples of the lattice's unit than the `now` that are a step.
template <class T, class Set>
void consider_multiples(Choice<T>& choice, const Quantiser& how, double now, Set set) {
  for (int i = 1; i < most_tries && i < now && now < 0x1p53 && choice.needs_more(); ++i)
    choice.consider(set(how, now - i), std::log2(now / (now - i)));
}

// Steps of which the target is a multiple.
template <class T>
void consider_parts(Choice<T>& choice, const Quantiser& how, double target) {
  const double parts = std::ceil(target / how.step);
  if (!(parts >= 1 && parts < 0x1p30)) return;
  for (int i = 0; i < most_tries && choice.needs_more(); ++i) {
    Quantiser other = how;
    other.step = static_cast<T>(target / (parts + i));
    if (other.step <= how.step && other.step * 16 > how.step)
      choice.consider(other, std::log2(how.step / other.step));
  }
}

// The base among the whole numbers that leave the lattice where it is, from which steps lead to the target.
template <class T>
std::optional<Quantiser> moved(const Quantiser& how, T target) {
  const auto base = std::is_same_v<T, std::uint64_t>
                        ? static_cast<__int128>(static_cast<std::uint64_t>(how.whole_base))
                        : static_cast<__int128>(how.whole_base);
  const __int128 away = static_cast<__int128>(target) - base;
  if (away % how.whole_unit != 0) return std::nullopt;
  __int128 rest = away % how.whole_step;
  if (2 * rest > how.whole_step) rest -= how.whole_step;
  if (2 * rest < -how.whole_step) rest += how.whole_step;
  Quantiser other = how;
  other.whole_base = static_cast<std::int64_t>(static_cast<std::uint64_t>(base + rest));
  return other;
}

}  // namespace

template <class T>
void align(Quantiser& how, std::span<const Target<T>> targets) {
  if (targets.empty() || !how.coded || how.quanta == Quanta::bits) return;
  Choice<T> choice(how, targets);
  if constexpr (!std::is_floating_point_v<T>) {
    const auto set = [](Quantiser other, double parts) {
      other.whole_step = static_cast<std::int64_t>(parts) * other.whole_unit;
      return other;
    };
    consider_multiples(choice, how, static_cast<double>(how.whole_step / how.whole_unit), set);
    for (const Target<T>& target : targets)  // which costs nothing but that 0 may no longer be given
      if (const auto other = moved(how, target.value)) choice.consider(*other, 0.2);
  } else if (how.lattice) {
    const auto set = [](Quantiser other, double parts) {
      other.step = parts * other.unit;
      return other;
    };
    consider_multiples(choice, how, how.step / how.unit, set);
  } else if (how.base == 0) {
    for (const Target<T>& target : targets) consider_parts(choice, how, std::fabs(static_cast<double>(target.value)));
  }
  how = choice.best;
}

template void align(Quantiser&, std::span<const Target<float>>);
template void align(Quantiser&, std::span<const Target<double>>);
template void align(Quantiser&, std::span<const Target<std::int8_t>>);
template void align(Quantiser&, std::span<const Target<std::uint8_t>>);
template void align(Quantiser&, std::span<const Target<std::int16_t>>);
template void align(Quantiser&, std::span<const Target<std::uint16_t>>);
template void align(Quantiser&, std::span<const Target<std::int32_t>>);
template void align(Quantiser&, std::span<const Target<std::uint32_t>>);
template void align(Quantiser&, std::span<const Target<std::int64_t>>);
template void align(Quantiser&, std::span<const Target<std::uint64_t>>);

}  // namespace solar::codec
