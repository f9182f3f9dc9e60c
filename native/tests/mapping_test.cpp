#include "read/mapping.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "made.hpp"

using solar::File;
using solar::read::Mapping;
using solar::read::Mappings;

namespace {

made::Values noise(std::size_t nbytes) {
  made::Values bytes(nbytes);
  std::mt19937 random(5);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

bool copy(const Mapping& mapping, std::uint64_t offset, made::Values& to) {
  const solar::Bytes from = mapping.at(offset, to.size());
  return mapping.guarded([&] { std::memcpy(to.data(), from.data(), to.size()); });
}

}  // namespace

TEST_CASE("a mapping gives the bytes of its file, and none beyond") {
  const made::Folder folder;
  const made::Values bytes = noise(100'000);
  made::write_file(folder / "a", bytes);
  const File file(folder / "a");
  const auto mapping = Mapping::of(file);
  REQUIRE(mapping);
  made::Values got(70'000);
  REQUIRE(copy(*mapping, 30'000, got));
  CHECK(std::equal(got.begin(), got.end(), bytes.begin() + 30'000));
  CHECK(mapping->at(30'001, 70'000).empty());
  CHECK(mapping->at(~std::uint64_t{0}, 1).empty());
  CHECK(mapping->at(100'000, ~std::uint64_t{0}).empty());
}

TEST_CASE("an empty file is not mapped") {
  const made::Folder folder;
  made::write_file(folder / "a", {});
  CHECK(Mapping::of(File(folder / "a")) == nullptr);
}

TEST_CASE("a file that was just written is warm, and each of many threads is told so") {
  const made::Folder folder;
  made::write_file(folder / "a", noise(1'000'000));
  const File file(folder / "a");
  if (!made::can_look(file)) return;
  Mappings mappings(2);
  CHECK(mappings.warm(2, file) == nullptr);
  std::atomic<int> told{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) told += mappings.warm(0, file) != nullptr;
      });
    }
  }
  CHECK(told > 0);  // one thread looks while the others go by what was seen before: nothing yet
  CHECK(mappings.warm(0, file) != nullptr);
}

TEST_CASE("a file cut short while it is copied ends the copy, not the process, again and again") {
  const made::Folder folder;
  made::write_file(folder / "a", noise(1'000'000));
  const File file(folder / "a");
  const auto mapping = Mapping::of(file);
  REQUIRE(mapping);
  made::Values got(500'000);
  REQUIRE(copy(*mapping, 500'000, got));
  REQUIRE(::truncate((folder / "a").c_str(), 4096) == 0);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(copy(*mapping, 500'000, got));
  made::Values head(4096);
  CHECK(copy(*mapping, 0, head));
}

TEST_CASE("a mapping is not used once the signal has another handler") {
  const made::Folder folder;
  made::write_file(folder / "a", noise(10'000));
  const File file(folder / "a");
  if (!made::can_look(file)) return;
  REQUIRE(Mapping::of(file));
  struct sigaction theirs {}, ours {};
  theirs.sa_handler = SIG_DFL;
  REQUIRE(::sigaction(SIGBUS, &theirs, &ours) == 0);
  const auto mapping = Mapping::of(file);
  CHECK_FALSE(mapping->warm(file));
  REQUIRE(::sigaction(SIGBUS, &ours, nullptr) == 0);
  CHECK(Mapping::of(file)->warm(file));
}

// The sanitizers have a handler of their own, which ends the process.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a bus error that no mapping has caused goes to the handler that was there before") {
  const made::Folder folder;
  made::write_file(folder / "a", noise(10'000));
  const File file(folder / "a");
  REQUIRE(Mapping::of(file));
  struct sigaction ours {}, now {};
  REQUIRE(::sigaction(SIGBUS, nullptr, &ours) == 0);
  REQUIRE((ours.sa_flags & SA_SIGINFO) != 0);
  REQUIRE(::raise(SIGBUS) == 0);  // there was none: the next one ends the process, as if we had not been here
  REQUIRE(::sigaction(SIGBUS, nullptr, &now) == 0);
  CHECK((now.sa_flags & SA_SIGINFO) == 0);
  CHECK((now.sa_handler == SIG_DFL));
  REQUIRE(::sigaction(SIGBUS, &ours, nullptr) == 0);
}
#endif
