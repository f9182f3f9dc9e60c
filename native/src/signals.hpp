// Threads of ours leave signals to those of the program, but for those that say that a thread itself went wrong: a crash
// in one of ours must reach whoever reports crashes, and SIGBUS of a mapped file the thread that read it.
#pragma once

#include <csignal>

namespace solar {

// Threads that are started while it lives have such signals alone.
class FatalSignalsOnly {
 public:
  FatalSignalsOnly() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int fatal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) ::sigdelset(&all, fatal);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~FatalSignalsOnly() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  FatalSignalsOnly(const FatalSignalsOnly&) = delete;
  FatalSignalsOnly& operator=(const FatalSignalsOnly&) = delete;

 private:
  sigset_t before_;
};

}  // namespace solar
