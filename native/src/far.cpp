#include "solar/far.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

namespace solar {

namespace {

constexpr std::uint64_t block_nbytes = 256 << 10;  // of metadata, fetched at a time
constexpr std::uint64_t first_nbytes = 1 << 20;    // at a file's beginning, where most of it is
constexpr std::uint64_t most_far_kept = 16 << 20;
constexpr std::uint64_t metadata_page_nbytes = 4 << 10;  // of metadata that is expected
constexpr std::uint64_t expected_gap = 128 << 10;    // and that is fetched along
constexpr std::uint64_t longest_expected = 1 << 20;  // fetched at a time
constexpr std::uint64_t most_coming = most_far_kept / 2;
constexpr std::size_t most_expected = 4096;
constexpr std::chrono::milliseconds answer_interval{200};  // between looks whether anything is answered at all
constexpr std::chrono::milliseconds until_looked{5};  // whether another thread has taken in what is waited for
constexpr std::chrono::seconds seen_for{2};  // every answer says of which file it is, so that no wrong byte is used

std::atomic<Far*> the_far{nullptr};

bool same_identity(const Identity& one, const Identity& other) { return one.differs(other).empty(); }

}  // namespace

Far& Far::get() noexcept {
  Far* far = the_far.load(std::memory_order_acquire);
  if (far != nullptr) return *far;
  auto* made = new Far;
  if (the_far.compare_exchange_strong(far, made)) return *made;
  delete made;
  return *far;
}

// What it holds belongs to threads that are in another process now: it is left as it is.
void Far::forget() noexcept { the_far.store(nullptr, std::memory_order_release); }

void Far::Mailbox::put(Result result) {
  const std::lock_guard lock(mutex_);
  results_.push_back(std::move(result));
  has_come_.notify_one();
}

bool Far::Mailbox::take(Result& result, std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  if (limit.count() > 0) has_come_.wait_for(lock, limit, [this] { return !results_.empty(); });
  if (results_.empty()) return false;
  result = std::move(results_.front());
  results_.pop_front();
  return true;
}

std::uint64_t Far::place(Order order, Pending pending) {
  const std::shared_ptr<Mailbox> to = pending.to;
  const std::uint64_t tag = pending.tag;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (fetches_) {
      if (pending_.empty()) answered_ = std::chrono::steady_clock::now();
      order.number = ++last_;
      pending_.emplace(order.number, std::move(pending));
      orders_.push_back(std::move(order));
      number = last_;
    }
  }
  if (number != 0) {
    fetchers_.wake(1);
    return number;
  }
  to->put({tag, -ENOTSUP, "nothing here fetches it: open it by H5Dataset, which needs pip install 'solar[remote]'"});
  return 0;
}

bool Far::silent() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::steady_clock::now() - answered_ > patience_;
}

// The result of the only order of this mailbox. Who fetches gives up each order in time, so that one of those under way
// is answered again and again; if none is, they are stuck, and the order is withdrawn.
Far::Result Far::result_of(std::uint64_t number, Mailbox& box) {
  Result result;
  while (!box.take(result, answer_interval)) {
    if (!silent() || !take_pending(number).to) continue;  // what is being given comes at once
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience_).count();
    return {
        0, -ETIMEDOUT,
        "no answer to any request for " + std::to_string(seconds) +
            " s: the threads that fetch are stuck; look at the network and the server, and begin the program again"};
  }
  return result;
}

std::uint64_t Far::order(const std::string& url, const Identity& was, std::vector<iovec> parts, std::uint64_t offset,
                         std::uint64_t tag, std::shared_ptr<Mailbox> to) {
  Pending pending{false, std::move(parts), 0, tag, std::move(to), nullptr};
  for (const iovec& part : pending.parts) pending.nbytes += part.iov_len;
  return place({0, url, offset, pending.nbytes, was}, std::move(pending));
}

void Far::read(const std::string& url, const Identity& was, std::uint64_t offset, MutableBytes out) {
  if (out.empty()) return;
  const auto box = std::make_shared<Mailbox>();
  const Result result = result_of(order(url, was, {{out.data(), out.size()}}, offset, 0, box), *box);
  if (result.nbytes < 0) {
    const std::string where = std::to_string(out.size()) + " bytes at offset " + std::to_string(offset);
    throw Error(Kind::read, url + ": reading " + where + ": " + result.why, static_cast<int>(-result.nbytes));
  }
}

