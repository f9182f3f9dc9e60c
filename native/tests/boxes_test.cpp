// Boxes cut out of volumes in blocks: each is what copying element by element gives, and arrays that make no sense.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <unistd.h>

#include "plans.hpp"
#include "solar/boxes.hpp"
#include "solar/node.hpp"

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

namespace {

// Two steps of boxes of 3 by 4, two and one of them, and the blocks that they touch.
Made boxes_made() {
  Made made;
  made.samples = {5, 9, 1};
  made.corners = {0, 1, 2, 1, 0, 0, 0, 2, 3};
  made.sample_starts = {0, 2, 3};
  made.sizes = {2, 1};
  made.rows = {9, 10, 0, 1, 3, 4, 12, 13, 4, 5, 7, 8};
  made.starts = {0, 8, 12};
  made.last = {1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1};
  made.ends = {0, 0, 0};
  return made;
}

std::vector<std::uint16_t> box_at(const Volumes& volumes, std::span<const std::int64_t> corner) {
  std::vector<std::uint16_t> box;
  for (std::int64_t y = corner[1]; y < corner[1] + 3; ++y) {
    for (std::int64_t x = corner[2]; x < corner[2] + 4; ++x) {
      box.push_back(volumes.values[static_cast<std::size_t>(corner[0])][static_cast<std::size_t>(y * 7 + x)]);
    }
  }
  return box;
}

}  // namespace

TEST_CASE("a run cuts boxes out of the blocks that it holds, and of those that it reads") {
  const Folder folder;
  const Volumes volumes(folder);
  Reader reader(2, 8, 64, Backend::automatic);
  const auto boxes = std::make_shared<const Boxes>(boxes_of(3, 4));
  for (const std::size_t held : std::array<std::size_t, 3>{0, 3, 8}) {  // blocks of the first step
    for (const bool stored : {false, true}) {
      for (const bool turned : {false, true}) {
        CAPTURE(held);
        Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
        run.part({volumes.source, 0, 15, 12, stored, true, 0, 0, nullptr, boxes});
        Made made = boxes_made();
        if (turned) made.positions = {1, 0, 0};
        made.start.assign(made.rows.begin(), made.rows.begin() + static_cast<std::ptrdiff_t>(held));
        std::sort(made.start.begin(), made.start.end());
        if (held > 0) {
          made.start_ends = {static_cast<std::int64_t>(held)};
          made.start_due = {0};
        }
        append(run, made);
        for (std::size_t step = 0; step < 2; ++step) {
          Run::Batch batch;
          REQUIRE(run.take(60s, batch));
          const MutableBytes bytes = batch.fields[0]->bytes();
          for (std::int64_t i = made.sample_starts[step]; i < made.sample_starts[step + 1]; ++i) {
            const auto expected = box_at(volumes, std::span(made.corners).subspan(static_cast<std::size_t>(i) * 3, 3));
            const auto place = turned ? made.positions[static_cast<std::size_t>(i)] : i - made.sample_starts[step];
            CHECK(std::memcmp(bytes.data() + place * 24, expected.data(), 24) == 0);
          }
          CHECK(batch.counts.rows >= static_cast<std::uint64_t>(made.sizes[step]));
        }
        CHECK(run.stats().held_bytes == 0);
      }
    }
  }
}

// The same of two ranks: the second one has sample 9 alone, and nothing of the second step.
TEST_CASE("ranks of a node read blocks together, and cut each its own boxes out of them") {
  const Folder folder;
  const Volumes volumes(folder);
  const auto boxes = std::make_shared<const Boxes>(boxes_of(3, 4));
  for (const bool held : {false, true}) {
    CAPTURE(held);
    const int descriptor = Node::make(2, 4096);
    std::array<RunStats, 2> stats;
    std::atomic<int> wrong{0};
    std::vector<std::jthread> processes;
    for (unsigned rank = 0; rank < 2; ++rank) {
      processes.emplace_back(
          [&, rank, node = std::make_shared<Node>(descriptor, rank, std::vector<std::string>{"a", "b"}, 4096)] {
            Reader reader(1, 8, 64, Backend::automatic);
            Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20, node);
            run.part({volumes.source, 0, held ? std::size_t{11} : 0, 12, false, !held, 0, 0, nullptr, boxes});
            Made made = boxes_made();
            made.samples = rank == 0 ? std::vector<std::int32_t>{5, 1} : std::vector<std::int32_t>{9};
            made.corners = rank == 0 ? std::vector<std::int64_t>{0, 1, 2, 0, 2, 3} : std::vector<std::int64_t>{1, 0, 0};
            made.sample_starts = {0, 1, rank == 0 ? 2 : 1};
            made.sizes = {1, rank == 0 ? 1 : 0};
            made.own = {-1, -1, 0, 0, 0, 0, -1, -1, 0, 0, 0, 0};
            if (rank == 1)
              std::transform(made.own.begin(), made.own.end(), made.own.begin(), [](int one) { return -1 - one; });
            if (held) {
              made.start = {0, 1, 3, 4, 9, 10, 12, 13};
              made.start_ends = {8};
              made.start_due = {0};
              made.loads = {5, 7, 8};
              made.ends = {0, 3, 3};
            }
            append(run, made);
            for (std::size_t step = 0; step < 2; ++step) {
              Run::Batch batch;
              if (!run.take(60s, batch)) return ++wrong, void();
              if (made.sizes[step] == 0) continue;
              const auto expected = box_at(volumes, std::span(made.corners).subspan(step * 3, 3));
              if (std::memcmp(batch.fields[0]->bytes().data(), expected.data(), 24) != 0) ++wrong;
            }
            stats[rank] = run.stats();
            run.close();
          });
    }
    processes.clear();
    ::close(descriptor);
    CHECK(wrong == 0);
    CHECK(stats[0].reads + stats[1].reads == (held ? 11 : 12));  // block 4 is wanted twice
    if (held) CHECK(std::min(stats[0].reads, stats[1].reads) > 0);
  }
}

