// Boxes cut out of volumes in blocks: each is what copying element by element gives, and arrays that make no sense.
#include <numeric>

#include "plans.hpp"
#include "solar/boxes.hpp"

using namespace reads;

namespace {

// Two volumes of 5 and 4 by 7 elements of two bytes in blocks of 2 by 3, one after another in one file.
struct Volumes {
  explicit Volumes(const Folder& folder) {
    const std::vector<std::uint64_t> lengths{5, 4};
    std::vector<std::byte> bytes;
    auto made = std::make_shared<Source>();
    const auto arrays = std::make_shared<made::Arrays>();
    std::uint64_t number = 0;
    for (std::size_t part = 0; part < 2; ++part) {
      values.emplace_back(lengths[part] * 7);
      for (std::uint16_t& value : values[part]) value = static_cast<std::uint16_t>(++number * 257);
      for (std::uint64_t y = 0; y < lengths[part]; y += 2) {
        for (std::uint64_t x = 0; x < 7; x += 3) {
          arrays->offset.push_back(bytes.size());
          arrays->nbytes.push_back(12);
          arrays->mask.push_back(0);
          for (std::uint64_t i = 0; i < 6; ++i) {
            const std::uint64_t row = y + i / 3, column = x + i % 3;
            const std::uint16_t value = row < lengths[part] && column < 7 ? values[part][row * 7 + column] : 0xDEAD;
            bytes.push_back(static_cast<std::byte>(value & 255));
            bytes.push_back(static_cast<std::byte>(value >> 8));
          }
        }
      }
      arrays->part_file.push_back(0);
      arrays->part_form.push_back(0);
      arrays->part_first.push_back(static_cast<std::int64_t>(arrays->offset.size()));
      arrays->part_chunks.push_back(static_cast<std::int64_t>(arrays->offset.size()));
    }
    made->name = "volumes";
    made->files = {made::write_file(folder / "volumes", bytes)};
    made->itemsize = 2;
    made->row_shape = {2, 3};
    made->forms.push_back({{1, 2, 3}, {}, {}});
    made::look(*made, arrays);
    made->check();
    source = made;
  }
  std::shared_ptr<const Source> source;
  std::vector<std::vector<std::uint16_t>> values;
};

Boxes boxes_of(std::uint64_t height, std::uint64_t width) { return {{2, 3}, {height, width}, {0, 7}, {5, 4}}; }

}  // namespace

TEST_CASE("a box is what lies at its place, wherever blocks begin, in whatever order samples are asked for") {
  const Folder folder;
  const Volumes volumes(folder);
  Reader reader(2, 8, 64, Backend::automatic);
  for (std::uint64_t height = 1; height <= 4; ++height) {
    for (std::uint64_t width = 1; width <= 7; ++width) {
      const auto boxes = std::make_shared<const Boxes>(boxes_of(height, width));
      boxes->check(*volumes.source);
      std::vector<std::int64_t> corners, numbers;
      std::vector<std::uint16_t> expected;
      for (std::int64_t part = 1; part >= 0; --part) {
        for (std::uint64_t y = 0; y + height <= (part == 0 ? 5U : 4U); ++y) {
          for (std::uint64_t x = 0; x + width <= 7; ++x) {
            corners.insert(corners.end(), {part, static_cast<std::int64_t>(y), static_cast<std::int64_t>(x)});
            numbers.push_back(static_cast<std::int64_t>(numbers.size()));
            for (std::uint64_t i = 0; i < height * width; ++i) {
              expected.push_back(volumes.values[static_cast<std::size_t>(part)][(y + i / width) * 7 + x + i % width]);
            }
          }
        }
      }
      std::vector<std::uint16_t> found(expected.size());
      const MutableBytes out(reinterpret_cast<std::byte*>(found.data()), 2 * found.size());
      const Work work{.source = volumes.source, .rows = numbers, .out = out, .boxes = boxes, .corners = corners, .positions = {}};
      const Reader::Ticket ticket = reader.submit(work);
      ReaderStats counts;
      while (!reader.wait(ticket, std::chrono::seconds(1), &counts)) {
      }
      CHECK(found == expected);
      CHECK(counts.rows == numbers.size());
    }
  }
}

TEST_CASE("boxes that are not of such blocks, and corners outside of volumes, are refused") {
  const Folder folder;
  const Volumes volumes(folder);
  const auto wrong = [&](auto change) {
    Boxes boxes = boxes_of(2, 2);
    change(boxes);
    CHECK_THROWS_AS(boxes.check(*volumes.source), std::invalid_argument);
  };
  wrong([](Boxes& b) { b.block = {}; });
  wrong([](Boxes& b) { b.block = {3, 2}; });
  wrong([](Boxes& b) { b.box = {2}; });
  wrong([](Boxes& b) { b.box = {0, 2}; });
  wrong([](Boxes& b) { b.box = {UINT64_MAX, 2}; });
  wrong([](Boxes& b) { b.shape = {0, 10}; });
  wrong([](Boxes& b) { b.shape = {0, UINT64_MAX}; });
  wrong([](Boxes& b) { b.lengths = {5}; });
  wrong([](Boxes& b) { b.lengths = {5, -1}; });
  Reader reader(1, 8, 64, Backend::automatic);
  std::vector<std::byte> memory(8);
  const std::vector<std::int64_t> numbers{0};
  const auto boxes = std::make_shared<const Boxes>(boxes_of(2, 2));
  for (const std::vector<std::int64_t>& corner : std::vector<std::vector<std::int64_t>>{
           {2, 0, 0}, {-1, 0, 0}, {0, 4, 0}, {1, 3, 0}, {0, 0, 6}, {0, -1, 0}, {0, INT64_MAX, 0}, {0, 0, INT64_MIN}}) {
    const Work work{.source = volumes.source, .rows = numbers, .out = memory, .boxes = boxes, .corners = corner, .positions = {}};
    CHECK_THROWS_AS(reader.submit(work), std::out_of_range);
  }
  const std::vector<std::int64_t> short_of{0, 0};
  const Work work{.source = volumes.source, .rows = numbers, .out = memory, .boxes = boxes, .corners = short_of, .positions = {}};
  CHECK_THROWS_AS(reader.submit(work), std::invalid_argument);
}
