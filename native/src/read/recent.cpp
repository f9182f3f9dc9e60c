#include "recent.hpp"

#include <algorithm>

namespace solar::read {

namespace {

constexpr std::size_t each_nbytes = 8 << 20;  // for each thread
constexpr std::size_t most_nbytes = 64 << 20;
constexpr std::size_t most_asked = 64;

}  // namespace

Recent::Recent(unsigned threads, std::uint64_t at_rest) noexcept
    : threads_(threads), most_(std::min(threads * each_nbytes, most_nbytes)), at_rest_(std::max(most_, at_rest)) {}

bool Recent::comes_again(const Key& key, std::size_t nbytes) {
  const std::lock_guard lock(mutex_);
  const auto same = [&key](const Key& one) { return !(one < key) && !(key < one); };
  if (std::any_of(asked_.begin(), asked_.end(), same)) return true;
  asked_.push_back(key);
  if (asked_.size() > std::clamp<std::size_t>(most_ / std::max<std::size_t>(1, nbytes), 1, most_asked))
    asked_.pop_front();
  return false;
}

std::optional<Recent::Held> Recent::find(const Key& key) {
  std::unique_lock lock(mutex_);
  return find(key, lock);
}

std::optional<Recent::Held> Recent::find(const Key& key, std::unique_lock<std::mutex>& lock) {
  for (;;) {
    const auto found = places_.find(key);
    if (found == places_.end()) return std::nullopt;
    const ChunkIterator chunk = found->second;
    if (chunk->ready) {
      ++chunk->users;
      chunks_.splice(chunks_.end(), chunks_, chunk);
      return std::optional<Held>(std::in_place, *this, chunk);
    }
    decoded_.wait(lock);  // for a thread that waits for none
  }
}

Recent::Held Recent::get(const Key& key, std::size_t nbytes, const std::function<void(MutableBytes)>& decode) {
  std::unique_lock lock(mutex_);
  if (auto found = find(key, lock)) return std::move(*found);
  Workspace bytes = room_for(nbytes);
  const MutableBytes raw = bytes.fit(nbytes);
  const ChunkIterator chunk = chunks_.insert(chunks_.end(), Chunk{key, std::move(bytes), nbytes});
  try {
    places_.emplace(key, chunk);
  } catch (...) {
    chunks_.erase(chunk);
    throw;
  }
  nbytes_ += nbytes;
  lock.unlock();
  try {
    decode(raw);
  } catch (...) {
    lock.lock();
    erase(chunk);
    decoded_.notify_all();
    throw;
  }
  lock.lock();
  chunk->ready = true;
  decoded_.notify_all();
  return Held(*this, chunk);
}

// Lets go of what was used longest ago, as far as there must be room. Gives memory that was left, if it is not too large.
Workspace Recent::room_for(std::size_t nbytes) {
  Workspace left;
  for (ChunkIterator chunk = chunks_.begin(); chunk != chunks_.end();) {
    if (nbytes_ + nbytes <= most_ || chunks_.size() <= threads_) break;
    const ChunkIterator next = std::next(chunk);
    if (chunk->users == 0) {
      left = std::move(chunk->bytes);
      erase(chunk);
    }
    chunk = next;
  }
  left.keep(nbytes);
  return left;
}

void Recent::erase(ChunkIterator chunk) {
  places_.erase(chunk->key);
  nbytes_ -= chunk->nbytes;
  chunks_.erase(chunk);
}

void Recent::let_go(ChunkIterator chunk) noexcept {
  std::list<Chunk> dropped;  // freed outside the lock
  const std::lock_guard lock(mutex_);
  --chunk->users;
  for (ChunkIterator oldest = chunks_.begin(); nbytes_ > at_rest_ && std::next(oldest) != chunks_.end();) {
    const ChunkIterator next = std::next(oldest);
    if (oldest->users == 0) {
      places_.erase(oldest->key);
      nbytes_ -= oldest->nbytes;
      dropped.splice(dropped.end(), chunks_, oldest);
    }
    oldest = next;
  }
}

}  // namespace solar::read
