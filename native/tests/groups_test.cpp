// Groups of both styles made here, byte by byte: which are samples, and that damage and circles end in an Error.
#include "solar/groups.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "hdf5_made.hpp"

namespace {

using made::compact_group, made::dataset, made::finish, made::hard_link, made::Message, made::object, made::opened,
    made::soft_link, made::start, made::Writer;
using solar::Error;
using solar::GroupTable;

constexpr std::uint64_t undefined = ~std::uint64_t{0};
constexpr std::uint64_t values_at = made::superblock_nbytes;  // of all datasets

// Where the parts of a group of the old style lie.
struct OldGroup {
  std::uint64_t names = 0, tree = 0, symbols = 0, header = 0;
};

// A group of the old style: links in one symbol node, which is the only child of the root of its tree.
OldGroup old_group(Writer& file, std::vector<std::pair<std::string, std::uint64_t>> links) {
  std::sort(links.begin(), links.end());
  Writer names;
  names.u(0, 8);  // no name, for the first key
  std::vector<std::uint64_t> begins;
  for (const auto& [name, address] : links) {
    begins.push_back(names.at());
    names.text(name);
    do names.u(0, 1);
    while (names.at() % 8 != 0);
  }
  OldGroup made;
  made.names = file.at();
  file.text("HEAP");
  file.u(0, 4);
  file.u(names.at(), 8);
  file.u(1, 8);  // nothing is free
  file.u(file.at() + 8, 8);
  file.append(names);
  made.symbols = file.at();
  file.text("SNOD");
  file.u(1, 2);
  file.u(links.size(), 2);
  for (std::size_t i = 0; i < 8; ++i) {
    file.u(i < links.size() ? begins[i] : 0, 8);
    file.u(i < links.size() ? links[i].second : 0, 8);
    for (int part = 0; part < 3; ++part) file.u(0, 8);
  }
  made.tree = file.at();
  file.text("TREE");
  file.u(0, 2);
  file.u(1, 2);
  file.u(undefined, 8);
  file.u(undefined, 8);
  file.u(0, 8);
  file.u(made.symbols, 8);
  file.u(begins.empty() ? 0 : begins.back(), 8);
  while (file.at() < made.tree + 8 + 16 + 32 * 8 + 33 * 8) file.u(0, 1);
  Message table{17, {}};
  table.body.u(made.tree, 8);
  table.body.u(made.names, 8);
  made.header = object(file, {table});
  return made;
}

std::uint64_t new_group(Writer& file, const std::vector<std::pair<std::string, std::uint64_t>>& links) {
  std::vector<Message> messages{compact_group()};
  for (const auto& [name, address] : links) messages.push_back(hard_link(name, address));
  return object(file, messages);
}

std::uint64_t group(Writer& file, bool old, const std::vector<std::pair<std::string, std::uint64_t>>& links) {
  return old ? old_group(file, links).header : new_group(file, links);
}

std::uint64_t set(Writer& file, std::uint64_t at, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) file.bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  return at;
}

// `molecules` with m1, m10 and m2, each with `coords` and `energy`; and a dataset beside it.
std::vector<std::byte> molecules(bool old) {
  Writer file = start();
  file.text("abcdefghijklmnopqrstuvwx");
  std::vector<std::pair<std::string, std::uint64_t>> samples;
  for (const char* name : {"m2", "m1", "m10"}) {
    const std::uint64_t coords = object(file, dataset(values_at, 12)),
                        energy = object(file, dataset(values_at + 12, 12));
    samples.emplace_back(name, group(file, old, {{"coords", coords}, {"energy", energy}}));
  }
  const std::uint64_t beside = object(file, dataset(values_at, 12));
  finish(file, group(file, old, {{"molecules", group(file, old, samples)}, {"beside", beside}}));
  return file.bytes;
}

GroupTable read(const std::vector<std::byte>& bytes, const std::string& pattern = "",
                const std::vector<std::string>& wanted = {"energy", "coords"}) {
  return solar::read_groups(*opened(bytes), pattern, wanted);
}

std::string refusal(const std::vector<std::byte>& bytes, const std::string& pattern = "",
                    const std::vector<std::string>& wanted = {"energy", "coords"}) {
  try {
    read(bytes, pattern, wanted);
  } catch (const Error& error) {
    CHECK(error.kind() == solar::Kind::layout);
    return error.what();
  }
  return "";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

std::vector<std::string> names_of(const GroupTable& found) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i + 1 < found.begins.size(); ++i) {
    names.push_back(found.names.substr(found.begins[i], found.begins[i + 1] - found.begins[i]));
  }
  return names;
}

