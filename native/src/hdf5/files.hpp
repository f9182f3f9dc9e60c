// The file that is asked for and those that its external links lead to: where a path leads among them.
//
// One thread uses it. A ObjectLocation keeps its file open; of the others those used last stay open, for links often
// lead to one file again and again. Whatever a link says is checked, and no path goes through more links than libhdf5
// follows, so that circles end.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hdf5/group.hpp"

namespace solar::hdf5 {

inline constexpr std::size_t longest_path = 1 << 16;

// One file that is open.
struct Opened {
  explicit Opened(const File& file);
  explicit Opened(std::unique_ptr<const File> file);

  // Of the group whose header is there, in order of name; read once. Error(layout) naming `wanted` if it is no group.
  const std::vector<Link>& links_at(std::uint64_t group, const std::string& wanted);
  const std::vector<Link>& links_of_group(std::uint64_t group, const ObjectHeader& header);

  std::unique_ptr<const File> owned;  // null for the file that was asked for, which is the caller's
  Image image;
  std::uint64_t root;      // the address of its group
  std::size_t number = 0;  // which of all files it is

 private:
  std::unordered_map<std::uint64_t, std::vector<Link>> links_;
};

// What a link says, for messages.
std::string target_of(const Link& link);

// Where a path leads.
struct ObjectLocation {
  std::shared_ptr<Opened> file;
  std::uint64_t address = undefined_address;  // of the object's header
  std::string name;                           // the path there from the file's root, without links
};

class Files {
 public:
  // `prefixes`: folders that external links are looked for in first, with colons between (libhdf5's HDF5_EXT_PREFIX).
  Files(const File& asked, std::string prefixes);

  const std::shared_ptr<Opened>& asked() const noexcept { return asked_; }
  bool is_asked(const ObjectLocation& place) const noexcept { return place.file == asked_; }

  // From the root of the file that was asked for. Where there is nothing, the Error says what may have been meant.
  ObjectLocation follow(const std::string& path);
  // Through one link of the group at `from`; `links` counts those that were gone through to get there, and is left as
  // many as it takes to get to what the link leads to.
  ObjectLocation through(const ObjectLocation& from, const Link& link, int& links);

  // For messages, of the last path: the file it had come to if that is another one, and the links it went through.
  std::string where() const;
  std::string trail(std::size_t from = 0) const;

 private:
  ObjectLocation walk(ObjectLocation at, std::vector<std::string> parts, int& links);
  void take(ObjectLocation& at, const Link& link, std::vector<std::string>& parts, int& links);
  const Link& find(const ObjectLocation& at, const std::string& name);
  std::shared_ptr<Opened> open(Opened& from, const std::string& name);
  std::shared_ptr<Opened> known_or_new(std::unique_ptr<const File> file);
  std::vector<std::string> candidates(const Opened& from, const std::string& name) const;

  std::string prefixes_;
  std::shared_ptr<Opened> asked_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<std::size_t, std::weak_ptr<Opened>>> by_identity_;
  std::unordered_map<std::string, std::weak_ptr<Opened>> by_path_;
  std::vector<std::shared_ptr<Opened>> recent_;  // the one used last is the last
  std::shared_ptr<Opened> reached_;
  std::vector<std::string> trail_;
  bool suggests_ = false;  // only for the one path a user asked for: it takes long
};

}  // namespace solar::hdf5
