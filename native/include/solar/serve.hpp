// What a service and its jobs share: memory that one writes and the others read. See io/SERVICE.md, whose words these are.
//
// SharedPool: the batches of all, put together by a Run. Ledger: the service's side of one job: where its batches lie, and
// how far it is. Guest: the job's side, which copies a batch and then looks whether it was still there.
//
// The service owns the pool and the ledgers, a job its Guest; each closes its own descriptors and mappings when it
// goes, and the memory goes with the last process that has it mapped. Any thread may take blocks of a SharedPool and
// free them. One thread at a time calls a Ledger or a Guest. Neither side waits for the other without a limit, nor
// trusts what it reads: a job that overwrites its line, or ends, harms its own batches only.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "solar/memory.hpp"

namespace solar {

// A file descriptor of its own.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const noexcept { return number_; }

 private:
  int number_;
};

// Memory mapped from a descriptor.
class Mapped {
 public:
  Mapped(int descriptor, std::size_t nbytes, bool writable);  // Throws Error(read)
  ~Mapped();
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  std::byte* bytes() const noexcept { return bytes_; }
  std::size_t size() const noexcept { return nbytes_; }

 private:
  std::byte* bytes_;
  std::size_t nbytes_;
};

// Batches one after another round a ring, which are given back nearly in their order. take() waits for room.
class SharedPool : public MemoryPool {
 public:
  // Throws Error(read) where the machine gives none.
  static std::shared_ptr<SharedPool> make(std::size_t nbytes);
  virtual int descriptor() const = 0;  // which maps it read-only; the pool's own
  virtual std::size_t size() const = 0;
  virtual void use(std::size_t nbytes) = 0;  // from now on no more of it than its first bytes; at most size()
  virtual std::size_t offset(const void* bytes) const = 0;  // Throws std::invalid_argument for what is not its own
  virtual std::chrono::nanoseconds waited() const = 0;  // how long somebody has waited for room by now; 0: nobody does
  virtual void close() = 0;                             // take() throws from now on
};

class Ledger {
 public:
  // For batches of up to `most` samples with so many fields; `entries` of them are there together.
  Ledger(std::size_t entries, std::size_t fields, std::size_t most);
  ~Ledger();

  int descriptor() const;       // which maps it read-only
  int line_descriptor() const;  // which the job writes to
  // Batch `number` has `places` of a batch of so many samples, whose fields lie at these offsets; no offsets: not held.
  // Numbers ascend, and one may be left out. Throws std::invalid_argument for a batch that has no room.
  void announce(std::uint64_t number, std::span<const std::uint64_t> offsets, std::span<const std::uint32_t> places,
                std::uint64_t samples);
  // From now on what was announced, from this batch on, may be overwritten, or does not come.
  void gone(std::uint64_t number);
  std::uint64_t made() const;  // batches that the job looks at no more
  std::uint64_t waits() const;
  std::chrono::nanoseconds waited() const;  // for its batches, all together, as it says itself

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Guest {
 public:
  enum class Came { here, not_held, gone };

  // The descriptors stay the caller's. A sample has, in each field, these numbers of bytes one after another: all samples'
  // first, then all samples' second. Throws Error(read) for memory that is not what a service makes.
  Guest(int ledger, int line, int pool, int bell, std::vector<std::vector<std::uint64_t>> fields, std::size_t most);
  ~Guest();

  // Whether this batch, or a later one, was announced, or is gone, before `limit` passed.
  bool wait(std::uint64_t number, std::chrono::nanoseconds limit) const;
  // Copies it to `out`, which has for each field the bytes of so many samples. With `each`, a field has so many of them,
  // those of one field after those of another. Throws Error(read) for an entry that is none.
  Came copy(std::uint64_t number, std::size_t samples, std::span<const MutableBytes> out,
            std::span<const std::size_t> each = {}) const;
  void wants(std::uint64_t number) const;     // tells what is waited for
  void has_made(std::uint64_t number) const;  // that this batch and those before are looked at no more
  bool is_gone(std::uint64_t number) const;
  std::uint64_t there() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
