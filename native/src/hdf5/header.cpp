#include "hdf5/header.hpp"

#include <algorithm>
#include <unordered_set>

#include "hdf5/fractal_heap.hpp"

namespace solar::hdf5 {

namespace {

constexpr const char* header_name = "object header";

namespace flag {  // of a message
constexpr unsigned shared = 0x02, not_shared = 0x04, fail_on_write = 0x08, mark = 0x10, was_unknown = 0x20,
                   shareable = 0x40, fail_always = 0x80;
}

constexpr std::uint16_t first_unknown = 0x19;
constexpr std::uint16_t bogus = 0x09;

struct HeaderBlock {
  std::uint64_t address;
  std::uint64_t nbytes;
};

bool known(std::uint16_t type) { return type < first_unknown && type != bogus; }

bool may_be_shared(std::uint16_t type) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::dataspace:
    case MessageType::datatype:
    case MessageType::fill_old:
    case MessageType::fill:
    case MessageType::filters:
    case MessageType::attribute: return true;
    default: return false;
  }
}

bool wanted(std::uint16_t type) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::dataspace:
    case MessageType::link_info:
    case MessageType::datatype:
    case MessageType::fill_old:
    case MessageType::fill:
    case MessageType::link:
    case MessageType::external_files:
    case MessageType::layout:
    case MessageType::group_info:
    case MessageType::filters:
    case MessageType::attribute:
    case MessageType::attribute_info:
    case MessageType::shared_table:
    case MessageType::symbol_table:
    case MessageType::btree_k:
    case MessageType::driver_info:
    case MessageType::file_space:
    case MessageType::cache_image: return true;
    default: return false;
  }
}

// Year to second in 14 digits, and two bytes of nothing.
bool is_old_time(Bytes body) {
  const auto is_digit = [](std::byte b) { return b >= std::byte{'0'} && b <= std::byte{'9'}; };
  return body.size() >= 16 && std::all_of(body.begin(), body.begin() + 14, is_digit);
}

// The bytes of a message that lies in the file's heap of shared messages; empty if it lies elsewhere.
std::vector<std::byte> in_shared_heap(Image& image, const Message& message) {
  Fields fields(message.body, image.facts, "shared message");
  if (fields.u8() != 3 || fields.u8() != 1) return {};
  const auto found = image.shared_heaps.find(static_cast<std::uint16_t>(message.type));
  if (found == image.shared_heaps.end()) fields.refuse("is in a heap that the file does not have");
  auto& heap = image.heaps[found->second];
  if (!heap) heap = std::make_shared<FractalHeap>(image, found->second);
  const Bytes bytes = heap->object(fields.take(8));
  return {bytes.begin(), bytes.end()};
}

// Where the header of the committed object is. REQUIRES: the message is shared, and in no heap.
std::uint64_t committed_address(const Image& image, const Message& message) {
  Fields fields(message.body, image.facts, "shared message");
  const unsigned version = fields.u8();
  const unsigned place = fields.u8();
  if (version < 1 || version > 3) fields.refuse("has version " + std::to_string(version));
  if (version == 3 && place != 2) fields.refuse("is in no known place");
  if (version == 1) fields.skip(6u + image.facts.length_width);
  return fields.address();
}

// Reads one header: its first block, then those that continuation messages name.
class HeaderReader {
 public:
  HeaderReader(Image& image, std::uint64_t address) : image_(image) { header_.address = address; }

  ObjectHeader read() {
    std::byte start[4];
    image_.read(header_.address, start, header_name);
    if (std::memcmp(start, "OHDR", 4) == 0) {
      first_of_version_2();
    } else {
      first_of_version_1();
    }
    while (!pending_.empty()) {
      const HeaderBlock block = pending_.back();
      pending_.pop_back();
      continued(block);
    }
    return std::move(header_);
  }

 private:
  void first_of_version_1() {
    std::byte prefix[16];
    image_.read(header_.address, prefix, header_name);
    Fields fields(prefix, image_.facts, header_name);
    fields.version(1);
    header_.version = 1;
    fields.skip(1);
    const std::uint16_t count = fields.u16();
    fields.skip(4);
    const std::uint32_t nbytes = fields.u32();
    if (count == 0 ? nbytes > 0 : nbytes < 8) refuse("has a bad size");
    const Bytes block = keep(header_.address + sizeof prefix, nbytes);
    messages(block, header_.address + sizeof prefix);
    if (seen_ > count) refuse("holds more messages than it counts");
  }

  void first_of_version_2() {
    std::byte start[6];
    image_.read(header_.address, start, header_name);
    const unsigned version = load_le<std::uint8_t>(start + 4);
    const unsigned flags = load_le<std::uint8_t>(start + 5);
    if (version != 2 || (flags & ~0x3fu) != 0) refuse("has an unknown version or flag");
    header_.version = 2;
    tracks_order_ = (flags & 0x04) != 0;
    const std::size_t size_width = std::size_t{1} << (flags & 3);
    const std::size_t prefix = 6 + ((flags & 0x20) != 0 ? 16u : 0u) + ((flags & 0x10) != 0 ? 4u : 0u) + size_width;
    std::byte all[34];
    image_.read(header_.address, MutableBytes(all, prefix), header_name);
    Fields fields({all, prefix}, image_.facts, header_name);
    fields.skip(prefix - size_width);
    const std::uint64_t nbytes = fields.uint(size_width);
    if (nbytes > 0 && nbytes < message_prefix()) refuse("has a bad size");
    if (nbytes > largest_structure) refuse("claims " + std::to_string(nbytes) + " bytes");
    const Bytes block = keep(header_.address, prefix + nbytes + 4);
    verify(block);
    messages(block.subspan(prefix, static_cast<std::size_t>(nbytes)), header_.address + prefix);
  }