Identity Far::look(const std::string& url) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = seen_.find(url);
    if (known != seen_.end() && std::chrono::steady_clock::now() - known->second.at < seen_for) {
      return known->second.identity;
    }
  }
  Identity now;
  const auto box = std::make_shared<Mailbox>();
  const Result result = result_of(place({0, url, 0, 0, {}}, {false, {}, 0, 0, box, &now}), *box);
  if (result.nbytes < 0) throw Error(Kind::read, url + ": " + result.why, static_cast<int>(-result.nbytes));
  const std::lock_guard lock(mutex_);
  constexpr std::size_t most_seen = 4096;
  if (seen_.size() >= most_seen) seen_.clear();
  seen_[url] = {now, std::chrono::steady_clock::now()};
  if (now.mtime_ns == 0 && now.inode == 0) {  // nothing tells whether what is kept is of this version
    kept_.remove_if([&](const Block& one) {
      if (one.url == url) kept_nbytes_ -= one.bytes.size();
      return one.url == url;
    });
  }
  return now;
}

// Copies what is kept from `offset` on; false where that is nothing.
bool Far::copy_kept(const std::string& url, const Identity& was, std::uint64_t& offset, MutableBytes& out) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Block& one) {
    return offset >= one.offset && offset - one.offset < one.bytes.size() && one.url == url &&
           same_identity(one.was, was);
  });
  if (found == kept_.end()) return false;
  const std::size_t n = std::min<std::size_t>(out.size(), found->bytes.size() - (offset - found->offset));
  std::memcpy(out.data(), found->bytes.data() + (offset - found->offset), n);
  offset += n;
  out = out.subspan(n);
  kept_.splice(kept_.begin(), kept_, found);
  return true;
}

void Far::expect(const std::string& url, const Identity& was, std::uint64_t offset, std::uint64_t nbytes) {
  const std::lock_guard lock(mutex_);
  if (offset >= was.nbytes) return;
  std::uint64_t end = offset + std::min(std::max(nbytes, metadata_page_nbytes), was.nbytes - offset);
  end = std::min((end + metadata_page_nbytes - 1) / metadata_page_nbytes * metadata_page_nbytes, was.nbytes);
  for (offset = offset / metadata_page_nbytes * metadata_page_nbytes; offset < end && expected_.size() < most_expected;
       offset += longest_expected) {
    expected_.push_back({url, was, offset, std::min(offset + longest_expected, end)});
  }
}

// Orders what is expected, neighbours together, without waiting for it.
void Far::order_expected() {
  struct Ordered {
    std::uint64_t tag;
    Expected what;
    iovec to;  // which stays where it is until it has come
  };
  std::vector<Ordered> ordered;
  {
    const std::lock_guard lock(mutex_);
    if (expected_.empty()) return;
    std::vector<Expected> all = std::exchange(expected_, {});
    std::sort(all.begin(), all.end(), [](const Expected& one, const Expected& other) {
      return std::tie(one.url, one.begin) < std::tie(other.url, other.begin);
    });
    const auto there = [](const Expected& one) {
      return [&one](const Block& block) {
        return block.offset <= one.begin && block.offset + block.bytes.size() >= one.end && block.url == one.url &&
               same_identity(block.was, one.was);
      };
    };
    for (std::size_t i = 0; i < all.size();) {
      Expected one = all[i++];
      for (; i < all.size() && all[i].url == one.url && same_identity(all[i].was, one.was) &&
             all[i].begin <= one.end + expected_gap && all[i].end <= one.begin + longest_expected;
           ++i) {
        one.end = std::max(one.end, all[i].end);
      }
      const std::uint64_t nbytes = one.end - one.begin;
      if (std::any_of(kept_.begin(), kept_.end(), there(one)) ||
          std::any_of(coming_.begin(), coming_.end(), [&](const auto& known) { return there(one)(known.second); })) {
        continue;
      }
      if (nbytes > longest_expected || coming_nbytes_ + nbytes > most_coming) break;  // fetched when it is read
      coming_nbytes_ += nbytes;
      Block block{one.url, one.was, one.begin, std::vector<std::byte>(nbytes)};
      const iovec to{block.bytes.data(), block.bytes.size()};
      coming_.emplace(++last_coming_, std::move(block));
      ordered.push_back({last_coming_, std::move(one), to});
    }
  }
  for (const Ordered& one : ordered) order(one.what.url, one.what.was, {one.to}, one.what.begin, one.tag, coming_box_);
}

// Waits for what is coming from there; false where nothing is. What could not be had is asked for again by who reads it.
bool Far::has_come(const std::string& url, const Identity& was, std::uint64_t offset) {
  for (bool waited = false;; waited = true) {
    Result result;
    if (coming_box_->take(result, waited ? std::chrono::nanoseconds(until_looked) : std::chrono::nanoseconds(0))) {
      const std::lock_guard lock(mutex_);
      const auto found = coming_.find(result.tag);
      Block block = std::move(found->second);
      coming_.erase(found);
      coming_nbytes_ -= block.bytes.size();
      if (result.nbytes >= 0) keep(std::move(block));
      waited = true;
    }
    const std::lock_guard lock(mutex_);
    const bool coming = std::any_of(coming_.begin(), coming_.end(), [&](const auto& one) {
      const Block& block = one.second;
      return offset >= block.offset && offset - block.offset < block.bytes.size() && block.url == url &&
             same_identity(block.was, was);
    });
    if (!coming) return waited;
    if (std::chrono::steady_clock::now() - answered_ > patience_) return false;  // who reads it says so
  }
}

