// The memory that a service and a job share, as io/SERVICE.md draws it: of a ledger, and of a line.
//
// The structures lie in memory that two processes map. The service writes a ledger, and the job reads it; the job
// writes its line, and the service reads that. Neither trusts the other: the layout is fixed here, every number that is
// read from the other side is checked before it is used, and seals keep the memory from shrinking below a reader.
// Atomics are the only synchronisation, so no process can leave a lock behind. fail_with() throws Error(read) with
// errno's words.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <string>

#include "solar/error.hpp"
#include "solar/serve.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace solar::serve {

inline constexpr std::size_t page = 4096;
inline constexpr std::uint64_t ledger_magic = 0x33474c52414c4f53;  // SOLARLG3
inline constexpr std::uint64_t line_magic = 0x334e4c52414c4f53;    // SOLARLN3
inline constexpr std::uint64_t never = ~std::uint64_t{0};
inline constexpr std::uint64_t most_entries = 64;

struct LedgerHead {
  std::uint64_t magic, entries, entry_nbytes;
  std::atomic<std::uint64_t> there, gone;
  std::atomic<std::uint32_t> rings;
};
static_assert(offsetof(LedgerHead, there) == 24 && offsetof(LedgerHead, rings) == 40);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

struct JobCounters {
  std::uint64_t magic;
  std::atomic<std::uint64_t> made, waits, waited;
};

// Before the offsets of an entry's fields, after which come its places.
struct Entry {
  std::uint64_t number;
  std::uint64_t samples;  // of the batch that they lie in; 0: not held
  std::uint32_t count;    // of its own
  std::uint32_t spare;
};

inline std::size_t entry_nbytes(std::size_t fields, std::size_t most) {
  return (sizeof(Entry) + 8 * fields + 4 * most + 7) / 8 * 8;
}

[[noreturn]] inline void fail_with(const char* what) {
  const int code = errno;
  throw Error(Kind::read, std::string("the memory that a service shares: ") + what + ": " + std::strerror(code), code);
}

// What keeps memory as long as it is, and with `read_only` unwritten by all but who has it mapped by then.
inline int seals_of(bool read_only) {
  return F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | (read_only ? F_SEAL_FUTURE_WRITE : 0);
}

// Memory of that kind.
Descriptor sealed(const char* name, std::size_t nbytes, std::unique_ptr<Mapped>& mapped, bool read_only);
// The same memory, opened anew for reading alone.
Descriptor for_reading(const Descriptor& of);
void wake(std::atomic<std::uint32_t>& rung);

}  // namespace solar::serve
