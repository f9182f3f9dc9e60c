#include "hdf5/files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sys/stat.h>

#include "hdf5/nearest.hpp"
#include "hdf5/superblock.hpp"
#include "solar/far.hpp"

namespace solar::hdf5 {

namespace {

namespace fs = std::filesystem;

constexpr int most_links = 16;               // soft and external, on the way to one object: libhdf5's limit
constexpr std::size_t most_told = 4;         // links on the way to what is not there
constexpr std::size_t most_open = 16;        // files besides those that a ObjectLocation keeps open
constexpr std::size_t longest_name = 4096;   // of a file: no system opens a longer one
// How many bytes of the budget a step along a path costs: paths may go in circles.
constexpr std::uint64_t step_cost = 64;
constexpr std::uint64_t opening_cost = 512;  // and for a file that is looked for

std::vector<std::string> reversed_parts(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    begin = end + 1;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string joined(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.back() == '/' ? folder + name : folder + "/" + name;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

// Absolute, and without detours where that is the same file: a folder that is a link makes another of "..".
std::string tidy(const std::string& path) {
  if (Far::is_url(path)) return path;
  std::error_code failed;
  const fs::path absolute = fs::absolute(path, failed);
  if (failed) return path;
  const fs::path normal = absolute.lexically_normal();
  return fs::equivalent(normal, absolute, failed) && !failed ? normal.string() : absolute.string();
}

std::pair<std::uint64_t, std::uint64_t> identity_of(const File& file) {
  if (file.far()) return {~std::uint64_t{0}, std::hash<std::string>()(file.path())};
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) return {0, 0};
  return {status.st_dev, status.st_ino};
}

// Whether an Error of opening means that there is no such file, so that another folder is tried.
bool is_missing(const Error& error) {
  constexpr int codes[] = {ENOENT, ENOTDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG, ENXIO, ENODEV};
  return error.kind() == Kind::read && std::find(std::begin(codes), std::end(codes), error.code()) != std::end(codes);
}

}  // namespace

std::string target_of(const Link& link) {
  constexpr std::size_t longest = 300;  // bytes of a target that a message repeats
  const std::string all = link.file.empty() ? link.target : link.file + ":" + link.target;
  return all.size() <= longest ? all : all.substr(0, longest) + "...";
}

Opened::Opened(const File& file) : image(file), root(read_superblock(image)) {}

Opened::Opened(std::unique_ptr<const File> file)
    : owned(std::move(file)), image(*owned), root(read_superblock(image)) {}

const std::vector<Link>& Opened::links_of_group(std::uint64_t group, const ObjectHeader& header) {
  const auto known = links_.find(group);
  return known != links_.end() ? known->second : links_.emplace(group, links_of(image, header)).first->second;
}

const std::vector<Link>& Opened::links_at(std::uint64_t group, const std::string& wanted) {
  if (const auto known = links_.find(group); known != links_.end()) return known->second;
  const ObjectHeader header = read_header(image, group);
  if (!is_group(header)) throw Error(Kind::layout, "there is no " + wanted + " in what is no group");
  return links_of_group(group, header);
}

Files::Files(const File& asked, std::string prefixes)
    : prefixes_(std::move(prefixes)), asked_(std::make_shared<Opened>(asked)), reached_(asked_) {
  by_identity_[identity_of(asked)] = {0, asked_};
}

ObjectLocation Files::follow(const std::string& path) {
  trail_.clear();
  reached_ = asked_;
  suggests_ = true;
  int links = 0;
  return walk({asked_, asked_->root, ""}, reversed_parts(path), links);
}

ObjectLocation Files::through(const ObjectLocation& from, const Link& link, int& links) {
  trail_.clear();
  reached_ = from.file;
  suggests_ = false;
  ObjectLocation at = from;
  std::vector<std::string> parts;
  take(at, link, parts, links);
  return walk(std::move(at), std::move(parts), links);
}

ObjectLocation Files::walk(ObjectLocation at, std::vector<std::string> parts, int& links) {
  while (!parts.empty()) {
    at.file->image.spend(step_cost);
    const std::string part = std::move(parts.back());
    parts.pop_back();
    const Link& link = find(at, part);
    if (link.kind == Link::Kind::hard) {
      at.address = link.address;
      at.name += "/" + part;
    } else {
      const std::shared_ptr<Opened> held = at.file;  // the link is in it
      take(at, link, parts, links);
    }
  }
  return at;
}

// The parts that are left may be more after each link, and some bytes of the link's file are spent for each.
void Files::take(ObjectLocation& at, const Link& link, std::vector<std::string>& parts, int& links) {
  if (link.kind == Link::Kind::user) throw Elsewhere{"its path has a user-defined link: " + link.target};
  at.file->image.spend(link.file.size() + link.target.size());
  if (link.target.size() > longest_path) throw Error(Kind::layout, "a link on the way is too long: " + link.name);
  const bool external = link.kind == Link::Kind::external;
  if (external && (link.file.empty() || link.target.empty())) {
    throw Error(Kind::layout, "the external link " + at.name + "/" + link.name + " is damaged: what it says of file " +
                                  "and object cannot be read");
  }
  const std::string& file = at.file->image.file().path();
  trail_.push_back("the link " + at.name + "/" + link.name + " in " + file + " leads to " + target_of(link));
  if (++links > most_links) {
    throw Error(Kind::layout, "there are too many links on the way: more than " + std::to_string(most_links));
  }
  if (external) {
    const std::shared_ptr<Opened> next = open(*at.file, link.file);
    at = {next, next->root, ""};
    reached_ = next;
  } else if (link.target.starts_with('/')) {
    at = {at.file, at.file->root, ""};
  }
  std::vector<std::string> more = reversed_parts(link.target);
  parts.insert(parts.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

const Link& Files::find(const ObjectLocation& at, const std::string& name) {
  const std::vector<Link>& links = at.file->links_at(at.address, name);
  const auto by_name = [](const Link& link, const std::string& key) { return link.name < key; };
  const auto found = std::lower_bound(links.begin(), links.end(), name, by_name);
  if (found != links.end() && found->name == name) return *found;
  const std::string nearest = suggests_ ? nearest_name(name, links) : "";
  throw Error(Kind::layout, "there is no " + name + (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

std::string Files::where() const { return reached_ == asked_ ? "" : reached_->image.file().path() + ": "; }

std::string Files::trail(std::size_t from) const {
  std::string all;
  const std::size_t end = std::min(trail_.size(), from + most_told);
  for (std::size_t i = from; i < end; ++i) all += (i == from ? "; on the way: " : ", ") + trail_[i];
  return end < trail_.size() ? all + ", and so on" : all;
}

// --- which file an external link means ---

// Where libhdf5 looks, in this order: as the link says if that is absolute, and then, as for a name that is not, below
// each prefix, beside the file with the link, in the working folder, and beside what that file is a symbolic link to.
std::vector<std::string> Files::candidates(const Opened& from, const std::string& name) const {
  std::vector<std::string> all;
  const std::string& path = from.image.file().path();
  if (Far::is_url(name)) return all;  // a file leads nowhere that nobody asked for
  if (from.image.file().far()) {  // from afar nobody leads to files of this machine
    if (name.find("..") == std::string::npos && !name.starts_with('/')) {
      all.push_back(joined(folder_of(path), name));
    }
    return all;
  }
  std::string local = name;
  if (name.starts_with('/')) {
    all.push_back(name);
    local = name.substr(name.rfind('/') + 1);
  }
  for (std::size_t begin = 0; begin < prefixes_.size();) {
    const std::size_t end = std::min(prefixes_.find(':', begin), prefixes_.size());
    if (end > begin) all.push_back(joined(prefixes_.substr(begin, end - begin), local));
    begin = end + 1;
  }
  all.push_back(joined(folder_of(path), local));
  all.push_back(local);
  std::error_code failed;
  if (fs::is_symlink(path, failed)) {
    const fs::path real = fs::canonical(path, failed);
    if (!failed) all.push_back(joined(folder_of(real.string()), local));
  }
  return all;
}

std::shared_ptr<Opened> Files::open(Opened& from, const std::string& name) {
  if (name.size() > longest_name) throw Error(Kind::layout, "an external link names a file too long to be one");
  std::string tried;
  std::vector<std::string> paths;  // two ways may lead to one
  for (const std::string& candidate : candidates(from, name)) {
    const std::string path = tidy(candidate);
    if (std::find(paths.begin(), paths.end(), path) != paths.end()) continue;
    paths.push_back(path);
    if (const auto known = by_path_.find(path); known != by_path_.end()) {
      if (std::shared_ptr<Opened> open = known->second.lock()) return open;
    }
    from.image.spend(opening_cost + candidate.size());
    try {
      const auto file = known_or_new(std::unique_ptr<const File>(new const File(File::plain(path))));
      by_path_[path] = file;
      return file;
    } catch (const Error& error) {
      if (!is_missing(error)) throw;
      tried += (tried.empty() ? "" : ", ") + path + (error.code() == EACCES ? " (which must not be read)" : "");
    }
  }
  if (tried.empty()) throw Error(Kind::layout, "there is no file " + name + ": a link does not lead there");
  throw Error(Kind::layout, "there is no file " + name + "; it was looked for as " + tried);
}

std::shared_ptr<Opened> Files::known_or_new(std::unique_ptr<const File> file) {
  const std::size_t next = by_identity_.size();
  auto& [number, known] = by_identity_.try_emplace(identity_of(*file), next, std::weak_ptr<Opened>{}).first->second;
  std::shared_ptr<Opened> open = known.lock();
  if (!open) {
    const std::string path = file->path();
    try {
      open = std::make_shared<Opened>(std::move(file));
    } catch (const Error& error) {
      throw Error(error.kind(), path + ": " + error.what(), error.code());
    }
    open->number = number;
    known = open;
    if (recent_.size() == most_open) recent_.erase(recent_.begin());
    recent_.push_back(open);
  }
  return open;
}

}  // namespace solar::hdf5