// REQUIRES: the mutex.
void Far::keep(Block block) {
  kept_nbytes_ += block.bytes.size();
  kept_.push_front(std::move(block));
  while (kept_nbytes_ > most_far_kept) {
    kept_nbytes_ -= kept_.back().bytes.size();
    kept_.pop_back();
  }
}

void Far::read_kept(const std::string& url, const Identity& was, std::uint64_t offset, MutableBytes out) {
  order_expected();
  while (!out.empty()) {
    if (copy_kept(url, was, offset, out)) continue;
    if (has_come(url, was, offset) || copy_kept(url, was, offset, out)) continue;  // or another thread took it in
    const std::uint64_t begin = offset / block_nbytes * block_nbytes;
    if (out.size() > most_far_kept / 4 || begin >= was.nbytes) return read(url, was, offset, out);
    // What is asked for, in whole blocks; of a file that is not seen yet, the first ones in one go.
    std::uint64_t end = (offset + out.size() + block_nbytes - 1) / block_nbytes * block_nbytes;
    if (begin < first_nbytes) end = std::max(end, first_nbytes);
    end = std::min(end, was.nbytes);
    Block block{url, was, begin, std::vector<std::byte>(end - begin)};
    read(url, was, begin, block.bytes);
    const std::lock_guard lock(mutex_);
    keep(std::move(block));
  }
}

bool Far::may_take() const noexcept {
  return !orders_.empty() && (under_way_ == 0 || under_way_ + orders_.front().nbytes <= most_under_way_);
}

std::optional<Far::Order> Far::take() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!may_take() && fetches_) fetchers_.sleep(lock);
    if (orders_.empty()) return std::nullopt;
    Order order = std::move(orders_.front());
    orders_.pop_front();
    const auto found = pending_.find(order.number);
    if (found == pending_.end()) continue;  // it was withdrawn
    under_way_ += order.nbytes;
    found->second.taken = true;
    const bool more = may_take() && fetchers_.count() > 0;
    lock.unlock();
    if (more) fetchers_.wake(1);  // who was woken for the next may have found no room for it then
    return order;
  }
}

Far::Pending Far::take_pending(std::uint64_t number) {
  Pending pending;
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(number);
    if (found == pending_.end()) return {};
    pending = std::move(found->second);
    pending_.erase(found);
    if (pending.taken) under_way_ -= pending.nbytes;
    answered_ = std::chrono::steady_clock::now();
    more = may_take();
  }
  if (more) fetchers_.wake(1);
  return pending;
}

void Far::give(std::uint64_t number, Bytes bytes) {
  const Pending pending = take_pending(number);
  if (!pending.to) return;
  if (pending.now != nullptr || bytes.size() != pending.nbytes) {
    return pending.to->put({pending.tag, -EREMOTEIO,
                            "the server sent " + std::to_string(bytes.size()) + " bytes of the " +
                                std::to_string(pending.nbytes) + " that were asked for"});
  }
  for (const iovec& part : pending.parts) {
    if (part.iov_base != nullptr) std::memcpy(part.iov_base, bytes.data(), part.iov_len);
    bytes = bytes.subspan(part.iov_len);
  }
  pending.to->put({pending.tag, static_cast<std::int64_t>(pending.nbytes), ""});
}

void Far::give(std::uint64_t number, const Identity& now) {
  const Pending pending = take_pending(number);
  if (!pending.to || pending.now == nullptr) return;
  *pending.now = now;
  pending.to->put({pending.tag, 0, ""});
}

void Far::refuse(std::uint64_t number, int code, std::string why) {
  const Pending pending = take_pending(number);
  if (!pending.to) return;
  if (code == ESTALE) {  // so that who looks again sees what is there now
    const std::lock_guard lock(mutex_);
    seen_.clear();
  }
  pending.to->put({pending.tag, -std::int64_t{std::max(code, 1)}, std::move(why)});
}

void Far::begin(std::uint64_t most_under_way, std::chrono::nanoseconds patience) noexcept {
  const std::lock_guard lock(mutex_);
  patience_ = patience;
  most_under_way_ = most_under_way;
  fetches_ = true;
}

void Far::end() {
  std::deque<Order> orders;
  {
    const std::lock_guard lock(mutex_);
    fetches_ = false;
    orders.swap(orders_);
  }
  fetchers_.wake(SIZE_MAX);
  for (const Order& order : orders) refuse(order.number, ECANCELED, "the program ends");
}

bool Far::short_of_threads() const {
  const std::lock_guard lock(mutex_);
  return !orders_.empty() || fetchers_.count() == 0;
}

}  // namespace solar
