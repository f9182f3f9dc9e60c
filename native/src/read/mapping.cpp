#include "mapping.hpp"

#include <csetjmp>
#include <csignal>
#include <sys/mman.h>
#include <sys/uio.h>

#include <chrono>

#include "solar/faults.hpp"

namespace solar::read {

namespace {

constexpr std::int64_t mapping_check_ns = 100'000'000;
constexpr unsigned looks = 64;

// What the thread is copying, for the handler. initial-exec: reached in a signal handler without allocating.
struct Guard {
  sigjmp_buf back;
  const std::byte* begin;
  const std::byte* end;
};
__attribute__((tls_model("initial-exec"))) thread_local Guard* guard_of_thread = nullptr;

struct sigaction handler_before;

// A SIGBUS that is not ours goes where it went before.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  Guard* const guard = guard_of_thread;
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  if (guard != nullptr && at >= guard->begin && at < guard->end) siglongjmp(guard->back, 1);
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN) {
    handler_before.sa_handler(signal);
  } else {
    ::sigaction(signal, &handler_before, nullptr);  // returning meets the error again, as if we had not been here
  }
}

bool install_handler() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &handler_before) == 0;
  }();
  return installed;
}

// False once others (faulthandler, a worker process of torch) have put theirs in its place.
bool handler_is_ours() {
  struct sigaction now {};
  return ::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus_error;
}

}  // namespace

std::unique_ptr<Mapping> Mapping::of(const File& file) {
  if (file.nbytes() == 0 || file.nbytes() > SIZE_MAX || !install_handler()) return nullptr;
  if (faults::any() && faults::meet(faults::Call::map, file.path(), 0, file.nbytes()).code != 0) return nullptr;
  const auto nbytes = static_cast<std::size_t>(file.nbytes());
  void* const begin = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (begin == MAP_FAILED) return nullptr;
  return std::unique_ptr<Mapping>(new Mapping(static_cast<std::byte*>(begin), nbytes));
}

Mapping::~Mapping() { ::munmap(begin_, nbytes_); }

Bytes Mapping::at(std::uint64_t offset, std::uint64_t nbytes) const noexcept {
  if (offset > nbytes_ || nbytes > nbytes_ - offset) return {};
  return {begin_ + offset, static_cast<std::size_t>(nbytes)};
}

bool Mapping::warm(const File& file) const noexcept {
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::int64_t before = looked_ns_.load(std::memory_order_relaxed);
  if (now - before > mapping_check_ns && looked_ns_.compare_exchange_strong(before, now, std::memory_order_relaxed)) {
    warm_.store(look(file), std::memory_order_relaxed);
  }
  return warm_.load(std::memory_order_relaxed);
}

// Whether a byte each of random places, others each time, can be read without waiting. (mincore and cachestat tell the
// truth only to those who may write the file.)
bool Mapping::look(const File& file) const noexcept {
  if (!handler_is_ours()) return false;
  auto seed = static_cast<std::uint64_t>(looked_ns_.load(std::memory_order_relaxed));
  for (unsigned i = 0; i < looks; ++i) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    std::byte byte{};
    const iovec to{&byte, 1};
    if (file.read_some(&to, 1, (seed >> 16) % nbytes_, RWF_NOWAIT) != 1) return false;
  }
  return true;
}

// noinline: the frame that setjmp returns to twice holds nothing else.
__attribute__((noinline)) bool Mapping::guard(void (*call)(void*), void* work) const noexcept {
  Guard guard;
  guard.begin = begin_;
  guard.end = begin_ + nbytes_;
  if (sigsetjmp(guard.back, 0) != 0) {
    guard_of_thread = nullptr;
    sigset_t blocked;  // by the handler, which did not return
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGBUS);
    ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
    return false;
  }
  guard_of_thread = &guard;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  call(work);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guard_of_thread = nullptr;
  return true;
}

const Mapping* Mappings::warm(std::size_t index, const File& file) {
  if (index >= slots_.size()) return nullptr;
  if (faults::any() && faults::waits(faults::Call::read, file.path(), 0, file.nbytes())) return nullptr;  // which reads
  Slot& slot = slots_[index];
  std::call_once(slot.once, [&] { slot.mapping = Mapping::of(file); });
  return slot.mapping && slot.mapping->warm(file) ? slot.mapping.get() : nullptr;
}

}  // namespace solar::read
