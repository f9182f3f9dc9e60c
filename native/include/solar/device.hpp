// A Device is what copying to a CUDA device needs of its driver: memory that it copies from, events, and streams of others.
//
// The driver's library is opened when a Device is made, not before: nothing of CUDA is there when solar is built. Tests open
// a library of their own. Any thread may call any function. A forked process must not use the device; it may destroy it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "solar/bytes.hpp"

namespace solar {

struct Driver;  // the functions of the library

class Device {
 public:
  using Stream = std::uintptr_t;  // the driver's own handle; 0 is the default stream

  // A point in the work of a stream, with the time when the device came to it.
  class Event {
   public:
    explicit Event(std::shared_ptr<Device> device);
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    void record(Stream stream);
    bool done() const;
    void wait() const;                                  // until done; the thread sleeps
    std::uint64_t ns_since(const Event& begin) const;   // REQUIRES: both are done

   private:
    friend class Device;
    std::shared_ptr<Device> device_;
    void* event_ = nullptr;
  };

  // Uses the device of this number, in the context that others of the process use, too. Throws Error(read) if the library
  // or the device is not there.
  static std::shared_ptr<Device> open(const std::string& library, int number);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // The device copies from these bytes by itself, until the memory is freed. `bytes` is a whole block of memory that
  // before_free() hears of. Returns false where the system gives no such memory: copies from there are slower, and correct.
  bool pin(MutableBytes bytes);
  std::uint64_t pinned() const;  // bytes
  // Begins to copy `bytes` to this address of the device.
  void copy(std::uint64_t address, MutableBytes bytes, Stream stream);
  // What is begun in the stream from now on begins after the event.
  void follow(Stream stream, const Event& event);

 private:
  class Entered;
  Device(std::shared_ptr<const Driver> driver, int number, void* context);
  void unpin(const std::byte* bytes) noexcept;
  static void before_free(const std::byte* bytes) noexcept;

  const int process_;
  const std::shared_ptr<const Driver> driver_;
  const int number_;
  void* const context_;
  mutable std::mutex mutex_;  // of what follows
  std::map<const std::byte*, std::size_t> pinned_;
  bool refused_ = false;
};

}  // namespace solar
