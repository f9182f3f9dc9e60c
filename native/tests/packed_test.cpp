// Rows that a buffer holds encoded: batches, counts and what becomes of rows that do not fit.
#include <set>

#include "plans.hpp"
#include "solar/run.hpp"

using namespace reads;

namespace {

constexpr std::uint64_t row_nbytes = 8192;

// Rows of small whole numbers of 2 bytes; those in `noise` are any.
std::shared_ptr<const Source> counts_of(const made::Folder& folder, std::size_t rows, made::Random& random,
                                        const std::set<std::size_t>& noise, std::uint32_t swap, Values& all,
                                        std::size_t lead = 512) {
  Values bytes(lead);
  all.clear();
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < row_nbytes / 2; ++i) {
      const auto value = static_cast<std::uint16_t>(noise.contains(row) ? random.upto(65535) : random.upto(7));
      const auto low = static_cast<std::byte>(value & 255), high = static_cast<std::byte>(value >> 8);
      all.push_back(low), all.push_back(high);
      bytes.push_back(swap == 0 ? low : high), bytes.push_back(swap == 0 ? high : low);
    }
  }
  return made::contiguous_in(made::write_file(folder / "packed", bytes), lead, rows, {64, row_nbytes / 128}, 2, swap);
}

Run::Part packed(const std::shared_ptr<const Source>& source, std::size_t pages, std::size_t page) {
  Run::Part part{source, 0, pages, page, false, false, 0, 64};
  part.pack = Pack{Number::uint16, Predictor::none};
  return part;
}

}  // namespace

TEST_CASE("packed rows come back bit for bit, and are read, decoded and counted as planned") {
  Reader reader(3, 8, 64, Backend::automatic);
  for (unsigned seed = 0; seed < made::repeats(40U); ++seed) {
    CAPTURE(seed);
    made::Random random(seed);
    const made::Folder folder;
    Values all;
    const std::uint32_t swap = seed % 3 == 0 ? 2 : 0;
    const auto source = counts_of(folder, 40, random, {}, swap, all, seed % 2 == 0 ? 512 : 511);
    const std::uint64_t ahead = random.upto(3);
    Plan plan(*source, false, row_nbytes, ahead, random);
    Run run(reader, MemoryPool::make(1 << 20), 3, 1 << 20);
    Run::Part part = packed(source, plan.pages, row_nbytes / 2);
    part.ahead = ahead;
    run.part(part);
    std::size_t uses = 0;
    for (const Made& made : plan.epochs()) append(run, made);
    ReaderStats counts;
    for (const auto& rows : plan.uses()) {
      Run::Batch batch;
      REQUIRE(run.take(60s, batch));
      CHECK(std::ranges::equal(batch.fields[0]->bytes(), wanted_rows(all, row_nbytes, {rows.begin(), rows.end()})));
      counts.chunks_decoded += batch.counts.chunks_decoded;
      counts.bytes_decoded += batch.counts.bytes_decoded;
      uses += rows.size();
    }
    CHECK(run.stats().reads == plan.reads);
    CHECK(run.stats().hits == plan.hits);
    CHECK(run.stats().recovered == 0);
    CHECK(run.stats().peak_bytes <= plan.pages * row_nbytes / 2);
    CHECK(counts.chunks_decoded == uses);
    CHECK(counts.bytes_decoded == uses * row_nbytes);
  }
}

TEST_CASE("a row that does not fit its page is read again at each use, and others are not") {
  Reader reader(3, 8, 64, Backend::automatic);
  for (unsigned seed = 0; seed < made::repeats(40U); ++seed) {
    CAPTURE(seed);
    made::Random random(seed);
    const made::Folder folder;
    Values all;
    const std::set<std::size_t> noise{3, 4, 17, 39};
    const auto source = counts_of(folder, 40, random, noise, 0, all);
    Plan plan(*source, false, row_nbytes, 0, random);
    Run run(reader, MemoryPool::make(1 << 20), 3, 1 << 20);
    run.part(packed(source, plan.pages, row_nbytes / 2));
    for (const Made& made : plan.epochs()) append(run, made);
    std::size_t again = 0, decoded = 0, uses = 0;
    for (const auto& rows : plan.uses()) {
      Run::Batch batch;
      REQUIRE(run.take(60s, batch));
      CHECK(std::ranges::equal(batch.fields[0]->bytes(), wanted_rows(all, row_nbytes, {rows.begin(), rows.end()})));
      std::set<std::int32_t> once;
      for (const auto row : rows) {
        if (noise.contains(static_cast<std::size_t>(row)))
          once.insert(row);
        else
          ++uses;
      }
      again += once.size();
      decoded += batch.counts.chunks_decoded;
    }
    CHECK(run.stats().reads == plan.reads);
    CHECK(run.stats().recovered == again);
    CHECK(decoded == uses);
    CHECK(run.stats().hits <= plan.hits);
  }
}

TEST_CASE("rows that were never written are packed as their fill value") {
  Reader reader(2, 8, 64, Backend::automatic);
  auto source = std::make_shared<Source>();
  source->name = "/x";
  source->itemsize = 4;
  source->row_shape = {2048};
  source->forms = {{{0, 2048}, {}, {std::byte{7}, std::byte{0}, std::byte{0}, std::byte{0}}}};
  const made::Folder folder;
  source->files = {made::write_file(folder / "empty", Values(16))};
  auto arrays = std::make_shared<made::Arrays>();
  arrays->part_file = {0};
  arrays->part_form = {0};
  arrays->part_first = {0, 5};
  arrays->part_chunks = {0, 0};
  made::look(*source, arrays);
  source->check();
  Run run(reader, MemoryPool::make(1 << 20), 3, 1 << 20);
  Run::Part part = packed(source, 5, 512);
  part.pack->number = Number::int32;
  run.part(part);
  Made made;
  made.sizes = {5}, made.starts = {0, 5}, made.ends = {0, 0};
  made.rows = made.start = {0, 1, 2, 3, 4};
  made.last = {1, 1, 1, 1, 1};
  made.start_ends = {5}, made.start_due = {0};
  append(run, made);
  Run::Batch batch;
  REQUIRE(run.take(60s, batch));
  for (std::size_t i = 0; i < 5 * 2048; ++i) {
    std::int32_t value = 0;
    std::memcpy(&value, batch.fields[0]->bytes().data() + 4 * i, 4);
    REQUIRE(value == 7);
  }
  CHECK(run.stats().bytes == 0);
  CHECK(run.stats().recovered == 0);
}

TEST_CASE("what is no run of such numbers is not packed") {
  Reader reader(2, 8, 64, Backend::automatic);
  const made::Folder folder;
  made::Random random(1);
  Values all;
  const auto source = counts_of(folder, 4, random, {}, 0, all);
  Run run(reader, MemoryPool::make(1 << 20), 3, 1 << 20);
  Run::Part part = packed(source, 4, row_nbytes / 2);
  part.pack->number = Number::float32;
  CHECK_THROWS_AS(run.part(part), std::invalid_argument);
  part = packed(source, 4, 4);
  CHECK_THROWS_AS(run.part(part), std::invalid_argument);
  part = packed(source, 4, row_nbytes / 2);
  part.stored = true;
  CHECK_THROWS_AS(run.part(part), std::invalid_argument);
  const auto tiles = std::make_shared<Source>(*source);
  tiles->forms = {{{1, 32, row_nbytes / 128}, {}, {}}};
  CHECK_THROWS_AS(run.part(packed(tiles, 4, row_nbytes / 2)), std::invalid_argument);
}
