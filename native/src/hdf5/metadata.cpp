#include "solar/metadata.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "hdf5/describe.hpp"
#include "hdf5/group.hpp"
#include "hdf5/nearest.hpp"
#include "hdf5/superblock.hpp"

namespace solar {

namespace hdf5 {

namespace {

constexpr int most_soft_links = 16;  // one after another, as in libhdf5
constexpr std::size_t deepest = 1000;
constexpr std::size_t longest_path = 1 << 16;
constexpr std::uint64_t step_cost = 64;  // bytes of the budget for a step along a path, which may go in circles

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

std::string shown(const std::string& path) { return path.empty() ? "/" : path; }

// Below one root: all datasets, or one.
class Walk {
 public:
  Walk(Image& image, std::uint64_t root, Metadata& found) : image_(image), root_(root), found_(found) {}

  // Depth first, in order of name; an object with several names is found once. What is damaged costs no other object.
  void all() {
    read_header(image_, root_);  // without a root the file is none: an Error, not a problem
    std::vector<Level> levels;
    enter("", root_, levels);
    while (!levels.empty()) {
      Level& level = levels.back();
      if (level.next == level.links->size()) {
        levels.pop_back();
        continue;
      }
      const Link& link = (*level.links)[level.next++];
      step(level.path + "/" + link.name, link, levels);
    }
  }

  // The dataset of this name, or, when that is defined, at this absolute address.
  void one(const std::string& name, std::uint64_t header_address) {
    suggests_ = true;
    Dataset dataset;
    for (const std::string& part : split(name)) dataset.name += "/" + part;
    try {
      const bool known = header_address != undefined_address;
      const ObjectHeader header = read_header(image_, known ? header_address - image_.facts.base : follow(split(name)));
      if (is_group(header)) throw Error(Kind::layout, "it is a group, not a dataset");
      if (!is_dataset(header)) throw Error(Kind::layout, "it is no dataset");
      dataset = describe(image_, header, dataset.name);
    } catch (const Elsewhere& elsewhere) {
      dataset.elsewhere = elsewhere.why;
    } catch (const Error& error) {
      throw Error(error.kind(), shown(dataset.name) + ": " + error.what(), error.code());
    }
    found_.datasets.push_back(std::move(dataset));
  }

 private:
  struct Level {
    std::string path;
    const std::vector<Link>* links;
    std::size_t next = 0;
  };

  void step(const std::string& path, const Link& link, std::vector<Level>& levels) {
    image_.spend(path.size());
    if (link.kind == Link::Kind::external) return problem(path, "is a link to another file: " + link.target);
    if (link.kind == Link::Kind::user) return problem(path, "is a user-defined link: " + link.target);
    if (link.kind == Link::Kind::soft) return check_soft(path);
    if (visited_.contains(link.address)) return;
    if (levels.size() > deepest || path.size() > longest_path) return problem(path, "is too deep in groups");
    enter(path, link.address, levels);
  }

  void check_soft(const std::string& path) {
    try {
      follow(split(path));
    } catch (const Exhausted&) {
      throw;
    } catch (const Elsewhere& elsewhere) {
      problem(path, "is a soft link: " + elsewhere.why);
    } catch (const Error& error) {
      problem(path, std::string("is a soft link that leads nowhere: ") + error.what());
    }
  }

  void enter(const std::string& path, std::uint64_t address, std::vector<Level>& levels) {
    visited_.insert(address);
    bool group = false;
    try {
      const ObjectHeader header = read_header(image_, address);
      group = is_group(header);
      if (group) {
        levels.push_back({path, &links_at(address, header)});
      } else if (is_dataset(header)) {
        found_.datasets.push_back(describe(image_, header, path));
      } else if (header.find(MessageType::datatype) == nullptr) {
        throw Error(Kind::layout, "it is neither a group nor a dataset nor a datatype");
      }
    } catch (const Exhausted&) {
      throw;
    } catch (const Elsewhere& elsewhere) {
      problem(path, "can only be listed by libhdf5: " + elsewhere.why);
    } catch (const Error& error) {
      if (error.kind() != Kind::layout) throw;
      if (group || path.empty()) return problem(path, std::string("is a damaged group: ") + error.what());
      found_.datasets.emplace_back();
      found_.datasets.back().name = path;
      found_.datasets.back().problem = error.what();
    }
  }

  void problem(const std::string& path, const std::string& why) { found_.problems.push_back(shown(path) + " " + why); }

  // Links of a group, read once.
  const std::vector<Link>& links_at(std::uint64_t address, const ObjectHeader& header) {
    const auto known = links_.find(address);
    return known != links_.end() ? known->second : links_.emplace(address, links_of(image_, header)).first->second;
  }

  // The address of the object's header. Soft links are followed; the path may be longer after each.
  std::uint64_t follow(std::vector<std::string> parts) {
    std::reverse(parts.begin(), parts.end());
    std::uint64_t at = root_;
    int soft_links = 0;
    while (!parts.empty()) {
      image_.spend(step_cost);
      const std::string part = std::move(parts.back());
      parts.pop_back();
      const Link& link = find(at, part);
      if (link.kind == Link::Kind::external) throw Elsewhere{"it is in another file: " + link.target};
      if (link.kind == Link::Kind::user) throw Elsewhere{"its path has a user-defined link: " + link.target};
      if (link.kind == Link::Kind::hard) {
        at = link.address;
        continue;
      }
      if (++soft_links > most_soft_links) throw Error(Kind::layout, "there are too many soft links on the way");
      image_.spend(link.target.size());
      if (link.target.size() > longest_path) throw Error(Kind::layout, "a soft link on the way is too long");
      if (link.target[0] == '/') at = root_;
      std::vector<std::string> more = split(link.target);
      parts.insert(parts.end(), more.rbegin(), more.rend());
    }
    return at;
  }

  const Link& find(std::uint64_t group, const std::string& name) {
    auto known = links_.find(group);
    if (known == links_.end()) {
      const ObjectHeader header = read_header(image_, group);
      if (!is_group(header)) throw Error(Kind::layout, "there is no " + name + " in what is no group");
      links_at(group, header);
      known = links_.find(group);
    }
    const std::vector<Link>& links = known->second;
    const auto by_name = [](const Link& link, const std::string& key) { return link.name < key; };
    const auto found = std::lower_bound(links.begin(), links.end(), name, by_name);
    if (found != links.end() && found->name == name) return *found;
    const std::string nearest = suggests_ ? nearest_name(name, links) : "";
    throw Error(Kind::layout, "there is no " + name + (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  }

  Image& image_;
  std::uint64_t root_;
  Metadata& found_;
  std::unordered_set<std::uint64_t> visited_;
  std::unordered_map<std::uint64_t, std::vector<Link>> links_;
  bool suggests_ = false;  // only for the one path a user asked for: it takes long
};

}  // namespace

}  // namespace hdf5

Metadata read_metadata(const File& file, const std::string& name, std::uint64_t header_address) {
  Metadata found;
  try {
    hdf5::Image image(file);
    const std::uint64_t root = hdf5::read_superblock(image);
    found.facts = image.facts;
    hdf5::Walk walk(image, root, found);
    name.empty() ? walk.all() : walk.one(name, header_address);
  } catch (const Error& error) {
    if (error.kind() != Kind::layout) throw;
    throw Error(Kind::layout, file.path() + ": " + error.what());
  }
  return found;
}

}  // namespace solar
