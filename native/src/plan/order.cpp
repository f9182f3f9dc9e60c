#include "solar/order.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "solar/plan.hpp"

namespace solar::plan {

__extension__ using Wide = unsigned __int128;

static constexpr std::uint64_t step = 0x9E3779B97F4A7C15;  // 2^64 / the golden ratio: the step of SplitMix64
static constexpr int rounds = 6;                           // of a shuffle
static constexpr std::int64_t at_once = 4096;              // a shuffle of so few is made whole
static constexpr int swap_passes = 16;

// SplitMix64's mixing (Steele, Lea, Flood 2014; the constants are Stafford's thirteenth).
static std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

static std::uint64_t key_of_source(std::uint64_t seed, std::uint64_t which) {
  return mix(mix(seed + step) + step * (which + 1));
}

static std::uint64_t key_of_turn(std::uint64_t source, std::uint64_t turn) { return mix(source + step * (turn + 1)); }

static std::uint64_t key_of(std::uint64_t seed, std::uint64_t which, std::uint64_t turn) {
  return key_of_turn(key_of_source(seed, which), turn);
}

// The upper half of the product: a number below `end` if `x` is any.
static std::uint64_t below(std::uint64_t x, std::uint64_t end) {
  return static_cast<std::uint64_t>(static_cast<Wide>(x) * end >> 64);
}

// Most processors divide 32 bits in half the time.
static std::uint64_t quotient(std::uint64_t x, std::uint64_t by) {
  return (x | by) >> 32 == 0 ? static_cast<std::uint32_t>(x) / static_cast<std::uint32_t>(by) : x / by;
}

// --- draws by weight ----

static std::uint64_t slot(double own, std::uint64_t other) {
  const double bits = own * 4294967296.0;
  return (bits >= 4294967295.0 ? 0xFFFFFFFFU : static_cast<std::uint64_t>(bits)) << 32 | other;
}

std::vector<std::uint64_t> alias_table(std::span<const double> weights) {
  const std::size_t n = weights.size();
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> left(weights.begin(), weights.end());
  std::vector<std::uint64_t> table(n);
  // Divided first: the sum of large weights times n may be more than a double holds.
  for (double& one : left) one = one / sum * static_cast<double>(n);
  // Light ones and heavy ones are found from the left; a heavy one that has become light is filled at once.
  std::size_t light = 0, heavy = 0;
  const auto next = [&](std::size_t from, bool is_light) {
    while (from < n && (left[from] < 1.0) != is_light) ++from;
    return from;
  };
  light = next(0, true), heavy = next(0, false);
  // The light slot that is filled next: the next one from the left, or a heavy slot that has become light.
  std::size_t filled = light;
  while (filled < n && heavy < n) {
    table[filled] = slot(left[filled], heavy);
    left[heavy] -= 1.0 - left[filled];
    const std::size_t given = heavy;
    if (filled == light) light = next(light + 1, true);
    filled = light;
    if (left[given] < 1.0) {
      heavy = next(heavy + 1, false);
      // One that lies behind the light ones is not found from the left again.
      if (given < light) filled = given;
    }
  }
  // By rounding some are left over: each is its own. One of no weight is none of them, but where all but it are full.
  const auto full = [&](std::size_t at) { table[at] = slot(1.0, at); };
  const auto largest = static_cast<std::size_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
  const auto leave = [&](std::size_t at) { weights[at] > 0 ? full(at) : void(table[at] = largest); };
  if (filled < n && filled != light) leave(filled);
  for (; light < n; light = next(light + 1, true)) leave(light);
  for (; heavy < n; heavy = next(heavy + 1, false)) full(heavy);
  return table;
}

void draw_by(std::span<const std::uint64_t> table, std::uint64_t seed, std::int64_t epoch, std::int64_t begin,
             std::span<std::int64_t> out) {
  const std::uint64_t key = key_of(seed, static_cast<std::uint64_t>(epoch), 0);
  std::uint64_t at = key + step * (static_cast<std::uint64_t>(begin) + 1);
  std::array<Wide, 64> drawn;  // slots asked of memory side by side, which has them far apart
  for (std::size_t first = 0; first < out.size(); first += drawn.size()) {
    const auto here = out.subspan(first, std::min(drawn.size(), out.size() - first));
    for (std::size_t i = 0; i < here.size(); ++i, at += step) {
      drawn[i] = static_cast<Wide>(mix(at)) * table.size();
      __builtin_prefetch(&table[static_cast<std::size_t>(drawn[i] >> 64)]);
    }
    for (std::size_t i = 0; i < here.size(); ++i) {
      const auto place = static_cast<std::uint64_t>(drawn[i] >> 64);
      const std::uint64_t chance = static_cast<std::uint64_t>(drawn[i]) >> 32, entry = table[place];
      const std::uint64_t own = std::uint64_t{0} - static_cast<std::uint64_t>(chance < entry >> 32);
      here[i] = static_cast<std::int64_t>((place & own) | (entry & 0xFFFFFFFF & ~own));
    }
  }
}

// --- shuffles that run on ----

namespace {

// Cells of `rows` times `columns` that n samples fill but for less than a row.
struct Rectangle {
  static constexpr std::uint64_t few = 12;  // a network has not all permutations of so few
  std::uint64_t size, rows, columns;

