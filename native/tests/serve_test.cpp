// What a service and its jobs share: the ring of batches, and the ledger that says where they lie.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <numeric>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "solar/error.hpp"
#include "solar/serve.hpp"

using namespace std::chrono_literals;
using solar::Descriptor;
using solar::Guest;
using solar::Ledger;
using solar::MemoryPool;
using solar::MutableBytes;
using solar::SharedPool;

namespace {

struct Pair {
  std::shared_ptr<SharedPool> pool = SharedPool::make(1 << 16);
  Descriptor bell{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Ledger ledger{4, 2, 8};
  Guest guest{ledger.descriptor(), ledger.line_descriptor(), pool->descriptor(), bell.get(), {{4, 8}, {2}}, 8};
};

// A batch of so many samples: 4 and 8 bytes of each in the first field, 2 in the second; all tell their place.
std::vector<std::unique_ptr<MemoryPool::Block>> made(SharedPool& pool, std::uint8_t samples, std::uint8_t more = 0) {
  std::vector<std::unique_ptr<MemoryPool::Block>> blocks;
  blocks.push_back(pool.take(samples * 12u));
  blocks.push_back(pool.take(samples * 2u));
  for (std::uint8_t one = 0; one < samples; ++one) {
    std::memset(blocks[0]->bytes().data() + one * 4, one + more, 4);
    std::memset(blocks[0]->bytes().data() + samples * 4 + one * 8, 100 + one + more, 8);
    std::memset(blocks[1]->bytes().data() + one * 2, 200 + one, 2);
  }
  return blocks;
}

std::vector<std::uint64_t> offsets(SharedPool& pool, std::vector<std::unique_ptr<MemoryPool::Block>>& blocks) {
  return {pool.offset(blocks[0]->bytes().data()), pool.offset(blocks[1]->bytes().data())};
}

}  // namespace

TEST_CASE("a job copies its samples of a batch, field by field") {
  Pair both;
  auto batch = made(*both.pool, 5);
  const std::vector<std::uint32_t> places{3, 4, 0};
  both.ledger.announce(0, offsets(*both.pool, batch), places, 5);
  REQUIRE(both.guest.wait(0, 0s));
  std::vector<std::byte> first(3 * 12), second(3 * 2);
  const std::vector<MutableBytes> out{first, second};
  REQUIRE(both.guest.copy(0, 3, out) == Guest::Came::here);
  for (std::size_t k = 0; k < places.size(); ++k) {
    CHECK(first[k * 4 + 3] == std::byte(places[k]));
    CHECK(first[12 + k * 8 + 7] == std::byte(100 + places[k]));
    CHECK(second[k * 2 + 1] == std::byte(200 + places[k]));
  }
  both.guest.wants(1);
  CHECK(both.ledger.waits() == 2);
  both.guest.has_made(0);
  CHECK(both.ledger.made() == 1);
  std::uint64_t rung = 0;
  CHECK(::read(both.bell.get(), &rung, sizeof rung) == sizeof rung);
  CHECK_FALSE(both.guest.wait(1, 1ms));
  CHECK(both.ledger.waited() >= 1ms);
}

TEST_CASE("fields may have samples of their own") {
  Pair both;
  auto batch = made(*both.pool, 5);
  both.ledger.announce(0, offsets(*both.pool, batch), std::vector<std::uint32_t>{3, 1, 4, 0}, 5);
  std::vector<std::byte> first(12), second(3 * 2);
  const std::vector<MutableBytes> out{first, second};
  const std::vector<std::size_t> each{1, 3};
  REQUIRE(both.guest.copy(0, 4, out, each) == Guest::Came::here);
  CHECK(first[3] == std::byte(3));
  CHECK(first[4 + 7] == std::byte(103));
  CHECK(second[0] == std::byte(201));
  CHECK(second[2] == std::byte(204));
  CHECK(second[4] == std::byte(200));
  CHECK_THROWS_AS(both.guest.copy(0, 4, out, std::vector<std::size_t>{4, 1}), std::invalid_argument);
  CHECK_THROWS_AS(both.guest.copy(0, 4, out, std::vector<std::size_t>{4}), std::invalid_argument);
  CHECK_THROWS_AS(both.guest.copy(0, 4, out, std::vector<std::size_t>{2, 2}), solar::Error);  // no room for two
}

TEST_CASE("what is not held, or gone, is said") {
  Pair both;
  auto batch = made(*both.pool, 2);
  std::vector<std::byte> first(12), second(2);
  const std::vector<MutableBytes> out{first, second};
  const std::vector<std::uint32_t> places{1};
  both.ledger.announce(0, {}, places, 0);
  CHECK(both.guest.copy(0, 1, out) == Guest::Came::not_held);
  CHECK(both.guest.copy(1, 1, out) == Guest::Came::not_held);
  both.ledger.announce(1, offsets(*both.pool, batch), places, 2);
  CHECK(both.guest.copy(1, 1, out) == Guest::Came::here);
  both.ledger.gone(1);
  both.ledger.gone(7);  // what is gone stays so
  CHECK(both.guest.copy(1, 1, out) == Guest::Came::gone);
  CHECK(both.guest.wait(5, 0s));
  CHECK_FALSE(both.guest.is_gone(0));
  for (std::uint64_t number = 2; number < 9; ++number) both.ledger.announce(number, {}, places, 0);
  CHECK(both.guest.copy(0, 1, out) == Guest::Came::not_held);  // its entry is another's
  CHECK_THROWS_AS(both.ledger.announce(3, {}, places, 0), std::invalid_argument);
  CHECK_THROWS_AS(both.ledger.announce(9, {}, std::vector<std::uint32_t>(9), 0), std::invalid_argument);
}

TEST_CASE("an entry that leads out of the memory is refused") {
  Pair both;
  std::vector<std::byte> first(12), second(2);
  const std::vector<MutableBytes> out{first, second};
  const std::vector<std::uint32_t> places{1};
  both.ledger.announce(0, std::vector<std::uint64_t>{1 << 16, 0}, places, 2);
  CHECK_THROWS_AS(both.guest.copy(0, 1, out), solar::Error);
  both.ledger.announce(1, std::vector<std::uint64_t>{~std::uint64_t{0} - 8, 0}, places, 2);
  CHECK_THROWS_AS(both.guest.copy(1, 1, out), solar::Error);
  both.ledger.announce(2, std::vector<std::uint64_t>{0, 0}, places, 1);  // place 1 of one sample
  CHECK_THROWS_AS(both.guest.copy(2, 1, out), solar::Error);
  both.ledger.announce(3, std::vector<std::uint64_t>{0, 0}, places, 2);
  CHECK_THROWS_AS(both.guest.copy(3, 2, out), solar::Error);  // another number of samples
}

TEST_CASE("memory that could change, or is none, is refused") {
  Pair both;
  const Descriptor open(::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(open.get(), 1 << 16) == 0);
  const auto guest = [&](int ledger, int line, int pool) {
    Guest(ledger, line, pool, both.bell.get(), {{4, 8}, {2}}, 8);
  };
  const int ledger = both.ledger.descriptor(), line = both.ledger.line_descriptor(), pool = both.pool->descriptor();
  CHECK_NOTHROW(guest(ledger, line, pool));
  CHECK_THROWS_AS(guest(open.get(), line, pool), solar::Error);
  CHECK_THROWS_AS(guest(ledger, open.get(), pool), solar::Error);
  CHECK_THROWS_AS(guest(ledger, line, open.get()), solar::Error);
  CHECK_THROWS_AS(guest(pool, line, pool), solar::Error);
  CHECK_THROWS_AS(guest(ledger, ledger, pool), solar::Error);
  CHECK_THROWS_AS(Guest(ledger, line, pool, both.bell.get(), {{4, 8}}, 8), solar::Error);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0) == MAP_FAILED);
  CHECK(::ftruncate(line, 0) != 0);
}