  void continued(const HeaderBlock& block) {
    if (!visited_.insert(block.address).second) refuse("continues in a circle");
    const Bytes bytes = keep(block.address, block.nbytes);
    if (header_.version == 1) return messages(bytes, block.address);
    if (block.nbytes < 8 || std::memcmp(bytes.data(), "OCHK", 4) != 0) refuse("continues in a block that is none");
    verify(bytes);
    messages(bytes.subspan(4, bytes.size() - 8), block.address + 4);
  }

  Bytes keep(std::uint64_t address, std::uint64_t nbytes) {
    header_.blocks.push_back(image_.read(address, nbytes, header_name));
    return header_.blocks.back();
  }

  void verify(Bytes block) const {
    Fields fields(block, image_.facts, header_name);
    fields.skip(block.size() - 4);
    fields.checksum(block);
  }

  std::size_t message_prefix() const { return header_.version == 1 ? 8 : tracks_order_ ? 6 : 4; }

  void messages(Bytes bytes, std::uint64_t address) {
    Fields fields(bytes, image_.facts, header_name);
    bool has_null = false;
    while (fields.left() >= message_prefix()) {
      const std::uint16_t type = header_.version == 1 ? fields.u16() : fields.u8();
      const std::uint16_t nbytes = fields.u16();
      const std::uint8_t flags = fields.u8();
      fields.skip(header_.version == 1 ? 3 : tracks_order_ ? 2 : 0);
      if (header_.version == 1 && nbytes % 8 != 0) refuse("has a message that is not aligned");
      const std::uint64_t at = address + fields.position();
      take(type, flags, fields.take(nbytes), at);
      has_null |= type == 0;
      ++seen_;
    }
    // What is too short for a message is a gap, which version 1 and blocks with room left do not have.
    if (fields.left() > 0 && (header_.version == 1 || has_null)) refuse("has a gap between its messages");
  }

  void take(std::uint16_t type, std::uint8_t flags, Bytes body, std::uint64_t address) {
    check(type, flags);
    if (type == static_cast<std::uint16_t>(MessageType::modification_time)) {
      if (body.size() < 8 || body[0] != std::byte{1}) refuse("has a modification time of unknown version");
    } else if (type == static_cast<std::uint16_t>(MessageType::old_modification_time)) {
      if (!is_old_time(body)) refuse("has a damaged modification time");
    } else if (type == static_cast<std::uint16_t>(MessageType::continuation)) {
      Fields fields(body, image_.facts, "continuation message");
      const std::uint64_t next = fields.address();
      const std::uint64_t nbytes = fields.length();
      if (nbytes == 0 || next == undefined_address) refuse("continues nowhere");
      pending_.push_back({next, nbytes});
    } else if (wanted(type)) {
      header_.messages.push_back({static_cast<MessageType>(type), flags, body, address + image_.facts.base});
    }
  }

  void check(std::uint16_t type, unsigned flags) const {
    if (type == first_unknown) refuse("holds a message of no type");
    const bool contradicts = ((flags & flag::shared) && (flags & flag::not_shared)) ||
                             ((flags & flag::was_unknown) && (flags & flag::fail_on_write)) ||
                             ((flags & flag::was_unknown) && !(flags & flag::mark));
    if (contradicts) refuse("has a message whose flags contradict each other");
    if (!known(type)) {
      if (flags & flag::fail_always)
        refuse("needs a newer library: its message " + std::to_string(type) + " is unknown");
      return;
    }
    if ((flags & (flag::shareable | flag::shared)) && !may_be_shared(type))
      refuse("shares a message that cannot be shared");
    if (type == static_cast<std::uint16_t>(MessageType::reference_count) && header_.version == 1) {
      refuse("has a reference count message, which its version cannot have");
    }
  }

  [[noreturn]] void refuse(const std::string& why) const { damaged(header_name, header_.address, why); }

  Image& image_;
  ObjectHeader header_;
  bool tracks_order_ = false;
  std::uint64_t seen_ = 0;
  std::vector<HeaderBlock> pending_;
  std::unordered_set<std::uint64_t> visited_;
};

}  // namespace

const Message* ObjectHeader::find(MessageType type) const {
  const auto found = std::find_if(messages.begin(), messages.end(), [&](const Message& m) { return m.type == type; });
  return found == messages.end() ? nullptr : &*found;
}

ObjectHeader read_header(Image& image, std::uint64_t address) {
  if (address == undefined_address) damaged(header_name, address, "cannot be read");
  return HeaderReader(image, address).read();
}

std::vector<std::byte> content(Image& image, const Message& message) {
  if (!(message.flags & flag::shared)) return {message.body.begin(), message.body.end()};
  if (std::vector<std::byte> held = in_shared_heap(image, message); !held.empty()) return held;
  const ObjectHeader committed = read_header(image, committed_address(image, message));
  const Message* found = committed.find(message.type);
  if (found == nullptr || (found->flags & flag::shared)) {
    damaged("shared message", committed.address, "is not in the object that should hold it");
  }
  return {found->body.begin(), found->body.end()};
}

std::shared_ptr<const std::vector<std::byte>> datatype_of(Image& image, const Message& message) {
  const auto read = [&] { return std::make_shared<const std::vector<std::byte>>(content(image, message)); };
  if (!(message.flags & flag::shared)) return read();
  if (std::vector<std::byte> held = in_shared_heap(image, message); !held.empty()) {
    return std::make_shared<const std::vector<std::byte>>(std::move(held));
  }
  auto& known = image.datatypes[committed_address(image, message)];
  if (!known) known = read();
  return known;
}

}  // namespace solar::hdf5
