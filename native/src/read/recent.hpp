// The chunks of several rows that were decoded last, for the batches to come: neighbours often share them.
//
// They are read again, as planned, but not decoded again: which are here depends on which thread comes first.
// All threads of a Reader use one, for work that no buffer plans. A chunk that a thread decodes is waited for by the
// others that want it, so that it is decoded once. It owns the memory, which is what threads would decode into anyway: 8
// MiB for each, 64 MiB at most; of larger chunks one for each thread and one more while they are used, and as many as the
// memory for work beside batches has room for when they are not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "solar/source.hpp"
#include "workspace.hpp"

namespace solar::read {

class Recent {
 public:
  // A tile of a line of chunks, which begins with that row. A Source that is gone is no other one.
  struct Key {
    std::weak_ptr<const Source> source;
    std::int64_t first = 0;
    std::uint64_t tile = 0;

    friend bool operator<(const Key& a, const Key& b) noexcept {
      if (a.source.owner_before(b.source) || b.source.owner_before(a.source)) return a.source.owner_before(b.source);
      return std::pair(a.first, a.tile) < std::pair(b.first, b.tile);
    }
  };

 private:
  struct Chunk {
    Key key;
    Workspace bytes;
    std::size_t nbytes = 0;
    unsigned users = 1;  // threads that decode it, or copy from it
    bool ready = false;
  };
  using ChunkIterator = std::list<Chunk>::iterator;

 public:
  // A chunk that stays as long as this is held.
  class Held {
   public:
    Held(Recent& recent, ChunkIterator chunk) noexcept : recent_(&recent), chunk_(chunk) {}
    Held(Held&& other) noexcept : recent_(std::exchange(other.recent_, nullptr)), chunk_(other.chunk_) {}
    Held& operator=(Held&&) = delete;
    ~Held() {
      if (recent_ != nullptr) recent_->let_go(chunk_);
    }
    const std::byte* data() const noexcept { return chunk_->bytes.data(); }

   private:
    Recent* recent_;
    ChunkIterator chunk_;
  };

  // `at_rest`: bytes of chunks that nobody uses, at most, where that is more than 64 MiB.
  explicit Recent(unsigned threads, std::uint64_t at_rest = UINT64_MAX) noexcept;

  // Whether the chunk, of so many bytes, was asked for among the last ones that there is room for: then it is worth
  // keeping. Notes that it was.
  bool comes_again(const Key& key, std::size_t nbytes);
  // The chunk, if it is there or a thread decodes it now.
  std::optional<Held> find(const Key& key);
  // The chunk; decoded by this call if it is not there. What `decode` throws passes through, and leaves nothing.
  Held get(const Key& key, std::size_t nbytes, const std::function<void(MutableBytes)>& decode);

 private:
  std::optional<Held> find(const Key& key, std::unique_lock<std::mutex>& lock);
  Workspace room_for(std::size_t nbytes);
  void erase(ChunkIterator chunk);
  void let_go(ChunkIterator chunk) noexcept;

  const std::size_t threads_, most_, at_rest_;
  std::mutex mutex_;
  std::condition_variable decoded_;
  std::list<Chunk> chunks_;  // what was used last at the end
  std::map<Key, ChunkIterator> places_;
  std::list<Key> asked_;  // for, last; a list, for making one takes no memory
  std::size_t nbytes_ = 0;
};

}  // namespace solar::read
