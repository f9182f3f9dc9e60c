#include <numeric>
#include <thread>

#include "reads.hpp"

using namespace reads;

namespace {

constexpr std::uint64_t long_row = 64 << 10;

// Rows of so many files, of each a run of bytes: byte 0 of row i of file f is f + i.
std::shared_ptr<Source> rows_of_files(const Folder& folder, std::size_t files, std::int64_t rows, std::uint64_t row_nbytes) {
  auto source = std::make_shared<Source>();
  source->name = "/x";
  source->itemsize = 1;
  source->row_shape = {row_nbytes};
  source->forms.push_back({{0, row_nbytes}, {}, {}});
  auto arrays = std::make_shared<made::Arrays>();
  for (std::size_t f = 0; f < files; ++f) {
    Values bytes(static_cast<std::size_t>(rows) * row_nbytes);
    for (std::int64_t i = 0; i < rows; ++i) {
      bytes[static_cast<std::size_t>(i) * row_nbytes] = static_cast<std::byte>(f + static_cast<std::size_t>(i));
    }
    source->files.push_back(made::write_file(folder / std::to_string(f), bytes));
    arrays->part_file.push_back(static_cast<std::int32_t>(f));
    arrays->part_form.push_back(0);
    arrays->part_first.push_back(arrays->part_first.back() + rows);
    arrays->part_chunks.push_back(arrays->part_chunks.back() + 1);
    arrays->offset.push_back(0);
    arrays->nbytes.push_back(bytes.size());
    arrays->mask.push_back(0);
  }
  made::look(*source, arrays);
  source->check();
  return source;
}

}  // namespace

TEST_CASE("a batch wakes as many threads as it has units, however many sleep") {
  const Folder folder;
  const auto source = made::contiguous(folder, 64, long_row, 0);
  for (const unsigned threads : {2U, 32U, 128U}) {
    CAPTURE(threads);
    Reader reader(threads, 4 * threads, 4096, Backend::pread);
    std::this_thread::sleep_for(50ms);  // until all sleep
    const std::uint64_t before = reader.wakes();
    constexpr std::uint64_t batches = 200;
    for (std::uint64_t n = 0; n < batches; ++n) {
      REQUIRE(read_rows(reader, source, {static_cast<std::int64_t>(n % 64)}).size() == long_row);
    }
    CHECK(reader.wakes() - before <= 2 * batches + threads);  // one of them plans it, and may meet the next one awake
  }
}

TEST_CASE("all units of a batch are worked on, by as many threads as there are") {
  const Folder folder;
  const auto source = made::contiguous(folder, 256, long_row, 0);
  Reader reader(8, 32, 4096, Backend::pread);
  std::vector<std::int64_t> rows(256);
  std::iota(rows.begin(), rows.end(), 0);
  Values out(rows.size() * long_row);
  for (int again = 0; again < 20; ++again) {
    const auto ticket = reader.submit(source, rows, out);
    REQUIRE(reader.wait(ticket, 60s));
  }
  CHECK(reader.wakes() >= 8);
}

TEST_CASE("files are opened once and again only where there are more than may be open") {
  const Folder folder;
  const auto source = rows_of_files(folder, 256, 4, 4096);
  for (const unsigned threads : {2U, 32U, 128U}) {
    CAPTURE(threads);
    Reader reader(threads, 4 * threads, 4096, Backend::pread);
    made::Random random(threads);
    const auto read_some = [&](int batches) {
      for (int n = 0; n < batches; ++n) {
        std::vector<std::int64_t> rows(64);
        for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(1023));
        const Values out = read_rows(reader, source, rows);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          REQUIRE(out[i * 4096] == static_cast<std::byte>(rows[i] / 4 + rows[i] % 4));
        }
      }
    };
    read_some(made::repeats(200));
    const std::uint64_t before = reader.opened();
    read_some(made::repeats(200));
    CHECK(reader.opened() - before <= 128);  // a hundredth of the rows
    CHECK(reader.opened() <= 256 + 2 * threads);  // each once, and some more often while few were open
  }
}
