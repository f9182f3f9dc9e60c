#include "solar/converter.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace solar {

namespace {

constexpr std::chrono::seconds longest_conversion(10);  // that one may take to end when all is stopped

}  // namespace

Converter::Converter(Reader& reader, std::shared_ptr<MemoryPool> pool, Batches& from, Conversions conversions)
    : process_(::getpid()), reader_(reader), pool_(std::move(pool)), from_(from), conversions_(std::move(conversions)) {}

Converter::~Converter() {
  if (::getpid() != process_) {  // the threads that convert are in another process
    for (Converted& one : converting_) static_cast<void>(new (std::nothrow) Converted(std::move(one)));
    return;
  }
  for (Converted& one : converting_) {
    if (!end(one)) static_cast<void>(new (std::nothrow) Converted(std::move(one)));
  }
}

void Converter::check_process() const {
  if (::getpid() == process_) return;
  throw Error(Kind::read, "this iterator's batches are converted by process " + std::to_string(process_) +
                              ", from which this one was forked; make a new iterator here");
}

bool Converter::take(std::chrono::nanoseconds limit, Batches::Batch& batch) {
  check_process();
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  while (take_in(std::chrono::nanoseconds(0))) {
  }
  if (converting_.empty() && failed_ == nullptr && !take_in(limit) && failed_ == nullptr) return false;
  if (converting_.empty()) std::rethrow_exception(failed_);
  Converted& oldest = converting_.front();
  if (!wait(oldest, deadline)) return false;
  batch = std::move(oldest.came);
  for (std::size_t field = 0; field < oldest.made.size(); ++field) {
    if (oldest.made[field] != nullptr) batch.fields[field] = std::move(oldest.made[field]);
  }
  converting_.pop_front();
  return true;
}

// Takes a batch, if one comes within this time, and has it converted.
bool Converter::take_in(std::chrono::nanoseconds limit) {
  if (wanted_ == 0 || failed_ != nullptr) return false;
  try {
    Batches::Batch came;
    if (!from_.take(limit, came)) return false;
    --wanted_;
    convert(std::move(came));
    return true;
  } catch (...) {
    failed_ = std::current_exception();
    return false;
  }
}

void Converter::convert(Batches::Batch came) {
  if (came.fields.size() != conversions_.size()) throw std::invalid_argument("a batch with other fields");
  Converted& one = converting_.emplace_back();
  one.came = std::move(came);
  try {
    one.tickets.reserve(conversions_.size());
    for (std::size_t field = 0; field < conversions_.size(); ++field) {
      one.made.emplace_back();
      const auto& conversion = conversions_[field];
      if (conversion == nullptr) continue;
      const MutableBytes samples = one.came.fields[field]->bytes();
      one.made.back() = pool_->take(samples.size() / conversion->sample_nbytes * conversion->made_nbytes);
      one.tickets.push_back(reader_.convert(conversion, samples, one.made.back()->bytes()));
    }
  } catch (...) {
    if (!end(one)) static_cast<void>(new (std::nothrow) Converted(std::move(one)));
    converting_.pop_back();
    throw;
  }
}

// False if it is still being converted at the deadline.
bool Converter::wait(Converted& oldest, std::chrono::steady_clock::time_point deadline) {
  if (oldest.tickets.empty()) return true;
  const auto begin = std::chrono::steady_clock::now();
  bool all = true;
  while (all && !oldest.tickets.empty()) {
    const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
    const Reader::Ticket ticket = oldest.tickets.back();
    try {
      all = reader_.wait(ticket, std::max(left, std::chrono::nanoseconds(0)));
    } catch (...) {  // the ticket is over, and the batch is as it came
      oldest.tickets.pop_back();
      throw;
    }
    if (all) oldest.tickets.pop_back();
  }
  waited_ns_ += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
  return all;
}

// Waits until nothing is read from its memory, or written to it, any more.
bool Converter::end(Converted& one) noexcept {
  for (const Reader::Ticket ticket : one.tickets) reader_.abandon(ticket);
  bool ended = true;
  for (const Reader::Ticket ticket : one.tickets) {
    try {
      ended = reader_.wait(ticket, longest_conversion) && ended;
    } catch (const Error&) {  // that it was abandoned
    } catch (...) {
      ended = false;
    }
  }
  one.tickets.clear();
  return ended;
}

std::pair<std::vector<Batches::Batch>, std::exception_ptr> Converter::stop() {
  std::vector<Batches::Batch> left;
  if (::getpid() != process_) return {};
  left.reserve(converting_.size());
  while (!converting_.empty()) {
    Converted one = std::move(converting_.front());
    converting_.pop_front();
    if (end(one)) {
      left.push_back(std::move(one.came));
    } else {
      static_cast<void>(new (std::nothrow) Converted(std::move(one)));
      return {std::move(left), std::make_exception_ptr(Error(Kind::read, "a batch is converted for ever"))};
    }
  }
  wanted_ = 0;
  return {std::move(left), std::exchange(failed_, nullptr)};
}

}  // namespace solar
