// Metadata of small files made here, byte by byte: what is found, what is refused, and that damage ends in an Error.

#include "solar/metadata.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "hdf5/image.hpp"
#include "hdf5_made.hpp"
#include "made.hpp"

namespace {

using made::compact_group, made::dataset, made::file_with, made::finish, made::hard_link, made::Message, made::object,
    made::opened, made::soft_link, made::start, made::superblock_nbytes, made::Writer;
using solar::Error;
using solar::File;
using solar::Metadata;

Metadata read(const std::vector<std::byte>& bytes, const std::string& name = {}) {
  return solar::read_metadata(*opened(bytes), name);
}

std::string refusal(const std::vector<std::byte>& bytes, const std::string& name = {}) {
  try {
    read(bytes, name);
  } catch (const Error& error) {
    CHECK(error.kind() == solar::Kind::layout);
    return error.what();
  }
  return "";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a contiguous dataset is found with its place in the file") {
  const Metadata found = read(file_with(12));
  REQUIRE(found.datasets.size() == 1);
  const solar::Dataset& data = found.datasets[0];
  CHECK(data.name == "/data");
  CHECK(data.problem == "");
  CHECK(data.shape == std::vector<std::uint64_t>{3});
  CHECK(data.itemsize == 4);
  CHECK(data.storage == solar::Storage::contiguous);
  CHECK(data.address == superblock_nbytes);
  CHECK(data.nbytes == 12);
}

TEST_CASE("a file behind a user block is found, and its addresses are absolute") {
  std::vector<std::byte> bytes = file_with(12);
  bytes.insert(bytes.begin(), 512, std::byte{'u'});
  const Metadata found = read(bytes);
  CHECK(found.facts.base == 512);
  CHECK(found.datasets.at(0).address == 512 + superblock_nbytes);
}

TEST_CASE("what is no HDF5 file is refused") {
  CHECK(says(refusal({}), "0 bytes: empty"));
  CHECK(says(refusal(std::vector<std::byte>(5000)), "signature"));
  Writer tar;
  tar.bytes.resize(257);
  tar.text("ustar");
  CHECK(says(refusal(tar.bytes), "a tar archive"));
  CHECK(says(refusal({tar.bytes.begin(), tar.bytes.end() - 1}), "signature"));
}

TEST_CASE("a file cut short is refused at every length") {
  const std::vector<std::byte> bytes = file_with(12);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK(refusal({bytes.begin(), bytes.begin() + static_cast<long>(n)}) != "");
}

TEST_CASE("any flipped bit of the metadata is an error or a problem, as every byte has a checksum") {
  const std::vector<std::byte> bytes = file_with(12);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (at >= superblock_nbytes && at < superblock_nbytes + 12) continue;  // the data themselves
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{4};
    try {
      const Metadata found = read(damaged);
      CHECK((!found.problems.empty() || (found.datasets.size() == 1 && found.datasets[0].problem != "")));
    } catch (const Error&) {
    }
  }
}

TEST_CASE("a file that its writer has not closed is refused with advice") {
  CHECK(says(refusal(file_with(12, {}, 3, 1)), "h5clear"));
  CHECK(refusal(file_with(12, {}, 2, 1)) == "");  // version 2 does not keep this flag
}

TEST_CASE("storage that is too small or outside the file is a problem of its dataset only") {
  CHECK(says(read(file_with(11)).datasets.at(0).problem, "storage"));
  Writer file = start();
  const std::uint64_t bad = object(file, dataset(1 << 20, 12));
  const std::uint64_t good = object(file, dataset(superblock_nbytes, 12));
  const std::uint64_t root = object(file, {compact_group(), hard_link("bad", bad), hard_link("good", good)});
  finish(file, root);
  const Metadata found = read(file.bytes);
  REQUIRE(found.datasets.size() == 2);
  CHECK(says(found.datasets[0].problem, "ends at byte"));
  CHECK(found.datasets[1].problem == "");
}

TEST_CASE("soft links are followed by name, and those that lead nowhere are named") {
  const auto bytes =
      file_with(12, {soft_link("alias", "/data"), soft_link("lost", "nothing"), soft_link("loop", "loop")});
  CHECK(read(bytes, "alias").datasets.at(0).address == superblock_nbytes);
  const Metadata found = read(bytes);
  CHECK(found.datasets.size() == 1);
  REQUIRE(found.linked.size() == 1);
  CHECK(found.linked[0].name == "/alias");
  CHECK(found.linked[0].target == "/data");
  REQUIRE(found.problems.size() == 2);
  CHECK(says(found.problems[0], "/loop"));
  CHECK(says(found.problems[1], "/lost"));
  CHECK(says(refusal(bytes, "loop"), "too many links"));
}

TEST_CASE("a name that is missing is refused with the nearest one") {
  CHECK(says(refusal(file_with(12), "date"), "did you mean data?"));
  CHECK(says(refusal(file_with(12), "/"), "group"));
  CHECK(says(refusal(file_with(12), "data/x"), "no group"));
}

TEST_CASE("a group with two links of one name is refused") {
  const Metadata found = read(file_with(12, {hard_link("data", superblock_nbytes)}));
  CHECK(found.datasets.empty());
  CHECK(says(found.problems.at(0), "two links of the name data"));
}

