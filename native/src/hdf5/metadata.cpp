#include "solar/metadata.hpp"

#include <unordered_set>

#include "hdf5/describe.hpp"
#include "hdf5/files.hpp"

namespace solar {

namespace hdf5 {

namespace {

constexpr std::size_t deepest_level = 1000;

std::string shown(const std::string& path) { return path.empty() ? "/" : path; }

// The path as `name` says it, without what does not count.
std::string normal(const std::string& name) {
  std::string all;
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part != ".") all += "/" + part;
    begin = end + 1;
  }
  return all;
}

// Below one root: all datasets, or one.
class Walk {
 public:
  Walk(Files& files, Metadata& found, std::size_t most) : files_(files), found_(found), most_(most) {}

  // Depth first, in order of name; an object with several names is found once. What is damaged costs no other object.
  void all() {
    const ObjectLocation root{files_.asked(), files_.asked()->root, ""};
    read_header(root.file->image, root.address);  // without a root the file is none: an Error, not a problem
    region({"", root}, 0);
  }

  // The dataset of this name, or, when that is defined, at this absolute address.
  void one(const std::string& name, std::uint64_t header_address) {
    Dataset dataset;
    dataset.name = normal(name);
    ObjectLocation place{files_.asked(), header_address - files_.asked()->image.facts.base, dataset.name};
    try {
      if (header_address == undefined_address) place = files_.follow(dataset.name);
      const ObjectHeader header = read_header(place.file->image, place.address);
      if (is_group(header)) throw Error(Kind::layout, "it is a group, not a dataset");
      if (!is_dataset(header)) throw Error(Kind::layout, "it is no dataset");
      dataset = describe(place.file->image, header, dataset.name);
    } catch (const Elsewhere& elsewhere) {
      dataset.elsewhere = elsewhere.why + files_.trail();
    } catch (const Error& error) {
      const std::string said = shown(dataset.name) + ": " + files_.where() + error.what() + files_.trail();
      throw Error(error.kind(), said, error.code());
    }
    locate(dataset, place);
    found_.datasets.push_back(std::move(dataset));
  }

 private:
  // An object and the path by which it is listed.
  struct Named {
    std::string path;
    ObjectLocation place;
  };
  struct Level {
    Named group;
    const std::vector<Link>* members;
    std::size_t next = 0;
  };
  // A link that is gone through when all that has a name of its own is found; of the group at `from`.
  struct Waiting {
    std::string path;
    ObjectLocation from;
    const Link* link;
  };

  // All below one object in its own file, then what its links lead to. Each region is behind one link more at least, so
  // that there are no more of them within each other than the links that may be on a way.
  void region(const Named& top, int links) {
    std::vector<Level> levels;
    std::vector<Waiting> waiting;
    enter(top, levels, links > 0);
    while (!levels.empty()) {
      Level& level = levels.back();
      if (level.next == level.members->size()) {
        levels.pop_back();
        continue;
      }
      const Link& link = (*level.members)[level.next++];
      const ObjectLocation& here = level.group.place;
      const std::string path = level.group.path + "/" + link.name;
      here.file->image.spend(path.size());
      if (full(path, level.next > 1)) return;
      if (link.kind == Link::Kind::user) {
        problem(path, "is a user-defined link: " + link.target);
      } else if (link.kind != Link::Kind::hard) {
        waiting.push_back({path, here, &link});
      } else {
        const ObjectLocation place{here.file, link.address, here.name + "/" + link.name};
        if (!visited(place)) {
          if (levels.size() <= deepest_level && path.size() <= longest_path) {
            enter({path, place}, levels, links > 0);
          } else {
            problem(path, "is too deep in groups");
          }
        } else if (links > 0) {
          alias(path, place);
        }
      }
    }
    for (const Waiting& one : waiting) {
      if (full(one.path, false)) return;
      arrive(one, links);
    }
  }

  // Whether as many datasets were found as are looked for, so that from this path on nothing is; says so once. A group
  // that was begun is gone through to its end where twice as many are enough for that.
  bool full(const std::string& path, bool begun) {
    const std::size_t found = found_.datasets.size() + found_.linked.size();
    if (found < most_ || (begun && found / 2 < most_)) return false;
    if (!said_full_) {
      problem(path, "and what comes behind it are not looked at: " + std::to_string(found) + " datasets come before");
    }
    return said_full_ = true;
  }

  bool visited(const ObjectLocation& place) const {
    const std::size_t file = place.file->number;
    return file < visited_.size() && visited_[file].contains(place.address);
  }

