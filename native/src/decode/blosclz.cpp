// BloscLZ: literals and matches behind control bytes, as FastLZ.
#include <algorithm>

#include "copy.hpp"
#include "damaged.hpp"
#include "solar/decode.hpp"

namespace solar {
namespace {

constexpr std::size_t kNearest = 8191;  // distances up to here fit the short form
constexpr std::size_t kMaxLiterals = 32;


class Input {
 public:
  explicit Input(Bytes in) : at_(in.data()), end_(in.data() + in.size()) {}

  const std::byte* at() const { return at_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  std::size_t byte() {
    if (at_ == end_) damaged("a blosclz stream is cut short");
    return std::to_integer<std::size_t>(*at_++);
  }
  void skip(std::size_t n) { at_ += n; }

 private:
  const std::byte* at_;
  const std::byte* end_;
};

struct Match {
  std::size_t distance, length;
};

Match read_match(Input& in, std::size_t control) {
  std::size_t length = control >> 5;
  if (length == 7) {
    for (std::size_t more = 255; more == 255;) length += more = in.byte();
  }
  const std::size_t high = (control & 31) << 8;
  const std::size_t low = in.byte();
  if (high + low < kNearest) return {high + low + 1, length + 2};
  const std::size_t far = in.byte() << 8;
  return {far + in.byte() + kNearest + 1, length + 2};
}

}  // namespace

std::size_t decode_blosclz(Bytes stored, MutableBytes out) {
  Input in(stored);
  std::byte* at = out.data();
  std::byte* const end = at + out.size();
  const auto room = [&] { return static_cast<std::size_t>(end - at); };
  for (bool first = true; in.left() > 0; first = false) {
    const std::size_t control = in.byte() & (first ? 31 : 255);  // the first is a literal with a version above it
    if (control >= kMaxLiterals) {
      const Match match = read_match(in, control);
      if (match.distance > out.size() - room()) damaged("a blosclz match begins before the output");
      if (match.length > room()) damaged("the output is larger than its space");
      at = room() - match.length >= copy_slack ? copy_wide(at, match.distance, match.length)
                                               : copy_tight(at, match.distance, match.length);
      continue;
    }
    const std::size_t n = control + 1;
    if (n > in.left()) damaged("a blosclz stream is cut short");
    if (n > room()) damaged("the output is larger than its space");
    if (std::min(in.left(), room()) >= kMaxLiterals) {
      copy16(at, in.at());
      copy16(at + 16, in.at() + 16);
    } else {
      std::memcpy(at, in.at(), n);
    }
    in.skip(n);
    at += n;
  }
  return out.size() - room();
}

}  // namespace solar