  explicit Rectangle(std::int64_t n) : size(static_cast<std::uint64_t>(n)) {
    rows = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n))));
    columns = (size + rows - 1) / rows;
  }

  // Fisher and Yates's shuffle, as far as place k.
  std::uint64_t one_of_few(std::uint64_t key, std::uint64_t k) const {
    std::array<std::uint8_t, few> cards;
    std::iota(cards.begin(), cards.end(), std::uint8_t{0});
    for (std::uint64_t at = 0; at <= k; ++at) std::swap(cards[at], cards[at + below(mix(key + step * at), size - at)]);
    return cards[k];
  }
};

// Places in rectangles, moved side by side: a round waits for the one before it, so one place alone leaves the
// processor idle.
class Places {
 public:
  static constexpr std::size_t most = 8;

  void add(const Rectangle& cells, std::uint64_t key, std::uint64_t k) {
    const std::uint64_t row = quotient(k, cells.columns);
    places_[count_++] = {cells, key, k, row, k - row * cells.columns};
  }
  bool full() const { return count_ == most; }

  // Where each lies in the shuffle by its key, in the order they were added.
  template <typename Take>
  void move(Take&& take) {
    step_all();
    for (std::size_t i = 0; i < count_; ++i) take(settled(places_[i]));
    count_ = 0;
  }

 private:
  struct GridPosition {
    Rectangle cells{1};
    std::uint64_t key = 0, k = 0, row = 0, column = 0;
  };

  void step_all() {
    std::uint64_t turn = 0;
    for (int round = 0; round < rounds; round += 2) {
      turn += step;
      for (GridPosition& p : places_) p.row = moved(p.row, noise(p.key + turn, p.column), p.cells.rows);
      turn += step;
      for (GridPosition& p : places_) p.column = moved(p.column, noise(p.key + turn, p.row), p.cells.columns);
    }
  }

  // A step out of the n samples is walked on until it is back in.
  static std::uint64_t settled(const GridPosition& place) {
    const Rectangle& cells = place.cells;
    if (cells.size <= Rectangle::few) return cells.one_of_few(place.key, place.k);
    std::uint64_t k = place.row * cells.columns + place.column;
    if (k < cells.size) return k;
    Places again;
    again.add(cells, place.key, k);
    again.move([&k](std::uint64_t found) { k = found; });
    return k;
  }

  // Without a branch, which would be mispredicted half of the time.
  static std::uint64_t moved(std::uint64_t x, std::uint64_t by, std::uint64_t end) {
    x += below(by, end);
    return x - (end & (std::uint64_t{0} - static_cast<std::uint64_t>(x >= end)));
  }

  static std::uint64_t noise(std::uint64_t key, std::uint64_t x) {
    std::uint64_t z = (key ^ x) * 0xBF58476D1CE4E5B9;
    z ^= z >> 32;
    return z * 0x94D049BB133111EB;
  }

  std::array<GridPosition, most> places_{};
  std::size_t count_ = 0;
};

}  // namespace

// Fisher and Yates's shuffle of what lies there.
template <typename T>
static void mingle(std::uint64_t key, std::span<T> cards) {
  for (std::size_t at = 0; at < cards.size(); ++at) {
    std::swap(cards[at], cards[at + below(mix(key + step * at), cards.size() - at)]);
  }
}

