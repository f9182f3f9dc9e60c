// Vectors of a tile's integers, whose memory a thread keeps for its next ones: to ask for memory, and to clear it,
// takes as long as to choose a predictor. What a vector is not given is not cleared.
//
// Each thread has pieces of its own, `most` at most, and frees them when it ends. A vector may be destroyed by another
// thread than made it: that one then keeps its memory. std::bad_alloc where the system gives none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "asan.hpp"
#include "codec/format.hpp"

namespace solar::codec {

// Pieces that are large enough for a tile's integers, and no longer used.
class KeptPieces {
 public:
  static constexpr std::size_t nbytes = most_values * sizeof(std::int32_t), least = nbytes / 8, most = 24;

  KeptPieces() = default;
  KeptPieces(const KeptPieces&) = delete;
  KeptPieces& operator=(const KeptPieces&) = delete;
  ~KeptPieces() {
    while (count_ > 0) ::operator delete(pieces_[--count_]);
  }
  void* take() { return count_ > 0 ? pieces_[--count_] : ::operator new(nbytes); }
  void put(void* piece) noexcept {
    if (count_ < most)
      pieces_[count_++] = piece;
    else
      ::operator delete(piece);
  }
  static KeptPieces& mine() {
    static thread_local KeptPieces pieces;
    return pieces;
  }

 private:
  void* pieces_[most];
  std::size_t count_ = 0;
};

template <class T>
struct KeptMemory {
  using value_type = T;

  KeptMemory() = default;
  template <class Other>
  KeptMemory(const KeptMemory<Other>&) {}

  // Neither small ones nor what is larger than a tile; none where a sanitizer looks at what is behind each.
  static constexpr bool is_kept(std::size_t count) {
    const std::size_t nbytes = count * sizeof(T);
    return SOLAR_ASAN == 0 && nbytes >= KeptPieces::least && nbytes <= KeptPieces::nbytes;
  }
  T* allocate(std::size_t count) {
    return static_cast<T*>(is_kept(count) ? KeptPieces::mine().take() : ::operator new(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    if (is_kept(count))
      KeptPieces::mine().put(memory);
    else
      ::operator delete(memory);
  }
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Given>
  void construct(U* at, Given&&... given) {
    ::new (static_cast<void*>(at)) U(static_cast<Given&&>(given)...);
  }
  bool operator==(const KeptMemory&) const { return true; }
};

using Ints = std::vector<std::int32_t, KeptMemory<std::int32_t>>;

}  // namespace solar::codec
