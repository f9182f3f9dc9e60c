#include "solar/groups.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "hdf5/chunk_walk.hpp"
#include "hdf5/describe.hpp"
#include "hdf5/group.hpp"
#include "hdf5/superblock.hpp"

namespace solar {

namespace hdf5 {

namespace {

constexpr std::size_t deepest_group = 1000;
constexpr std::size_t most_kinds = 1 << 16;  // ways of storing one dataset
// How many bytes of the budget each chunk costs: a chunk may belong to many datasets.
constexpr std::uint64_t chunk_cost = 4;
constexpr std::size_t most_groups = std::size_t{1} << 31;

std::vector<std::string> path_parts(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Whether a name fits a pattern, of which each star stands for any characters: linear but for the last star.
bool fits(const std::string& name, const std::string& pattern) {
  std::size_t at = 0, of = 0, star = std::string::npos, again = 0;
  while (at < name.size()) {
    if (of < pattern.size() && pattern[of] == '*') {
      star = of++, again = at;
    } else if (of < pattern.size() && pattern[of] == name[at]) {
      ++of, ++at;
    } else if (star != std::string::npos) {
      of = star + 1, at = ++again;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', of) == std::string::npos;
}

const Link* named(const std::vector<Link>& links, const std::string& name) {
  const auto at = std::lower_bound(links.begin(), links.end(), name,
                                   [](const Link& link, const std::string& wanted) { return link.name < wanted; });
  return at == links.end() || at->name != name ? nullptr : &*at;
}

template <class T>
void put(std::string& key, const T& number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// What two datasets have in common that are stored in the same way.
std::string kind_of(const Dataset& dataset) {
  std::string key;
  const auto text = [&](const auto& bytes) {
    put(key, bytes.size());
    key.append(reinterpret_cast<const char*>(bytes.data()), bytes.size() * sizeof bytes[0]);
  };
  text(*dataset.datatype);
  text(dataset.chunk);
  text(dataset.fill);
  text(dataset.elsewhere);
  put(key, dataset.storage);
  for (const Filter& filter : dataset.filters) {
    put(key, filter.id), put(key, filter.flags);
    text(filter.values);
  }
  return key;
}

// An Error of something that has a name already.
class Named : public Error {
 public:
  using Error::Error;
};

template <class Act>
auto within(const std::string& path, Act act) {
  const auto said = [&](const std::string& why) { return (path.empty() ? "/" : path) + ": " + why; };
  try {
    return act();
  } catch (const Named&) {
    throw;
  } catch (const Elsewhere& elsewhere) {
    throw Named(Kind::layout, said("only libhdf5 can find it: " + elsewhere.why));
  } catch (const Error& error) {
    throw Named(error.kind(), said(error.what()), error.code());
  }
}

class Groups {
 public:
  Groups(const File& file, const std::string& pattern, const std::vector<std::string>& wanted)
      : file_(file), image_(file), pattern_(path_parts(pattern)), wanted_(wanted) {
    for (const std::string& name : wanted) ways_.push_back(path_parts(name));
    found_.columns.resize(wanted.size());
    kinds_.resize(wanted.size());
    found_.begins.push_back(0);
    const std::uint64_t end = file.nbytes();
    index_budget_ = (end > ~std::uint64_t{0} / 16 ? ~std::uint64_t{0} / 2 : free_turns * end) + free_bytes;
  }

  GroupTable read() {
    const std::uint64_t root = read_superblock(image_);
    walk(root);
    found_.identity = file_.identity();
    return std::move(found_);
  }

 private:
  // A group whose members are being visited.
  struct Entered {
    std::string path;
    std::vector<Link> links;
    std::size_t next = 0;  // of the links
  };

  // Visits each group before those in it. The groups on the way lie on the heap: a damaged file may be very deep, and a
  // thread's stack is small.
  void walk(std::uint64_t root) {
    std::vector<Entered> way;
    enter(way, "", root, read_header(image_, root));
    while (!way.empty()) {
      Entered& group = way.back();
      if (group.next == group.links.size())
        way.pop_back();
      else
        follow(way, group.path, group.links[group.next++]);
    }
  }

  // Takes the group as a sample if it is one, and puts it on the way if there may be samples in it.
  void enter(std::vector<Entered>& way, const std::string& path, std::uint64_t address, const ObjectHeader& header) {
    const std::size_t level = way.size();
    if (level > deepest_group) throw Named(Kind::layout, path + ": is too deep in groups");
    if (pattern_.empty() && !visited_.insert(address).second) return;
    std::vector<Link> links = within(path, [&] { return links_of(image_, header); });
    if (pattern_.empty() ? has_any(links) : level == pattern_.size()) take(path, links);
    if (pattern_.empty() || level < pattern_.size()) way.push_back({path, std::move(links)});
  }

  // REQUIRES: the link is of the last group on the way, which may move when another is put there.
  void follow(std::vector<Entered>& way, const std::string& path, const Link& link) {
    if (pattern_.empty() ? is_wanted(link.name) : !fits(link.name, pattern_[way.size() - 1])) return;
    const std::string below = path + "/" + link.name;
    image_.spend(below.size());
    if (link.kind != Link::Kind::hard) {
      if (pattern_.empty()) return;  // as h5py's visititems
      throw Named(Kind::layout, below +
                                    ": is a link; groups are samples only where they lie in the file themselves: " +
                                    "give a pattern that leaves it out");
    }
    const std::uint64_t address = link.address;
    const ObjectHeader inner = within(below, [&] { return read_header(image_, address); });
    if (is_group(inner)) enter(way, below, address, inner);
  }

  bool is_wanted(const std::string& name) const {
    return std::find(wanted_.begin(), wanted_.end(), name) != wanted_.end();
  }

  bool has_any(const std::vector<Link>& links) const {
    return std::any_of(ways_.begin(), ways_.end(),
                       [&](const auto& way) { return named(links, way.front()) != nullptr; });
  }

  void take(const std::string& path, const std::vector<Link>& links) {
    if (found_.begins.size() > most_groups) throw Named(Kind::layout, path + ": is one of more than 2^31 groups");
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const std::string name = path + "/" + wanted_[i];
      within(name, [&] { add(i, name, dataset_at(path, links, i)); });
    }
    found_.names += path.empty() ? "/" : path;
    found_.begins.push_back(found_.names.size());
  }

  Dataset dataset_at(const std::string& path, const std::vector<Link>& links, std::size_t which) {
    const std::vector<std::string>& way = ways_[which];
    std::vector<Link> below;
    const std::vector<Link>* here = &links;
    for (std::size_t step = 0;; ++step) {
      const Link* link = named(*here, way[step]);
      if (link == nullptr) {
        throw Error(Kind::layout,
                    "there is no such dataset in this group, and each group is to have all that a sample "
                    "is made of: name groups by a pattern that leaves it out");
      }
      if (link->kind != Link::Kind::hard) throw Error(Kind::layout, "it is a link, which is not followed from a group");
      const ObjectHeader header = read_header(image_, link->address);
      if (step + 1 < way.size()) {
        if (!is_group(header)) throw Error(Kind::layout, way[step] + " is no group");
        std::vector<Link> next = links_of(image_, header);
        below = std::move(next);
        here = &below;
        continue;
      }
      if (is_group(header)) throw Error(Kind::layout, "it is a group, not a dataset");
      if (!is_dataset(header)) throw Error(Kind::layout, "it is no dataset");
      return describe(image_, header, path + "/" + wanted_[which]);
    }
  }

  void add(std::size_t which, const std::string& name, Dataset dataset) {
    GroupColumn& column = found_.columns[which];
    if (!dataset.problem.empty()) throw Error(Kind::layout, dataset.problem);
    if (!dataset.datatype) throw Error(Kind::layout, "only libhdf5 can find it: " + dataset.elsewhere);
    if (dataset.null_space) throw Error(Kind::layout, "its dataspace is null: it has no values");
    if (column.kinds.empty()) column.rank = dataset.shape.size();
    if (dataset.shape.size() != column.rank) {
      throw Error(Kind::layout, "it has " + std::to_string(dataset.shape.size()) + " axes, and " +
                                    column.kinds.front().name + " has " + std::to_string(column.rank));
    }
    image_.spend((column.rank + 4) * sizeof(std::uint64_t));  // what is kept of it; a header may be that of many names
    column.shape.insert(column.shape.end(), dataset.shape.begin(), dataset.shape.end());
    place(column, dataset);
    const auto known = kinds_[which].try_emplace(kind_of(dataset), static_cast<std::int32_t>(column.kinds.size()));
    column.kind.push_back(known.first->second);
    if (!known.second) return;
    if (column.kinds.size() == most_kinds) {
      throw Error(Kind::layout, "more than " + std::to_string(most_kinds) + " groups store it each in another way");
    }
    dataset.name = name;
    column.kinds.push_back(std::move(dataset));
  }

  // Where its values lie.
  void place(GroupColumn& column, const Dataset& dataset) {
    ChunkTable& all = column.chunks;
    if (dataset.elsewhere.empty() && dataset.storage == Storage::chunked) {
      const ChunkTable own = chunk_table(file_, image_.facts, dataset, index_budget_);
      image_.spend(chunk_cost * own.offset.size());
      all.index.insert(all.index.end(), own.index.begin(), own.index.end());
      all.offset.insert(all.offset.end(), own.offset.begin(), own.offset.end());
      all.nbytes.insert(all.nbytes.end(), own.nbytes.begin(), own.nbytes.end());
      all.mask.insert(all.mask.end(), own.mask.begin(), own.mask.end());
    } else if (dataset.elsewhere.empty() && dataset.address != undefined_address && dataset.nbytes > 0) {
      all.index.push_back(0);
      all.offset.push_back(dataset.address);
      all.nbytes.push_back(dataset.nbytes);
      all.mask.push_back(0);
    }
    column.first.push_back(static_cast<std::int64_t>(all.offset.size()));
  }

  const File& file_;
  Image image_;
  const std::vector<std::string> pattern_;
  const std::vector<std::string>& wanted_;
  std::vector<std::vector<std::string>> ways_;  // the parts of the names that are wanted
  std::vector<std::unordered_map<std::string, std::int32_t>> kinds_;
  std::unordered_set<std::uint64_t> visited_;  // groups, by their headers, where names alone do not end a walk
  std::uint64_t index_budget_ = 0;
  GroupTable found_;
};

}  // namespace

}  // namespace hdf5

GroupTable read_groups(const File& file, const std::string& pattern, const std::vector<std::string>& wanted) {
  for (const std::string& name : wanted) {
    if (hdf5::path_parts(name).empty()) throw Error(Kind::layout, file.path() + ": a dataset of a group has a name");
  }
  try {
    return hdf5::Groups(file, pattern, wanted).read();
  } catch (const Error& error) {
    if (error.kind() != Kind::layout) throw;
    throw Error(Kind::layout, file.path() + ": " + error.what());
  }
}

}  // namespace solar
