#include "forked.hpp"

#include <fcntl.h>
#include <mutex>
#include <new>
#include <pthread.h>
#include <unistd.h>
#include <vector>

namespace solar::run {

namespace {

// Never destroyed: processes are forked until the very end. Nobody forks while it is locked.
struct All {
  std::mutex mutex;
  std::vector<Private*> held;
};

All& all() {
  static All* const made = new All;
  return *made;
}

}  // namespace

void Private::forget() noexcept {
  for (Private* const one : all().held) {
    if (one->descriptor_ >= 0) ::close(one->descriptor_);
    one->descriptor_ = -1;
  }
}

Private::Private() {
  static const int refused = ::pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                                              [] {
                                                forget();
                                                all().mutex.unlock();
                                              });
  if (refused != 0) throw std::bad_alloc();
  const std::lock_guard lock(all().mutex);
  all().held.push_back(this);
}

Private::~Private() {
  const std::lock_guard lock(all().mutex);
  std::erase(all().held, this);
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool Private::open(const char* path, int flags) noexcept {
  const std::lock_guard lock(all().mutex);
  descriptor_ = ::open(path, flags);
  return descriptor_ >= 0;
}

}  // namespace solar::run
