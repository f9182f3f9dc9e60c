#include "reads.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <thread>

using namespace reads;

namespace {

// `count` different positions in an output of `slots` rows, in any order.
std::vector<std::int64_t> some_positions(std::size_t count, std::size_t slots, made::Random& random) {
  std::vector<std::int64_t> all(slots);
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t i = 0; i + 1 < slots; ++i) std::swap(all[i], all[i + random.upto(slots - 1 - i)]);
  all.resize(count);
  return all;
}

ReaderStats sum(const ReaderStats& a, const ReaderStats& b) {
  ReaderStats both;
  for (const NamedCount& one : named_counts) both.*one.count = a.*one.count + b.*one.count;
  return both;
}

void check_same(const ReaderStats& a, const ReaderStats& b) {
  for (const NamedCount& one : named_counts) {
    CAPTURE(one.name);
    CHECK(a.*one.count == b.*one.count);
  }
}

// The ticket's own counts, whatever became of it.
ReaderStats counts_of(Reader& reader, Reader::Ticket ticket) {
  ReaderStats counts;
  try {
    const bool ended = reader.wait(ticket, 60s, &counts);
    CHECK(ended);
  } catch (const Error&) {  // it ended, too
  }
  return counts;
}

}  // namespace

TEST_CASE("each row goes to its position, whatever the layout, and no other place is touched") {
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < made::repeats(300U); ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed / 2);
      sample.source->bypass = seed % 2;
      if (seed % 4 >= 2) sample.source->map();
      if (seed % 3 == 0) forget(*sample.source);
      made::Random random(seed);
      std::vector<std::int64_t> rows(random.upto(30));
      const auto all = static_cast<std::uint64_t>(sample.source->part_first.back());
      for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(all - 1));
      const std::size_t slots = rows.size() + random.upto(10);
      const std::uint64_t row_nbytes = sample.source->row_nbytes();
      Values wanted(slots * row_nbytes, std::byte{0xCD}), out = wanted;
      const Values values = wanted_rows(sample.rows, row_nbytes, rows);
      const auto positions = some_positions(rows.size(), slots, random);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(i * row_nbytes), row_nbytes,
                    wanted.begin() + positions[i] * static_cast<std::ptrdiff_t>(row_nbytes));
      }
      Reader reader(1 + seed % 3, 8, random.one_in(2) ? 0 : 64, backend);
      CHECK(reader.wait(reader.submit(sample.source, rows, out, positions), 60s));
      REQUIRE(out == wanted);
    }
  }
}

TEST_CASE("rows that are neighbours in the file are one read, wherever they go") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 100);
  const Values all = contiguous_rows(*source);
  Reader reader(1, 1, 0, Backend::pread);
  const std::vector<std::int64_t> rows{10, 11, 12, 13}, positions{5, 6, 0, 1};
  Values out(700);
  CHECK(reader.wait(reader.submit(source, rows, out, positions), 60s));
  CHECK(reader.stats().requests == 1);
  CHECK(std::equal(out.begin() + 500, out.end(), all.begin() + 1000));
  CHECK(std::equal(out.begin(), out.begin() + 200, all.begin() + 1200));
}

TEST_CASE("positions that are not one place for each row are refused at submit") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 8);
  Reader reader(1, 1, 0, Backend::automatic);
  Values out(32), odd(31);
  const std::vector<std::int64_t> rows{1, 2};
  using Positions = std::vector<std::int64_t>;
  for (const Positions& wrong : {Positions{0, 4}, Positions{-1, 0}, Positions{2, 2}, Positions{0}, Positions{}}) {
    CHECK_THROWS_AS(reader.submit(source, rows, out, wrong), std::invalid_argument);
  }
  const Positions good{3, 0};
  CHECK_THROWS_AS(reader.submit(source, rows, odd, good), std::invalid_argument);
  CHECK_THROWS_AS(reader.submit(source, rows, out), std::invalid_argument);
  CHECK(reader.wait(reader.submit(source, rows, out, good), 60s));
}

TEST_CASE("what is counted of each ticket adds up to what the reader counts, in errors, too") {
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < made::repeats(60U); ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed);
      sample.source->bypass = seed % 2;
      if (seed % 4 >= 2) sample.source->map();
      if (seed % 3 == 0) forget(*sample.source);
      auto gone = std::make_shared<Source>(*sample.source);  // cannot be opened
      for (SourceFile& file : gone->files) file.path += ".gone";
      Reader reader(1 + seed % 3, 8, 0, backend);
      made::Random random(seed);
      const auto all = static_cast<std::uint64_t>(sample.source->part_first.back());
      std::vector<std::vector<std::int64_t>> rows(20);
      std::vector<Values> outs;
      std::vector<Reader::Ticket> tickets;
      for (auto& batch : rows) {
        batch.resize(random.upto(40));
        for (auto& row : batch) row = static_cast<std::int64_t>(random.upto(all - 1));
        const auto& source = random.one_in(5) ? gone : sample.source;
        outs.emplace_back(batch.size() * source->row_nbytes());
        tickets.push_back(reader.submit(source, batch, outs.back()));
        if (random.one_in(5)) reader.abandon(tickets.back());
      }
      ReaderStats total;
      for (const auto ticket : tickets) total = sum(total, counts_of(reader, ticket));
      check_same(total, reader.stats());
    }
  }
}

TEST_CASE("a ticket counts its own reads and no other's") {
  const Folder folder;
  const auto source = made::contiguous(folder, 640, 5000);
  const std::vector<std::int64_t> few{3, 300, 600};
  std::vector<std::int64_t> many(640);
  std::iota(many.begin(), many.end(), 0);
  for (const Backend backend : backends()) {
    forget(*source);
    Reader reader(2, 16, 0, backend);
    Values small(3 * 5000), large(640 * 5000);
    const auto first = reader.submit(source, many, large);
    const auto second = reader.submit(source, few, small);
    const ReaderStats of_few = counts_of(reader, second), of_many = counts_of(reader, first);
    CHECK(of_few.rows == 3);
    CHECK(of_few.requests == 3);
    CHECK(of_few.bytes_read == 3 * 5000);
    CHECK(of_many.rows == 640);
    CHECK(of_many.bytes_read == 640 * 5000);
    CHECK(of_many.read_ns > 0);
    check_same(sum(of_few, of_many), reader.stats());
  }
}

TEST_CASE("tickets of many callers add up while they overlap") {
  const Folder folder;
  const auto source = made::contiguous(folder, 500, 3000);
  for (const Backend backend : backends()) {
    forget(*source);
    Reader reader(3, 16, 4096, backend);
    std::vector<ReaderStats> totals(4);
    {
      std::vector<std::jthread> callers;
      for (unsigned caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&, caller] {
          made::Random random(caller);
          for (int round = 0; round < 60; ++round) {
            std::vector<std::int64_t> rows(random.upto(64));
            for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(499));
            Values out(rows.size() * 3000);
            ReaderStats counts;
            reader.wait(reader.submit(source, rows, out), 60s, &counts);
            totals[caller] = sum(totals[caller], counts);
          }
        });
      }
    }
    ReaderStats total;
    for (const ReaderStats& one : totals) total = sum(total, one);
    check_same(total, reader.stats());
  }
}
