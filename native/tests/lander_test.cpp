#include "solar/lander.hpp"

#include <atomic>
#include <deque>
#include <thread>

#include "null_driver.hpp"
#include "reads.hpp"
#include "solar/read_ahead.hpp"

using namespace reads;

namespace {

using solar::Batches;
using solar::Device;
using solar::Lander;
using solar::ReadAhead;

std::shared_ptr<Device> null_device() {
  null_reset();
  return Device::open(NULL_DRIVER, 0);
}

// Batches of numbers, so many bytes each: byte i of batch n is n + i. Each is ready a while after the one before.
class Numbers final : public Batches {
 public:
  Numbers(std::shared_ptr<MemoryPool> pool, std::size_t nbytes, std::size_t bad = SIZE_MAX)
      : pool_(std::move(pool)), nbytes_(nbytes), bad_(bad) {}

  bool take(std::chrono::nanoseconds limit, Batch& batch) override {
    if (late) {
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(limit, 1ms));
      return false;
    }
    const std::size_t number = next_++;
    if (number == bad_) {
      failed = true;
      throw Error(solar::Kind::codec, "batch " + std::to_string(number) + " is damaged");
    }
    batch.fields.clear();
    batch.fields.push_back(pool_->take(nbytes_));
    const MutableBytes bytes = batch.fields[0]->bytes();
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number + i);
    batch.counts = {};
    batch.counts.rows = number;
    return true;
  }

  std::atomic<bool> late = false, failed = false;

 private:
  std::shared_ptr<MemoryPool> pool_;
  std::size_t nbytes_, bad_, next_ = 0;
};

struct Consumer {
  Consumer() : side(null_stream()), stream(null_stream()) {}
  ~Consumer() {
    null_synchronize(side);
    null_stream_end(side);
    null_synchronize(stream);
    null_stream_end(stream);
  }
  Device::Stream beside() const { return reinterpret_cast<Device::Stream>(side); }
  Device::Stream own() const { return reinterpret_cast<Device::Stream>(stream); }
  void wait() const { null_synchronize(stream); }

  void* side;
  void* stream;
};

struct Place {
  explicit Place(std::size_t nbytes) : bytes(nbytes, std::byte{0xA5}) {}
  Lander::Target target() { return {{reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size()}}; }
  bool holds(std::size_t number) const {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != static_cast<std::byte>(number + i)) return false;
    }
    return true;
  }
  std::vector<std::byte> bytes;
};

constexpr std::size_t few = 3 << 10;

}  // namespace

