// Groups of the old kind: a version 1 B-tree of symbol nodes, with the names in a local heap.

#include <algorithm>

#include "hdf5/group.hpp"

namespace solar::hdf5 {

namespace {

class LocalHeap {
 public:
  LocalHeap(Image& image, std::uint64_t address) : image_(image) {
    const std::vector<std::byte> bytes =
        image.read(address, 8u + 2u * image.facts.length_width + image.facts.offset_width, what);
    Fields fields(bytes, image.facts, what);
    fields.signature("HEAP");
    fields.version(0);
    fields.skip(3);
    const std::uint64_t nbytes = fields.length();
    const std::uint64_t free = fields.length();
    data_ = nbytes == 0 ? std::vector<std::byte>{} : image.read(fields.address(), nbytes, "local heap data");
    check_free_list(free);
  }

  // The string that starts at `offset` and ends inside the heap. It is paid for: any number of links may name one.
  std::string text(std::uint64_t offset) const {
    const std::size_t room = offset < data_.size() ? data_.size() - static_cast<std::size_t>(offset) : 0;
    const void* begin = data_.data() + (room == 0 ? 0 : offset);
    const void* end = room == 0 ? nullptr : std::memchr(begin, 0, room);
    if (end == nullptr) throw Error(Kind::layout, "local heap has no name at byte " + std::to_string(offset));
    std::string_view found(static_cast<const char*>(begin), static_cast<const char*>(end));
    image_.spend(found.size());
    return std::string(found);
  }

 private:
  // Nothing is taken from the list, but a list that leaves the heap is damage that libhdf5 finds too.
  void check_free_list(std::uint64_t at) const {
    constexpr std::uint64_t none = 1;
    const std::size_t width = image_.facts.length_width;
    for (std::size_t turns = 0; at != none; ++turns) {
      if (at >= data_.size() || data_.size() - at < 2 * width || turns > data_.size() / (2 * width)) bad_list();
      Fields fields(Bytes(data_).subspan(static_cast<std::size_t>(at)), image_.facts, "free list of a local heap");
      const std::uint64_t next = fields.length();
      if (next == 0 || fields.length() > data_.size() - at) bad_list();
      at = next;
    }
  }
  [[noreturn]] static void bad_list() { throw Error(Kind::layout, "local heap has a damaged free list"); }

  static constexpr const char* what = "local heap";
  Image& image_;
  std::vector<std::byte> data_;
};

// One node of the tree. Its names come after `after`, up to `last`, or libhdf5 would not find them.
struct SymbolNode {
  std::uint64_t address = undefined_address;
  int level = -1;        // of a child, -1: a symbol node
  bool bounded = false;  // the root has no bounds, and whatever level it says
  std::string after;
  std::string last;
};

void check_order(const SymbolNode& node, const std::string& previous, const std::string& name) {
  if (name <= previous || (node.bounded && (name <= node.after || name > node.last))) {
    throw Error(Kind::layout, "symbol node has names out of order: " + name);
  }
}

void read_symbols(Image& image, const SymbolNode& node, const LocalHeap& heap, std::vector<Link>& links) {
  const std::size_t entry = image.facts.length_width + image.facts.offset_width + 24u;
  const std::vector<std::byte> bytes = image.read(node.address, 8 + image.symbol_node_entries * entry, "symbol node");
  Fields fields(bytes, image.facts, "symbol node");
  fields.signature("SNOD");
  fields.version(1);
  fields.skip(1);
  const unsigned count = fields.u16();
  std::string previous;
  for (unsigned i = 0; i < count; ++i) {
    Link link;
    link.name = heap.text(fields.length());
    link.address = fields.address();
    const std::uint32_t cached = fields.u32();
    fields.skip(4);
    Fields scratch(fields.take(16), image.facts, "symbol");
    if (cached > 2) fields.refuse("has a damaged entry");
    if (cached == 2) {
      link.kind = Link::Kind::soft;
      link.target = heap.text(scratch.u32());
    }
    check_order(node, previous, link.name);
    previous = link.name;
    links.push_back(std::move(link));
  }
}

std::vector<SymbolNode> children_of(Image& image, const SymbolNode& node, const LocalHeap& heap) {
  const FileFacts& facts = image.facts;
  const std::size_t n = image.group_node_entries;
  const std::size_t nbytes = 8u + 2u * facts.offset_width + n * facts.offset_width + (n + 1) * facts.length_width;
  const std::vector<std::byte> bytes = image.read(node.address, nbytes, "group B-tree");
  Fields fields(bytes, facts, "group B-tree");
  fields.signature("TREE");
  const unsigned type = fields.u8();
  const int level = fields.u8();
  const unsigned count = fields.u16();
  if (type != 0 || (node.bounded && level != node.level) || count > n) fields.refuse("has a damaged node");
  fields.skip(2u * facts.offset_width);
  std::vector<SymbolNode> children(count);
  std::string key = count == 0 ? "" : heap.text(fields.length());
  for (SymbolNode& child : children) {
    child.after = node.bounded ? std::max(key, node.after) : key;
    child.address = fields.address();
    child.level = level - 1;
    key = heap.text(fields.length());
    child.last = node.bounded ? std::min(key, node.last) : key;
    child.bounded = true;
  }
  return children;
}

}  // namespace

std::vector<Link> symbol_table_links(Image& image, const Message& message) {
  Fields fields(message.body, image.facts, "symbol table message");
  const std::uint64_t tree = fields.address();
  const std::uint64_t names = fields.address();
  if (tree == undefined_address || names == undefined_address) fields.refuse("has no B-tree or no heap");
  const LocalHeap heap(image, names);
  std::vector<Link> links;
  std::vector<SymbolNode> pending(1);
  pending[0].address = tree;
  while (!pending.empty()) {
    const SymbolNode node = std::move(pending.back());
    pending.pop_back();
    for (SymbolNode& child : children_of(image, node, heap)) {
      if (child.level < 0) {
        read_symbols(image, child, heap, links);
      } else {
        pending.push_back(std::move(child));
      }
    }
  }
  return links;
}

}  // namespace solar::hdf5
