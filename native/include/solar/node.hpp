// A Node is what the processes of one node share: the memory of a buffer, and the progress of each process.
//
// It is an anonymous file (memfd), so nothing is left of it once the last process has ended, in whatever way. Each
// process counts what it has loaded and made in a record of its own, and the others wait for these counts. The kernel
// releases the lock on the record of a process that dies. A process that fails stores the reason, and one that leaves
// stores that. Each of these ends the waiting of all other processes for it.
//
// One thread of a process stores its counts; any thread may wait. A process forked from this one has neither the memory
// nor the lock: there, waiting throws Error(read), and all other calls do nothing.
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
  // Makes the file for this many ranks and bytes, and returns its descriptor. One process calls it and passes the
  // descriptor on to the others.
  static int make(unsigned ranks, std::size_t nbytes);

  // Opens a descriptor of its own, so the caller may close this one. Errors name rank i by names[i]. Throws
  // Error(read), or Error(plan) if the file was made for another number of ranks or bytes.
  Node(int descriptor, unsigned rank, std::vector<std::string> names, std::size_t nbytes);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  unsigned rank() const noexcept;
  unsigned ranks() const noexcept;
  const std::string& name(unsigned rank) const;
  MutableBytes memory() const noexcept;

  // What each rank counts. No count ever decreases. `reached` are the steps for which it has begun to wait for its reads:
  // nobody waits for that, so nobody is woken by it.
  enum class Count { joined, begun, reached, loaded, made };
  void tell(Count count, std::uint64_t value) noexcept;
  // Waits until the count of every rank is at least `value`. Returns false if `limit` passes first. If a rank that is
  // behind has failed, throws its error; if it has left or died, throws Error(read), "rank 3 of 8 is gone: ...".
  bool wait(Count count, std::uint64_t value, std::chrono::nanoseconds limit) const;
  // Whether the count of every rank is at least `value`.
  bool all(Count count, std::uint64_t value) const noexcept;
  // Returns the ranks whose count is below `value`.
  std::vector<unsigned> behind(Count count, std::uint64_t value) const;
  // Waits until all ranks begin epoch `number` with a plan of this digest. Epochs are numbered from 0 without gaps.
  // Returns false if `limit` passes first: call it again then. Throws Error(plan) if another rank has another plan, and
  // what wait() throws.
  bool begin(std::uint64_t number, std::uint64_t digest, std::chrono::nanoseconds limit);
  // Tells the others that this rank cannot go on, and why. An error that came from another rank is passed on unchanged.
  void fail(const Error& why) noexcept;
  // Tells the others that this rank no longer uses the memory and loads nothing more.
  void leave() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace solar