TEST_CASE("batches land in their order, and the consumer's stream waits for each") {
  const auto device = null_device();
  const auto pool = solar::MemoryPool::make(1 << 20);
  const Consumer consumer;
  for (const long delay : {0L, 300'000L}) {
    null_delay(delay);
    Numbers numbers(pool, few);
    std::deque<Place> places;
    Lander lander(device, consumer.beside(), pool, numbers, 2);
    for (std::size_t n = 0; n < 2; ++n) lander.begin(places.emplace_back(few).target());
    for (std::size_t n = 0; n < 40; ++n) {
      solar::ReaderStats counts;
      REQUIRE(lander.take(60s, consumer.own(), counts));
      CHECK(counts.rows == n);
      lander.begin(places.emplace_back(few).target());
      if (n % 7 == 0) std::this_thread::sleep_for(1ms);
      consumer.wait();
      REQUIRE(places[n].holds(n));
    }
    CHECK(lander.stop().first.size() <= 2);
    CHECK((delay == 0 || lander.copied_ns() >= 35UL * 300'000UL));
  }
}

TEST_CASE("at most so many copies are under way, and memory goes back only when it was copied from") {
  const auto device = null_device();
  const auto pool = solar::MemoryPool::make(1 << 20);
  const Consumer consumer;
  null_delay(20'000'000);
  Numbers numbers(pool, few);
  std::deque<Place> places;
  Lander lander(device, consumer.beside(), pool, numbers, 2);
  for (std::size_t n = 0; n < 6; ++n) lander.begin(places.emplace_back(few).target());
  solar::ReaderStats counts;
  for (std::size_t n = 0; n < 6; ++n) {
    REQUIRE(lander.take(60s, consumer.own(), counts));
    CHECK(pool->in_use() <= 2 * 4096);
  }
  CHECK(lander.stop().first.empty());
  consumer.wait();
  for (std::size_t n = 0; n < 6; ++n) CHECK(places[n].holds(n));
  CHECK(pool->in_use() == 0);
}

TEST_CASE("a batch that failed is told in its turn, and those before it come") {
  const auto device = null_device();
  const auto pool = solar::MemoryPool::make(1 << 20);
  const Consumer consumer;
  Numbers numbers(pool, few, 3);
  std::deque<Place> places;
  Lander lander(device, consumer.beside(), pool, numbers, 2);
  for (std::size_t n = 0; n < 5; ++n) lander.begin(places.emplace_back(few).target());
  solar::ReaderStats counts;
  for (std::size_t n = 0; n < 3; ++n) REQUIRE(lander.take(60s, consumer.own(), counts));
  CHECK_THROWS_WITH_AS(lander.take(60s, consumer.own(), counts), "batch 3 is damaged", Error);
  CHECK_THROWS_WITH_AS(lander.take(60s, consumer.own(), counts), "batch 3 is damaged", Error);
  const auto [left, error] = lander.stop();
  CHECK(left.empty());
  CHECK(error != nullptr);
}

TEST_CASE("what was copied and not handed out comes back, and the failure behind it") {
  const auto device = null_device();
  const auto pool = solar::MemoryPool::make(1 << 20);
  const Consumer consumer;
  null_delay(1'000'000);
  Numbers numbers(pool, few, 2);
  std::deque<Place> places;
  Lander lander(device, consumer.beside(), pool, numbers, 2);
  for (std::size_t n = 0; n < 3; ++n) lander.begin(places.emplace_back(few).target());
  while (!numbers.failed) std::this_thread::sleep_for(1ms);  // the Lander keeps what it took, and that it failed
  auto [left, error] = lander.stop();
  REQUIRE(left.size() == 2);
  CHECK(error != nullptr);
  for (std::size_t n = 0; n < 2; ++n) CHECK(left[n].fields[0]->bytes()[5] == static_cast<std::byte>(n + 5));
  solar::ReaderStats counts;
  CHECK_THROWS_AS(lander.take(1s, consumer.own(), counts), Error);
}

TEST_CASE("whatever function of the driver fails, it ends in an error, and no batch is lost") {
  for (const char* function : {"cuMemcpyHtoDAsync", "cuEventRecord", "cuEventCreate", "cuStreamWaitEvent", "cuEventQuery",
                               "cuEventSynchronize", "cuEventElapsedTime", "cuCtxPushCurrent"}) {
    for (const long after : {0L, 1L, 5L, 9L}) {
      CAPTURE(function);
      CAPTURE(after);
      const auto device = null_device();
      const auto pool = solar::MemoryPool::make(1 << 20);
      const Consumer consumer;
      Numbers numbers(pool, few);
      std::deque<Place> places;
      std::size_t handed = 0;
      null_delay(100'000);
      Lander lander(device, consumer.beside(), pool, numbers, 2);
      null_fail(function, after, 709);
      const long before = null_calls(function);
      std::string said;
      try {
        for (; handed < 30; ++handed) {
          lander.begin(places.emplace_back(few).target());
          solar::ReaderStats counts;
          if (!lander.take(60s, consumer.own(), counts)) break;
        }
      } catch (const Error& error) {
        said = error.what();
      }
      const bool told = said.find("CUDA_ERROR_CONTEXT_IS_DESTROYED") != std::string::npos;
      CHECK((told || null_calls(function) <= before + after));
      const auto left = lander.stop().first;
      for (std::size_t n = 0; n < left.size(); ++n) {
        CHECK(left[n].fields[0]->bytes()[0] == static_cast<std::byte>(handed + n));
      }
      null_fail("", 0, 0);
      null_synchronize(consumer.side);
    }
  }
}

TEST_CASE("memory stays pinned until its block is freed, and a second pin costs nothing") {
  const auto device = null_device();
  auto pool = solar::MemoryPool::make(1 << 20);
  {
    const auto block = pool->take(100 << 10);
    CHECK(device->pin(pool->whole(block->bytes().data())));
    CHECK(device->pin(pool->whole(block->bytes().data())));
    CHECK(null_calls("cuMemHostRegister") == 1);
  }
  CHECK(device->pinned() == pool->idle());
  pool.reset();
  CHECK(device->pinned() == 0);
  CHECK(null_pinned() == 0);
}

TEST_CASE("where memory cannot be pinned it is asked for once, and batches come from there all the same") {
  const auto device = null_device();
  const auto pool = solar::MemoryPool::make(1 << 20);
  null_fail("cuMemHostRegister", 0, 2);
  const Consumer consumer;
  Numbers numbers(pool, few);
  std::deque<Place> places;
  Lander lander(device, consumer.beside(), pool, numbers, 2);
  for (std::size_t n = 0; n < 9; ++n) {
    lander.begin(places.emplace_back(few).target());
    solar::ReaderStats counts;
    REQUIRE(lander.take(60s, consumer.own(), counts));
  }
  consumer.wait();
  CHECK(places[8].holds(8));
  CHECK(null_calls("cuMemHostRegister") == 1);
  CHECK(null_copies(true) == 0);
}

TEST_CASE("a batch that does not come is waited for no longer than the limit, and stopping needs none") {
  const auto device = null_device();
  const auto pool = solar::MemoryPool::make(1 << 20);
  const Consumer consumer;
  Numbers numbers(pool, few);
  numbers.late = true;
  Place place(few);
  Lander lander(device, consumer.beside(), pool, numbers, 2);
  lander.begin(place.target());
  solar::ReaderStats counts;
  CHECK(!lander.take(0s, consumer.own(), counts));
  CHECK(!lander.take(30ms, consumer.own(), counts));
  numbers.late = false;
  CHECK(lander.take(60s, consumer.own(), counts));
  numbers.late = true;
  lander.begin(place.target());
  CHECK(lander.stop().first.empty());
}

TEST_CASE("places of another size than a batch are refused") {
  const auto device = null_device();
  const auto pool = solar::MemoryPool::make(1 << 20);
  const Consumer consumer;
  Numbers numbers(pool, few);
  Place place(few - 1);
  Lander lander(device, consumer.beside(), pool, numbers, 2);
  lander.begin(place.target());
  solar::ReaderStats counts;
  CHECK_THROWS_AS(lander.take(60s, consumer.own(), counts), std::invalid_argument);
  CHECK(null_copies(false) == 0);
}

TEST_CASE("batches that are read ahead come as they were asked for, and those that are left can be waited for") {
  const Folder folder;
  made::Random random(7);
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const made::Sample sample = made::random_source(folder, seed);
    sample.source->check();
    const auto rows = static_cast<std::size_t>(sample.source->part_first.back());
    if (rows == 0 || sample.source->row_nbytes() == 0) continue;
    Reader reader(2, 8, 64, Backend::pread);
    ReadAhead ahead(reader, solar::MemoryPool::make(1 << 20), {sample.source, sample.source});
    std::vector<std::vector<std::int64_t>> asked;
    for (std::size_t n = 0; n < 6; ++n) {
      std::vector<std::int64_t> batch(random.between(1, 5));
      for (auto& row : batch) row = static_cast<std::int64_t>(random.upto(rows - 1));
      ahead.begin(batch);
      asked.push_back(batch);
    }
    for (std::size_t n = 0; n < 4; ++n) {
      Batches::Batch batch;
      REQUIRE(ahead.take(60s, batch));
      REQUIRE(batch.fields.size() == 2);
      CHECK(batch.counts.rows == 2 * asked[n].size());
      for (const auto& field : batch.fields) {
        const Values found(field->bytes().begin(), field->bytes().end());
        CHECK(found == wanted_rows(sample.rows, sample.source->row_nbytes(), asked[n]));
      }
    }
    std::vector<std::int64_t> none{static_cast<std::int64_t>(rows)};
    CHECK_THROWS_AS(ahead.begin(none), std::out_of_range);
    if (seed % 2 == 0) continue;  // it abandons the others
    auto left = ahead.leave();
    REQUIRE(left.size() == 2);
    for (std::size_t n = 0; n < 2; ++n) {
      for (std::size_t field = 0; field < 2; ++field) {
        if (left[n].tickets[field] != 0) REQUIRE(reader.wait(left[n].tickets[field], 60s));
        const MutableBytes bytes = left[n].fields[field]->bytes();
        CHECK(Values(bytes.begin(), bytes.end()) == wanted_rows(sample.rows, sample.source->row_nbytes(), asked[4 + n]));
      }
    }
    Batches::Batch batch;
    CHECK(!ahead.take(0s, batch));
  }
}

TEST_CASE("batches are left while a thread takes one: it then has that batch, or none") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  Reader reader(2, 8, 64, Backend::pread);
  for (int round = 0; round < 200; ++round) {
    ReadAhead ahead(reader, solar::MemoryPool::make(1 << 20), {source, source});
    for (std::int64_t row = 0; row < 4; ++row) ahead.begin(std::vector<std::int64_t>{row});
    std::size_t came = 0;
    std::jthread taking([&] {
      Batches::Batch batch;
      while (ahead.take(1ms, batch)) ++came;
    });
    if (round % 2 == 0) std::this_thread::yield();
    auto left = ahead.leave();
    taking.join();
    REQUIRE(came + left.size() == 4);
    for (auto& one : left) {
      for (const auto ticket : one.tickets) {
        if (ticket != 0) REQUIRE(reader.wait(ticket, 60s));
      }
    }
  }
}
