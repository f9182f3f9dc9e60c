// Files that lie elsewhere: what is ordered is put into place, and what is refused is said, from many threads at once.
#include "afar.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

using namespace reads;

namespace {

// A third of the rows, out of order.
std::vector<std::int64_t> rows_of(unsigned user) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = user; row < 600; row += 3) rows.push_back(row * 7 % 600);
  return rows;
}

}  // namespace

TEST_CASE("what is ordered is what is read here, by both backends and from many threads") {
  const Folder folder;
  const auto here = made::contiguous(folder, 600, 5'000);
  const Fetchers fetchers(bytes_of(here->files[0].path));
  const auto source = from_afar(*here);
  Reader plain(1, 1, 0, Backend::pread);
  for (const Backend backend : backends()) {
    Reader reader(3, 24, 16 << 10, backend);
    std::vector<Values> wanted, got(3);
    for (unsigned user = 0; user < 3; ++user) wanted.push_back(read_rows(plain, here, rows_of(user)));
    std::vector<std::jthread> users;
    for (unsigned user = 0; user < 3; ++user) {
      users.emplace_back([&, user] {
        const std::vector<std::int64_t> rows = rows_of(user);
        got[user].resize(rows.size() * source->row_nbytes());
        for (int turn = 0; turn < 5; ++turn) {
          std::fill(got[user].begin(), got[user].end(), std::byte{0xAB});
          if (!reader.wait(reader.submit(source, rows, got[user]), 60s)) return;
        }
      });
    }
    users.clear();
    CHECK(got == wanted);
    CHECK(reader.stats().requests > 0);
  }
  CHECK(fetchers.fetched > 0);
}

TEST_CASE("what is refused is an Error that says where and why, and the rest still comes") {
  const Folder folder;
  const auto here = made::contiguous(folder, 600, 5'000);
  Fetchers fetchers(bytes_of(here->files[0].path));
  const auto source = from_afar(*here);
  Reader reader(2, 8, 0, Backend::pread);
  fetchers.refuse_from = 512 + 300 * 5'000;
  Values out(source->row_nbytes());
  const std::vector<std::int64_t> last{599};
  const auto ticket = reader.submit(source, last, out);
  CHECK_THROWS_WITH_AS(reader.wait(ticket, 60s), doctest::Contains("the test refuses"), Error);
  const std::vector<std::int64_t> first{0, 1, 2};
  const Values wanted = read_rows(reader, here, first);
  CHECK(read_rows(reader, source, first) == wanted);
}

TEST_CASE("bytes that are too few or too many are not used") {
  Far::get().begin(64 << 20);
  for (const std::size_t given : {std::size_t{0}, std::size_t{99}, std::size_t{101}}) {
    std::jthread server([given] {
      const auto order = Far::get().take();
      Far::get().give(order->number, Values(given));
    });
    Values out(100);
    CHECK_THROWS_WITH_AS(Far::get().read(url, {1000, 7, 0, 0}, 5, out), doctest::Contains("100 that were asked for"),
                         Error);
  }
  Far::get().end();
}

TEST_CASE("without anybody who fetches, an order is refused in words") {
  Values out(10);
  CHECK_THROWS_WITH_AS(Far::get().read(url, {1000, 7, 0, 0}, 0, out), doctest::Contains("solar[remote]"), Error);
  CHECK_THROWS_AS(File("test://here/nobody"), Error);
}

TEST_CASE("where those who fetch are stuck, who waits is told so, and what comes later is not written") {
  const std::string url = "test://here/stuck";
  Far::get().begin(64 << 20, 50ms);
  std::uint64_t taken = 0;
  std::jthread stuck([&taken] { taken = Far::get().take()->number; });
  Values out(100);
  CHECK_THROWS_WITH_AS(Far::get().read(url, {1000, 7, 0, 0}, 5, out), doctest::Contains("no answer to any request"),
                       Error);
  stuck.join();
  Far::get().give(taken, Values(100, std::byte{1}));
  CHECK(out == Values(100));
  CHECK_THROWS_WITH_AS(Far::get().look(url), doctest::Contains("no answer to any request"), Error);
  std::jthread fetches([] {
    const auto order = Far::get().take();  // not the one that was withdrawn
    Far::get().give(order->number, Identity{1000, 7, 0, 0});
  });
  Far::get().begin(64 << 20);
  CHECK(Far::get().look(url).nbytes == 1000);
  Far::get().end();
}

TEST_CASE("metadata is fetched in large pieces, which are kept") {
  Values bytes(3 << 20);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 >> 3);
  const Fetchers fetchers(bytes);
  const File file("test://here/metadata");
  for (std::uint64_t at = 0; at + 100 < 1 << 20; at += 50'000) {
    Values out(100);
    file.read(at, out);
    CHECK(std::memcmp(out.data(), bytes.data() + at, 100) == 0);
  }
  CHECK(fetchers.fetched == 1);
  Values across(1 << 20);
  file.read(bytes.size() - across.size() - 3, across);
  CHECK(std::memcmp(across.data(), bytes.data() + bytes.size() - across.size() - 3, across.size()) == 0);
  const std::uint64_t before = fetchers.fetched;
  file.read(bytes.size() - across.size(), MutableBytes(across).first(10));
  CHECK(fetchers.fetched == before);
}

TEST_CASE("no more than 64 MiB are under way, and one order however large") {
  Far::get().begin(64 << 20);
  constexpr std::uint64_t each = 40 << 20;
  std::vector<Values> out(3, Values(each));
  const auto box = std::make_shared<Far::Mailbox>();
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    Far::get().order("test://here/large", {1 << 30, 7, 0, 0}, {{out[i].data(), each}}, 0, i, box);
  }
  const auto first = Far::get().take();
  std::atomic<int> taken{0};
  std::jthread second([&] {
    while (const auto order = Far::get().take()) {
      ++taken;
      Far::get().give(order->number, Values(each, std::byte{9}));
    }
  });
  std::this_thread::sleep_for(50ms);
  CHECK(taken == 0);
  Far::get().refuse(first->number, EREMOTEIO, "the test refuses");
  Far::Result one;
  int good = 0;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(box->take(one, 60s));
    good += one.nbytes == static_cast<std::int64_t>(each);
  }
  CHECK(good == 2);
  Far::get().end();
  second.join();
}

