// Global heaps made here, byte by byte: where values of variable length lie, and that damage ends in an Error.
#include "solar/varying.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "hdf5_made.hpp"

namespace {

using made::finish, made::object, made::opened, made::start, made::Writer;
using solar::Error;
using solar::VaryingPlaces;

constexpr std::uint64_t head_nbytes = 16;  // of a collection, and of each object
constexpr std::uint64_t undefined = ~std::uint64_t{0};

// An object: its bytes are its number, over and over; they are followed by what makes eights of them.
void put_object(Writer& file, unsigned number, std::uint64_t nbytes) {
  file.u(number, 2);
  file.u(1, 6);
  file.u(nbytes, 8);
  for (std::uint64_t i = 0; i < nbytes; ++i) file.u(number, 1);
  for (std::uint64_t i = nbytes; i % 8 != 0; ++i) file.u(0, 1);
}

void put_head(Writer& file, std::uint64_t nbytes) {
  file.text("GCOL");
  file.u(1, 4);
  file.u(nbytes, 8);
}

void put_gap(Writer& file, std::uint64_t nbytes) {
  file.u(0, 8);
  file.u(nbytes, 8);
  for (std::uint64_t i = head_nbytes; i < nbytes; ++i) file.u(0xEE, 1);
}

// Two collections: at 48 objects 1 (12 bytes), a gap, and 7 (4 bytes); at `second` object 1 (8 bytes).
struct Heaps {
  Heaps() : file(start()) {
    put_head(file, 120);
    put_object(file, 1, 12);
    put_gap(file, 24);
    put_object(file, 7, 4);
    put_gap(file, 24);
    second = file.at();
    put_head(file, 48);
    put_object(file, 1, 8);
    while (file.at() < second + 48) file.u(0, 1);
    finish(file, object(file, {made::compact_group()}));
  }
  void set(std::uint64_t at, std::uint64_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) file.bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  }

  Writer file;
  std::uint64_t first = 48, second = 0;
};

// What a dataset holds for one sample.
void refer(Writer& references, std::uint32_t values, std::uint64_t address, std::uint32_t number) {
  references.u(values, 4);
  references.u(address, 8);
  references.u(number, 4);
}

VaryingPlaces places(const std::vector<std::byte>& bytes, const Writer& references, std::uint64_t itemsize = 4) {
  return solar::varying_places(*opened(bytes), references.bytes, itemsize);
}

std::string refusal(const std::vector<std::byte>& bytes, const Writer& references, std::uint64_t itemsize = 4) {
  try {
    places(bytes, references, itemsize);
  } catch (const Error& error) {
    CHECK(error.kind() == solar::Kind::layout);
    return error.what();
  }
  return "";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

Writer all_of(const Heaps& heaps) {
  Writer references;
  refer(references, 1, heaps.first, 7);
  refer(references, 2, heaps.second, 1);
  refer(references, 0, undefined, 0);
  refer(references, 3, heaps.first, 1);
  refer(references, 2, heaps.first, 1);  // a part of the same object
  return references;
}

}  // namespace

TEST_CASE("values of variable length are found in their heaps, whichever order samples refer to them in") {
  const Heaps heaps;
  const VaryingPlaces found = places(heaps.file.bytes, all_of(heaps));
  CHECK(found.length == std::vector<std::uint64_t>{1, 2, 0, 3, 2});
  CHECK(found.offset == std::vector<std::uint64_t>{48 + 16 + 32 + 24 + 16, heaps.second + 32, 0, 48 + 32, 48 + 32});
  for (std::size_t i = 0; i < 5; ++i) {
    const std::byte expected{static_cast<unsigned char>(i == 0 ? 7 : 1)};
    for (std::uint64_t k = 0; k < 4 * found.length[i]; ++k) CHECK(heaps.file.bytes[found.offset[i] + k] == expected);
  }
}

TEST_CASE("of a file behind a user block they lie behind it, too") {
  const Heaps heaps;
  std::vector<std::byte> moved = heaps.file.bytes;
  moved.insert(moved.begin(), 512, std::byte{'u'});
  const VaryingPlaces found = places(moved, all_of(heaps)), as_before = places(heaps.file.bytes, all_of(heaps));
  for (std::size_t i = 0; i < 5; ++i) CHECK(found.offset[i] == as_before.offset[i] + (i == 2 ? 0 : 512));
}

TEST_CASE("a sample whose values are not where it says is named") {
  const Heaps heaps;
  const auto said = [&](std::uint32_t values, std::uint64_t address, std::uint32_t number) {
    Writer references = all_of(heaps);
    refer(references, values, address, number);
    return refusal(heaps.file.bytes, references);
  };
  CHECK(said(1, heaps.first, 1) == "");
  CHECK(says(said(1, heaps.first, 2), "sample 5: global heap has no object 2"));
  CHECK(says(said(1, heaps.first, 0), "sample 5: global heap has no object 0"));  // which is a gap
  CHECK(says(said(4, heaps.first, 1), "sample 5: global heap"));
  CHECK(says(said(4, heaps.first, 1), "it has 12 bytes, and 16 are wanted of it"));
  CHECK(says(said(~std::uint32_t{0}, heaps.first, 1), "17179869180 are wanted of it"));
  CHECK(says(said(1, undefined, 1), "sample 5: its values are nowhere"));
  CHECK(says(said(1, heaps.first + 8, 1), "sample 5: global heap lacks its signature GCOL"));
  CHECK(says(said(1, heaps.file.at() - 8, 1), "sample 5: global heap at"));
  CHECK(says(said(1, heaps.file.at() - 8, 1), "but the file ends at byte"));
  for (const std::uint64_t far : {std::uint64_t{1} << 40, undefined - 1, undefined - 15, std::uint64_t{1} << 63}) {
    CHECK(says(said(1, far, 1), "but the file ends at byte"));
  }
}

