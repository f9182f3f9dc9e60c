// Faults for tests: what the system is said to answer at the one place where files are opened and read.
//
// Nothing is injected until a test asks, by a call from inside the process: no environment, file or option can. Until
// then each call of the system costs one look at a flag more. Any thread may ask, and meet them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace solar::faults {

// `ring`: what io_uring says of a read, once it has come; `write`: to a stage file.
// `look`: stat, by whoever checks that a file is the one that was inspected.
enum class Call { open, read, ring, map, memory, write, look };

struct Fault {
  Call call = Call::read;
  std::string path;                            // of files whose path ends so
  std::uint64_t begin = 0, end = UINT64_MAX;   // reads that touch these bytes; of memory, so many bytes
  std::uint64_t after = 0, times = UINT64_MAX; // so many calls go well first, then so many do not
  int code = 0;                                // errno; 0: it does not fail
  std::uint64_t most = UINT64_MAX;             // bytes that a read brings
  std::chrono::nanoseconds delay{0};           // before the answer; it is over when others are injected
};

// These in place of those before.
void inject(std::vector<Fault> faults);
// How often one was met since then.
std::uint64_t met();

// For the places where calls are made:

struct Effect {
  int code = 0;
  std::uint64_t most = UINT64_MAX;
};

extern std::atomic<bool> injected;
inline bool any() noexcept { return injected.load(std::memory_order_relaxed); }

// Whether a fault waits for such a call, which is not made yet. REQUIRES for this and the next: any(), to be worth it.
bool waits(Call call, const std::string& path, std::uint64_t begin, std::uint64_t end) noexcept;
// Makes the call meet its fault: waits out the delay, and says what else becomes of it.
Effect meet(Call call, const std::string& path, std::uint64_t begin, std::uint64_t end) noexcept;
// What becomes of a result of io_uring: bytes, or minus errno.
std::int32_t result(const std::string& path, std::uint64_t begin, std::uint64_t end, std::int32_t was) noexcept;
// std::bad_alloc where memory of so many bytes is not to be had.
void allocate(std::uint64_t nbytes);

}  // namespace solar::faults
