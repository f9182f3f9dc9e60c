// chunk_table on indexes laid out by hand, sound and hostile. What libhdf5 writes is compared in
// tests/test_chunk_table.py.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "hdf5/lookup3.hpp"
#include "made.hpp"
#include "solar/metadata.hpp"

namespace {

using solar::Bytes;
using solar::Dataset;
using solar::Index;
using solar::undefined_address;

// A file in the making: structures are appended, and the address of each is where it begins.
struct Image {
  std::string bytes = std::string(64, '\0');
  std::uint32_t chunk_node_entries = 4;

  std::uint64_t at() const { return bytes.size(); }
  Image& text(const std::string& s) { return bytes += s, *this; }
  Image& number(std::uint64_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i));
    return *this;
  }
  Image& address(std::uint64_t value) { return number(value, 8); }
  Image& sum(std::uint64_t from) { return number(solar::lookup3(std::as_bytes(std::span(bytes)).subspan(from)), 4); }
  Image& zeros(std::size_t n) { return bytes.append(n, '\0'), *this; }
};

Dataset dataset_of(Index index, std::vector<std::uint64_t> shape, std::vector<std::uint64_t> chunk) {
  Dataset dataset;
  dataset.name = "/x";
  dataset.storage = solar::Storage::chunked;
  dataset.index = index;
  dataset.shape = dataset.maxshape = std::move(shape);
  dataset.chunk = std::move(chunk);
  dataset.itemsize = 1;
  dataset.layout_version = 4;
  dataset.index_address = 64;
  return dataset;
}

solar::ChunkTable table_of(const Image& image, const Dataset& dataset) {
  const made::Folder folder;
  const auto* const begin = reinterpret_cast<const std::byte*>(image.bytes.data());
  const solar::File file(made::write_file(folder / "a", {begin, begin + image.bytes.size()}).path);
  solar::FileFacts facts;
  facts.end = file.nbytes();
  facts.chunk_node_entries = image.chunk_node_entries;
  return solar::chunk_table(file, facts, dataset);
}

std::string refusal(const Image& image, const Dataset& dataset) {
  try {
    table_of(image, dataset);
  } catch (const solar::Error& error) {
    CHECK(error.kind() == solar::Kind::layout);
    return error.what();
  }
  return "";
}

bool says(const std::string& message, const char* part) { return message.find(part) != std::string::npos; }

using Numbers = std::vector<std::uint64_t>;

// A version 1 node of one-dimensional chunks of 4 bytes: (element, address) pairs, then the key that ends the last.
void tree(Image& image, int level, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& entries,
          std::uint64_t end, std::uint32_t nbytes = 4) {
  image.text("TREE").number(1, 1).number(level, 1).number(entries.size(), 2).address(~0ull).address(~0ull);
  for (const auto& [element, address] : entries) {
    image.number(nbytes, 4).number(0, 4).number(element, 8).number(0, 8).address(address);
  }
  image.number(0, 4).number(0, 4).number(end, 8).number(0, 8);
}

std::uint64_t fixed_header(Image& image, std::uint64_t elements, std::uint8_t page_bits, std::uint64_t block) {
  const std::uint64_t start = image.at();
  image.text("FAHD").number(0, 1).number(0, 1).number(8, 1).number(page_bits, 1).number(elements, 8).address(block);
  image.sum(start);
  return start;
}

}  // namespace

TEST_CASE("lookup3 gives the sums its author published") {
  const std::string text = "Four score and seven years ago";
  CHECK(solar::lookup3(std::as_bytes(std::span(text))) == 0x17770551);
  CHECK(solar::lookup3(std::as_bytes(std::span(text)), 1) == 0xcd628161);
  CHECK(solar::lookup3({}) == 0xdeadbeef);
}

TEST_CASE("a dataset without an index has no chunks") {
  Dataset dataset = dataset_of(Index::btree1, {8}, {4});
  dataset.index_address = undefined_address;
  CHECK(table_of(Image{}, dataset).index.empty());
}

TEST_CASE("a single chunk is where its index says") {
  Image image;
  image.zeros(8);
  CHECK(table_of(image, dataset_of(Index::single, {8}, {8})).offset == Numbers{64});
  CHECK(says(refusal(image, dataset_of(Index::single, {9}, {8})), "cannot fill"));
  CHECK(says(refusal(image, dataset_of(Index::single, {9}, {9})), "beyond the end"));
}

