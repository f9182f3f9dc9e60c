#include "solar/memory.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

using solar::MemoryPool;

TEST_CASE("equal batches get the same memory again, aligned and writable") {
  const auto pool = MemoryPool::make(64 << 20);
  for (const std::size_t nbytes : {1UL, 5000UL, 300'000UL, (2UL << 20) - 1, 5UL << 20}) {
    auto block = pool->take(nbytes);
    std::byte* const at = block->bytes().data();
    CHECK(block->bytes().size() == nbytes);
    CHECK(reinterpret_cast<std::uintptr_t>(at) % 4096 == 0);
    block->bytes().front() = block->bytes().back() = std::byte{1};
    CHECK(pool->in_use() >= nbytes);
    block.reset();
    CHECK(pool->in_use() == 0);
    CHECK(pool->take(nbytes)->bytes().data() == at);
  }
}

TEST_CASE("the pool keeps no more idle bytes than it may, and forgets the longest idle first") {
  const auto pool = MemoryPool::make(8 << 20);
  auto a = pool->take(4 << 20);
  auto b = pool->take(4 << 20);
  auto c = pool->take(4 << 20);
  std::byte* const last = c->bytes().data();
  a.reset();
  b.reset();
  c.reset();
  CHECK(pool->idle() == 8 << 20);
  CHECK(pool->take(4 << 20)->bytes().data() == last);
  pool->take(100 << 20);  // larger than all that may be kept: its coming back leaves nothing else idle, nor itself
  CHECK(pool->idle() <= 8 << 20);
}

TEST_CASE("a block outlives the last other owner of its pool") {
  auto pool = MemoryPool::make(1 << 20);
  auto block = pool->take(1000);
  pool.reset();
  block->bytes()[999] = std::byte{7};
}

TEST_CASE("nothing at all may be taken, and too much is bad_alloc") {
  const auto pool = MemoryPool::make(1 << 20);
  CHECK(pool->take(0)->bytes().empty());
  CHECK_THROWS_AS(pool->take(SIZE_MAX), std::bad_alloc);
  CHECK_THROWS_AS(pool->take(std::size_t{1} << 60), std::bad_alloc);
  CHECK(pool->in_use() == 0);
}

TEST_CASE("blocks are taken and given back in many threads at once") {
  const auto pool = MemoryPool::make(16 << 20);
  std::vector<std::jthread> threads;
  std::atomic<int> wrong{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 300; ++i) {
        auto block = pool->take(1000 + i % 3 * (1 << 20));
        block->bytes().front() = block->bytes().back() = static_cast<std::byte>(t);
        std::this_thread::yield();
        if (block->bytes().front() != static_cast<std::byte>(t)) ++wrong;
      }
    });
  }
  threads.clear();
  CHECK(wrong == 0);
  CHECK(pool->in_use() == 0);
}

TEST_CASE("memory of others is handed out first, in place of idle memory, until it is disowned and has come back") {
  const auto pool = MemoryPool::make(64 << 20);
  constexpr std::size_t nbytes = 4 << 20;
  std::vector<std::byte> first(nbytes), second(nbytes);
  pool->take(nbytes).reset();
  CHECK(pool->idle() == nbytes);
  pool->adopt(first);
  pool->adopt(second);
  CHECK(pool->idle() == 0);
  auto one = pool->take(nbytes), two = pool->take(nbytes - 5), three = pool->take(nbytes);
  const auto theirs = [&](const auto& block) {
    return block->bytes().data() == first.data() || block->bytes().data() == second.data();
  };
  CHECK((theirs(one) && theirs(two) && !theirs(three)));
  CHECK(pool->whole(two->bytes().data() + 9).data() == two->bytes().data());
  CHECK(pool->whole(two->bytes().data() + 9).size() == nbytes);
  std::byte elsewhere{};
  CHECK(pool->whole(&elsewhere).empty());
  std::byte* const at = one->bytes().data();
  one.reset();
  CHECK(pool->whole(at).empty());
  CHECK(pool->take(nbytes)->bytes().data() == at);
  CHECK(pool->disown(at));
  CHECK(pool->take(nbytes)->bytes().data() != at);
  std::byte* const held = two->bytes().data();
  CHECK_FALSE(pool->disown(held));
  two.reset();
  CHECK(pool->disown(held));
  CHECK_FALSE(theirs(pool->take(nbytes)));
  three.reset();
  CHECK(pool->in_use() == 0);
}
