// Where io_uring is forbidden: threads that wait for the storage keep many reads under way, whatever the number of cores.
#include <filesystem>
#include <iterator>
#include <thread>

#include "plans.hpp"

using namespace reads;

namespace {

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

bool soon(auto&& done) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

}  // namespace

TEST_CASE("two threads keep as many reads under way as the depth says") {
  const Folder folder;
  const auto source = made::contiguous(folder, 256, 4096, 0);
  const Values all = contiguous_rows(*source);
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < 256; row += 2) rows.push_back(row);
  for (const unsigned depth : {8U, 64U}) {
    CAPTURE(depth);
    Reader reader(2, depth, 0, Backend::pread);
    Values out(rows.size() * source->row_nbytes());
    Reader::Ticket ticket = 0;
    {
      const Injected late({{.call = faults::Call::read, .path = "contiguous.h5", .delay = 1h}});
      ticket = reader.submit(source, rows, out);
      CHECK(soon([&] { return faults::met() >= depth; }));
      std::this_thread::sleep_for(20ms);
      CHECK(faults::met() == depth);
    }
    REQUIRE(reader.wait(ticket, 60s));
    CHECK(out == wanted_rows(all, source->row_nbytes(), rows));
    CHECK(reader.stats().requests == rows.size());
  }
}

TEST_CASE("what the page cache holds is read by whoever wants it") {
  const Folder folder;
  const auto source = made::contiguous(folder, 64, 4096, 0);
  Reader reader(2, 64, 0, Backend::pread);
  const auto before = threads();
  for (int again = 0; again < 20; ++again) static_cast<void>(read_rows(reader, source, {1, 3, 5, 7}));
  CHECK(threads() == before);
}