TEST_CASE("implicit chunks lie at their place among all the dataset may grow to") {
  Image image;
  image.zeros(6);
  Dataset dataset = dataset_of(Index::implicit, {2, 2}, {1, 1});
  dataset.maxshape = {2, 3};
  const auto table = table_of(image, dataset);
  CHECK(table.index == Numbers{0, 1, 2, 3});
  CHECK(table.offset == Numbers{64, 65, 67, 68});
  CHECK(says(refusal(image, dataset_of(Index::implicit, {1ull << 40}, {1})), "beyond the end"));
}

TEST_CASE("a tree of two levels gives its chunks in order, and leaves out those beyond the extent") {
  Image image;
  tree(image, 1, {{0, 200}, {8, 400}}, 100);
  image.zeros(200 - image.at());
  tree(image, 0, {{0, 600}, {4, 604}}, 8);
  image.zeros(400 - image.at());
  tree(image, 0, {{12, 608}, {16, 612}}, 100);
  image.zeros(620 - image.at());
  const auto table = table_of(image, dataset_of(Index::btree1, {15}, {4}));
  CHECK(table.index == Numbers{0, 1, 3});
  CHECK(table.offset == Numbers{600, 604, 608});
}

TEST_CASE("a damaged tree is refused with the reason") {
  const auto refused = [](const std::function<void(Image&)>& draw) {
    Image image;
    draw(image);
    image.zeros(1000);
    return refusal(image, dataset_of(Index::btree1, {1000}, {4}));
  };
  CHECK(says(refused([](Image& image) { tree(image, 0, {{3, 300}}, 9); }), "off the grid"));
  CHECK(says(refused([](Image& image) { tree(image, 0, {{4, 300}, {4, 304}}, 8); }), "out of order"));
  CHECK(says(refused([](Image& image) { tree(image, 0, {{8, 300}, {4, 304}}, 12); }), "out of order"));
  CHECK(says(refused([](Image& image) { tree(image, 1, {{0, 64}}, 8); }), "wrong level"));
  CHECK(says(refused([](Image& image) { tree(image, 0, {{0, 1 << 20}}, 8); }), "outside the file"));
  CHECK(says(refused([](Image& image) { tree(image, 0, {{0, 300}}, 8, 5); }), "instead of 4"));
  CHECK(says(refused([](Image& image) { tree(image, 0, {{0, 300}}, 8, 0); }), "a chunk of 0 bytes"));
  CHECK(says(refused([](Image& image) { image.text("FREE"); }), "no TREE"));
  CHECK(says(refused([](Image& image) {
               image.chunk_node_entries = 2;
               tree(image, 0, {{0, 300}, {4, 304}, {8, 308}}, 12);
             }),
             "too many entries"));
  CHECK(says(refused([](Image& image) {
               image.chunk_node_entries = 64;
               tree(image, 0, {{0, 300}}, 4);
             }),
             "outside the file"));
  // One leaf reached twice: the second time its chunks are not where their keys say.
  CHECK(says(refused([](Image& image) {
               tree(image, 1, {{0, 300}, {4, 300}}, 8);
               image.zeros(300 - image.at());
               tree(image, 0, {{0, 600}}, 4);
             }),
             "cannot find"));
}

TEST_CASE("empty nodes that are shared cannot make a walk long") {
  Image image;
  image.chunk_node_entries = 32;
  std::vector<std::uint64_t> nodes;
  for (std::uint64_t i = 0; i < 12; ++i) nodes.push_back(64 + 2048 * i);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    image.zeros(nodes[i] - image.at());
    std::vector<std::pair<std::uint64_t, std::uint64_t>> entries;
    for (std::uint64_t k = 0; i + 1 < nodes.size() && k < 32; ++k) entries.push_back({4 * k, nodes[i + 1]});
    tree(image, static_cast<int>(nodes.size() - 1 - i), entries, 4 * entries.size());
  }
  image.zeros(2048);
  CHECK(says(refusal(image, dataset_of(Index::btree1, {1000}, {4})), "cycle"));
}

TEST_CASE("a fixed array gives the elements set") {
  Image image;
  fixed_header(image, 3, 10, 100);
  image.zeros(100 - image.at());
  image.text("FADB").number(0, 2).address(64).address(300).address(~0ull).address(304).sum(100).zeros(200);
  const auto table = table_of(image, dataset_of(Index::fixed_array, {11}, {4}));
  CHECK(table.index == Numbers{0, 2});
  CHECK(table.offset == Numbers{300, 304});
  CHECK(table.nbytes == Numbers{4, 4});

  image.bytes[120] ^= 1;
  CHECK(says(refusal(image, dataset_of(Index::fixed_array, {11}, {4})), "checksum"));
}

