// A FatalSignalsOnly blocks all signals in the calling thread but those that say that a thread itself went wrong.
//
// Threads that are started while it lives inherit that: the program's own threads get the signals that are meant for
// the program. A crash in one of ours still reaches whoever reports crashes, and SIGBUS the thread that read a mapped
// file. Create and destroy it in the same thread: the destructor restores that thread's mask.
#pragma once

#include <csignal>

namespace solar {

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