TEST_CASE("references of another width are refused") {
  const Heaps heaps;
  Writer references = all_of(heaps);
  references.u(0, 1);
  CHECK(says(refusal(heaps.file.bytes, references), "not as wide as its addresses say"));
  CHECK(says(refusal(heaps.file.bytes, all_of(heaps), 0), "not as wide as its addresses say"));
}

TEST_CASE("a damaged heap is refused: sizes, gaps and objects that leave it or the file") {
  const auto said = [](const std::function<void(Heaps&)>& damage) {
    Heaps heaps;
    damage(heaps);
    return refusal(heaps.file.bytes, all_of(heaps));
  };
  CHECK(says(said([](Heaps& h) { h.set(h.first + 4, 2, 1); }), "global heap has version 2"));
  CHECK(says(said([](Heaps& h) { h.set(h.first + 8, 1 << 20, 8); }), "but the file ends at byte"));
  CHECK(says(said([](Heaps& h) { h.set(h.first + 8, undefined, 8); }), "but the file ends at byte"));
  CHECK(says(said([](Heaps& h) { h.set(h.first + 8, undefined - h.first, 8); }), "but the file ends at byte"));
  CHECK(says(said([](Heaps& h) { h.set(h.first + 8, 0, 8); }), "has no object 7"));
  CHECK(says(said([](Heaps& h) { h.set(h.first + 8, 31, 8); }), "has no object 7"));  // no room for a head
  CHECK(says(said([](Heaps& h) { h.set(h.first + 8, 40, 8); }), "has an object that leaves it"));
  const std::uint64_t object_nbytes = 48 + 16 + 8, gap_nbytes = 48 + 16 + 32 + 8;
  for (const std::uint64_t nbytes : {std::uint64_t{89}, std::uint64_t{1} << 62, undefined, undefined - 7}) {
    CHECK(says(said([&](Heaps& h) { h.set(object_nbytes, nbytes, 8); }), "has an object that leaves it"));
  }
  for (const std::uint64_t nbytes : {0, 1, 15}) {  // or it would be passed over for ever
    CHECK(says(said([&](Heaps& h) { h.set(gap_nbytes, nbytes, 8); }), "has a gap of no size"));
  }
  for (const std::uint64_t nbytes : {std::uint64_t{73}, undefined, undefined - 7}) {
    CHECK(says(said([&](Heaps& h) { h.set(gap_nbytes, nbytes, 8); }), "has an object that leaves it"));
  }
}

TEST_CASE("a file cut short within its heaps is refused at every length, or they are as before") {
  const Heaps heaps;
  const VaryingPlaces whole = places(heaps.file.bytes, all_of(heaps));
  for (std::size_t nbytes = 0; nbytes < heaps.file.bytes.size(); ++nbytes) {
    CAPTURE(nbytes);
    const std::vector<std::byte> cut(heaps.file.bytes.begin(),
                                     heaps.file.bytes.begin() + static_cast<std::ptrdiff_t>(nbytes));
    try {
      const VaryingPlaces found = places(cut, all_of(heaps));
      CHECK(nbytes >= heaps.second + 48);
      CHECK(found.offset == whole.offset);
    } catch (const Error& error) {
      CHECK(error.kind() == solar::Kind::layout);
    }
  }
}

TEST_CASE("any byte of the heaps may be any other: what is found lies in the file") {
  const Heaps heaps;
  for (std::size_t at = heaps.first; at < heaps.second + 48; ++at) {
    for (const unsigned other : {0x00u, 0x01u, 0x7Fu, 0x80u, 0xFFu}) {
      std::vector<std::byte> bytes = heaps.file.bytes;
      bytes[at] = static_cast<std::byte>(other);
      try {
        const VaryingPlaces found = places(bytes, all_of(heaps));
        for (std::size_t i = 0; i < found.offset.size(); ++i) {
          CHECK(found.offset[i] + 4 * found.length[i] <= bytes.size());
        }
      } catch (const Error& error) {
        CHECK(error.kind() == solar::Kind::layout);
      }
    }
  }
}

// Each collection begins within the first object of the one before, and goes on to the end of all: to walk through all of
// them takes time that grows with the square of the file.
TEST_CASE("heaps within heaps do not cost more than a file of this size can need") {
  constexpr std::uint64_t collections = 4000;
  Writer file = start(), references;
  for (std::uint64_t i = 0; i < collections; ++i) {
    refer(references, 1, file.at(), 1);
    put_head(file, (collections - i) * 32);
    file.u(1, 2);
    file.u(1, 6);
    file.u(i + 1 < collections ? 16 : 0, 8);
  }
  finish(file, object(file, {made::compact_group()}));
  CHECK(says(refusal(file.bytes, references), "refers to more bytes than a file of"));
}
