#include "solar/lander.hpp"

#include <string>
#include <unistd.h>

#include "signals.hpp"
#include "solar/error.hpp"

namespace solar {

namespace {

constexpr std::chrono::milliseconds glance(20);    // between two looks at whether it is to stop, while no batch comes
constexpr std::chrono::seconds longest_copy(10);   // that a copy may take to end when all is stopped

}  // namespace

Lander::Lander(std::shared_ptr<Device> device, Device::Stream stream, std::shared_ptr<BatchPool> pool, Batches& from,
               std::size_t most)
    : process_(::getpid()), device_(std::move(device)), stream_(stream), pool_(std::move(pool)), from_(from),
      most_(std::max<std::size_t>(1, most)) {
  const FatalSignalsOnly signals;
  thread_.emplace([this] { land(); });
}

Lander::~Lander() {
  if (::getpid() != process_) {  // the thread is in another process
    if (thread_) static_cast<void>(new std::jthread(std::move(*thread_)));
    return;
  }
  try {
    static_cast<void>(stop());
  } catch (...) {  // no memory for the list of what is left: it is let go with the copies
  }
}

void Lander::begin(Target target) {
  const std::lock_guard lock(mutex_);
  targets_.push_back(std::move(target));
  changed_.notify_all();
}

bool Lander::take(std::chrono::nanoseconds limit, Device::Stream stream, ReaderStats& counts) {
  if (::getpid() != process_) {
    throw Error(Kind::read, "this iterator's batches are brought to the device by process " + std::to_string(process_) +
                                ", from which this one was forked; make a new iterator here");
  }
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [this] { return handed_ < copies_.size() || failed_; })) return false;
  if (handed_ == copies_.size()) throw Error(Kind::read, "no batch comes after one that failed");
  Copy& copy = copies_[handed_];
  if (copy.error != nullptr) std::rethrow_exception(copy.error);
  if (copy.device != nullptr) std::rethrow_exception(copy.device);
  device_->follow(stream, *copy.end);
  counts = copy.batch.counts;
  copy.handed = true;
  ++handed_;
  return true;
}

bool Lander::copying() const {
  if (::getpid() != process_) return false;  // where the mutex may be locked for ever
  const std::lock_guard lock(mutex_);
  return copying_;
}

std::uint64_t Lander::copied_ns() const {
  if (::getpid() != process_) return 0;
  const std::lock_guard lock(mutex_);
  return copied_ns_;
}

std::pair<std::vector<Batches::Batch>, std::exception_ptr> Lander::stop() {
  std::vector<Batches::Batch> left;
  std::exception_ptr error;
  if (::getpid() != process_) return {};
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.reset();
  const std::lock_guard lock(mutex_);  // of one thread now
  const auto deadline = std::chrono::steady_clock::now() + longest_copy;
  for (Copy& copy : copies_) {
    if (copy.error != nullptr) {
      error = copy.error;
    } else if (!ended(copy, deadline)) {  // it may be copied from at any time: the memory is never used again
      static_cast<void>(new (std::nothrow) Batches::Batch(std::move(copy.batch)));
    } else if (!copy.handed && !copy.batch.fields.empty()) {
      left.push_back(std::move(copy.batch));
    }
  }
  copies_.clear();
  targets_.clear();
  handed_ = 0;
  failed_ = true;
  return {std::move(left), error};
}