TEST_CASE("pages never written are not read") {
  Image image;
  fixed_header(image, 5, 1, 100);  // pages of 2, 2 and 1 elements, the last of them written
  image.zeros(100 - image.at());
  image.text("FADB").number(0, 2).address(64).number(0x20, 1).sum(100).zeros(2 * 20);
  const std::uint64_t page = image.at();
  image.address(300).sum(page).zeros(300);
  CHECK(table_of(image, dataset_of(Index::fixed_array, {5}, {1})).index == Numbers{4});
}

TEST_CASE("an array larger than the file is refused before it is read") {
  Image image;
  fixed_header(image, 1ull << 40, 10, 100);
  image.zeros(4096);
  CHECK(says(refusal(image, dataset_of(Index::fixed_array, {1ull << 40}, {1})), "elements in a file of"));
}

TEST_CASE("an extensible array that grows along the second axis gives chunks in C order") {
  Image image;
  image.text("EAHD").number(0, 2).number(8, 1).number(32, 1).number(4, 1).number(16, 1).number(4, 1).number(10, 1);
  image.zeros(32).number(4, 8).number(4, 8).address(200).sum(64);  // of 4 elements set, all in the index block
  image.zeros(200 - image.at());
  image.text("EAIB").number(0, 2).address(64).address(700).address(701).address(702).address(703);
  for (int i = 0; i < 6 + 25; ++i) image.address(~0ull);
  image.sum(200).zeros(400);
  Dataset dataset = dataset_of(Index::extensible_array, {2, 2}, {1, 1});
  dataset.maxshape = {2, ~0ull};
  const auto table = table_of(image, dataset);
  CHECK(table.index == Numbers{0, 1, 2, 3});
  CHECK(table.offset == Numbers{700, 702, 701, 703});

  dataset.maxshape = {~0ull, ~0ull};
  CHECK(says(refusal(image, dataset), "without end"));
}

TEST_CASE("a version 2 tree gives records between and inside its leaves") {
  const auto draw = [](std::uint64_t second) {
    Image image;
    image.text("BTHD").number(0, 1).number(10, 1).number(512, 4).number(16, 2).number(1, 2).number(0, 2);
    image.address(200).number(1, 2).number(3, 8).sum(64);
    image.zeros(200 - image.at());
    image.text("BTIN").number(0, 1).number(10, 1).address(700).number(5, 8);
    image.address(300).number(1, 1).address(400).number(1, 1).sum(200);
    for (const auto& [at, record] : {std::pair<std::uint64_t, std::uint64_t>{300, 2}, {400, second}}) {
      image.zeros(at - image.at());
      image.text("BTLF").number(0, 1).number(10, 1).address(700 + record).number(record, 8).sum(at);
    }
    return image.zeros(400);
  };
  const Dataset dataset = dataset_of(Index::btree2, {9}, {1});
  const auto table = table_of(draw(7), dataset);
  CHECK(table.index == Numbers{2, 5, 7});
  CHECK(table.offset == Numbers{702, 700, 707});
  CHECK(says(refusal(draw(5), dataset), "out of order"));
  CHECK(says(refusal(draw(1), dataset), "out of order"));
}

TEST_CASE("edge chunks kept raw have every bit of their mask set, whole ones have not") {
  Image image;
  fixed_header(image, 2, 10, 100);
  image.bytes[69] = 1;   // filtered
  image.bytes[70] = 14;  // address, size of 2 bytes, mask
  image.bytes.resize(image.at() - 4);
  image.sum(64).zeros(100 - image.at());
  image.text("FADB").number(0, 1).number(1, 1).address(64);
  image.address(300).number(3, 2).number(0, 4).address(310).number(4, 2).number(0, 4).sum(100).zeros(300);
  Dataset dataset = dataset_of(Index::fixed_array, {7}, {4});
  dataset.filters.resize(1);
  dataset.layout_flags = 1;
  const auto table = table_of(image, dataset);
  CHECK(table.nbytes == Numbers{3, 4});
  CHECK(table.mask == std::vector<std::uint32_t>{0, 0xffffffff});

  dataset.layout_flags = 0;
  CHECK(table_of(image, dataset).mask == std::vector<std::uint32_t>{0, 0});
}

TEST_CASE("impossible datasets are refused") {
  Image image;
  image.zeros(100);
  CHECK(says(refusal(image, dataset_of(Index::implicit, {8}, {0})), "impossible chunk shape"));
  CHECK(says(refusal(image, dataset_of(Index::implicit, {8}, {4, 4})), "ranks"));
  CHECK(says(refusal(image, dataset_of(Index::btree1, {~0ull, ~0ull}, {1, 1})), "64 bits"));
  CHECK(says(refusal(image, dataset_of(Index::none, {8}, {4})), "no kind of index"));
}