// Whatever a file holds, as many of each fact as there are groups, and values that lie in it; or an Error.
void check_held(const std::vector<std::byte>& bytes, const std::string& pattern) {
  try {
    const GroupTable found = read(bytes, pattern);
    for (const solar::GroupColumn& column : found.columns) {
      const std::size_t groups = found.begins.size() - 1;
      CHECK(column.kind.size() == groups);
      CHECK(column.shape.size() == groups * column.rank);
      CHECK(column.first.size() == groups + 1);
      for (std::size_t i = 0; i < column.chunks.offset.size(); ++i) {
        CHECK(column.chunks.offset[i] + column.chunks.nbytes[i] <= bytes.size());
      }
    }
  } catch (const Error& error) {
    CHECK(error.kind() == solar::Kind::layout);
  }
}

const std::vector<std::string> in_order{"/molecules/m1", "/molecules/m10", "/molecules/m2"};

}  // namespace

TEST_CASE("groups of either style are found in order of name, by what they hold or by a pattern") {
  for (const bool old : {false, true}) {
    CAPTURE(old);
    for (const std::string& pattern : {std::string(), std::string("/molecules/*"), std::string("/m*/m*")}) {
      const GroupTable found = read(molecules(old), pattern);
      CHECK(names_of(found) == in_order);
      REQUIRE(found.columns.size() == 2);
      for (const solar::GroupColumn& column : found.columns) {
        CHECK(column.kinds.size() == 1);
        CHECK(column.kind == std::vector<std::int32_t>{0, 0, 0});
        CHECK(column.shape == std::vector<std::uint64_t>{3, 3, 3});
        CHECK(column.first == std::vector<std::int64_t>{0, 1, 2, 3});
        const std::uint64_t at = values_at + (&column == &found.columns[0] ? 12 : 0);
        CHECK(column.chunks.offset == std::vector<std::uint64_t>{at, at, at});
        CHECK(column.chunks.nbytes == std::vector<std::uint64_t>{12, 12, 12});
      }
    }
    CHECK(names_of(read(molecules(old), "/molecules/m1*")) ==
          std::vector<std::string>{"/molecules/m1", "/molecules/m10"});
    CHECK(names_of(read(molecules(old), "/molecules", {"m2/coords"})) == std::vector<std::string>{"/molecules"});
    CHECK(names_of(read(molecules(old), "/nothing/*")).empty());
  }
}

TEST_CASE("a group that lacks a dataset, or has something else in its place, is named") {
  for (const bool old : {false, true}) {
    CAPTURE(old);
    CHECK(says(refusal(molecules(old), "", {"coords", "charge"}), "/molecules/m1/charge: there is no such dataset"));
    CHECK(says(refusal(molecules(old), "/*", {"m1"}), "/molecules/m1: it is a group, not a dataset"));
    CHECK(says(refusal(molecules(old), "/molecules", {"m1/coords/x"}), "/molecules/m1/coords/x: coords is no group"));
    CHECK(says(refusal(molecules(old), "", {"/"}), "a dataset of a group has a name"));
  }
}

TEST_CASE("groups behind links are no samples: passed over, or refused where a pattern has them") {
  Writer file = start();
  file.text("abcdefghijkl");
  const std::uint64_t coords = object(file, dataset(values_at, 12));
  const std::uint64_t real = new_group(file, {{"coords", coords}});
  finish(file, object(file, {compact_group(), hard_link("real", real), soft_link("soft", "/real")}));
  CHECK(names_of(read(file.bytes, "", {"coords"})) == std::vector<std::string>{"/real"});
  CHECK(says(refusal(file.bytes, "/*", {"coords"}), "/soft: is a link; groups are samples only where they lie"));
  CHECK(says(refusal(file.bytes, "/", {"soft"}), "/soft: it is a link, which is not followed from a group"));
}

TEST_CASE("groups that contain each other end: each is a sample once, or once for each name that a pattern has") {
  for (const bool old : {false, true}) {
    CAPTURE(old);
    Writer file = start();
    file.text("abcdefghijkl");
    const std::uint64_t coords = object(file, dataset(values_at, 12));
    std::uint64_t inner = 0, outer = 0, link_at = 0;
    if (old) {
      const OldGroup made = old_group(file, {{"coords", coords}, {"up", 0}});
      inner = made.header;
      link_at = made.symbols + 8 + 40 + 8;  // of the second entry
      outer = old_group(file, {{"a", inner}}).header;
      set(file, link_at, outer, 8);
    } else {  // headers have checksums: the inner one is as long with any address in it
      const std::uint64_t at = file.at();
      inner = new_group(file, {{"coords", coords}, {"up", 0}});
      const std::uint64_t nbytes = file.at() - at;
      file.bytes.resize(at);
      Writer again = file;
      new_group(again, {{"coords", coords}, {"up", at + nbytes}});
      file = again;
      outer = new_group(file, {{"a", inner}});
      REQUIRE(outer == at + nbytes);
    }
    finish(file, outer);
    CHECK(names_of(read(file.bytes, "", {"coords"})) == std::vector<std::string>{"/a"});
    CHECK(names_of(read(file.bytes, "/*/up/*", {"coords"})) == std::vector<std::string>{"/a/up/a"});
    std::string long_way;  // in which each name is there
    for (int i = 0; i < 600; ++i) long_way += "/a/up";
    CHECK(says(refusal(file.bytes, long_way, {"a/coords"}), "is too deep in groups"));
  }
}

