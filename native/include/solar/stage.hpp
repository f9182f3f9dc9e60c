// A Stage keeps bytes of a remote file on a local disk. They are written when they are first read, and later read from
// there.
//
// The stage file (io/FORMAT.md; solar.io.reading.stage makes it) has the bytes at their own offsets, and behind them an
// entry for each block: 0, or the checksum of its bytes. Entries are written after the bytes. A process compares an
// entry with the bytes when it first reads the block, so it does not trust what a crash, a full disk or a bad disk left
// incomplete. Several threads and processes may write the same block, because all write the same bytes.
//
// Any thread may use a Stage, and so may a forked process, because there is no lock. An error of the local disk throws
// nothing: the stage is then no longer written or read, and stopped() or lost() says why.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "solar/file.hpp"

namespace solar {

class Stage {
 public:
  static constexpr std::uint64_t block_nbytes = 4 << 10;

  // Blocks of the far file.
  struct Blocks {
    std::uint64_t first = 0, end = 0;

    // Those that these bytes touch.
    static Blocks of(std::uint64_t offset, std::uint64_t nbytes) noexcept {
      return {offset / block_nbytes, (offset + nbytes + block_nbytes - 1) / block_nbytes};
    }
    std::uint64_t count() const noexcept { return end - first; }
  };

  // A stage file that is there: `token` (of 16 bytes) tells it from another of this name. `nbytes` of the far file.
  Stage(std::string path, std::string token, std::uint64_t nbytes);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t nbytes() const noexcept { return nbytes_; }
  // Why it is no longer read, or written to (errno); 0: it is.
  int lost() const noexcept { return lost_.load(std::memory_order_relaxed); }
  int stopped() const noexcept { return stopped_.load(std::memory_order_relaxed); }
  // Blocks whose bytes were not those that had been written; they are no longer there.
  std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

  // Its file, for reading; null where it cannot be had.
  std::shared_ptr<const File> open() noexcept;
  // It is not read again: what it says cannot be had.
  void lose(int code) noexcept;

  // Whether all these were found to be what was written, in this process.
  bool checked(Blocks of) const noexcept;
  // Their entries, in `out`; false where they cannot be read.
  bool entries(const File& file, Blocks of, std::vector<std::uint32_t>& out) noexcept;
  // Whether these blocks are what was written. `bytes` and `entries` begin with block `from`. One that is not is dropped.
  bool check(Blocks of, std::uint64_t from, Bytes bytes, std::span<const std::uint32_t> entries) noexcept;
  // Writes these, whose bytes begin with block `from`; the bytes that were written. The last twentieth of the disk is not
  // touched.
  std::uint64_t put(std::span<const Blocks> runs, std::uint64_t from, Bytes bytes) noexcept;

 private:
  std::uint64_t entry_offset(std::uint64_t block) const noexcept { return entries_begin_ + block * sizeof(std::uint32_t); }
  void drop(std::uint64_t block) noexcept;

  std::string path_, token_;
  std::uint64_t nbytes_, entries_begin_, token_begin_, file_nbytes_;
  std::vector<std::atomic<std::uint64_t>> checked_;  // a bit for each block
  std::atomic<int> lost_{0}, stopped_{0};
  std::atomic<std::uint64_t> dropped_{0};
};

// The stage of a file of a Source, and which of its blocks may be written for this Source: those before `limit`.
struct Staged {
  std::shared_ptr<Stage> stage;  // null: there is none
  std::uint64_t limit = 0;
};

}  // namespace solar
