// The version 2 B-tree of chunks. Records lie in order in leaves and between the children of inner nodes; a record is
// an entry (address, and size and mask when filtered) and the coordinates in chunks. How wide a node's counts are
// follows from how many records a node of its depth could hold.
#include <algorithm>
#include <bit>

#include "chunk_walk.hpp"

namespace solar {

namespace {

constexpr std::uint8_t plain_record = 10;
constexpr std::uint8_t filtered_record = 11;
constexpr std::size_t node_overhead = 10;  // signature, version, type, checksum

std::size_t bytes_to_count(std::uint64_t most) { return (std::bit_width(most | 1) - 1) / 8 + 1u; }

class Btree2 {
 public:
  explicit Btree2(ChunkWalk& walk) : walk_(walk), last_(walk.rank()), at_(walk.rank()) {}

  void run() {
    read_header();
    if (root_ != undefined_address && root_records_ > 0) visit(root_, root_records_, depths_.size() - 1);
  }

 private:
  struct Depth {                   // of nodes at one height; 0 are the leaves
    std::uint64_t records = 0;     // at most, in one node
    std::size_t total_nbytes = 0;  // of the count of all records below
    std::vector<std::byte> node;   // the open node
  };

  void read_header() {
    const std::uint64_t address = walk_.dataset().index_address;
    const auto& facts = walk_.facts();
    const std::size_t nbytes = 4 + 1 + 1 + 4 + 2 + 2 + 1 + 1 + facts.offset_width + 2u + facts.length_width + 4;
    Cursor cursor(walk_.read_structure(address, nbytes, "BTHD"), Kind::layout, "B-tree header");
    type_ = cursor.u8();
    node_nbytes_ = cursor.u32();
    record_nbytes_ = cursor.u16();
    const std::uint16_t depth = cursor.u16();
    cursor.skip(2);  // when libhdf5 splits and merges
    root_ = walk_.take_address(cursor);
    root_records_ = cursor.u16();

    const std::size_t coordinates = 8 * walk_.rank();
    if (type_ != (walk_.filtered() ? filtered_record : plain_record) ||
        record_nbytes_ < coordinates + walk_.facts().offset_width || !walk_.entry_fits(record_nbytes_ - coordinates)) {
      walk_.fail(address, "records that do not fit the dataset");
    }
    size_depths(address, depth);
  }

  void size_depths(std::uint64_t address, std::size_t depth) {
    if (node_nbytes_ < node_overhead + record_nbytes_) walk_.fail(address, "nodes too small for a record");
    Depth leaf;
    leaf.records = (node_nbytes_ - node_overhead) / record_nbytes_;
    count_nbytes_ = bytes_to_count(leaf.records);
    depths_.push_back(leaf);
    std::uint64_t total = leaf.records;
    while (depths_.size() <= depth) {
      const std::size_t pointer = pointer_nbytes(depths_.size());
      Depth inner;
      if (node_nbytes_ > node_overhead + pointer) {
        inner.records = (node_nbytes_ - node_overhead - pointer) / (record_nbytes_ + pointer);
      }
      // The total at least doubles with each depth, so this also ends a lie about the depth.
      if (inner.records == 0 || __builtin_mul_overflow(total, inner.records + 1, &total) ||
          __builtin_add_overflow(total, inner.records, &total)) {
        walk_.fail(address, "a B-tree deeper than its nodes allow");
      }
      inner.total_nbytes = bytes_to_count(total);
      depths_.push_back(inner);
    }
  }

  // To a child of a node at `depth`: address, its records, and all records below it unless it is a leaf.
  std::size_t pointer_nbytes(std::size_t depth) const {
    return walk_.facts().offset_width + count_nbytes_ + (depth > 1 ? depths_[depth - 1].total_nbytes : 0);
  }

  // The depth is at most 63 (see size_depths).
  void visit(std::uint64_t address, std::uint64_t records, std::size_t depth) {
    if (records > depths_[depth].records) walk_.fail(address, "a B-tree node with too many records");
    const bool leaf = depth == 0;
    const Bytes body = read_node(address, records, depth);
    auto& node = depths_[depth].node;  // a copy: reading the children ends the view
    node.assign(body.begin(), body.end());
    Cursor cursor(node, Kind::layout, "B-tree node");
    if (cursor.u8() != type_) walk_.fail(address, "a B-tree node of another kind");
    Cursor entries(cursor.take(records * record_nbytes_), Kind::layout, "B-tree node");
    if (!leaf) expect_children(cursor, records, depth);
    for (std::uint64_t i = 0; i < records; ++i) {
      if (depth > 1 && walk_.far() && i % ChunkWalk::foreseen == 0) foresee(cursor, records + 1 - i, depth);
      if (!leaf) visit_child(cursor, address, depth);
      add_record(entries, address);
    }
    if (!leaf) visit_child(cursor, address, depth);
  }

  Bytes read_node(std::uint64_t address, std::uint64_t records, std::size_t depth) {
    const std::uint64_t pointers = depth == 0 ? 0 : (records + 1) * pointer_nbytes(depth);
    return walk_.read_structure(address, node_overhead + records * record_nbytes_ + pointers,
                                depth == 0 ? "BTLF" : "BTIN");
  }

  struct Child {
    std::uint64_t address, records;
  };

  Child take_child(Cursor& pointers, std::size_t depth) const {
    const std::uint64_t address = walk_.take_address(pointers);
    const Child child{address, pointers.uint(count_nbytes_)};
    if (depth > 1) pointers.skip(depths_[depth - 1].total_nbytes);
    return child;
  }

  void expect_children(Cursor pointers, std::uint64_t records, std::size_t depth) const {
    for (std::uint64_t i = 0; i <= records; ++i) walk_.expect(take_child(pointers, depth).address, node_nbytes_);
  }

  // Expects what is below the next children of a node at this depth. What is wrong with them is said when they are visited.
  void foresee(Cursor pointers, std::uint64_t children, std::size_t depth) {
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(children, ChunkWalk::foreseen); ++i) {
      const Child child = take_child(pointers, depth);
      if (child.address == undefined_address || child.records > depths_[depth - 1].records) return;
      Cursor below(read_node(child.address, child.records, depth - 1), Kind::layout, "B-tree node");
      below.skip(1 + child.records * record_nbytes_);
      expect_children(below, child.records, depth - 1);
    }
  }

  void visit_child(Cursor& pointers, std::uint64_t parent, std::size_t depth) {
    const Child child = take_child(pointers, depth);
    if (child.address == undefined_address) walk_.fail(parent, "a B-tree child without an address");
    visit(child.address, child.records, depth - 1);
  }

  void add_record(Cursor& entries, std::uint64_t address) {
    const ChunkWalk::Chunk chunk = walk_.take_chunk(entries, record_nbytes_ - 8 * at_.size());
    for (auto& coordinate : at_) coordinate = entries.u64();
    if (any_ && !before(last_, at_)) walk_.fail(address, "records out of order");
    any_ = true;
    last_ = at_;
    walk_.add(at_, chunk);
  }

  ChunkWalk& walk_;
  std::uint8_t type_ = 0;
  std::size_t node_nbytes_ = 0;
  std::size_t record_nbytes_ = 0;
  std::size_t count_nbytes_ = 0;  // of the count of a child's records
  std::uint64_t root_ = undefined_address;
  std::uint64_t root_records_ = 0;
  std::vector<Depth> depths_;
  std::vector<std::uint64_t> last_, at_;
  bool any_ = false;
};

}  // namespace

void walk_btree2(ChunkWalk& walk) { Btree2(walk).run(); }

}  // namespace solar
