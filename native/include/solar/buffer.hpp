// The memory of a run: pages of one size, of which each key that is held has as many as it needs, anywhere.
//
// What a key is, the owner says: a row, or a line of chunks kept as they are stored. Keys are taken and dropped by one
// thread. Any thread may meanwhile write and read the pages of a key, as long as that key stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solar/bytes.hpp"

namespace solar {

class Buffer {
 public:
  // Nothing but address space is used until pages are written to; or the memory given is, which must stay. Throws
  // std::bad_alloc.
  Buffer(std::size_t keys, std::size_t pages, std::size_t page_nbytes, std::byte* memory = nullptr);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool holds(std::size_t key) const noexcept { return first_[key] != none; }
  // Holds the key in so many free pages. Throws Error(plan) where there are too few, or the key is held.
  void take(std::size_t key, std::size_t pages);
  // REQUIRES: it is held.
  void drop(std::size_t key) noexcept;

  // Page `number` of a key that is held: from 0 to as many as it took.
  std::byte* page(std::size_t key, std::size_t number) const noexcept;
  // Calls run(memory, nbytes) for each page that holds the bytes [at, at + nbytes) of a key.
  template <class Run>
  void each_run(std::size_t key, std::uint64_t at, std::uint64_t nbytes, Run&& run) const;

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

template <class Run>
void Buffer::each_run(std::size_t key, std::uint64_t at_byte, std::uint64_t nbytes, Run&& run) const {
  std::uint32_t page = first_[key];
  for (; at_byte >= page_nbytes_; at_byte -= page_nbytes_) page = next_[page];
  while (nbytes > 0) {
    const std::uint64_t here = nbytes < page_nbytes_ - at_byte ? nbytes : page_nbytes_ - at_byte;
    run(at(page) + at_byte, here);
    nbytes -= here;
    at_byte = 0;
    page = next_[page];
  }
}

}  // namespace solar