TEST_CASE("groups too deep in groups are refused") {
  Writer file = start();
  file.text("abcdefghijkl");
  std::uint64_t inner = new_group(file, {{"coords", object(file, dataset(values_at, 12))}});
  for (int i = 0; i < 1001; ++i) inner = new_group(file, {{"g", inner}});
  finish(file, inner);
  CHECK(says(refusal(file.bytes, "", {"coords"}), "is too deep in groups"));
}

TEST_CASE("a million names of one group cost no more than the file can need") {
  Writer file = start();
  file.text("abcdefghijkl");
  std::uint64_t inner = new_group(file, {{"coords", object(file, dataset(values_at, 12))}});
  for (int level = 0; level < 20; ++level) inner = new_group(file, {{"a", inner}, {"b", inner}});
  finish(file, inner);
  std::string pattern;
  for (int level = 0; level < 20; ++level) pattern += "/*";
  CHECK(names_of(read(file.bytes, "", {"coords"})).size() == 1);
  CHECK(says(refusal(file.bytes, pattern, {"coords"}), "refers to more bytes than a file of"));
}

TEST_CASE("a damaged tree, symbol node or heap of names is an error that names the group") {
  const auto said = [](const std::function<void(Writer&, const OldGroup&)>& damage) {
    Writer file = start();
    file.text("abcdefghijkl");
    const std::uint64_t coords = object(file, dataset(values_at, 12));
    const OldGroup one = old_group(file, {{"coords", coords}, {"other", coords}});
    finish(file, old_group(file, {{"a", one.header}}).header);
    damage(file, one);
    const std::string why = refusal(file.bytes, "", {"coords"});
    CAPTURE(why);
    CHECK((why.empty() || says(why, ": /a")));
    return why;
  };
  CHECK(said([](Writer&, const OldGroup&) {}) == "");
  // The tree: of another level, with too many children, that are itself, nowhere, or beyond the end.
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.tree, 0, 1); }), "lacks its signature TREE"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.tree + 4, 1, 1); }), "has a damaged node"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.tree + 6, 33, 2); }), "has a damaged node"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, set(f, g.tree + 5, 1, 1) + 27, g.tree, 8); }),
             "has a damaged node"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.tree + 32, g.tree, 8); }), "lacks its signature SNOD"));
  CHECK(
      says(said([](Writer& f, const OldGroup& g) { set(f, g.tree + 32, undefined, 8); }), "but the file ends at byte"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.tree + 32, f.at() - 9, 8); }),
             "but the file ends at byte"));
  // The names: more of them than there is room for, in no order, without an end, outside of the heap.
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.symbols + 6, 9, 2); }), "symbol node"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.symbols + 6, 0xFFFF, 2); }), "symbol node"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.symbols + 8 + 40, 8, 8); }), "names out of order"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.symbols + 8, 1 << 20, 8); }), "has no name at byte"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.symbols + 8, undefined, 8); }), "has no name at byte"));
  CHECK(
      says(said([](Writer& f, const OldGroup& g) { set(f, g.names + 32 + 16, undefined, 8); }), "has no name at byte"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.symbols + 8 + 16, 3, 4); }), "has a damaged entry"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.symbols + 8 + 8, undefined - 1, 8); }),
             "but the file ends at byte"));
  // The heap: longer than the file, its values elsewhere, a list of what is free that leaves it or goes round.
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.names + 8, undefined - 64, 8); }),
             "but the file ends at byte"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.names + 24, undefined, 8); }),
             "but the file ends at byte"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.names + 8, 0, 8); }), "has no name at byte"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.names + 16, 400, 8); }), "has a damaged free list"));
  CHECK(says(said([](Writer& f, const OldGroup& g) { set(f, g.names + 16, 0, 8); }), "has a damaged free list"));
  CHECK(says(said([](Writer& f, const OldGroup& g) {  // the first free piece comes after itself
               set(f, g.names + 16, 8, 8);
               set(f, g.names + 32 + 8, 8, 8);
               set(f, g.names + 32 + 16, 8, 8);
             }),
             "has a damaged free list"));
}

TEST_CASE("a file cut short within its groups, or with any other byte, ends in what it holds or in an Error") {
  for (const bool old : {false, true}) {
    CAPTURE(old);
    const std::vector<std::byte> whole = molecules(old);
    for (std::size_t nbytes = 0; nbytes < whole.size(); nbytes += 1 + nbytes / 200) {
      check_held({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(nbytes)}, "");
    }
    made::Random random(old);
    for (int i = 0; i < 3000; ++i) {
      std::vector<std::byte> bytes = whole;
      for (std::uint64_t n = random.between(1, 3); n > 0; --n) {
        bytes[random.upto(bytes.size() - 1)] = static_cast<std::byte>(random.one_in(2) ? random.upto(255) : 0xFF);
      }
      check_held(bytes, i % 2 == 0 ? "" : "/molecules/*");
    }
  }
}
