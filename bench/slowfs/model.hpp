// When a slow storage would have answered each piece of a read: the model of a disk-based parallel file system.
//
// - A request takes its turn at a token, of which there are `iops` a second; whoever asks first has the first. Tokens
//   that nobody takes are lost.
// - Then it waits for `latency`, beside as many others as there are.
// - Then its bytes pass the one link of all, `bandwidth` bytes a second, in the order in which they are ready.
//
// What is a request: the kernel cuts a read into pieces of at most 1 MiB, and readers cut what they want into calls, so
// neither says where a disk would seek. A disk and its read-ahead do not seek for a piece that goes on where another
// one ended. So a stretch of a file, however many pieces it comes in, is one request, and takes one token and one
// latency:
// 1. A piece that begins where a stretch ends goes on with it. If it was asked for as soon as the stretch's last piece
//    was answered (within `patience`), its bytes pass the link as if it had been asked for at that very time: one read
//    of both, which the kernel cut, would have.
// 2. A piece that ends where a stretch begins which has a piece under way is the stretch's new beginning: pieces asked
//    for together may come out of order.
// 3. A piece of at least `large` bytes, at most `window` ahead of a stretch that is being read, takes a token, but does
//    not wait unless `debt` tokens are taken already: calls for parts of one stretch are made side by side.
// 4. Any other piece is a request, and begins a stretch.
// With `rpc`, a long stretch is one request for each so many bytes of it, as many as a client asks its servers for at
// once: each takes a token as the stretch grows into it. It waits for no other latency, for it was read ahead.
//
// Where a stretch reaches the beginning of another one that began less than `trust` ago, both were one request all
// along, and a token that both together do not need is given back. A stretch is forgotten when nothing of it was read for `memory`, or
// when `known` others are fresher.
//
// Times are nanoseconds of one monotonic clock, given by the caller: nothing here sleeps or knows what time it is.
// Any thread may call; the owner of the Model keeps it alive while a Piece of it is under way.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <mutex>

namespace slowfs {

using Nanos = std::int64_t;

inline constexpr Nanos patience = 10'000'000, trust = 500'000'000, memory = 1'000'000'000;
inline constexpr std::uint64_t large = 128 << 10, window = 16 << 20;
inline constexpr int debt = 8;
inline constexpr std::size_t known = 64;

struct Costs {
  Nanos latency = 0;
  double bandwidth = 0;  // bytes a second; 0: without a limit
  double iops = 0;       // requests a second; 0: without a limit
  std::uint64_t rpc = 0;  // the most bytes of a request; 0: without a limit
};

struct Counts {
  std::uint64_t requests = 0, pieces = 0, bytes = 0;
};

struct Stretch {
  std::uint64_t file = 0, begin = 0, end = 0;
  Nanos ready = 0;        // when its request's latency is over
  Nanos passed = -1;      // when the last byte of its newest piece passed, or is to pass, the link
  Nanos answered = -1;    // when a piece was last answered: later than that, by what the machine took for it
  Nanos touched = 0;      // when a piece was last asked for or answered
  Nanos begun = 0;        // when it took its token
  std::uint64_t tokens = 1;
  bool absorbed = false;  // it is a part of another one now
  int under_way = 0;
};

// A piece of a read between its arrival and its answer.
struct Piece {
  Stretch* stretch = nullptr;
  std::uint64_t nbytes = 0;
  Nanos ready = 0;  // when its bytes are to be sent
};

class Model {
 public:
  explicit Model(Costs costs)
      : costs_(costs), interval_(costs.iops > 0 ? static_cast<Nanos>(std::llround(1e9 / costs.iops)) : 0) {}

  // A piece is asked for, now. Call send() when it is ready.
  Piece arrive(std::uint64_t file, std::uint64_t offset, std::uint64_t nbytes, Nanos now) {
    std::lock_guard lock(mutex_);
    forget(now);
    counts_.pieces++;
    counts_.bytes += nbytes;
    Piece piece{nullptr, nbytes, now};
    if (Stretch* before = ending_at(file, offset)) {
      piece.stretch = before;
      const bool at_once = before->answered >= 0 && now - before->answered <= patience;
      piece.ready = std::max(before->ready, at_once ? std::min(now, before->passed) : now);
      before->end += nbytes;
      piece.ready = std::max(piece.ready, charge(*before, now));
      join(*before, now);
    } else if (Stretch* after = beginning_at(file, offset + nbytes)) {
      piece.stretch = after;
      piece.ready = std::max(after->ready, now);
      after->begin = offset;
      piece.ready = std::max(piece.ready, charge(*after, now));
    } else {
      piece.stretch = &stretches_.emplace_back(Stretch{file, offset, offset + nbytes});
      const Stretch* near =
          nbytes >= large && token_free_ - now <= debt * interval_ ? ahead_of(file, offset, now) : nullptr;
      const Nanos turn = token(now);
      piece.ready = piece.stretch->ready = near ? std::max(near->ready, now) : turn + costs_.latency;
      piece.stretch->begun = now;
      piece.ready = std::max(piece.ready, charge(*piece.stretch, now));
    }
    piece.stretch->touched = now;
    piece.stretch->under_way++;
    return piece;
  }

