// Converter, and Reader::convert, which does its work.
#include "solar/converter.hpp"

#include <numeric>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "reads.hpp"

using namespace reads;

namespace {

using solar::Batches;
using solar::Conversion;
using solar::Converter;

constexpr std::size_t values = 3000;  // of a sample: a slice has some tens of them

// Batches of two fields: `samples` samples of int16, all the batch's number; and 8 bytes. As many are there as are `ready`.
class Counted final : public Batches {
 public:
  explicit Counted(std::size_t samples, std::size_t bad = SIZE_MAX) : samples_(samples), bad_(bad) {}

  bool take(std::chrono::nanoseconds limit, Batch& batch) override {
    if (next_ == ready) {
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(limit, 1ms));
      return false;
    }
    const std::size_t number = next_++;
    if (number == bad_) throw Error(solar::Kind::codec, "batch " + std::to_string(number) + " is damaged");
    batch = {};
    batch.fields.push_back(pool->take(samples_ * values * 2));
    auto* const items = reinterpret_cast<std::int16_t*>(batch.fields[0]->bytes().data());
    std::fill_n(items, samples_ * values, static_cast<std::int16_t>(number));
    batch.fields.push_back(pool->take(8));
    batch.counts.rows = number;
    return true;
  }

  std::shared_ptr<MemoryPool> pool = MemoryPool::make(1 << 20);
  std::size_t ready = SIZE_MAX;

 private:
  std::size_t samples_, bad_, next_ = 0;
};

Converter::Conversions to_float() {
  auto made = std::make_shared<Conversion>();
  made->sample_nbytes = values * 2, made->made_nbytes = values * 4;
  made->sample = {nullptr, {values}, {2}};
  made->from = solar::Number::int16, made->to = solar::Number::float32;
  return {made, nullptr};
}

bool holds(Batches::Batch& batch, std::size_t samples, float value) {
  const auto* const items = reinterpret_cast<const float*>(batch.fields.at(0)->bytes().data());
  return batch.fields[0]->bytes().size() == samples * values * 4 && batch.fields.at(1)->bytes().size() == 8 &&
         std::all_of(items, items + samples * values, [=](float one) { return one == value; });
}

bool takes(Converter& converter, Batches::Batch& batch) { return converter.take(10s, batch); }

}  // namespace

TEST_CASE("batches are converted in their order by any number of threads") {
  for (const unsigned threads : {1U, 2U, 32U}) {
    Reader reader(threads, 8, 0, Backend::pread);
    Counted from(100);
    Converter converter(reader, from.pool, from, to_float());
    for (std::size_t i = 0; i < 3; ++i) converter.begin();
    for (std::size_t number = 0; number < 40; ++number) {
      Batches::Batch batch;
      REQUIRE(takes(converter, batch));
      REQUIRE(holds(batch, 100, static_cast<float>(number)));
      REQUIRE(batch.counts.rows == number);
      converter.begin();
    }
  }
}

TEST_CASE("only what was begun is taken, and what has not come is waited for no longer than asked") {
  Reader reader(2, 8, 0, Backend::pread);
  Counted from(2);
  Converter converter(reader, from.pool, from, to_float());
  Batches::Batch batch;
  CHECK(!converter.take(1ms, batch));
  from.ready = 0;
  converter.begin();
  CHECK(!converter.take(2ms, batch));
  from.ready = SIZE_MAX;
  CHECK(takes(converter, batch));
  CHECK(!converter.take(1ms, batch));
}

TEST_CASE("a batch that failed is raised after those before it, and what was not handed out comes back as it came") {
  Reader reader(2, 8, 0, Backend::pread);
  Counted from(7, 3);
  Converter converter(reader, from.pool, from, to_float());
  for (std::size_t i = 0; i < 5; ++i) converter.begin();
  Batches::Batch batch;
  REQUIRE(takes(converter, batch));
  auto [left, error] = converter.stop();
  REQUIRE(left.size() == 2);
  CHECK(left[0].fields[0]->bytes().size() == 7 * values * 2);
  CHECK(reinterpret_cast<const std::int16_t*>(left[1].fields[0]->bytes().data())[5] == 2);
  REQUIRE(error != nullptr);
  CHECK_THROWS_AS(std::rethrow_exception(error), Error);

  Counted again(7, 1);
  Converter other(reader, again.pool, again, to_float());
  other.begin(), other.begin();
  REQUIRE(takes(other, batch));
  CHECK_THROWS_WITH_AS(takes(other, batch), "batch 1 is damaged", Error);
  CHECK_THROWS_AS(takes(other, batch), Error);
}

TEST_CASE("memory comes back when a Converter goes in the midst of its work") {
  Reader reader(2, 8, 0, Backend::pread);
  Counted from(200);
  {
    Converter converter(reader, from.pool, from, to_float());
    for (std::size_t i = 0; i < 4; ++i) converter.begin();
    Batches::Batch batch;
    REQUIRE(takes(converter, batch));
  }
  CHECK(from.pool->in_use() == 0);
}

TEST_CASE("a Reader converts nothing where sizes differ, and nothing of nothing") {
  Reader reader(2, 8, 0, Backend::pread);
  const auto conversion = to_float()[0];
  std::vector<std::byte> samples(2 * values * 2), out(2 * values * 4);
  CHECK_THROWS_AS(reader.convert(conversion, samples, MutableBytes(out).first(8)), std::invalid_argument);
  CHECK_THROWS_AS(reader.convert(conversion, Bytes(samples).first(3), out), std::invalid_argument);
  CHECK(reader.wait(reader.convert(conversion, Bytes(samples).first(0), MutableBytes(out).first(0)), 10s));
  const Reader::Ticket ticket = reader.convert(conversion, samples, out);
  CHECK(reader.waiting_for(ticket).empty());
  CHECK(reader.wait(ticket, 10s));
  const auto [done, all] = reader.progress(ticket);
  CHECK(done == all);
  CHECK(reader.stats().rows == 0);
}

TEST_CASE("in a forked process a Converter says whose batches these are") {
  Reader reader(1, 8, 0, Backend::pread);
  Counted from(2);
  auto converter = std::make_unique<Converter>(reader, from.pool, from, to_float());
  converter->begin();
  Batches::Batch batch;
  REQUIRE(takes(*converter, batch));
  converter->begin();
  const pid_t child = ::fork();
  if (child == 0) {
    bool said = false;
    try {
      Batches::Batch own;
      converter->take(1s, own);
    } catch (const Error&) {
      said = true;
    }
    converter.reset();
    ::_exit(said ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