TEST_CASE("batches go round the ring, and wait for room") {
  const auto pool = SharedPool::make(1 << 12);
  std::vector<std::unique_ptr<MemoryPool::Block>> held;
  for (int k = 0; k < 4; ++k) held.push_back(pool->take(1000));
  CHECK(pool->in_use() == 4096);
  CHECK(pool->waited() == 0s);
  std::atomic<bool> came = false;
  std::unique_ptr<MemoryPool::Block> next;
  std::jthread taker([&] {
    next = pool->take(2000);
    came = true;
  });
  while (pool->waited() == 0s) std::this_thread::yield();
  held[1].reset();  // the first is still there: nothing before it is free
  std::this_thread::sleep_for(5ms);
  CHECK_FALSE(came);
  held[0].reset();
  taker.join();
  CHECK(pool->offset(next->bytes().data()) == 0);
  CHECK_THROWS_AS(pool->take(5000), solar::Error);
  std::jthread closes([&] {
    while (pool->waited() == 0s) std::this_thread::yield();
    pool->close();
  });
  CHECK_THROWS_AS(pool->take(4000), solar::Error);
}

TEST_CASE("of a ring no more is used than is said") {
  const auto pool = SharedPool::make(1 << 12);
  pool->use(2048);
  CHECK_THROWS_AS(pool->take(3000), solar::Error);
  auto first = pool->take(1000), second = pool->take(1000);
  std::unique_ptr<MemoryPool::Block> third;
  std::jthread taker([&] { third = pool->take(1000); });
  while (pool->waited() == 0s) std::this_thread::yield();
  pool->use(4096);  // the one that waits finds room behind the others
  taker.join();
  CHECK(pool->offset(third->bytes().data()) == 2048);
  pool->use(2048);
  first.reset();
  second.reset();
  CHECK(pool->offset(pool->take(1000)->bytes().data()) == 0);
}

TEST_CASE("a service and a job go on with each other for long") {
  Pair both;
  std::atomic<bool> over = false;
  std::jthread service([&] {
    for (std::uint64_t number = 0; number < 2000; ++number) {
      auto batch = made(*both.pool, 4, static_cast<std::uint8_t>(number % 50));
      const std::vector<std::uint32_t> places{0, 1, 2, 3};
      both.ledger.announce(number, offsets(*both.pool, batch), places, 4);
      while (both.ledger.made() <= number) std::this_thread::yield();
    }
    over = true;
  });
  std::vector<std::byte> first(4 * 12), second(4 * 2);
  const std::vector<MutableBytes> out{first, second};
  for (std::uint64_t number = 0; number < 2000; ++number) {
    REQUIRE(both.guest.wait(number, 20s));
    REQUIRE(both.guest.copy(number, 4, out) == Guest::Came::here);
    for (std::size_t k = 0; k < 4; ++k) REQUIRE(first[k * 4] == std::byte(k + number % 50));
    both.guest.has_made(number);
  }
  service.join();
  CHECK(over);
}