// Whether nothing is copied from the batch any more, or can be.
bool Lander::ended(const Copy& copy, std::chrono::steady_clock::time_point deadline) const {
  if (copy.copied || copy.end == nullptr) return true;
  try {
    while (!copy.end->done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  } catch (const Error&) {  // the device is gone, and copies no more
  }
  return true;
}

void Lander::land() noexcept {
  for (bool goes_on = true; goes_on;) {
    Target target;
    if (!wait_for_target(target)) return;
    Copy copy;
    try {
      wait_for_copies(most_ - 1);
      try {
        if (!take_batch(copy.batch)) return;
      } catch (...) {
        copy.error = std::current_exception();
      }
      if (copy.error == nullptr) start(target, copy);
    } catch (...) {
      copy.device = std::current_exception();
    }
    goes_on = copy.error == nullptr && copy.device == nullptr;
    const std::lock_guard lock(mutex_);
    failed_ = !goes_on;
    try {
      copies_.push_back(std::move(copy));
    } catch (const std::bad_alloc&) {  // what it has begun to copy from must stay
      static_cast<void>(new (std::nothrow) Copy(std::move(copy)));
      failed_ = true;
      goes_on = false;
    }
    changed_.notify_all();
  }
}

// Returns false when it is to stop. While nothing is asked for, memory of copies that are over goes back.
bool Lander::wait_for_target(Target& target) {
  std::unique_lock lock(mutex_);
  const auto there = [this] { return stopping_ || !targets_.empty(); };
  while (!there()) {
    const bool under_way = !copies_.empty();
    if (!under_way) {
      changed_.wait(lock, there);
    } else if (!changed_.wait_for(lock, glance, there)) {
      lock.unlock();
      let_go();
      lock.lock();
    }
  }
  if (stopping_) return false;
  target = std::move(targets_.front());
  targets_.pop_front();
  return true;
}

// Waits until at most so many copies are under way.
void Lander::wait_for_copies(std::size_t most) {
  let_go();
  for (;;) {
    const Device::Event* oldest = nullptr;
    {
      const std::lock_guard lock(mutex_);
      std::size_t under_way = 0;
      for (const Copy& copy : copies_) {
        if (copy.copied) continue;
        if (under_way++ == 0) oldest = copy.end.get();
      }
      copying_ = under_way > most;
      if (!copying_) return;
    }
    oldest->wait();  // nobody else takes a copy away
    let_go();
  }
}

// Lets go of the memory of copies that are over, and of copies that were handed out, too.
void Lander::let_go() {
  for (;;) {
    std::vector<Batches::Batch> done;  // goes back to its pool outside the lock
    Copy* oldest = nullptr;
    {
      const std::lock_guard lock(mutex_);
      while (!copies_.empty() && copies_.front().copied && copies_.front().handed) {
        done.push_back(std::move(copies_.front().batch));
        spare_.push_back(std::move(copies_.front().begin));
        spare_.push_back(std::move(copies_.front().end));
        copies_.pop_front();
        --handed_;
      }
      for (Copy& copy : copies_) {
        if (copy.copied) continue;
        oldest = &copy;
        break;
      }
    }
    if (oldest == nullptr || !oldest->end->done()) return;
    const std::uint64_t ns = oldest->end->ns_since(*oldest->begin);
    const std::lock_guard lock(mutex_);
    copied_ns_ += ns;
    oldest->copied = true;
  }
}

bool Lander::take_batch(Batches::Batch& batch) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return false;
    }
    if (from_.take(glance, batch)) return true;
  }
}

void Lander::start(const Target& target, Copy& copy) {
  auto& fields = copy.batch.fields;
  if (fields.size() != target.size()) {
    throw std::invalid_argument(std::to_string(target.size()) + " places for " + std::to_string(fields.size()) + " fields");
  }
  copy.begin = event();
  copy.end = event();
  copy.begin->record(stream_);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const MutableBytes bytes = fields[i]->bytes();
    const auto [address, nbytes] = target[i];
    if (bytes.size() != nbytes) {
      throw std::invalid_argument("a place of " + std::to_string(nbytes) + " bytes for a field of " +
                                  std::to_string(bytes.size()));
    }
    if (bytes.empty()) continue;
    const MutableBytes whole = pool_->whole(bytes.data());
    static_cast<void>(device_->pin(whole.empty() ? bytes : whole));
    device_->copy(address, bytes, stream_);
  }
  copy.end->record(stream_);
}

std::unique_ptr<Device::Event> Lander::event() {
  if (spare_.empty()) return std::make_unique<Device::Event>(device_);
  auto made = std::move(spare_.back());
  spare_.pop_back();
  return made;
}

}  // namespace solar
