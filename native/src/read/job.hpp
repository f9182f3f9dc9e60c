// One ticket: its Batch, and how far it has come. Shared by the threads that work on it.
#pragma once

#include <atomic>
#include <exception>

#include "batch.hpp"

namespace solar::read {

struct Job {
  Batch batch;
  std::atomic<std::uint32_t> next_unit{0};
  std::atomic<std::uint64_t> pieces_left{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;  // written by the first to fail, read once no piece is left

  // The Reader's, under its mutex:
  enum class State { queued, planning, open, finished } state = State::queued;
  unsigned users = 0;      // threads that hold it
  bool forgotten = false;  // waited for: may be used again once no thread holds it

  void fail(std::exception_ptr why) noexcept {
    if (!failed.exchange(true)) error = std::move(why);
  }
  // True for the thread that finishes the last piece.
  bool finish(std::uint64_t pieces) noexcept { return pieces_left.fetch_sub(pieces) == pieces; }
};

}  // namespace solar::read
