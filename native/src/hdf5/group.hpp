// Groups: these functions read the links of a group, whichever of the three ways they are stored in.
//
// They belong to one call and one thread, as their Image does. Links are values of the caller. Damage is Error(layout),
// and reads are paid for (image.hpp), so that groups that contain each other, or are made too large, end.
#pragma once

#include <string>
#include <vector>

#include "hdf5/header.hpp"

namespace solar::hdf5 {

struct Link {
  enum class Kind { hard, soft, external, user };
  std::string name;
  Kind kind = Kind::hard;
  std::uint64_t address = undefined_address;  // hard: of the object's header
  std::string target;                         // soft: a path; external: a path in `file`; user: its type
  std::string file;                           // external: as the link names it; empty when its value is damaged
};

inline bool is_group(const ObjectHeader& header) {
  return header.find(MessageType::symbol_table) != nullptr || header.find(MessageType::link_info) != nullptr;
}

// All links, in order of name. REQUIRES: is_group(header).
std::vector<Link> links_of(Image& image, const ObjectHeader& header);

// The three ways to store them; in any order.
std::vector<Link> symbol_table_links(Image& image, const Message& message);
std::vector<Link> dense_links(Image& image, std::uint64_t heap, std::uint64_t name_index);
Link parse_link(const FileFacts& facts, Bytes message);

}  // namespace solar::hdf5