TEST_CASE("an epoch of boxes whose arrays do not fit is refused") {
  const Folder folder;
  const Volumes volumes(folder);
  Reader reader(2, 8, 64, Backend::automatic);
  const auto boxes = std::make_shared<const Boxes>(boxes_of(3, 4));
  Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
  run.part({volumes.source, 0, 0, 12, false, true, 0, 0, nullptr, boxes});
  const auto refused = [&run](auto change) {
    Made made = boxes_made();
    change(made);
    CHECK_THROWS(append(run, made));
  };
  refused([](Made& m) { m.sample_starts = {0, 3}; });
  refused([](Made& m) { m.sample_starts = {1, 2, 3}; });
  refused([](Made& m) { m.sample_starts = {0, 4, 3}; });
  refused([](Made& m) { m.sample_starts = {0, 1, 3}; });
  refused([](Made& m) { m.corners.pop_back(); });
  refused([](Made& m) { m.corners[1] = 3; });
  refused([](Made& m) { m.corners[0] = 2; });
  refused([](Made& m) { m.corners[2] = -1; });
  refused([](Made& m) { m.rows[0] = 11; });  // what a box needs is not used
  refused([](Made& m) { m.own.assign(12, 0); });  // there is one rank
  refused([](Made& m) { m.positions = {0, 1}; });
  refused([](Made& m) { m.positions = {0, 2, 0}; });
  refused([](Made& m) { m.positions = {0, -1, 0}; });
  CHECK_THROWS(run.part({made::contiguous(folder, 13, 100), 1, 0, 100, false, true, 0, 0, nullptr, boxes}));
}

// --- runs of rows ----

namespace {

// Samples of a source of blocks, their numbers of rows, and what they have.
struct Runs {
  Runs(const made::Sample& sample, std::size_t steps, made::Random& random)
      : boxes(std::make_shared<const Boxes>(Boxes::runs_of(*sample.source))) {
    const std::int64_t per = static_cast<std::int64_t>(boxes->block[0]), all = boxes->lengths[0];
    const std::uint64_t row = boxes->nbytes(sample.source->itemsize);
    made.sample_starts = {0};
    for (std::size_t step = 0; step < steps; ++step) {
      std::vector<std::array<std::int64_t, 5>> batch(random.between(1, 4));
      std::int64_t place = 0;
      wanted.emplace_back();
      std::set<std::int32_t> blocks;
      for (auto& corner : batch) {
        const auto upto = [&random](std::int64_t most) {
          return static_cast<std::int64_t>(random.upto(static_cast<std::uint64_t>(most)));
        };
        const std::int64_t first = upto(all - 1), rows = random.one_in(4) ? 0 : upto(all - first);
        const std::int64_t behind =
            rows == 0 ? first : ((first + rows - 1) / per + 1) * per;  // the first block behind it
        const std::int64_t more = behind >= all || random.one_in(2) ? 0 : upto(all - behind);
        corner = {first, rows, more == 0 ? 0 : behind, more, place};
        place += rows + more;
        for (std::size_t run = 0; run < 4; run += 2) {
          const auto from = sample.rows.begin() + corner[run] * static_cast<std::int64_t>(row);
          wanted.back().insert(wanted.back().end(), from, from + corner[run + 1] * static_cast<std::int64_t>(row));
        }
        boxes->each_block(*sample.source, corner,
                          [&](std::int64_t at) { blocks.insert(static_cast<std::int32_t>(at)); });
        made.samples.push_back(static_cast<std::int32_t>(made.samples.size()));
      }
      std::shuffle(batch.begin(), batch.end(), order);  // places stay those of the samples
      for (const auto& corner : batch) made.corners.insert(made.corners.end(), corner.begin(), corner.end());
      made.sizes.push_back(static_cast<std::int64_t>(batch.size()));
      made.sample_starts.push_back(static_cast<std::int64_t>(made.samples.size()));
      made.rows.insert(made.rows.end(), blocks.begin(), blocks.end());
      made.starts.push_back(static_cast<std::int64_t>(made.rows.size()));
      made.ends.push_back(0);
    }
    made.last.assign(made.rows.size(), 0);
  }

