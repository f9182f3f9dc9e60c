// Sleepers are threads that have nothing to do until somebody has work for them.
//
// Whoever owns the mutex owns the Sleepers, too: the mutex must outlive it, and no thread may be in sleep() when it
// goes. Any thread may call any function, with or without the mutex as each says. Only sleep() and reserve() can throw,
// where there is no memory; after reserve() for all threads, sleep() cannot.
//
// Each waits for a condition of its own. Where several threads wait for one, pthread_cond_signal of glibc 2.25 to 2.40 may
// wake none (bug 25847 of glibc). With hundreds of threads that showed: all slept, and the work stayed where it was.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

namespace solar {

class Sleepers {
 public:
  explicit Sleepers(std::mutex& mutex) : mutex_(mutex) {}
  Sleepers(const Sleepers&) = delete;
  Sleepers& operator=(const Sleepers&) = delete;

  // Makes memory for so many threads: up to that many, sleep() asks for none. REQUIRES: the mutex, or no thread yet.
  void reserve(std::size_t threads) {
    spare_.reserve(threads);
    asleep_.reserve(threads);
    while (beds_.size() < threads) spare_.push_back(&beds_.emplace_back());
  }
  // Sleeps until this thread is woken. REQUIRES: `lock` holds the mutex.
  void sleep(std::unique_lock<std::mutex>& lock) {
    if (spare_.empty()) reserve(beds_.size() + 1);
    Bed* const bed = spare_.back();
    spare_.pop_back();
    bed->woken = false;
    asleep_.push_back(bed);
    bed->changed.wait(lock, [bed] { return bed->woken; });
    spare_.push_back(bed);
  }
  // Wakes so many threads, those that have slept for the shortest time; all, if there are fewer. REQUIRES: the caller does
  // not hold the mutex, for who wakes wants it.
  void wake(std::size_t count) {
    while (count > 0) {
      std::array<Bed*, 16> some{};
      std::size_t found = 0;
      {
        const std::lock_guard lock(mutex_);
        for (; found < some.size() && found < count && !asleep_.empty(); ++found) {
          some[found] = asleep_.back();
          asleep_.pop_back();
          some[found]->woken = true;
        }
      }
      for (std::size_t i = 0; i < found; ++i) some[i]->changed.notify_one();
      if (found < some.size()) return;
      count -= found;
    }
  }
  // How many sleep. REQUIRES: the mutex.
  std::size_t count() const noexcept { return asleep_.size(); }

 private:
  struct Bed {
    std::condition_variable changed;
    bool woken = false;
  };

  std::mutex& mutex_;
  std::deque<Bed> beds_;  // as many as ever slept at once; a late notice to one that is used again does no harm
  std::vector<Bed*> spare_, asleep_;
};

}  // namespace solar