  void visit(const ObjectLocation& place) {
    if (visited_.size() <= place.file->number) visited_.resize(place.file->number + 1);
    visited_[place.file->number].insert(place.address);
  }

  // Behind links only groups count as visited: a dataset has a line for each of its names there.
  void enter(const Named& object, std::vector<Level>& levels, bool linked) {
    const ObjectLocation& place = object.place;
    if (!linked) visit(place);
    bool group = false;
    try {
      const ObjectHeader header = read_header(place.file->image, place.address);
      group = is_group(header);
      if (group) {
        visit(place);
        levels.push_back({object, &place.file->links_of_group(place.address, header)});
      } else if (is_dataset(header)) {
        add(describe(place.file->image, header, object.path), object, linked);
      } else if (header.find(MessageType::datatype) == nullptr) {
        throw Error(Kind::layout, "it is neither a group nor a dataset nor a datatype");
      }
    } catch (const Exhausted&) {
      throw;
    } catch (const Elsewhere& elsewhere) {
      problem(object.path, "can only be listed by libhdf5: " + elsewhere.why);
    } catch (const Error& error) {
      if (error.kind() != Kind::layout) throw;
      if (group || object.path.empty())
        return problem(object.path, std::string("is a damaged group: ") + error.what());
      Dataset damaged;
      damaged.name = object.path;
      damaged.problem = error.what();
      add(std::move(damaged), object, linked);
    }
  }

  void add(Dataset dataset, const Named& object, bool linked) {
    locate(dataset, object.place);
    (linked ? found_.linked : found_.datasets).push_back(std::move(dataset));
  }

  // What is wrong with a link, or with what lies behind it, is a problem of that link only; unless it is the file that
  // was asked for which is used up.
  void arrive(const Waiting& one, int links) {
    std::string where, trail;
    bool there = false;
    const auto nowhere = [&](const std::string& why) {
      lost(one, there ? where + why + trail : files_.where() + why + files_.trail(1));
    };
    try {
      const Named to{one.path, files_.through(one.from, *one.link, links)};
      where = files_.where(), trail = files_.trail(1), there = true;
      if (is_group(read_header(to.place.file->image, to.place.address))) {
        alias(one.path, to.place);
        if (!visited(to.place)) region(to, links);
      } else {
        std::vector<Level> none;
        enter(to, none, true);
      }
    } catch (const Exhausted& error) {
      if (files_.asked()->image.exhausted()) throw;
      nowhere(error.what());
    } catch (const Elsewhere& elsewhere) {
      nowhere(elsewhere.why);
    } catch (const Error& error) {
      nowhere(error.what());
    }
  }

  void alias(const std::string& path, const ObjectLocation& place) {
    const std::string file = files_.is_asked(place) ? "" : place.file->image.file().path();
    found_.aliases.push_back({path, file, shown(place.name)});
  }

  void lost(const Waiting& one, const std::string& why) {
    const std::string kind = one.link->kind == Link::Kind::external ? "an external" : "a soft";
    const std::string to = target_of(*one.link);
    problem(one.path, "is " + kind + " link" + (to.empty() ? "" : " to " + to) + " that leads nowhere: " + why);
  }

  void problem(const std::string& path, const std::string& why) { found_.problems.push_back(shown(path) + " " + why); }

  // Says in which file a dataset is, and by which name, where these are not those that were asked for.
  void locate(Dataset& dataset, const ObjectLocation& place) const {
    const File& file = place.file->image.file();
    dataset.identity = file.identity();
    const bool other_file = !files_.is_asked(place);
    if (other_file) dataset.path = file.path();
    if (other_file || place.name != dataset.name) dataset.target = place.name;
  }

  Files& files_;
  Metadata& found_;
  std::size_t most_;
  bool said_full_ = false;
  std::vector<std::unordered_set<std::uint64_t>> visited_;  // by the number of the file: addresses of headers
};

}  // namespace

}  // namespace hdf5

Metadata read_metadata(const File& file, const std::string& name, std::uint64_t header_address,
                       const std::string& prefixes, std::size_t most) {
  Metadata found;
  try {
    hdf5::Files files(file, prefixes);
    found.facts = files.asked()->image.facts;
    hdf5::Walk walk(files, found, most);
    name.empty() ? walk.all() : walk.one(name, header_address);
  } catch (const Error& error) {
    if (error.kind() != Kind::layout) throw;
    throw Error(Kind::layout, file.path() + ": " + error.what());
  }
  return found;
}

}  // namespace solar