  // The piece takes its turn at the link; the time when its last byte has passed it.
  Nanos send(const Piece& piece) {
    std::lock_guard lock(mutex_);
    const double passing = costs_.bandwidth > 0 ? static_cast<double>(piece.nbytes) / costs_.bandwidth * 1e9 : 0;
    link_free_ = std::max(link_free_, piece.ready) + static_cast<Nanos>(std::llround(passing));
    const Nanos passed = link_free_;
    piece.stretch->passed = std::max(piece.stretch->passed, passed);
    return passed;
  }

  // The piece is about to be answered, and no longer under way.
  void done(const Piece& piece, Nanos now) {
    std::lock_guard lock(mutex_);
    piece.stretch->under_way--;
    piece.stretch->touched = piece.stretch->answered = now;
  }

  Counts counts() {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  // A request takes the next token; when.
  Nanos token(Nanos now) {
    counts_.requests++;
    const Nanos turn = std::max(now, token_free_);
    token_free_ = turn + interval_;
    return turn;
  }

  std::uint64_t needed(const Stretch& one) const {
    return costs_.rpc ? std::max<std::uint64_t>(1, (one.end - one.begin + costs_.rpc - 1) / costs_.rpc) : 1;
  }

  // A stretch that has grown takes the tokens that it has not; when it has them.
  Nanos charge(Stretch& one, Nanos now) {
    Nanos turn = 0;
    for (; one.tokens < needed(one); one.tokens++) turn = token(now);
    return turn;
  }

  // The newest of those that a piece there goes on with.
  Stretch* ending_at(std::uint64_t file, std::uint64_t offset) {
    Stretch* found = nullptr;
    for (Stretch& one : stretches_) {
      if (one.absorbed || one.file != file || one.end != offset) continue;
      if (!found || one.touched > found->touched) found = &one;
    }
    return found;
  }

  Stretch* beginning_at(std::uint64_t file, std::uint64_t end) {
    for (Stretch& one : stretches_)
      if (!one.absorbed && one.file == file && one.begin == end && one.under_way > 0) return &one;
    return nullptr;
  }

  Stretch* ahead_of(std::uint64_t file, std::uint64_t offset, Nanos now) {
    for (Stretch& one : stretches_) {
      const bool near = one.file == file && one.end < offset && offset - one.end <= window;
      if (near && !one.absorbed && (one.under_way > 0 || now - one.answered <= patience)) return &one;
    }
    return nullptr;
  }

  // Makes the first stretch a part of the one that begins where it now ends, if there is one.
  void join(Stretch& before, Nanos now) {
    for (Stretch& after : stretches_) {
      if (&after == &before || after.absorbed || after.file != before.file || after.begin != before.end) continue;
      if (now - after.begun > trust) continue;
      after.begin = before.begin;
      after.tokens += before.tokens;
      for (; after.tokens > needed(after); after.tokens--) {
        counts_.requests--;
        token_free_ -= interval_;
      }
      after.begun = before.begun;
      after.ready = std::max(after.ready, before.ready);
      before.absorbed = true;
      return;
    }
  }

  void forget(Nanos now) {
    std::size_t idle = 0;
    stretches_.remove_if([&](const Stretch& one) {
      const bool gone = one.under_way == 0 && (one.absorbed || now - one.touched > memory);
      idle += !gone && one.under_way == 0;
      return gone;
    });
    for (; idle > known; idle--) {
      auto oldest = stretches_.end();
      for (auto one = stretches_.begin(); one != stretches_.end(); ++one)
        if (one->under_way == 0 && (oldest == stretches_.end() || one->touched < oldest->touched)) oldest = one;
      stretches_.erase(oldest);
    }
  }

  const Costs costs_;
  const Nanos interval_;  // between two tokens
  std::mutex mutex_;
  Nanos token_free_ = 0, link_free_ = 0;
  std::list<Stretch> stretches_;  // at a fixed address each, while a piece of it is under way
  Counts counts_;
};

}  // namespace slowfs