static void deal(std::uint64_t key, std::span<std::int64_t> cards) {
  std::iota(cards.begin(), cards.end(), std::int64_t{0});
  mingle(key, cards);
}

void shuffled(std::uint64_t seed, std::int64_t size, std::int64_t begin, std::span<std::int64_t> out) {
  const Rectangle cells(size);
  const auto n = static_cast<std::uint64_t>(size);
  std::vector<std::int64_t> cards(static_cast<std::size_t>(size <= at_once ? size : 0));
  std::uint64_t turn = static_cast<std::uint64_t>(begin) / n, place = static_cast<std::uint64_t>(begin) % n;
  Places places;
  for (std::size_t i = 0; i < out.size(); ++turn, place = 0) {
    const std::uint64_t key = key_of(seed, 0, turn);
    const std::size_t end = i + std::min<std::size_t>(n - place, out.size() - i);
    deal(key, cards);
    for (; !cards.empty() && i < end; ++i, ++place) out[i] = cards[place];
    while (i < end) {
      for (std::size_t next = i; next < end && !places.full(); ++next, ++place) places.add(cells, key, place);
      places.move([&](std::uint64_t found) { out[i++] = static_cast<std::int64_t>(found); });
    }
  }
}

void shuffled_of(std::uint64_t seed, std::span<const std::int32_t> sources, std::span<const std::int64_t> turns,
                 std::span<const std::int64_t> sizes, std::span<const std::int64_t> firsts,
                 std::span<std::int64_t> out) {
  // What a source needs again and again is made once; for few turns of many sources, each time.
  struct Source {
    Rectangle cells;
    std::uint64_t key;
  };
  const auto made = [&](std::size_t s) { return Source{Rectangle(sizes[s]), key_of_source(seed, s)}; };
  std::vector<Source> known;
  if (sizes.size() < out.size()) {
    for (std::size_t s = 0; s < sizes.size(); ++s) known.push_back(made(s));
  }
  Places places;
  for (std::size_t i = 0; i < out.size();) {
    for (std::size_t next = i; next < out.size() && !places.full(); ++next) {
      const auto s = static_cast<std::size_t>(sources[next]);
      const Source source = known.empty() ? made(s) : known[s];
      const auto turn = static_cast<std::uint64_t>(turns[next]);
      const std::uint64_t number = quotient(turn, source.cells.size);
      places.add(source.cells, key_of_turn(source.key, number), turn - number * source.cells.size);
    }
    places.move([&](std::uint64_t found) {
      out[i] = firsts[static_cast<std::size_t>(sources[i])] + static_cast<std::int64_t>(found);
      ++i;
    });
  }
}

std::vector<std::int32_t> study_order(std::int64_t n, std::uint64_t study, std::uint64_t seed, std::int64_t epoch,
                                      std::int64_t length) {
  std::vector<std::int32_t> order = randperm(n, study + static_cast<std::uint64_t>(epoch), 0);
  const std::span<std::int32_t> all(order);
  const auto most = static_cast<std::size_t>(length);
  const std::uint64_t source = key_of_source(seed, static_cast<std::uint64_t>(epoch));
  for (std::size_t begin = 0, stretch = 0; begin < all.size(); begin += most, ++stretch) {
    mingle(key_of_turn(source, stretch), all.subspan(begin, std::min(most, all.size() - begin)));
  }
  return order;
}

// --- mixtures ----

namespace {

struct Mixing {
  std::span<const std::int64_t> shares;
  std::int64_t sum;
  std::vector<std::int64_t> had;  // of each source, before the position

  // After `t` positions, one of them this source's: it has no more than it may.
  bool may(std::size_t s, std::int64_t t) const { return shares[s] * t > had[s] * sum; }
  // After `t` positions, none of them this source's: it has no less than it must.
  bool may_wait(std::size_t s, std::int64_t t) const { return shares[s] * t < (had[s] + 1) * sum; }
  std::int64_t release(std::size_t s) const { return had[s] * sum / shares[s]; }
  std::int64_t deadline(std::size_t s) const { return ((had[s] + 1) * sum + shares[s] - 1) / shares[s]; }
};

// A pass over pairs of neighbours: those that may change places do so by the toss of a coin.
void swap_some(Mixing mixing, std::span<std::int32_t> order, std::size_t first, std::uint64_t key) {
  if (first == 1) ++mixing.had[static_cast<std::size_t>(order[0])];
  for (std::size_t i = first; i + 1 < order.size(); i += 2) {
    const auto one = static_cast<std::size_t>(order[i]), two = static_cast<std::size_t>(order[i + 1]);
    const auto t = static_cast<std::int64_t>(i) + 1;
    if (one != two && mix(key + step * i) >> 63 && mixing.may_wait(one, t) && mixing.may(two, t)) {
      std::swap(order[i], order[i + 1]);
    }
    ++mixing.had[one], ++mixing.had[two];
  }
}

}  // namespace

