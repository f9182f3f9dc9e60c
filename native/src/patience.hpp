// A Patience says how often a call of the system that failed is made again, and waits in between.
//
// Storage that others share comes back: a server that restarts, a handle that went stale, descriptors that others
// close. Make one for each call that is to be tried; it belongs to one thread. again() sleeps, for 630 ms in all, and
// never throws. Errors that say the same each time are not tried again.
#pragma once

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

namespace solar {

class Patience {
 public:
  // Whether the call that failed so is to be made again: then the pause before that is over.
  bool again(int code) noexcept {
    if (code == EINTR) return true;  // nothing was wrong
    if (!passes(code) || tries_ == most) return false;
    std::this_thread::sleep_for(first * (1 << tries_++));
    return true;
  }
  // What is said of it beside the error: " (tried 7 times)".
  std::string said() const { return tries_ == 0 ? "" : " (tried " + std::to_string(tries_ + 1) + " times)"; }

 private:
  // What may be over soon: a server that comes back, a file handle that was its, descriptors or memory that others give
  // back. All else says the same the next time.
  static bool passes(int code) noexcept {
    switch (code) {
      case EAGAIN:
      case EIO:
      case ESTALE:
      case ETIMEDOUT:
      case ENOMEM:
      case EMFILE:
      case ENFILE: return true;
      default: return false;
    }
  }

  static constexpr unsigned most = 6;
  static constexpr std::chrono::milliseconds first{10};  // then 20, 40, ...: 630 ms in all

  unsigned tries_ = 0;
};

}  // namespace solar