TEST_CASE("an index that contradicts its dataset is refused, of each kind") {
  const auto fixed = [](std::uint8_t client, std::uint8_t element_nbytes, std::uint64_t elements) {
    Image image;
    image.text("FAHD").number(0, 1).number(client, 1).number(element_nbytes, 1).number(10, 1).number(elements, 8);
    image.address(100).sum(64);
    return image.zeros(200);
  };
  const Dataset three = dataset_of(Index::fixed_array, {12}, {4});
  CHECK(says(refusal(fixed(0, 4, 3), three), "elements that do not fit"));  // an address does not fit into 4 bytes
  CHECK(says(refusal(fixed(0, 8, 2), three), "array that does not fit"));  // of 3 chunks
  CHECK(says(refusal(fixed(1, 8, 3), three), "array that does not fit"));  // filtered, and the dataset is not
  Dataset endless = three;
  endless.maxshape = {~0ull};
  CHECK(says(refusal(fixed(0, 8, 3), endless), "array that does not fit"));

  Image growing;  // smallest blocks of 3 elements, which is no power of two
  growing.text("EAHD").number(0, 2).number(8, 1).number(32, 1).number(4, 1).number(3, 1).number(4, 1).number(10, 1);
  growing.zeros(48).address(~0ull).sum(64).zeros(100);
  endless.index = Index::extensible_array;
  CHECK(says(refusal(growing, endless), "array that does not fit"));

  const auto records = [](std::uint8_t type, std::uint32_t node_nbytes, std::uint16_t depth) {
    Image image;
    image.text("BTHD").number(0, 1).number(type, 1).number(node_nbytes, 4).number(16, 2).number(depth, 2).number(0, 2);
    image.address(200).number(1, 2).number(3, 8).sum(64);
    return image.zeros(400);
  };
  const Dataset nine = dataset_of(Index::btree2, {9}, {1});
  CHECK(says(refusal(records(11, 512, 0), nine), "records that do not fit"));  // filtered
  CHECK(says(refusal(records(10, 20, 0), nine), "too small for a record"));
  CHECK(says(refusal(records(10, 26, 1), nine), "deeper than its nodes allow"));  // no room for a pointer
  CHECK(says(refusal(records(10, 512, 60000), nine), "deeper than its nodes allow"));  // 64 bits do not count them
}

TEST_CASE("a grid of more chunks than can be counted or lie in a file is refused before it is walked") {
  Image image;
  fixed_header(image, 8, 10, 100);
  image.zeros(200);
  Dataset wide = dataset_of(Index::fixed_array, {2, 2}, {1, 1});
  wide.maxshape = {2, ~0ull - 1};
  CHECK(says(refusal(image, wide), "more chunks than 64 bits can count"));
  wide.maxshape = {2, 1};
  CHECK(says(refusal(image, wide), "an extent beyond its maximum"));

  Dataset implicit = dataset_of(Index::implicit, {2, 2}, {1, 1});
  implicit.maxshape = {2, 1};
  CHECK(says(refusal(image, implicit), "an extent beyond its maximum"));
  implicit = dataset_of(Index::implicit, {2, 2}, {1, 1});
  implicit.maxshape = {2, 1ull << 62};
  implicit.itemsize = 8;
  CHECK(says(refusal(image, implicit), "more chunks than the file holds"));
}

TEST_CASE("a filtered single chunk has the length and the mask that its dataset's header gives") {
  Image image;
  image.zeros(8);
  Dataset dataset = dataset_of(Index::single, {8}, {8});
  dataset.filters.resize(1);
  dataset.single_nbytes = 5;
  dataset.single_mask = 1;
  const auto table = table_of(image, dataset);
  CHECK(table.nbytes == Numbers{5});
  CHECK(table.mask == std::vector<std::uint32_t>{1});
}

TEST_CASE("a chunk that an index names twice is refused") {
  Image image;
  image.text("BTHD").number(0, 1).number(10, 1).number(512, 4).number(16, 2).number(0, 2).number(0, 2);
  image.address(200).number(2, 2).number(2, 8).sum(64);
  image.zeros(200 - image.at());
  image.text("BTLF").number(0, 1).number(10, 1).address(300).number(4, 8).address(304).number(4, 8).sum(200).zeros(400);
  CHECK(says(refusal(image, dataset_of(Index::btree2, {9}, {1})), "out of order"));
}
