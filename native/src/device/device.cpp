#include "solar/device.hpp"

#include <algorithm>
#include <atomic>
#include <unistd.h>
#include <vector>

#include "driver.hpp"
#include "solar/memory.hpp"

namespace solar {

namespace {

// The devices of this process: freed memory must not stay pinned in any of them. Never destroyed, as memory comes back at
// any time.
struct Opened {
  std::atomic<pid_t> process = 0;
  std::mutex mutex;
  std::vector<Device*> devices;
};

Opened& opened() {
  static auto* const made = new Opened;
  return *made;
}

}  // namespace

// The device's context is current in this thread as long as it lives.
class Device::Entered {
 public:
  explicit Entered(const Device& device) : driver_(*device.driver_) {
    driver_.check(driver_.context_push(device.context_), "to be used by this thread");
  }
  ~Entered() {
    void* before = nullptr;
    static_cast<void>(driver_.context_pop(&before));
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const Driver& driver_;
};

std::shared_ptr<Device> Device::open(const std::string& library, int number) {
  const auto driver = std::make_shared<const Driver>(library);
  driver->check(driver->init(0), "to begin");
  int handle = 0;
  driver->check(driver->device_get(&handle, number), "to be found");
  void* context = nullptr;
  driver->check(driver->context_retain(&context, handle), "to give its context");
  std::shared_ptr<Device> made(new Device(driver, handle, context));
  const std::lock_guard lock(opened().mutex);
  opened().process = ::getpid();
  opened().devices.push_back(made.get());
  MemoryPool::before_free(&Device::before_free);
  return made;
}

Device::Device(std::shared_ptr<const Driver> driver, int number, void* context)
    : process_(::getpid()), driver_(std::move(driver)), number_(number), context_(context) {}

Device::~Device() {
  if (::getpid() != process_) return;
  {
    const std::lock_guard lock(opened().mutex);
    std::erase(opened().devices, this);
  }
  while (!pinned_.empty()) unpin(pinned_.begin()->first);
  static_cast<void>(driver_->context_release(number_));
}

bool Device::pin(MutableBytes bytes) {
  const std::lock_guard lock(mutex_);
  if (pinned_.contains(bytes.data())) return true;
  if (refused_ || bytes.empty()) return false;
  const Entered entered(*this);
  const Driver::Result result = driver_->host_register(bytes.data(), bytes.size(), Driver::portable);
  const bool by_others = result == Driver::already_pinned;  // who unpin it
  if (result != 0 && !by_others) {
    refused_ = true;  // asking again takes time, and each batch would
    return false;
  }
  try {
    pinned_.emplace(bytes.data(), by_others ? 0 : bytes.size());
  } catch (...) {
    if (!by_others) static_cast<void>(driver_->host_unregister(bytes.data()));
    throw;
  }
  return true;
}

std::uint64_t Device::pinned() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [bytes, nbytes] : pinned_) sum += nbytes;
  return sum;
}

void Device::unpin(const std::byte* bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(bytes);
  if (found == pinned_.end()) return;
  const bool ours = found->second != 0;
  pinned_.erase(found);
  if (!ours) return;
  try {
    const Entered entered(*this);
    static_cast<void>(driver_->host_unregister(const_cast<std::byte*>(bytes)));
  } catch (...) {  // the device is gone, and so is what it had pinned
  }
}

void Device::before_free(const std::byte* bytes) noexcept {
  if (opened().process != ::getpid()) return;  // in a forked process the mutex may be locked for ever
  const std::lock_guard lock(opened().mutex);
  for (Device* const device : opened().devices) {
    if (device->process_ == ::getpid()) device->unpin(bytes);
  }
}

void Device::copy(std::uint64_t address, MutableBytes bytes, Stream stream) {
  const Entered entered(*this);
  driver_->check(driver_->copy_to_device(address, bytes.data(), bytes.size(), stream), "to copy a batch");
}

void Device::follow(Stream stream, const Event& event) {
  const Entered entered(*this);
  driver_->check(driver_->stream_wait(stream, event.event_, 0), "to let a stream wait for a batch");
}

Device::Event::Event(std::shared_ptr<Device> device) : device_(std::move(device)) {
  const Entered entered(*device_);
  device_->driver_->check(device_->driver_->event_create(&event_, Driver::blocking_sync), "to make an event");
}

Device::Event::~Event() {
  if (::getpid() == device_->process_) static_cast<void>(device_->driver_->event_destroy(event_));  // in any context
}

void Device::Event::record(Stream stream) {
  const Entered entered(*device_);
  device_->driver_->check(device_->driver_->event_record(event_, stream), "to record an event");
}

bool Device::Event::done() const {
  const Entered entered(*device_);
  const Driver::Result result = device_->driver_->event_query(event_);
  if (result == Driver::not_ready) return false;
  device_->driver_->check(result, "while it copied a batch");
  return true;
}

void Device::Event::wait() const {
  const Entered entered(*device_);
  device_->driver_->check(device_->driver_->event_synchronize(event_), "while it copied a batch");
}

std::uint64_t Device::Event::ns_since(const Event& begin) const {
  const Entered entered(*device_);
  float milliseconds = 0;
  device_->driver_->check(device_->driver_->event_elapsed(&milliseconds, begin.event_, event_), "to tell the time");
  return static_cast<std::uint64_t>(std::max(0.0F, milliseconds) * 1e6);
}

}  // namespace solar
