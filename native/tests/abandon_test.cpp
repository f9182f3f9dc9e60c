#include "reads.hpp"

#include <atomic>
#include <memory>

using namespace reads;

namespace {

// Waits for an abandoned ticket: false when rows are missing.
bool came_whole(Reader& reader, Reader::Ticket ticket) {
  try {
    return reader.wait(ticket, 60s);
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "abandoned");
    return false;
  }
}

}  // namespace

TEST_CASE("an abandoned ticket is not read to its end, and those after it are") {
  const Folder folder;
  const auto source = made::contiguous(folder, 400, 65536);
  const Values all = contiguous_rows(*source);
  std::vector<std::int64_t> rows(400);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i * 37 % 400);
  constexpr std::size_t nbytes = 400 * 65536;
  // Not written beforehand: what is never read takes no memory, and of ThreadSanitizer no time.
  const auto outs = std::make_unique_for_overwrite<std::byte[]>(20 * nbytes);
  for (const Backend backend : backends()) {
    forget(*source);
    Reader reader(2, 8, 0, backend);
    std::vector<Reader::Ticket> tickets;
    for (std::size_t i = 0; i < 20; ++i)
      tickets.push_back(reader.submit(source, rows, MutableBytes(outs.get() + i * nbytes, nbytes)));
    for (const auto ticket : tickets) reader.abandon(ticket);
    CHECK(read_rows(reader, source, {399, 5}) == wanted_rows(all, 65536, {399, 5}));
    int missing = 0;
    for (const auto ticket : tickets) {
      if (!came_whole(reader, ticket)) ++missing;
    }
    CHECK(missing > 0);
    CHECK(reader.stats().requests < 20 * 400);
    reader.abandon(tickets[0]);  // forgotten by now
    reader.abandon(12345);
  }
}

TEST_CASE("tickets are abandoned while they are planned, read and ended") {
  const Folder folder;
  const auto source = made::contiguous(folder, 64, 100);
  for (const Backend backend : backends()) {
    forget(*source);
    Reader reader(3, 16, 0, backend);
    made::Random random(5);
    std::vector<std::int64_t> rows(64);
    for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(63));
    const Values wanted = wanted_rows(contiguous_rows(*source), 100, rows);
    for (int i = 0; i < 500; ++i) {
      Values out(64 * 100);
      const auto ticket = reader.submit(source, rows, out);
      for (std::uint64_t spin = random.upto(2000); spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
      reader.abandon(ticket);
      if (came_whole(reader, ticket)) CHECK(out == wanted);
    }
  }
}
