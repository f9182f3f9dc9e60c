// Attributes of small files made here, byte by byte: each version, shared types, texts in heaps; and that damage ends in
// an Error or is said of the one attribute that has it.
#include "solar/attributes.hpp"

#include <doctest/doctest.h>

#include "hdf5_made.hpp"

namespace {

using namespace made;
using solar::Attribute;
using solar::Error;

const std::vector<std::string> wanted{"scale", "text"};

std::vector<Attribute> attributes_in(const std::vector<std::byte>& bytes) {
  return solar::read_attributes(*opened(bytes), "data", wanted);
}

// A number of four bytes and of the value `value`; `type` is the datatype, or where it is if it is shared.
Message number(unsigned version, const std::string& name, std::uint32_t value, const Writer& type, unsigned flags = 0) {
  Message attribute{12, {}};
  Writer& body = attribute.body;
  const auto padded = [&](const Writer& part) {
    body.append(part);
    for (std::size_t i = part.bytes.size(); version == 1 && i % 8 != 0; ++i) body.u(0, 1);
  };
  Writer named, space;
  named.text(name);
  named.u(0, 1);
  space.u(version == 1 ? 0x00000101 : 0x00000002, 4);  // one axis of one item, or a scalar
  if (version == 1) {
    space.u(0, 4);
    space.u(1, 8);
  }
  body.u(version, 1);
  body.u(flags, 1);
  body.u(named.bytes.size(), 2);
  body.u(type.bytes.size(), 2);
  body.u(space.bytes.size(), 2);
  if (version == 3) body.u(0, 1);
  padded(named);
  padded(type);
  padded(space);
  body.u(value, 4);
  return attribute;
}

Writer whole_number() { return dataset(0, 0)[1].body; }

// A dataset with these attributes; `before` grows the file first.
std::vector<std::byte> file_of(const std::vector<Message>& attributes, Writer file = start()) {
  std::vector<Message> messages = dataset(superblock_nbytes, 12);
  messages.insert(messages.end(), attributes.begin(), attributes.end());
  file.text("abcdefghijkl");
  const std::uint64_t data = object(file, messages);
  finish(file, object(file, {compact_group(), hard_link("data", data)}));
  return file.bytes;
}

// Text of variable length, object 2 of the heap that `file` gets.
Message text_in_heap(Writer& file, std::uint32_t length, std::uint32_t number_there = 2) {
  const std::uint64_t heap = file.at();
  file.text("GCOL");
  file.u(1, 4);
  file.u(16 + 24 + 24 + 16, 8);
  for (const auto& [index, text] : {std::pair{1u, "other"}, std::pair{2u, "true!"}}) {
    file.u(index, 2);
    file.u(1, 6);
    file.u(5, 8);
    file.text(text);
    file.u(0, 3);
  }
  file.u(0, 8);  // the rest is a gap of its head alone
  file.u(16, 8);
  Writer type;
  type.u(0x00000119, 4);
  type.u(16, 4);
  type.u(0x00000010, 4);
  type.u(1, 4);
  type.u(0x00080000, 4);
  Message attribute = number(3, "text", length, type);
  attribute.body.u(heap, 8);
  attribute.body.u(number_there, 4);
  return attribute;
}

std::string text_of(const Attribute& attribute) {
  return {reinterpret_cast<const char*>(attribute.bytes.data()), attribute.bytes.size()};
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("attributes of every version are found by name") {
  for (const unsigned version : {1u, 2u, 3u}) {
    CAPTURE(version);
    const auto found = attributes_in(
        file_of({number(version, "other", 1, whole_number()), number(version, "scale", 7, whole_number())}));
    REQUIRE(found.size() == 1);
    CHECK(found[0].problem == "");
    CHECK(found[0].name == "scale");
    CHECK(found[0].values == 1);
    CHECK(found[0].bytes == std::vector<std::byte>{std::byte{7}, {}, {}, {}});
    CHECK(found[0].datatype == whole_number().bytes);
  }
}

TEST_CASE("text of variable length is looked up in its heap") {
  Writer file = start();
  const Message text = text_in_heap(file, 4);
  const auto found = attributes_in(file_of({text}, file));
  REQUIRE(found.size() == 1);
  CHECK(found[0].problem == "");
  CHECK(text_of(found[0]) == "true");
}

TEST_CASE("text that its heap does not have is a problem of this attribute alone") {
  for (const auto& [length, index, why] : {std::tuple{6u, 2u, "too short"}, std::tuple{4u, 9u, "no object 9"}}) {
    Writer file = start();
    const Message text = text_in_heap(file, length, index);
    const auto found = attributes_in(file_of({text, number(3, "scale", 7, whole_number())}, file));
    REQUIRE(found.size() == 2);
    CHECK(says(found[0].problem, why));
    CHECK(found[1].problem == "");
  }
}

TEST_CASE("an attribute with fewer bytes than its type needs is a problem") {
  Message cut = number(3, "scale", 7, whole_number());
  cut.body.bytes.pop_back();
  CHECK(says(attributes_in(file_of({cut})).at(0).problem, "fewer bytes than its values need"));
}

TEST_CASE("a shared type that is nowhere is a problem, and so is one in a shared heap that is not there") {
  Writer nowhere, in_heap;
  nowhere.u(0x0203, 2);
  nowhere.u(1 << 20, 8);
  in_heap.u(0x0103, 2);
  in_heap.u(0, 8);
  CHECK(says(attributes_in(file_of({number(3, "scale", 7, nowhere, 1)})).at(0).problem, "object header"));
  CHECK(says(attributes_in(file_of({number(3, "scale", 7, in_heap, 1)})).at(0).problem,
             "in a heap that the file does not have"));
}

TEST_CASE("whatever byte of an attribute is changed, it is found, or an Error or a problem") {
  Writer file = start();
  const Message text = text_in_heap(file, 4);
  const Message scale = number(1, "scale", 7, whole_number());
  for (const Message& message : {text, scale})
    for (std::size_t i = 0; i < message.body.bytes.size(); ++i)
      for (const unsigned value : {0u, 1u, 0x7fu, 0x80u, 0xffu}) {
        Message changed = message;
        changed.body.bytes[i] = static_cast<std::byte>(value);
        try {
          for (const Attribute& one : attributes_in(file_of({changed}, file)))
            CHECK(std::ranges::find(wanted, one.name) != wanted.end());
        } catch (const Error& error) {
          CHECK(error.kind() == solar::Kind::layout);
        }
      }
}
