#include "hdf5/group.hpp"

#include <algorithm>

#include "hdf5/btree2.hpp"
#include "hdf5/describe.hpp"
#include "hdf5/fractal_heap.hpp"

namespace solar::hdf5 {

namespace {

std::string text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Two strings with a zero behind each, after a byte of version and flags, of which none are known. A value that says
// anything else leads nowhere, but is no reason not to list the group.
void parse_external(Bytes value, Link& link) {
  const std::string strings = text(value.empty() ? value : value.subspan(1));
  const std::size_t middle = strings.find('\0');
  const std::size_t end = middle == std::string::npos ? middle : strings.find('\0', middle + 1);
  if (end == std::string::npos || value[0] != std::byte{0}) return;
  link.file = strings.substr(0, middle);
  link.target = strings.substr(middle + 1, end - middle - 1);
}

// How the group's links are to be stored: not needed to read them, but libhdf5 lists no group in which this is damaged.
void check_properties(Image& image, const ObjectHeader& header) {
  if (const Message* info = header.find(MessageType::group_info)) {
    Fields fields(info->body, image.facts, "group info message");
    fields.version(0);
    const unsigned flags = fields.u8();
    if ((flags & ~3u) != 0) fields.refuse("has unknown flags");
    fields.skip(((flags & 1) != 0 ? 4u : 0u) + ((flags & 2) != 0 ? 4u : 0u));
  }
  if (const Message* filters = header.find(MessageType::filters)) parse_filters(image.facts, content(image, *filters));
}

}  // namespace

Link parse_link(const FileFacts& facts, Bytes message) {
  Fields fields(message, facts, "link");
  fields.version(1);
  const unsigned flags = fields.u8();
  if ((flags & ~0x1fu) != 0) fields.refuse("has unknown flags");
  const unsigned type = (flags & 0x08) != 0 ? fields.u8() : 0u;
  if (type > 1 && type < 64) fields.refuse("is of unknown type " + std::to_string(type));
  if ((flags & 0x04) != 0) fields.skip(8);
  if ((flags & 0x10) != 0 && fields.u8() > 1) fields.refuse("has an unknown character set");
  const std::uint64_t length = fields.uint(std::size_t{1} << (flags & 3));
  if (length == 0 || length > fields.left()) fields.refuse("has no valid name");
  Link link;
  link.name = until_zero(fields.take(static_cast<std::size_t>(length)));
  if (link.name.empty()) fields.refuse("has no valid name");
  if (type == 0) {
    link.address = fields.address();
    return link;
  }
  const Bytes value = fields.take(fields.u16());
  if (type == 1) {
    link.kind = Link::Kind::soft;
    link.target = until_zero(value);
    if (value.empty()) fields.refuse("leads to nothing");
  } else {
    link.kind = type == 64 ? Link::Kind::external : Link::Kind::user;
    if (type == 64) {
      parse_external(value, link);
    } else {
      link.target = "type " + std::to_string(type);
    }
  }
  return link;
}

std::vector<Link> dense_links(Image& image, std::uint64_t heap_address, std::uint64_t name_index) {
  constexpr std::uint8_t by_name = 5;
  constexpr std::uint16_t record_nbytes = 11;  // hash of the name, identifier in the heap
  FractalHeap heap(image, heap_address);
  std::vector<Link> links;
  each_record(image, name_index, by_name, record_nbytes, [&](Bytes record) {
    const Bytes object = heap.object(record.subspan(4));
    image.spend(object.size());  // the block is paid for, but objects may overlap in it
    links.push_back(parse_link(image.facts, object));
  });
  return links;
}

std::vector<Link> links_of(Image& image, const ObjectHeader& header) {
  std::vector<Link> links;
  if (const Message* info = header.find(MessageType::link_info)) {
    Fields fields(info->body, image.facts, "link info message");
    fields.version(0);
    const unsigned flags = fields.u8();
    if ((flags & ~3u) != 0) fields.refuse("has unknown flags");
    if ((flags & 1) != 0) fields.skip(8);
    const std::uint64_t heap = fields.address();
    const std::uint64_t name_index = fields.address();
    if (heap != undefined_address) {
      links = dense_links(image, heap, name_index);
    } else {
      for (const Message& message : header.messages) {
        if (message.type == MessageType::link) links.push_back(parse_link(image.facts, message.body));
      }
    }
  } else {
    links = symbol_table_links(image, *header.find(MessageType::symbol_table));
  }
  check_properties(image, header);
  std::sort(links.begin(), links.end(), [](const Link& a, const Link& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(links.begin(), links.end(), [](const Link& a, const Link& b) { return a.name == b.name; });
  if (twice != links.end()) throw Error(Kind::layout, "it has two links of the name " + twice->name);
  return links;
}

}  // namespace solar::hdf5
