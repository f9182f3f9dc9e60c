// A device that is not there, with the functions of CUDA's driver that solar uses: host memory stands for the device's.
//
// A stream does its work in a thread of its own, in order: copies after a delay, events, waits for events of other streams.
// Copies read from memory as late as they may, so whoever gives memory back too early is seen. It counts calls, and any of
// them can be made to fail. The C++ tests link it, and open it as a driver; tests/null_device.py builds it for the Python
// tests.

#include "null_driver.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace null_driver {

using Clock = std::chrono::steady_clock;

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, reached = 0;  // how often
  Clock::time_point when;
};

struct Stream {
  Stream() : thread([this] { work(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
      changed.notify_all();
    }
    thread.join();
  }

  void begin(std::function<void()> task) {
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    changed.notify_all();
  }

  void synchronize() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return tasks.empty() && !busy; });
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || !tasks.empty(); });
      if (tasks.empty()) return;
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      busy = true;
      lock.unlock();
      task();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool busy = false, ending = false;
  std::thread thread;
};

struct Fault {
  std::string function;
  long after = 0;
  int code = 0;
};

struct State {
  std::mutex mutex;
  std::map<std::string, long> calls;
  Fault fault;
  std::map<const std::byte*, std::size_t> pinned;
  std::atomic<long> delay_ns{0};
  std::atomic<long> copied{0}, from_pinned{0};
  int context = 0;
};

inline State& state() {
  static auto* const made = new State;
  return *made;
}

// What a call of this function comes to: 0, or what a test has asked for.
inline int called(const char* function) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  ++all.calls[function];
  if (all.fault.function != function || all.fault.after-- > 0) return 0;
  all.fault.after = 0;
  return all.fault.code;
}

inline bool is_pinned(const void* bytes, std::size_t nbytes) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto* const begin = static_cast<const std::byte*>(bytes);
  const auto after = all.pinned.upper_bound(begin);
  if (after == all.pinned.begin()) return false;
  const auto& [first, length] = *std::prev(after);
  return begin + nbytes <= first + length;
}

}  // namespace null_driver

#define CALLED(function) \
  if (const int result = null_driver::called(function); result != 0) return result

