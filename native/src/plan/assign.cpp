#include <algorithm>
#include <utility>

#include "solar/plan.hpp"

namespace solar::plan {

namespace {

// The first rank of [begin, end) with room; `from` remembers how far all before it are full.
std::int64_t with_room(const std::vector<std::int64_t>& room, std::int64_t& from, std::int64_t end) {
  while (from < end && room[static_cast<std::size_t>(from)] == 0) ++from;
  return from < end ? from : -1;
}

}  // namespace

Uses select(std::span<const Item> order, std::span<const std::int64_t> starts, Item begin, Item end) {
  Uses uses;
  uses.starts.reserve(starts.size());
  uses.items.reserve(order.size());  // mostly fewer; growing would take twice the memory
  const auto width = static_cast<std::uint32_t>(end - begin);
  for (std::size_t step = 0; step + 1 < starts.size(); ++step) {
    uses.starts.push_back(static_cast<std::int64_t>(uses.items.size()));
    for (auto use = starts[step]; use < starts[step + 1]; ++use) {
      const Item item = order[static_cast<std::size_t>(use)] - begin;
      if (static_cast<std::uint32_t>(item) < width) uses.items.push_back(item);
    }
  }
  uses.starts.push_back(static_cast<std::int64_t>(uses.items.size()));
  return uses;
}

Uses merge_ranges(std::span<const std::int64_t> first, std::span<const std::int64_t> last,
                  std::span<const std::int64_t> starts) {
  Uses uses;
  uses.starts.reserve(starts.size());
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (std::size_t step = 0; step + 1 < starts.size(); ++step) {
    uses.starts.push_back(static_cast<std::int64_t>(uses.items.size()));
    ranges.clear();
    for (auto r = static_cast<std::size_t>(starts[step]); r < static_cast<std::size_t>(starts[step + 1]); ++r) {
      if (first[r] <= last[r]) ranges.emplace_back(first[r], last[r]);
    }
    std::sort(ranges.begin(), ranges.end());
    std::int64_t next = 0;
    for (const auto& [from, to] : ranges) {
      for (next = std::max(next, from); next <= to; ++next) uses.items.push_back(static_cast<Item>(next));
    }
  }
  uses.starts.push_back(static_cast<std::int64_t>(uses.items.size()));
  return uses;
}

std::vector<std::int32_t> assign(std::span<const Item> order, std::span<const std::int64_t> starts,
                                 std::span<const std::int64_t> homes, std::int32_t ranks_per_node) {
  const auto ranks = static_cast<std::int64_t>(homes.size()) - 1;
  const std::int64_t nodes = (ranks + ranks_per_node - 1) / ranks_per_node;
  std::vector<std::int32_t> takers(order.size(), -1);
  std::vector<std::int64_t> room(static_cast<std::size_t>(ranks)), from(static_cast<std::size_t>(nodes));
  std::vector<std::int64_t> over, far;
  const auto home_of = [&](std::int64_t use) {
    const std::int64_t item = order[static_cast<std::size_t>(use)];
    return std::upper_bound(homes.begin(), homes.end() - 1, item) - homes.begin() - 1;
  };
  const auto give = [&](std::int64_t use, std::int64_t rank) {
    takers[static_cast<std::size_t>(use)] = static_cast<std::int32_t>(rank);
    --room[static_cast<std::size_t>(rank)];
  };
  for (std::size_t step = 0; step + 1 < starts.size(); ++step) {
    const std::int64_t uses = starts[step + 1] - starts[step];
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      room[static_cast<std::size_t>(rank)] = uses / ranks + (rank < uses % ranks);
    }
    over.clear(), far.clear();
    for (auto use = starts[step]; use < starts[step + 1]; ++use) {
      const std::int64_t home = home_of(use);
      if (room[static_cast<std::size_t>(home)] > 0) {
        give(use, home);
      } else {
        over.push_back(use);
      }
    }
    for (std::int64_t node = 0; node < nodes; ++node) from[static_cast<std::size_t>(node)] = node * ranks_per_node;
    for (const std::int64_t use : over) {
      const std::int64_t node = home_of(use) / ranks_per_node;
      const std::int64_t end = std::min<std::int64_t>(ranks, (node + 1) * ranks_per_node);
      const std::int64_t near = with_room(room, from[static_cast<std::size_t>(node)], end);
      near < 0 ? far.push_back(use) : give(use, near);
    }
    std::int64_t anywhere = 0;
    for (const std::int64_t use : far) give(use, with_room(room, anywhere, ranks));
  }
  return takers;
}

}  // namespace solar::plan
