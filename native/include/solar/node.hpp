// What the processes of one node share: the memory of a buffer, and how far each of them has come.
//
// It is an anonymous file (memfd): nothing is left of it when the last process is gone, however it goes. Every process
// counts what it has loaded and made in a line of its own; the others wait for that. A process that dies lets go of a
// lock on its line, which the kernel does for it; one that fails says why, and one that leaves says so: each of these
// ends the waiting of all others for it.
// Its own counts a process tells from one thread; any thread may wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "solar/bytes.hpp"

namespace solar {

class Node {
 public:
  // The descriptor of the file for so many ranks and bytes, for the one that makes it: the others get it from there.
  static int make(unsigned ranks, std::size_t nbytes);

  // Its own descriptor is opened, so that this one may be closed. Throws Error(read).
  Node(int descriptor, unsigned rank, unsigned ranks, std::size_t nbytes);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  unsigned rank() const noexcept;
  unsigned ranks() const noexcept;
  MutableBytes memory() const noexcept;

  // What each rank counts. It only grows.
  enum class Count { joined, loaded, made };
  void tell(Count count, std::uint64_t value) noexcept;
  // Waits until all ranks have told at least `value`; false when `limit` passed first. Throws Error(read) when one of
  // them has failed or is gone: "rank 3: ...".
  bool wait(Count count, std::uint64_t value, std::chrono::nanoseconds limit) const;
  // This rank cannot go on, and why.
  void fail(const std::string& why) noexcept;
  // This rank looks at the memory no more, and loads nothing more: who waits for that is told.
  void leave() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
