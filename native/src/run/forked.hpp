// A file that is closed in every process forked from this one: there it would keep its locks.
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
