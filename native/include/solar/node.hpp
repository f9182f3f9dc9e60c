// What the processes of one node share: the memory of a buffer, and how far each of them has come.
//
// It is an anonymous file (memfd): nothing is left of it when the last process is gone, however it goes. Every process
// counts what it has loaded and made in a line of its own; the others wait for that. A process that dies lets go of a
// lock on its line, which the kernel does for it; one that fails says why, and one that leaves says so: each of these
// ends the waiting of all others for it.
// Its own counts a process tells from one thread; any thread may wait. In a process forked from this one it has neither
// memory nor lock: waiting is an Error(read) there, and all else does nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "solar/bytes.hpp"
#include "solar/error.hpp"

namespace solar {

class Node {
 public:
  // The descriptor of the file for so many ranks and bytes, for the one that makes it: the others get it from there.
  static int make(unsigned ranks, std::size_t nbytes);

  // Its own descriptor is opened, so that this one may be closed. `rank` is the place among `names`, which errors call
  // the ranks by. Throws Error(read), or Error(plan) where the file was made for other ranks or bytes.
  Node(int descriptor, unsigned rank, std::vector<std::string> names, std::size_t nbytes);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  unsigned rank() const noexcept;
  unsigned ranks() const noexcept;
  const std::string& name(unsigned rank) const;
  MutableBytes memory() const noexcept;

  // What each rank counts. It only grows.
  enum class Count { joined, begun, loaded, made };
  void tell(Count count, std::uint64_t value) noexcept;
  // Waits until all ranks have told at least `value`; false when `limit` passed first. Throws when one of those that
  // have not has failed (its error), or has left or is gone: Error(read), "rank 3 of 8 is gone: ...".
  bool wait(Count count, std::uint64_t value, std::chrono::nanoseconds limit) const;
  // Those that have not told it.
  std::vector<unsigned> behind(Count count, std::uint64_t value) const;
  // Begins epoch `number`, one after another from 0 on, by a plan of this digest, once all do; false when `limit`
  // passed first: then this is called again. Throws Error(plan) where another has another plan, and as wait() does.
  bool begin(std::uint64_t number, std::uint64_t digest, std::chrono::nanoseconds limit);
  // This rank cannot go on, and why. What it has heard from another is told on as it is.
  void fail(const Error& why) noexcept;
  // This rank looks at the memory no more, and loads nothing more: who waits for that is told.
  void leave() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
