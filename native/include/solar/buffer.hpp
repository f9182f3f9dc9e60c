// A Buffer is the memory of a run, in pages of one size. Each key that it holds has as many pages as it needs, at any
// place.
//
// The owner decides what a key is: a row, or a line of chunks kept as they are stored. One thread takes and drops keys.
// Any thread may read and write the pages of a key while the key is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solar/bytes.hpp"

namespace solar {

class Buffer {
 public:
  // Uses `memory` if it is given, which must outlive the buffer. Otherwise it reserves address space, which takes
  // memory once pages are written. Throws std::bad_alloc.
  Buffer(std::size_t keys, std::size_t pages, std::size_t page_nbytes, std::byte* memory = nullptr);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool holds(std::size_t key) const noexcept { return first_[key] != none; }
  // Holds the key in this many free pages. Throws Error(plan) if there are too few, or if the key is held already.
  void take(std::size_t key, std::size_t pages);
  // Frees the pages of the key. REQUIRES: the key is held.
  void drop(std::size_t key) noexcept;

  // Returns a page of a key. REQUIRES: the key is held, and `number` is less than the pages that it took.
  std::byte* page(std::size_t key, std::size_t number) const noexcept;
  // Calls function(memory, nbytes) for each page that holds the bytes [at, at + nbytes) of a key.
  template <class Function>
  void each_run(std::size_t key, std::uint64_t at, std::uint64_t nbytes, Function&& function) const;

  std::size_t page_nbytes() const noexcept { return page_nbytes_; }
  std::size_t held_nbytes() const noexcept { return held_ * page_nbytes_; }
  std::size_t peak_nbytes() const noexcept { return peak_ * page_nbytes_; }  // held at most

 private:
  static constexpr std::uint32_t none = UINT32_MAX;       // of a key: not held
  static constexpr std::uint32_t end = UINT32_MAX - 1;  // of a page: there is no next one

  std::byte* at(std::uint32_t page) const noexcept { return memory_ + std::size_t{page} * page_nbytes_; }

  std::size_t pages_, page_nbytes_;
  std::vector<std::uint32_t> first_;  // of each key
  std::vector<std::uint32_t> next_;   // of each page: of the same key, or the next free one
  std::uint32_t free_;                // the first free page, which was given back last
  std::size_t held_ = 0, peak_ = 0;
  std::byte* memory_ = nullptr;
  std::size_t mapped_ = 0;  // of its own
};

template <class Function>
void Buffer::each_run(std::size_t key, std::uint64_t at_byte, std::uint64_t nbytes, Function&& function) const {
  std::uint32_t page = first_[key];
  for (; at_byte >= page_nbytes_; at_byte -= page_nbytes_) page = next_[page];
  while (nbytes > 0) {
    const std::uint64_t here = nbytes < page_nbytes_ - at_byte ? nbytes : page_nbytes_ - at_byte;
    function(at(page) + at_byte, here);
    nbytes -= here;
    at_byte = 0;
    page = next_[page];
  }
}

}  // namespace solar
