#include "hdf5/btree2.hpp"

namespace solar::hdf5 {

namespace {

constexpr const char* btree_name = "version 2 B-tree";
constexpr std::size_t overhead = 10;  // of a node: signature, version, type, checksum

struct Child {
  std::uint64_t address;
  std::uint64_t records;
  unsigned depth;
};

// How many records a node of each depth can have; the widths of child pointers follow from it.
struct Level {
  std::uint64_t most;
  std::uint64_t most_below;  // in the node and all its descendants
};

class Tree {
 public:
  Tree(Image& image, std::uint64_t address, std::uint8_t type, std::uint16_t record_nbytes)
      : image_(image), type_(type), record_nbytes_(record_nbytes) {
    const FileFacts& facts = image.facts;
    const std::vector<std::byte> bytes = image.read(address, 22u + facts.offset_width + facts.length_width, btree_name);
    Fields fields(bytes, facts, btree_name);
    fields.signature("BTHD");
    fields.version(0);
    if (fields.u8() != type) fields.refuse("is of another type");
    node_nbytes_ = fields.u32();
    if (fields.u16() != record_nbytes) fields.refuse("has records of another size");
    const unsigned depth = fields.u16();
    fields.skip(2);
    root_.address = fields.address();
    root_.records = fields.u16();
    root_.depth = depth;
    fields.length();
    fields.checksum(bytes);
    set_levels(fields, depth);
  }

  void visit(const std::function<void(Bytes)>& visit) {
    if (root_.address == undefined_address || root_.records == 0) return;
    std::vector<Child> pending{root_};
    while (!pending.empty()) {
      const Child node = pending.back();
      pending.pop_back();
      read(node, pending, visit);
    }
  }

 private:
  void set_levels(const Fields& fields, unsigned depth) {
    if (node_nbytes_ < overhead + record_nbytes_ || depth > 32) fields.refuse("has damaged sizes");
    const std::uint64_t most = (node_nbytes_ - overhead) / record_nbytes_;
    levels_.push_back({most, most});
    for (unsigned d = 1; d <= depth; ++d) {
      const std::uint64_t pointer = pointer_nbytes(d);
      if (node_nbytes_ < overhead + pointer + record_nbytes_) fields.refuse("has damaged sizes");
      const std::uint64_t n = (node_nbytes_ - overhead - pointer) / (record_nbytes_ + pointer);
      std::uint64_t below = 0;
      if (__builtin_mul_overflow(n + 1, levels_.back().most_below, &below) ||
          __builtin_add_overflow(below, n, &below)) {
        fields.refuse("has damaged sizes");
      }
      levels_.push_back({n, below});
    }
  }

  std::uint64_t pointer_nbytes(unsigned depth) const {
    const std::uint64_t total = depth > 1 ? width_of(levels_[depth - 1].most_below) : 0;
    return image_.facts.offset_width + width_of(levels_[0].most) + total;
  }

  void read(const Child& node, std::vector<Child>& pending, const std::function<void(Bytes)>& visit) {
    const std::vector<std::byte> bytes = image_.read(node.address, node_nbytes_, btree_name);
    Fields fields(bytes, image_.facts, btree_name);
    node.depth == 0 ? fields.signature("BTLF") : fields.signature("BTIN");
    fields.version(0);
    if (fields.u8() != type_) fields.refuse("has a node of another type");
    if (node.records > levels_[node.depth].most) fields.refuse("has a node with too many records");
    const Bytes records = fields.take(static_cast<std::size_t>(node.records) * record_nbytes_);
    const std::size_t count_width = width_of(levels_[0].most);
    for (std::uint64_t i = 0; node.depth > 0 && i <= node.records; ++i) {
      Child child{fields.address(), fields.uint(count_width), node.depth - 1};
      if (node.depth > 1) fields.uint(width_of(levels_[node.depth - 1].most_below));
      pending.push_back(child);
    }
    fields.checksum(bytes);
    for (std::uint64_t i = 0; i < node.records; ++i) {
      visit(records.subspan(static_cast<std::size_t>(i) * record_nbytes_, record_nbytes_));
    }
  }

  Image& image_;
  std::uint8_t type_;
  std::uint16_t record_nbytes_;
  std::uint32_t node_nbytes_ = 0;
  Child root_{};
  std::vector<Level> levels_;
};

}  // namespace

void each_record(Image& image, std::uint64_t address, std::uint8_t type, std::uint16_t record_nbytes,
                 const std::function<void(Bytes)>& visit) {
  Tree(image, address, type, record_nbytes).visit(visit);
}

}  // namespace solar::hdf5
