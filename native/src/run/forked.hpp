// A Private is a file descriptor that is closed in every process forked from this one: there it would keep its locks.
//
// It owns the descriptor. One thread opens it, once; any thread may then ask for its number. In a forked process it is
// closed before fork() returns there, and get() is negative. The constructor throws std::bad_alloc where the system
// does not register what must run at a fork.
#pragma once

namespace solar::run {

class Private {
 public:
  Private();
  ~Private();
  Private(const Private&) = delete;
  Private& operator=(const Private&) = delete;

  // Once. False where the system refuses: errno.
  bool open(const char* path, int flags) noexcept;
  int get() const noexcept { return descriptor_; }  // negative: it is not open here

 private:
  static void forget() noexcept;

  int descriptor_ = -1;
};

}  // namespace solar::run
