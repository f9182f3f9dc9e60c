#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "read/recent.hpp"

namespace {

using solar::MutableBytes;
using solar::Source;
using solar::read::Recent;

constexpr std::size_t mib = 1 << 20;

// The chunk, whose bytes are all of that value; and how often it was decoded.
struct Decodes {
  std::atomic<unsigned> count{0};

  int of(Recent& recent, const Recent::Key& key, std::size_t nbytes, int value) {
    const auto held = recent.get(key, nbytes, [&](MutableBytes raw) {
      ++count;
      std::memset(raw.data(), value, raw.size());
    });
    return static_cast<int>(held.data()[nbytes - 1]);
  }
};

TEST_CASE("a chunk is decoded once while there is room, and again when others took it") {
  Recent recent(1);  // 8 MiB
  const auto source = std::make_shared<const Source>();
  Decodes decodes;
  for (int round = 0; round < 2; ++round) {
    for (int chunk = 0; chunk < 8; ++chunk) CHECK(decodes.of(recent, {source, chunk, 0}, mib, chunk) == chunk);
  }
  CHECK(decodes.count == 8);
  CHECK(recent.find({source, 3, 0}).has_value());  // used last
  CHECK(decodes.of(recent, {source, 8, 0}, mib, 8) == 8);
  CHECK(!recent.find({source, 0, 0}).has_value());
  CHECK(recent.find({source, 3, 0}).has_value());
  CHECK(!recent.find({source, 3, 1}).has_value());
  CHECK(decodes.of(recent, {source, 0, 0}, mib, 0) == 0);
  CHECK(decodes.count == 10);
}

TEST_CASE("a chunk comes again if it was asked for among as many others as there is room for") {
  Recent recent(1);
  const auto source = std::make_shared<const Source>();
  for (int chunk = 0; chunk < 8; ++chunk) CHECK(!recent.comes_again({source, chunk, 0}, mib));
  CHECK(recent.comes_again({source, 0, 0}, mib));
  CHECK(!recent.comes_again({source, 8, 0}, mib));
  CHECK(!recent.comes_again({source, 0, 0}, mib));
  CHECK(recent.comes_again({source, 8, 0}, mib));
  CHECK(!recent.comes_again({source, 8, 1}, mib));
}

TEST_CASE("of chunks larger than the room the last ones stay") {
  Recent recent(1);
  const auto source = std::make_shared<const Source>();
  Decodes decodes;
  for (int chunk = 0; chunk < 4; ++chunk) CHECK(decodes.of(recent, {source, chunk, 0}, 20 * mib, chunk) == chunk);
  CHECK(recent.find({source, 3, 0}).has_value());
  CHECK(!recent.find({source, 1, 0}).has_value());
}

TEST_CASE("what nobody uses takes no more than it may at rest, but for the last chunk") {
  constexpr std::size_t large = 40 << 20;
  const auto source = std::make_shared<Source>();
  Recent recent(4, 100 << 20);
  std::size_t decoded = 0;
  const auto decode = [&decoded](MutableBytes) { ++decoded; };
  const auto key_of = [&source](std::int64_t first) { return Recent::Key{source, first, 0}; };
  {
    std::vector<Recent::Held> held;
    for (std::int64_t n = 0; n < 4; ++n) held.push_back(recent.get(key_of(n), large, decode));
  }
  CHECK(decoded == 4);
  std::size_t kept = 0;
  for (std::int64_t n = 0; n < 4; ++n) kept += recent.find(key_of(n)).has_value();
  CHECK(kept == 2);
  Recent little(4, 0);
  static_cast<void>(little.get(key_of(0), 2 * large, decode));
  static_cast<void>(little.get(key_of(1), 2 * large, decode));
  CHECK(!little.find(key_of(0)).has_value());
  CHECK(little.find(key_of(1)).has_value());
}

TEST_CASE("what is held stays, however many come") {
  Recent recent(1);
  const auto source = std::make_shared<const Source>();
  Decodes decodes;
  CHECK(decodes.of(recent, {source, 0, 0}, mib, 7) == 7);
  const auto held = recent.find({source, 0, 0});
  REQUIRE(held.has_value());
  for (int chunk = 1; chunk < 30; ++chunk) CHECK(decodes.of(recent, {source, chunk, 0}, mib, chunk) == chunk);
  CHECK(static_cast<int>(held->data()[0]) == 7);
  CHECK(recent.find({source, 0, 0}).has_value());
}

TEST_CASE("a source that is gone is no other one") {
  Recent recent(1);
  Decodes decodes;
  for (int one = 0; one < 50; ++one) {
    const auto source = std::make_shared<const Source>();
    CHECK(decodes.of(recent, {source, 0, 0}, 4096, one) == one);
  }
  CHECK(decodes.count == 50);
}

TEST_CASE("a chunk that cannot be decoded leaves nothing") {
  Recent recent(1);
  const auto source = std::make_shared<const Source>();
  Decodes decodes;
  const auto damaged = [](MutableBytes) { throw std::runtime_error("damaged"); };
  CHECK_THROWS_WITH(recent.get({source, 0, 0}, mib, damaged), "damaged");
  CHECK(!recent.find({source, 0, 0}).has_value());
  CHECK(decodes.of(recent, {source, 0, 0}, mib, 5) == 5);
}

TEST_CASE("threads that want a chunk at a time decode it once") {
  constexpr int threads = 4, chunks = 200;
  constexpr std::size_t nbytes = 64 << 10;  // all have room
  Recent recent(threads);
  const auto source = std::make_shared<const Source>();
  Decodes decodes;
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> at_work;
    for (int thread = 0; thread < threads; ++thread) {
      at_work.emplace_back([&] {
        for (int chunk = 0; chunk < chunks; ++chunk) {
          wrong += decodes.of(recent, {source, chunk, 0}, nbytes, chunk % 100) != chunk % 100;
        }
      });
    }
  }
  CHECK(wrong == 0);
  CHECK(decodes.count == chunks);
}

TEST_CASE("threads that take each other's room get their own bytes") {
  constexpr int threads = 4;
  Recent recent(1);
  const auto source = std::make_shared<const Source>();
  Decodes decodes;
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> at_work;
    for (int thread = 0; thread < threads; ++thread) {
      at_work.emplace_back([&, thread] {
        for (int turn = 0; turn < 300; ++turn) {
          const int chunk = (turn * 7 + thread * 3) % 40;
          wrong += decodes.of(recent, {source, chunk, 0}, mib / 2, chunk) != chunk;
        }
      });
    }
  }
  CHECK(wrong == 0);
  CHECK(decodes.count >= 40);
}

}  // namespace
