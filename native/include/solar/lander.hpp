// A Lander copies batches to a device, each as soon as it is made, while a loop works on those before.
//
// It has one thread, which goes from batch to batch:
//   1. It waits for a Target: begin() says where on the device the next batch goes.
//   2. It waits until fewer than `most` copies are under way, so that no more memory of the host waits for the device.
//   3. It takes the batch from what makes it, pins its memory once, begins its copies, and records an event.
//   4. When the event has come, the batch's memory goes back to its pool.
// take() hands a batch out without waiting for its copy: it makes the caller's stream wait for the event, on the device.
//
// One thread calls begin(), take() and stop(). Whoever makes the batches must outlive the Lander.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "solar/batches.hpp"
#include "solar/device.hpp"

namespace solar {

class Lander {
 public:
  // Where the fields of a batch go: addresses of the device, and bytes.
  using Target = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

  // `pool` is what the batches' memory is of, and `stream` the one in which it copies.
  Lander(std::shared_ptr<Device> device, Device::Stream stream, std::shared_ptr<BatchPool> pool, Batches& from,
         std::size_t most);
  ~Lander();  // stop(); what is copied from stays as it is if the copy does not end within seconds
  Lander(const Lander&) = delete;
  Lander& operator=(const Lander&) = delete;

  // Says where the batch after the one of the last call goes, which stays the caller's.
  void begin(Target target);
  // Hands out the next batch: what `stream` does from now on comes after its copy. Returns false if its copy was not begun
  // within `limit`. If the batch failed, throws its error, and if the device did, what that said; no batch comes after it.
  bool take(std::chrono::nanoseconds limit, Device::Stream stream, ReaderStats& counts);
  // Whether the next batch waits for copies before it, and not for its bytes.
  bool copying() const;
  // Of the copies that are over: how long they took by the device's clock.
  std::uint64_t copied_ns() const;
  // Ends the thread. Returns the batches that it has taken and not handed out, when nothing is copied from them any more;
  // and the error of the one after these, if that failed.
  std::pair<std::vector<Batches::Batch>, std::exception_ptr> stop();

 private:
  struct Copy {
    std::unique_ptr<Device::Event> begin, end;
    Batches::Batch batch;
    std::exception_ptr error;   // of making the batch, which is not there then
    std::exception_ptr device;  // of copying it
    bool copied = false, handed = false;
  };
  void land() noexcept;
  bool wait_for_target(Target& target);
  void wait_for_copies(std::size_t most);
  void let_go();
  bool take_batch(Batches::Batch& batch);
  void start(const Target& target, Copy& copy);
  bool ended(const Copy& copy, std::chrono::steady_clock::time_point deadline) const;
  std::unique_ptr<Device::Event> event();

  const int process_;
  const std::shared_ptr<Device> device_;
  const Device::Stream stream_;
  const std::shared_ptr<BatchPool> pool_;
  Batches& from_;
  const std::size_t most_;
  std::vector<std::unique_ptr<Device::Event>> spare_;  // the thread's own
  mutable std::mutex mutex_;                           // of what follows
  std::condition_variable changed_;
  std::deque<Target> targets_;
  std::deque<Copy> copies_;      // in their order: handed out, and then those that are not
  std::size_t handed_ = 0;       // of these, handed out
  std::uint64_t copied_ns_ = 0;
  bool copying_ = false, stopping_ = false, failed_ = false;
  std::optional<std::jthread> thread_;
};

}  // namespace solar