TEST_CASE("groups that contain each other are visited once") {
  Writer file = start();
  file.text("abcdefghijkl");
  const std::uint64_t data = object(file, dataset(superblock_nbytes, 12));
  const std::uint64_t root = file.at();  // of one size, whatever its links say
  object(file, {compact_group(), hard_link("a", root), hard_link("b", data), hard_link("c", data)});
  finish(file, root);
  CHECK(read(file.bytes).datasets.size() == 1);
  CHECK(read(file.bytes, "/a/a/a/c").datasets.size() == 1);
}

TEST_CASE("an object header that continues in itself is refused") {
  Writer file = start();
  const std::uint64_t block = file.at();
  file.text("OCHK");
  file.u(0x10, 1);
  file.u(16, 2);
  file.u(0, 1);
  file.u(block, 8);
  file.u(28, 8);
  file.checksum(block);
  Message again{0x10, {}};
  again.body.u(block, 8);
  again.body.u(28, 8);
  const std::uint64_t root = object(file, {compact_group(), again});
  finish(file, root);
  CHECK(says(refusal(file.bytes), "circle"));
}

TEST_CASE("an image gives no byte beyond the end, and no more bytes than a file can need") {
  std::FILE* made = std::tmpfile();
  REQUIRE(made != nullptr);
  REQUIRE(std::fwrite("0123456789", 1, 10, made) == 10);
  std::fflush(made);
  const File file("/proc/self/fd/" + std::to_string(::fileno(made)));
  solar::hdf5::Image image(file);
  CHECK(image.read(8, 2, "test").size() == 2);
  CHECK_THROWS_AS(image.read(8, 3, "test"), Error);
  CHECK_THROWS_AS(image.read(~std::uint64_t{0}, 1, "test"), Error);
  CHECK_THROWS_AS(image.read(0, ~std::uint64_t{0}, "test"), Error);
  CHECK_THROWS_AS(image.spend(solar::hdf5::free_bytes + 100), solar::hdf5::Exhausted);
  std::fclose(made);
}

TEST_CASE("the superblock or its extension says how many entries a node of chunks has") {
  CHECK(read(file_with(12)).facts.chunk_node_entries == 64);

  Message sizes{0x13, {}};
  sizes.body.u(0, 1);
  for (const unsigned k : {100, 16, 4}) sizes.body.u(k, 2);
  Writer file = start();
  const std::uint64_t extension = object(file, {sizes});
  finish(file, object(file, {compact_group()}), 2, 0, extension);
  CHECK(read(file.bytes).facts.chunk_node_entries == 200);

  Writer old;
  old.text("\x89HDF\r\n\x1a\n");
  for (const unsigned value : {1, 0, 0, 0, 0, 8, 8, 0}) old.u(value, 1);
  for (const unsigned k : {4, 16, 0, 0, 100, 0}) old.u(k, 2);  // symbols, links, flags, chunks, nothing
  const std::uint64_t root = old.at() + 72, end = root + 38;
  constexpr std::uint64_t none = ~std::uint64_t{0};
  const std::vector<std::uint64_t> rest{0, none, end, none, 0, root, 0, 0, 0};  // from the base to the root's entry
  for (const std::uint64_t value : rest) old.u(value, 8);
  REQUIRE(object(old, {compact_group()}) == root);
  REQUIRE(old.at() <= end);
  while (old.at() < end) old.u(0, 1);
  CHECK(read(old.bytes).facts.chunk_node_entries == 200);
}

TEST_CASE("a table of shared messages has a checksum") {
  for (const unsigned damage : {0, 1}) {
    Writer file = start();
    const std::uint64_t table = file.at();
    file.text("SMTB");
    for (int i = 0; i < 30; ++i) file.u(0, 1);
    file.checksum(table);
    file.bytes.back() ^= static_cast<std::byte>(damage);
    Message shared{0x0f, {}};
    shared.body.u(0, 1);
    shared.body.u(table, 8);
    shared.body.u(1, 1);
    const std::uint64_t extension = object(file, {shared});
    finish(file, object(file, {compact_group()}), 2, 0, extension);
    CHECK(says(refusal(file.bytes), "checksum") == (damage == 1));
  }
}

TEST_CASE("what was never written has no value, unless a fill value says so") {
  Writer file = start();
  const std::uint64_t data = object(file, dataset(~std::uint64_t{0}, 12));
  finish(file, object(file, {compact_group(), hard_link("data", data)}));
  CHECK(says(read(file.bytes).datasets.at(0).elsewhere, "never written"));

  const auto with_fill = [](std::uint64_t nbytes) {
    Writer made = start();
    std::vector<Message> messages = dataset(~std::uint64_t{0}, 12);
    Message fill{5, {}};
    fill.body.u(0x01020202, 4);
    fill.body.u(nbytes, 4);
    messages.push_back(fill);
    const std::uint64_t header = object(made, messages);
    finish(made, object(made, {compact_group(), hard_link("data", header)}));
    return read(made.bytes).datasets.at(0);
  };
  CHECK(with_fill(0).elsewhere == "");
  CHECK(says(with_fill(0xffffffff).elsewhere, "never written"));
  CHECK(says(with_fill(0xfffffffe).problem, "size that cannot be"));
}

TEST_CASE("a dataset is found again by its address, and the address is not trusted") {
  const auto opened_file = opened(file_with(12));
  const File& file = *opened_file;
  const auto found = solar::read_metadata(file, "data").datasets.at(0);
  CHECK(solar::read_metadata(file, "/data", found.header_address).datasets.at(0).address == found.address);
  for (const std::uint64_t address : {std::uint64_t{0}, found.header_address + 1, file.nbytes(), ~std::uint64_t{1}}) {
    CHECK_THROWS_AS(solar::read_metadata(file, "/data", address), Error);
  }
}