TEST_CASE("metadata that is expected is ordered together, neighbours as one, and read by several threads") {
  constexpr std::uint64_t page = 4 << 10, far_apart = 512 << 10;
  Values bytes(64 * far_apart);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 999);
  Fetchers fetchers(bytes);
  const std::string large = "test://here/expected";
  for (std::uint64_t i = 0; i < 60; ++i) {
    Far::get().expect(large, fetchers.identity(), i * far_apart, 100);
    Far::get().expect(large, fetchers.identity(), i * far_apart + page, 100);
  }
  Far::get().expect(large, fetchers.identity(), bytes.size() + 1, 100);  // behind its end
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> readers;
    for (int reader = 0; reader < 4; ++reader) {
      readers.emplace_back([&] {
        Values out(100);
        for (std::uint64_t i = 0; i < 120; ++i) {
          const std::uint64_t at = i / 2 * far_apart + i % 2 * page;
          Far::get().read_kept(large, fetchers.identity(), at, out);
          wrong += std::memcmp(out.data(), bytes.data() + at, out.size()) != 0;
        }
      });
    }
  }
  CHECK(wrong == 0);
  CHECK(fetchers.fetched == 60);
}

TEST_CASE("what was expected and could not be had is an error of who reads it alone") {
  const std::string broken = "test://here/broken";
  Fetchers fetchers(Values(8 << 20));
  fetchers.refuse_from = 4 << 20;
  Values out(100);
  const Identity was = fetchers.identity();
  Far::get().expect(broken, was, 2 << 20, 100);
  Far::get().expect(broken, was, 6 << 20, 100);
  Far::get().read_kept(broken, was, 2 << 20, out);
  CHECK_THROWS_WITH_AS(Far::get().read_kept(broken, was, 6 << 20, out), doctest::Contains("the test refuses"), Error);
}

TEST_CASE("no order is left lying, however many wait for one") {
  constexpr std::size_t nbytes = 64;
  const Fetchers fetchers(Values(nbytes, std::byte{7}), 128);
  std::atomic<bool> late = false;
  {
    std::vector<std::jthread> users;
    for (unsigned user = 0; user < 4; ++user) {
      users.emplace_back([&] {
        const auto box = std::make_shared<Far::Mailbox>();
        Values out(nbytes);
        for (int turn = 0; turn < 2'000 && !late; ++turn) {
          Far::get().order(url, fetchers.identity(), {{out.data(), nbytes}}, 0, 1, box);
          Far::Result result;
          if (!box->take(result, 20s) || result.nbytes != nbytes) late = true;
        }
      });
    }
  }
  CHECK(!late);
  CHECK(fetchers.fetched == 8'000);
}