  std::shared_ptr<const Boxes> boxes;
  Made made;
  std::vector<Values> wanted;
  std::mt19937 order{3};
};

bool has_whole_blocks(const Source& source) {
  try {
    Boxes::runs_of(source).check(source);
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

}  // namespace

TEST_CASE("a run cuts stretches of rows out of blocks, wherever chunks end, of what it holds and of what it reads") {
  const Folder folder;
  Reader reader(2, 8, 64, Backend::automatic);
  unsigned tried = 0;
  for (unsigned seed = 0; tried < made::repeats(60); ++seed) {
    const made::Sample sample = made::random_source(folder, seed);
    if (!has_whole_blocks(*sample.source)) continue;
    CAPTURE(seed);
    ++tried;
    made::Random random(seed);
    Runs runs(sample, 3, random);
    const auto all = static_cast<std::size_t>(sample.source->part_first.back());
    const bool stored = random.one_in(3);
    for (std::size_t block = 0; block < all; ++block) {
      if (random.one_in(2)) runs.made.start.push_back(static_cast<std::int32_t>(block));
    }
    if (!runs.made.start.empty()) {
      runs.made.start_ends = {static_cast<std::int64_t>(runs.made.start.size())};
      runs.made.start_due = {0};
    }
    Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
    const std::size_t page = stored ? 16 : sample.source->row_nbytes();
    run.part({sample.source, 0, stored ? 4096 : all, page, stored, true, 0, 0, nullptr, runs.boxes});
    append(run, runs.made);
    for (const Values& wanted : runs.wanted) {
      Run::Batch batch;
      REQUIRE(run.take(60s, batch));
      const MutableBytes bytes = batch.fields[0]->bytes();
      REQUIRE(bytes.size() == std::max<std::size_t>(1, wanted.size()));
      CHECK(std::equal(wanted.begin(), wanted.end(), bytes.begin()));
    }
  }
}

TEST_CASE("runs that leave the blocks, meet in one, or have no place are refused") {
  const Folder folder;
  const auto source = made::contiguous_in(made::write_file(folder / "rows", Values(120)), 0, 10, {3, 2}, 2);
  const Boxes boxes = Boxes::runs_of(*source);
  boxes.check(*source);
  CHECK(boxes.nbytes(2) == 4);
  const std::vector<std::vector<std::int64_t>> right{
      {0, 30, 0, 0, 0}, {29, 1, 0, 3, 5}, {30, 0, 0, 0, 0}, {5, 1, 6, 24, 0}};
  for (const auto& corner : right) boxes.check(corner);
  for (const std::vector<std::int64_t>& corner : std::vector<std::vector<std::int64_t>>{{0, 31, 0, 0, 0},
                                                                                        {-1, 1, 0, 0, 0},
                                                                                        {0, -1, 0, 0, 0},
                                                                                        {30, 1, 0, 0, 0},
                                                                                        {0, 0, 30, 1, 0},
                                                                                        {0, 0, 0, -1, 0},
                                                                                        {INT64_MAX, 1, 0, 0, 0},
                                                                                        {1, INT64_MAX, 0, 0, 0},
                                                                                        {0, 0, INT64_MIN, 1, 0},
                                                                                        {0, 4, 5, 1, 0},
                                                                                        {5, 1, 0, 4, 0},
                                                                                        {0, 1, 0, 0, -1},
                                                                                        {0, 1, 0, 0, INT64_MAX}}) {
    CAPTURE(corner[0]);
    CHECK_THROWS_AS(boxes.check(corner), std::out_of_range);
  }
  Boxes other = boxes;
  other.block = {2, 2};
  CHECK_THROWS_AS(other.check(*source), std::invalid_argument);
  other = boxes;
  other.lengths = {31};
  CHECK_THROWS_AS(other.check(*source), std::invalid_argument);
  const auto rows = made::contiguous_in(made::write_file(folder / "row", Values(12)), 0, 3, {}, 4);
  CHECK_THROWS_AS(Boxes::runs_of(*rows).check(*rows), std::invalid_argument);

  Reader reader(1, 8, 64, Backend::automatic);
  std::vector<std::byte> memory(12);
  const std::vector<std::int64_t> numbers{0}, corner{0, 3, 0, 0, 0};
  const Work work{.source = source,
                  .rows = numbers,
                  .out = memory,
                  .boxes = std::make_shared<const Boxes>(boxes),
                  .corners = corner,
                  .positions = {}};
  CHECK_THROWS_AS(reader.submit(work), std::invalid_argument);

  const std::vector<std::int32_t> there{1, 2};
  const std::vector<std::int64_t> place{0}, of_both{5, 2, 0, 0, 1}, of_none{2, 2, 0, 0, 0};
  Values blocks(24), out(12);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i);
  boxes.put_together(*source, of_both, place, there, blocks, out);
  CHECK(std::memcmp(out.data() + 4, blocks.data() + 8, 8) == 0);
  CHECK_THROWS_AS(boxes.put_together(*source, of_none, place, there, blocks, out), std::out_of_range);
  out.resize(8);
  CHECK_THROWS_AS(boxes.put_together(*source, of_both, place, there, blocks, out), std::out_of_range);
}
