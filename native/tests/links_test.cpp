// Soft and external links: what they lead to, in which file, and that damage or a circle ends in an Error.

#include <doctest/doctest.h>
#include <unistd.h>

#include "hdf5_made.hpp"
#include "made.hpp"
#include "solar/metadata.hpp"

namespace {

using made::compact_group, made::dataset, made::external_link, made::file_with, made::finish, made::Folder,
    made::hard_link, made::Message, made::object, made::soft_link, made::start, made::superblock_nbytes, made::Writer;
using solar::Error;
using solar::Metadata;

Metadata read(const std::string& path, const std::string& name = {}, const std::string& prefixes = {}) {
  return solar::read_metadata(solar::File::plain(path), name, solar::undefined_address, prefixes);
}

std::string refusal(const std::string& path, const std::string& name) {
  try {
    read(path, name);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

void write(const std::string& path, std::vector<Message> links) { made::write_file(path, file_with(12, std::move(links))); }

}  // namespace

TEST_CASE("an external link leads to the dataset in the other file") {
  const Folder folder;
  write(folder / "scan.h5", {soft_link("on", "data"), external_link("back", "master.h5", "/data")});
  write(folder / "master.h5", {external_link("link", "scan.h5", "/data"), external_link("all", "scan.h5", "/")});
  for (const char* name : {"link", "/all/data", "all/./on"}) {
    const solar::Dataset found = read(folder / "master.h5", name).datasets.at(0);
    CHECK(found.path == folder / "scan.h5");
    CHECK(found.target == "/data");
    CHECK(found.address == superblock_nbytes);
    CHECK(found.identity.nbytes == solar::File(folder / "scan.h5").nbytes());
  }
  const solar::Dataset home = read(folder / "master.h5", "all/back").datasets.at(0);
  CHECK(home.path == "");
  CHECK(home.target == "/data");
}

TEST_CASE("all that links lead to is listed once") {
  const Folder folder;
  write(folder / "scan.h5", {soft_link("on", "data"), external_link("back", "master.h5", "/"), soft_link("up", "/")});
  write(folder / "master.h5", {external_link("a", "scan.h5", "/"), external_link("b", "scan.h5", "/"),
                               external_link("c", "scan.h5", "/data"), external_link("d", "none.h5", "/data")});
  const Metadata found = read(folder / "master.h5");
  CHECK(found.datasets.size() == 1);
  REQUIRE(found.linked.size() == 3);
  CHECK(found.linked[0].name == "/a/data");
  CHECK(found.linked[1].name == "/a/on");
  CHECK(found.linked[2].name == "/c");
  REQUIRE(found.aliases.size() == 4);
  CHECK(found.aliases[1].name == "/a/back");
  CHECK(found.aliases[1].path == "");
  CHECK(found.aliases[2].name == "/a/up");
  CHECK(found.aliases[3].name == "/b");
  REQUIRE(found.problems.size() == 1);
  CHECK(says(found.problems[0], "/d is an external link to none.h5:/data that leads nowhere"));
}

TEST_CASE("a file is looked for below the prefixes first, beside the link's file, then below its true folder") {
  const Folder folder, prefix, real;
  write(real / "master.h5", {external_link("link", "scan.h5", "/data"), external_link("far", real / "no/scan.h5", "data")});
  REQUIRE(::symlink((real / "master.h5").c_str(), (folder / "master.h5").c_str()) == 0);
  for (const Folder* place : {&real, &folder, &prefix}) {
    write(*place / "scan.h5", {});
    for (const char* name : {"link", "far"})
      CHECK(read(folder / "master.h5", name, ":" + prefix / "" + "::").datasets.at(0).path == *place / "scan.h5");
  }
}

TEST_CASE("circles through several files end") {
  const Folder folder;
  write(folder / "a.h5", {external_link("x", "b.h5", "/x")});
  write(folder / "b.h5", {external_link("x", "a.h5", "/x")});
  CHECK(says(refusal(folder / "a.h5", "x"), "too many links"));
  CHECK(says(read(folder / "a.h5").problems.at(0), "too many links"));
}

TEST_CASE("the value of an external link is not trusted") {
  const Folder folder;
  write(folder / "scan.h5", {});
  const std::string good = std::string(1, '\0') + "scan.h5" + '\0' + "/data" + '\0';
  const auto damaged = [&](const std::string& value) {
    write(folder / "master.h5", {external_link("link", value)});
    CHECK(read(folder / "master.h5").datasets.size() == 1);
    return says(read(folder / "master.h5").problems.at(0), "damaged") && says(refusal(folder / "master.h5", "link"), "damaged");
  };
  for (std::size_t n = 0; n < good.size(); ++n) CHECK(damaged(good.substr(0, n)));
  for (const char first : {1, 16, -1}) CHECK(damaged(first + good.substr(1)));
  CHECK(damaged(std::string(3, '\0')));
  write(folder / "master.h5", {external_link("link", good)});
  CHECK(read(folder / "master.h5", "link").datasets.size() == 1);
  write(folder / "master.h5", {external_link("link", std::string(200, 'x') + "/" + std::string(5000, 'y'), "data")});
  CHECK(says(refusal(folder / "master.h5", "link"), "too long"));
}

TEST_CASE("damage in the other file is told with its name, and costs nothing else") {
  const Folder folder;
  write(folder / "scan.h5", {});
  write(folder / "master.h5", {external_link("a", "scan.h5", "/data"), external_link("b", "scan.h5", "/")});
  const std::vector<std::byte> sound = file_with(12);
  for (std::size_t at = 0; at < sound.size(); ++at) {
    if (at >= superblock_nbytes && at < superblock_nbytes + 12) continue;  // the data themselves
    std::vector<std::byte> bytes = sound;
    bytes[at] ^= std::byte{4};
    made::write_file(folder / "scan.h5", bytes);
    CHECK(says(refusal(folder / "master.h5", "a"), "scan.h5"));
    CHECK(read(folder / "master.h5").datasets.at(0).problem == "");
  }
}