extern "C" {

int cuInit(unsigned) {
  CALLED("cuInit");
  return 0;
}
int cuDeviceGet(int* device, int number) {
  CALLED("cuDeviceGet");
  *device = number;
  return number == 0 ? 0 : 101;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  CALLED("cuDevicePrimaryCtxRetain");
  *context = &null_driver::state().context;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  CALLED("cuDevicePrimaryCtxRelease");
  return 0;
}
int cuCtxPushCurrent_v2(void*) {
  CALLED("cuCtxPushCurrent");
  return 0;
}
int cuCtxPopCurrent_v2(void** before) {
  CALLED("cuCtxPopCurrent");
  *before = nullptr;
  return 0;
}
int cuMemHostRegister_v2(void* bytes, std::size_t nbytes, unsigned) {
  CALLED("cuMemHostRegister");
  null_driver::State& all = null_driver::state();
  const std::lock_guard lock(all.mutex);
  return all.pinned.emplace(static_cast<const std::byte*>(bytes), nbytes).second ? 0 : 712;
}
int cuMemHostUnregister(void* bytes) {
  CALLED("cuMemHostUnregister");
  null_driver::State& all = null_driver::state();
  const std::lock_guard lock(all.mutex);
  return all.pinned.erase(static_cast<const std::byte*>(bytes)) == 1 ? 0 : 713;
}
int cuMemcpyHtoDAsync_v2(std::uint64_t address, const void* from, std::size_t nbytes, std::uintptr_t stream) {
  CALLED("cuMemcpyHtoDAsync");
  null_driver::State& all = null_driver::state();
  ++all.copied;
  if (null_driver::is_pinned(from, nbytes)) ++all.from_pinned;
  reinterpret_cast<null_driver::Stream*>(stream)->begin([address, from, nbytes, &all] {
    std::this_thread::sleep_for(std::chrono::nanoseconds(all.delay_ns.load()));
    std::memcpy(reinterpret_cast<void*>(address), from, nbytes);
  });
  return 0;
}
int cuEventCreate(void** event, unsigned) {
  CALLED("cuEventCreate");
  *event = new std::shared_ptr<null_driver::Event>(std::make_shared<null_driver::Event>());
  return 0;
}
int cuEventDestroy_v2(void* event) {
  CALLED("cuEventDestroy");
  delete static_cast<std::shared_ptr<null_driver::Event>*>(event);
  return 0;
}
int cuEventRecord(void* event, std::uintptr_t stream) {
  CALLED("cuEventRecord");
  const auto one = *static_cast<std::shared_ptr<null_driver::Event>*>(event);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(one->mutex);
    number = ++one->recorded;
  }
  reinterpret_cast<null_driver::Stream*>(stream)->begin([one, number] {
    const std::lock_guard lock(one->mutex);
    one->reached = number;
    one->when = null_driver::Clock::now();
    one->changed.notify_all();
  });
  return 0;
}
int cuEventQuery(void* event) {
  CALLED("cuEventQuery");
  const auto one = *static_cast<std::shared_ptr<null_driver::Event>*>(event);
  const std::lock_guard lock(one->mutex);
  return one->reached == one->recorded ? 0 : 600;
}
int cuEventSynchronize(void* event) {
  CALLED("cuEventSynchronize");
  const auto one = *static_cast<std::shared_ptr<null_driver::Event>*>(event);
  std::unique_lock lock(one->mutex);
  one->changed.wait(lock, [&one] { return one->reached == one->recorded; });
  return 0;
}
int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  CALLED("cuEventElapsedTime");
  const auto one = *static_cast<std::shared_ptr<null_driver::Event>*>(begin);
  const auto other = *static_cast<std::shared_ptr<null_driver::Event>*>(end);
  const std::scoped_lock lock(one->mutex, other->mutex);
  *milliseconds = std::chrono::duration<float, std::milli>(other->when - one->when).count();
  return 0;
}
int cuStreamWaitEvent(std::uintptr_t stream, void* event, unsigned) {
  CALLED("cuStreamWaitEvent");
  const auto one = *static_cast<std::shared_ptr<null_driver::Event>*>(event);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(one->mutex);
    number = one->recorded;
  }
  reinterpret_cast<null_driver::Stream*>(stream)->begin([one, number] {
    std::unique_lock lock(one->mutex);
    one->changed.wait(lock, [&] { return one->reached >= number; });
  });
  return 0;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 709 ? "CUDA_ERROR_CONTEXT_IS_DESTROYED" : nullptr;
  return *name == nullptr ? 1 : 0;
}
int cuGetErrorString(int, const char** text) {
  *text = nullptr;
  return 1;
}

// For tests:

void* null_stream() { return new null_driver::Stream; }
void null_stream_end(void* stream) { delete static_cast<null_driver::Stream*>(stream); }
void null_synchronize(void* stream) { static_cast<null_driver::Stream*>(stream)->synchronize(); }
void null_delay(long ns) { null_driver::state().delay_ns = ns; }
long null_copies(bool pinned) {
  return pinned ? null_driver::state().from_pinned.load() : null_driver::state().copied.load();
}
long null_calls(const char* function) {
  const std::lock_guard lock(null_driver::state().mutex);
  const auto found = null_driver::state().calls.find(function);
  return found == null_driver::state().calls.end() ? 0 : found->second;
}
std::size_t null_pinned() {
  const std::lock_guard lock(null_driver::state().mutex);
  std::size_t sum = 0;
  for (const auto& [bytes, nbytes] : null_driver::state().pinned) sum += nbytes;
  return sum;
}
void null_fail(const char* function, long after, int code) {
  const std::lock_guard lock(null_driver::state().mutex);
  null_driver::state().fault = {function, after, code};
}
void null_reset() {
  const std::lock_guard lock(null_driver::state().mutex);
  null_driver::state().calls.clear();
  null_driver::state().fault = {};
  null_driver::state().delay_ns = 0;
  null_driver::state().copied = null_driver::state().from_pinned = 0;
}
}
