#include "solar/faults.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>

namespace solar::faults {

std::atomic<bool> injected{false};

namespace {

std::mutex mutex;
// Never destroyed: at the end of the process a thread may still wait.
auto& replaced = *new std::condition_variable;
std::vector<Fault> to_inject;
std::uint64_t met_ = 0, injections = 0;

bool concerns(const Fault& fault, Call call, const std::string& path, std::uint64_t begin, std::uint64_t end) noexcept {
  return fault.call == call && fault.times > 0 && begin < fault.end && end > fault.begin && path.ends_with(fault.path);
}

}  // namespace

void inject(std::vector<Fault> faults) {
  const std::lock_guard lock(mutex);
  to_inject = std::move(faults);
  met_ = 0;
  injected = !to_inject.empty();
  ++injections;
  replaced.notify_all();
}

std::uint64_t met() {
  const std::lock_guard lock(mutex);
  return met_;
}

bool waits(Call call, const std::string& path, std::uint64_t begin, std::uint64_t end) noexcept {
  const std::lock_guard lock(mutex);
  return std::any_of(to_inject.begin(), to_inject.end(),
                     [&](const Fault& one) { return concerns(one, call, path, begin, end); });
}

Effect meet(Call call, const std::string& path, std::uint64_t begin, std::uint64_t end) noexcept {
  std::unique_lock lock(mutex);
  for (Fault& one : to_inject) {
    if (!concerns(one, call, path, begin, end)) continue;
    if (one.after > 0) {
      --one.after;
      continue;
    }
    if (one.times != UINT64_MAX) --one.times;
    ++met_;
    const Effect effect{one.code, one.most};
    if (one.delay.count() > 0) {
      replaced.wait_for(lock, one.delay, [before = injections] { return injections != before; });
    }
    return effect;
  }
  return {};
}

std::int32_t result(const std::string& path, std::uint64_t begin, std::uint64_t end, std::int32_t was) noexcept {
  const Effect effect = meet(Call::ring, path, begin, end);
  if (effect.code != 0) return -effect.code;
  return was < 0 || effect.most >= static_cast<std::uint64_t>(was) ? was : static_cast<std::int32_t>(effect.most);
}

void allocate(std::uint64_t nbytes) {
  if (meet(Call::memory, "", nbytes, nbytes + 1).code != 0) throw std::bad_alloc();
}

}  // namespace solar::faults