std::vector<std::int32_t> mixed(std::span<const std::int64_t> shares, std::int64_t length, std::uint64_t seed) {
  const std::int64_t sum = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  Mixing mixing{shares, sum, std::vector<std::int64_t>(shares.size())};
  using When = std::tuple<std::int64_t, std::uint64_t, std::size_t>;  // release or deadline; chance; source
  std::priority_queue<When, std::vector<When>, std::greater<>> waiting, ready;
  for (std::size_t s = 0; s < shares.size(); ++s) waiting.emplace(0, 0, s);
  std::vector<std::int32_t> order(static_cast<std::size_t>(length));
  for (std::int64_t t = 0; t < length; ++t) {
    while (!waiting.empty() && std::get<0>(waiting.top()) <= t) {
      const std::size_t s = std::get<2>(waiting.top());
      waiting.pop();
      ready.emplace(mixing.deadline(s), key_of(seed, s, static_cast<std::uint64_t>(mixing.had[s])), s);
    }
    const std::size_t s = std::get<2>(ready.top());
    ready.pop();
    order[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(s);
    ++mixing.had[s];
    waiting.emplace(mixing.release(s), 0, s);
  }
  mixing.had.assign(shares.size(), 0);
  for (int pass = 0; pass < swap_passes; ++pass) {
    swap_some(mixing, order, static_cast<std::size_t>(pass % 2),
              key_of(seed, shares.size(), static_cast<std::uint64_t>(pass)));
  }
  return order;
}

// --- numpy's SeedSequence, whose algorithm is M. E. O'Neill's seed_seq_fe ----

namespace {

class SeedPool {
 public:
  void mix_in(std::span<const std::uint32_t> words) {
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = hashed(i < words.size() ? words[i] : 0);
    for (std::size_t from = 0; from < pool_.size(); ++from) {
      for (std::size_t to = 0; to < pool_.size(); ++to) {
        if (from != to) pool_[to] = mixed(pool_[to], hashed(pool_[from]));
      }
    }
    for (std::size_t from = pool_.size(); from < words.size(); ++from) {
      for (std::uint32_t& to : pool_) to = mixed(to, hashed(words[from]));
    }
  }
  std::array<std::uint64_t, 2> two() const {
    std::uint32_t factor = 0x8B51F9DD;
    std::array<std::uint64_t, 4> made{};
    for (std::size_t i = 0; i < made.size(); ++i) {
      std::uint32_t value = pool_[i] ^ factor;
      factor *= 0x58F38DED;
      value *= factor;
      made[i] = value ^ value >> 16;
    }
    return {made[0] | made[1] << 32, made[2] | made[3] << 32};
  }

 private:
  std::uint32_t hashed(std::uint32_t value) {
    value ^= factor_;
    factor_ *= 0x931E8875;
    value *= factor_;
    return value ^ value >> 16;
  }
  static std::uint32_t mixed(std::uint32_t x, std::uint32_t y) {
    const std::uint32_t value = 0xCA01F9DD * x - 0x4973F715 * y;
    return value ^ value >> 16;
  }

  std::array<std::uint32_t, 4> pool_{};
  std::uint32_t factor_ = 0x43B0D7E5;
};

}  // namespace

void seeds(std::span<const std::uint32_t> words, std::span<const std::int64_t> numbers, std::span<std::uint64_t> out) {
  std::vector<std::uint32_t> all(words.begin(), words.end());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<std::uint64_t>(numbers[i]);
    all.resize(words.size());
    all.push_back(static_cast<std::uint32_t>(number));
    if (number >> 32 != 0) all.push_back(static_cast<std::uint32_t>(number >> 32));
    SeedPool pool;
    pool.mix_in(all);
    const auto [first, second] = pool.two();
    out[2 * i] = first;
    out[2 * i + 1] = second;
  }
}

}  // namespace solar::plan
