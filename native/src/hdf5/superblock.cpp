#include "hdf5/superblock.hpp"

#include <optional>

#include "hdf5/header.hpp"
#include "hdf5/other_format.hpp"

namespace solar::hdf5 {

namespace {

constexpr const char* superblock_name = "superblock";
constexpr char signature[] = "\x89HDF\r\n\x1a\n";

struct Superblock {
  std::uint64_t base, extension, end, driver = undefined_address, root;
};

[[noreturn]] void refuse(const std::string& why) { throw Error(Kind::layout, why); }

// The signature is at byte 0 or at a power of two from 512: whatever is before belongs to the user.
std::optional<std::uint64_t> find_signature(Image& image) {
  for (std::uint64_t at = 0; at + 8 <= image.file().nbytes(); at = at == 0 ? 512 : 2 * at) {
    std::byte found[8];
    image.read(at, found, superblock_name);
    if (std::memcmp(found, signature, 8) == 0) return at;
    if (at > (std::uint64_t{1} << 62)) break;
  }
  return std::nullopt;
}

std::string why_not_hdf5(Image& image) {
  const std::uint64_t nbytes = image.file().nbytes();
  if (nbytes == 0) return "0 bytes: empty, so no HDF5 file: was it written, or copied, to its end?";
  const std::vector<std::byte> head = image.read(0, std::min<std::uint64_t>(nbytes, telling_nbytes), superblock_name);
  const std::string found = other_format(head);
  return found.empty() ? "is no HDF5 file: it has no HDF5 signature" : "is no HDF5 file: it looks like " + found;
}

void set_widths(Image& image, Fields& fields) {
  image.facts.offset_width = fields.u8();
  image.facts.length_width = fields.u8();
  for (const unsigned width : {image.facts.offset_width, image.facts.length_width}) {
    if (width != 2 && width != 4 && width != 8)
      fields.refuse("has addresses or lengths of " + std::to_string(width) + " bytes");
  }
}

void set_chunk_node_entries(Image& image, Fields& fields) {
  const std::uint32_t k = fields.u16();
  if (k == 0) fields.refuse("has chunk nodes without entries");
  image.facts.chunk_node_entries = 2 * k;
}

Superblock version_0_and_1(Image& image, Fields& fields, unsigned version) {
  const unsigned free_space = fields.u8();
  const unsigned root_group = fields.u8();
  fields.skip(1);
  const unsigned shared_header = fields.u8();
  if (free_space != 0 || root_group != 0 || shared_header != 0) fields.refuse("has parts of an unknown version");
  set_widths(image, fields);
  fields.skip(1);
  const std::uint32_t symbol_k = fields.u16();
  const std::uint32_t group_k = fields.u16();
  if (symbol_k == 0 || group_k == 0) fields.refuse("has group nodes without entries");
  if (symbol_k > 0x7fff || group_k > 0x7fff) fields.refuse("has group nodes of too many entries");
  image.symbol_node_entries = static_cast<std::uint16_t>(2 * symbol_k);
  image.group_node_entries = static_cast<std::uint16_t>(2 * group_k);
  if ((fields.u32() & ~7u) != 0) fields.refuse("has unknown flags");
  if (version == 1) {
    set_chunk_node_entries(image, fields);
    fields.skip(2);
  }
  Superblock block;
  block.base = fields.address();
  block.extension = undefined_address;
  if (fields.address() != undefined_address) fields.refuse("has an extension, which its version cannot have");
  block.end = fields.address();
  block.driver = fields.address();
  fields.length();  // the root group has no name
  block.root = fields.address();
  if (fields.u32() > 2) fields.refuse("has a damaged root entry");
  fields.skip(20);
  return block;
}

Superblock version_2_and_3(Image& image, Fields& fields, Bytes bytes, unsigned version) {
  set_widths(image, fields);
  const unsigned flags = fields.u8();
  if ((flags & ~7u) != 0) fields.refuse("has unknown flags");
  Superblock block;
  block.base = fields.address();
  block.extension = fields.address();
  block.end = fields.address();
  block.root = fields.address();
  fields.checksum(bytes);
  if (version == 3 && (flags & 4u) != 0) {
    refuse(
        "is being written (SWMR: single writer, multiple readers), or its writer did not close it: a training needs a "
        "file that stays as it is, so wait until the writer has closed it, or read it with h5py.File(path, swmr=True); "
        "if no writer is left, run `h5clear -s` on it");
  }
  if (version == 3 && (flags & 1u) != 0) {
    refuse("is open for writing, or was not closed by its writer: close it there, or run `h5clear -s` on it");
  }
  return block;
}

// One part of several files begins with the description of its driver.
void check_driver(Bytes name) {
  if (std::memcmp(name.data(), "NCSAfami", 8) == 0)
    refuse("is one part of an HDF5 file family: join it with `h5repart`");
  if (std::memcmp(name.data(), "NCSAmult", 8) == 0) refuse("is one part of a split HDF5 file: join it with `h5repack`");
}

// Where free space is kept: never used, but libhdf5 opens no file in which this is damaged.
void check_file_space(Image& image, const Message& message) {
  Fields fields(message.body, image.facts, "file space message");
  const unsigned version = fields.u8();
  if (version > 1) fields.refuse("has version " + std::to_string(version));
  const unsigned strategy = fields.u8();
  if (version == 0) {
    constexpr unsigned keeps_all = 1;
    if (strategy < 1 || strategy > 4) fields.refuse("has an unknown strategy");
    fields.length();
    for (int i = 0; strategy == keeps_all && i < 6; ++i) fields.address();
    return;
  }
  const bool persists = fields.u8() != 0;
  fields.length();
  const std::uint64_t page = fields.length();
  if (strategy > 3) fields.refuse("has an unknown strategy");
  if (page < 512 || page > (1u << 30)) fields.refuse("has pages of " + std::to_string(page) + " bytes");
  fields.skip(2);
  fields.address();
  for (int i = 0; persists && i < 12; ++i) fields.address();
}

// Where shared messages are kept: notes the heap of each type of message.
void read_shared_table(Image& image, const Message& message) {
  constexpr std::size_t most_indexes = 8;
  Fields fields(message.body, image.facts, "shared message table");
  fields.version(0);
  const std::uint64_t address = fields.address();
  const std::size_t indexes = fields.u8();
  if (indexes == 0 || indexes > most_indexes) fields.refuse("has " + std::to_string(indexes) + " indexes");
  const std::size_t nbytes = 8 + indexes * (14u + 2u * image.facts.offset_width);
  const std::vector<std::byte> bytes = image.read(address, nbytes, "shared message table");
  Fields table(bytes, image.facts, "shared message table");
  table.signature("SMTB");
  for (std::size_t i = 0; i < indexes; ++i) {
    table.skip(2);  // version and kind of the index, which only a writer looks into
    const unsigned types = table.u16();
    table.skip(10);
    table.address();
    const std::uint64_t heap = table.address();
    for (std::uint16_t type = 0; type < 16; ++type) {
      if ((types >> type & 1) != 0 && heap != undefined_address) image.shared_heaps.emplace(type, heap);
    }
  }
  table.checksum(bytes);
}

void check_extension(Image& image, std::uint64_t address) {
  const ObjectHeader header = read_header(image, address);
  for (const Message& message : header.messages) {
    Fields fields(message.body, image.facts, "superblock extension");
    switch (message.type) {
      case MessageType::driver_info:
        fields.version(0);
        check_driver(fields.take(8));
        break;
      case MessageType::btree_k: {
        fields.version(0);
        set_chunk_node_entries(image, fields);
        const std::uint32_t group_k = fields.u16();
        const std::uint32_t symbol_k = fields.u16();
        if (group_k > 0x7fff || symbol_k > 0x7fff) fields.refuse("has group nodes of too many entries");
        image.group_node_entries = static_cast<std::uint16_t>(2 * group_k);
        image.symbol_node_entries = static_cast<std::uint16_t>(2 * symbol_k);
        break;
      }
      case MessageType::file_space: check_file_space(image, message); break;
      case MessageType::shared_table: read_shared_table(image, message); break;
      case MessageType::cache_image:
        fields.version(0);
        fields.skip(1);
        if (fields.address() != undefined_address && fields.length() > 0) {
          refuse("keeps its metadata in a cache image: write it anew with `h5repack`");
        }
        break;
      default: break;
    }
  }
}

}  // namespace

std::uint64_t read_superblock(Image& image) {
  const std::optional<std::uint64_t> found = find_signature(image);
  if (!found) refuse(why_not_hdf5(image));
  const std::uint64_t start = *found;
  const std::uint64_t room = image.file().nbytes() - start;
  const std::vector<std::byte> bytes = image.read(start, std::min<std::uint64_t>(room, 128), superblock_name);
  Fields fields(bytes, image.facts, superblock_name);
  fields.skip(8);
  const unsigned version = fields.u8();
  if (version > 3) fields.refuse("has version " + std::to_string(version));
  const Superblock block =
      version < 2 ? version_0_and_1(image, fields, version) : version_2_and_3(image, fields, bytes, version);

  // A superblock that is not where it says has been moved with all the file: addresses count from where it is.
  const std::uint64_t end = block.end - block.base + start;
  if (block.end == undefined_address || block.base > block.end || end > image.file().nbytes() || end < start) {
    refuse("is truncated: it has " + std::to_string(image.file().nbytes()) + " bytes of " + std::to_string(end));
  }
  image.facts.base = start;
  image.facts.end = end;
  if (block.driver != undefined_address) {
    const std::vector<std::byte> driver = image.read(block.driver, 16, "driver information");
    check_driver(Bytes(driver).subspan(8));
  }
  if (block.extension != undefined_address) check_extension(image, block.extension);
  if (block.root == undefined_address) fields.refuse("has no root group");
  return block.root;
}

}  // namespace solar::hdf5
