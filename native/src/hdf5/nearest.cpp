#include "hdf5/nearest.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace solar::hdf5 {

namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// How many letters must be changed, added or taken away; upper and lower case are alike.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t same = diagonal + (lower(a[i]) == lower(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({same, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<Link>& links) {
  constexpr std::size_t most_links = 1000;  // more would make a mistake expensive
  constexpr std::size_t longest = 100;
  std::string nearest;
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  if (name.size() > longest) return nearest;
  for (std::size_t i = 0; i < std::min(links.size(), most_links); ++i) {
    if (links[i].name.size() > longest) continue;
    const std::size_t d = distance(name, links[i].name);
    if (d < best && d < name.size()) {
      best = d;
      nearest = links[i].name;
    }
  }
  return nearest;
}

}  // namespace solar::hdf5
