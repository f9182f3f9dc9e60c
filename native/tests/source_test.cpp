#include "solar/source.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "made.hpp"
#include "solar/reader.hpp"

using namespace solar;
using namespace std::chrono_literals;
using made::Folder;
using made::Random;
using made::Values;

namespace {

// Numbers as a hostile file would have them.
std::uint64_t nasty(Random& random) {
  switch (random.upto(6)) {
    case 0: return 0;
    case 1: return ~std::uint64_t{0} - random.upto(3);
    case 2: return std::uint64_t{1} << random.upto(63);
    case 3: return (std::uint64_t{1} << random.upto(63)) - 1;
    default: return random.upto(20);
  }
}

template <class T>
void spoil(std::vector<T>& values, Random& random) {
  if (random.one_in(8)) values.resize(random.upto(values.size() + 1));
  if (!values.empty() && random.one_in(2)) values[random.upto(values.size() - 1)] = static_cast<T>(nasty(random));
}

std::shared_ptr<Source> spoilt(const Folder& folder, unsigned seed) {
  Random random(seed);
  made::Sample sample = made::random_source(folder, seed);
  auto source = sample.source;
  auto arrays = std::make_shared<made::Arrays>(*std::static_pointer_cast<const made::Arrays>(source->keep));
  switch (random.upto(11)) {
    case 0: spoil(arrays->part_file, random); break;
    case 1: spoil(arrays->part_form, random); break;
    case 2: spoil(arrays->part_first, random); break;
    case 3: spoil(arrays->part_chunks, random); break;
    case 4: spoil(arrays->index, random); break;
    case 5: spoil(arrays->offset, random); break;
    case 6: spoil(arrays->nbytes, random); break;
    case 7: spoil(arrays->mask, random); break;
    case 8: spoil(source->row_shape, random); break;
    case 9: spoil(source->forms[0].chunk, random); break;
    case 10: source->itemsize = nasty(random); break;
    default: source->files[0].was.nbytes = random.upto(source->files[0].was.nbytes); break;
  }
  made::look(*source, arrays);
  return source;
}

}  // namespace

TEST_CASE("a source as it is made passes its check") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Folder folder;
    CHECK_NOTHROW(made::random_source(folder, seed).source->check());
  }
}

TEST_CASE("whatever arrays pass the check can be read without harm") {
  const Folder folder;
  Reader reader(2, 4, 64, Backend::automatic);
  unsigned refused = 0;
  for (unsigned seed = 0; seed < made::repeats(2000U); ++seed) {
    CAPTURE(seed);
    const auto source = spoilt(folder, seed);
    try {
      source->check();
    } catch (const Error& error) {
      CHECK(error.kind() == Kind::layout);
      ++refused;
      continue;
    }
    const std::int64_t all = source->part_first.back();
    if (all == 0 || source->row_nbytes() > 1 << 20) continue;
    Random random(seed);
    std::vector<std::int64_t> rows(5);
    for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(static_cast<std::uint64_t>(all - 1)));
    Values out(rows.size() * source->row_nbytes());
    const auto ticket = reader.submit(source, rows, out);
    bool ended = true;
    try {
      ended = reader.wait(ticket, 60s);
    } catch (const Error&) {  // the file is not as the arrays have it
    }
    REQUIRE(ended);
  }
  CHECK(refused > made::repeats(500U));
}

TEST_CASE("an extent that leaves its file is named") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 8);
  source->files[0].was.nbytes -= 1;
  CHECK_THROWS_WITH_AS(source->check(), doctest::Contains("80 bytes at 512"), Error);
  source->files[0].was.nbytes += 1;
  CHECK_NOTHROW(source->check());
}

TEST_CASE("a chunk shorter than its data is refused unless a filter made it so") {
  const Folder folder;
  auto source = made::contiguous(folder, 10, 8);
  source->forms = {{{11, 8}, {}, {}}};  // 88 bytes a chunk, 80 stored
  CHECK_THROWS_AS(source->check(), Error);
  source->forms = {{{11, 8}, Pipeline({{2, 0, {1}}}, 1, 88), {}}};
  CHECK_NOTHROW(source->check());
}

TEST_CASE("a filtered chunk of more than HDF5 allows is refused before any memory is asked for") {
  const Folder folder;
  auto source = made::contiguous(folder, 10, 8);
  source->forms = {{{std::uint64_t{1} << 40, 8}, Pipeline({{2, 0, {1}}}, 1, 8), {}}};
  CHECK_THROWS_WITH_AS(source->check(), doctest::Contains("4 GiB"), Error);
}

TEST_CASE("an unlimited dataset that was never written gives its fill value") {
  auto source = std::make_shared<Source>();
  auto arrays = std::make_shared<made::Arrays>();
  source->name = "/x";
  source->files = {{"/nowhere", 100, 0}};  // never opened
  source->itemsize = 2;
  source->row_shape = {3};
  source->forms = {{{7, 2}, {}, {std::byte{1}, std::byte{2}}}};
  arrays->part_file = {0};
  arrays->part_form = {0};
  arrays->part_first = {0, std::numeric_limits<std::int64_t>::max()};
  arrays->part_chunks = {0, 0};
  made::look(*source, arrays);
  source->check();
  Reader reader(1, 1, 0, Backend::automatic);
  Values out(12);
  const std::vector<std::int64_t> rows{0, std::numeric_limits<std::int64_t>::max() - 1};
  REQUIRE(reader.wait(reader.submit(source, rows, out), 60s));
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == static_cast<std::byte>(1 + i % 2));
}
