// The version 1 B-tree of chunks. Node: "TREE", type 1, level, entries, two siblings, then key, child, key, ... child,
// key. A key is the chunk's stored size, filter mask and coordinates in elements (one more than the rank, for the bytes
// of an element). libhdf5 searches by these keys: a chunk that the search would not reach is damage, not data.
#include <algorithm>

#include "chunk_walk.hpp"

namespace solar {

namespace {

constexpr std::uint8_t chunk_node = 1;

// One node, taken out of the file's bytes. Kept per level and used again.
struct ChunkNode {
  std::vector<std::uint64_t> keys;  // coordinates in chunks, rank + 1 each, one key more than children
  std::vector<ChunkWalk::Chunk> children;
};

class Btree1 {
 public:
  explicit Btree1(ChunkWalk& walk) : walk_(walk), width_(walk.rank() + 1), steps_(walk.dataset().chunk) {
    steps_.push_back(walk.dataset().itemsize);
    const std::uint64_t most = walk.facts().chunk_node_entries;
    const std::uint64_t key_nbytes = 8 + 8 * width_;
    node_nbytes_ = 8u + 2u * walk.facts().offset_width + most * (key_nbytes + walk.facts().offset_width) + key_nbytes;
  }

  void run() {
    const std::uint64_t root = walk_.dataset().index_address;
    Cursor cursor = open(root);
    const std::size_t level = take_head(cursor, root).level;
    nodes_.resize(level + 1);
    const std::vector<std::uint64_t> lowest(width_, 0), highest(width_, ~std::uint64_t{0});
    visit(root, level, lowest, highest);
  }

 private:
  using Key = std::span<const std::uint64_t>;

  struct Head {
    std::uint8_t level;
    std::uint16_t entries;
  };

  // Every node has room for all its entries, in use or not.
  Cursor open(std::uint64_t address) { return {walk_.read(address, node_nbytes_), Kind::layout, "B-tree node"}; }

  Head take_head(Cursor& cursor, std::uint64_t address) const {
    if (std::memcmp(cursor.take(4).data(), "TREE", 4) != 0) walk_.fail(address, "no TREE here");
    if (cursor.u8() != chunk_node) walk_.fail(address, "a B-tree node of another kind");
    const std::uint8_t level = cursor.u8();
    const std::uint16_t entries = cursor.u16();
    if (entries > walk_.facts().chunk_node_entries) walk_.fail(address, "a B-tree node with too many entries");
    cursor.skip(2u * walk_.facts().offset_width);
    return {level, entries};
  }

  void read_node(std::uint64_t address, std::size_t level, ChunkNode& node) {
    Cursor cursor = open(address);
    const Head head = take_head(cursor, address);
    if (head.level != level) walk_.fail(address, "a B-tree node at the wrong level");
    node.keys.resize((head.entries + std::size_t{1}) * width_);
    node.children.resize(head.entries);
    for (std::size_t i = 0; i <= head.entries; ++i) {
      const std::uint64_t stored = cursor.u32();
      const std::uint32_t mask = cursor.u32();
      for (std::size_t axis = 0; axis < width_; ++axis) {
        const std::uint64_t element = cursor.u64();
        if (element % steps_[axis] != 0) walk_.fail(address, "a chunk that is off the grid");
        node.keys[i * width_ + axis] = element / steps_[axis];
      }
      if (i < head.entries) node.children[i] = {walk_.take_address(cursor), stored, mask};
    }
    check_order(address, node);
  }

  Key key(const ChunkNode& node, std::size_t i) const { return Key(node.keys).subspan(i * width_, width_); }

  void check_order(std::uint64_t address, const ChunkNode& node) const {
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (!before(key(node, i), key(node, i + 1))) walk_.fail(address, "keys out of order");
      if (node.children[i].offset == undefined_address) walk_.fail(address, "an entry without an address");
    }
  }

  // A level falls by one with each call: the depth is at most 256.
  void visit(std::uint64_t address, std::size_t level, Key low, Key high) {
    ChunkNode& node = nodes_[level];
    read_node(address, level, node);
    if (level > 0) expect_children(node);
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (level > 1 && walk_.far() && i % ChunkWalk::foreseen == 0) foresee(node, i, level - 1);
      const Key left = key(node, i);
      const Key right = key(node, i + 1);
      if (level > 0) {
        visit(node.children[i].offset, level - 1, before(left, low) ? low : left, before(high, right) ? high : right);
      } else {
        if (before(left, low) || !before(left, high) || left.back() != 0) {
          walk_.fail(address, "a chunk where a search cannot find it");
        }
        walk_.add(left.first(width_ - 1), node.children[i]);
      }
    }
  }

  // Expects what is below some children, from this one on, which are at this level.
  void foresee(const ChunkNode& node, std::size_t from, std::size_t level) {
    ChunkNode& below = nodes_[level];
    for (std::size_t i = from; i < std::min(from + ChunkWalk::foreseen, node.children.size()); ++i) {
      read_node(node.children[i].offset, level, below);
      expect_children(below);
    }
  }

  void expect_children(const ChunkNode& node) const {
    for (const auto& child : node.children) walk_.expect(child.offset, node_nbytes_);
  }

  ChunkWalk& walk_;
  std::size_t width_;  // of a key, in numbers
  std::uint64_t node_nbytes_ = 0;
  std::vector<std::uint64_t> steps_;  // elements in a chunk, along each number of a key
  std::vector<ChunkNode> nodes_;      // by level; one of each is open at a time
};

}  // namespace

void walk_btree1(ChunkWalk& walk) { Btree1(walk).run(); }

}  // namespace solar
