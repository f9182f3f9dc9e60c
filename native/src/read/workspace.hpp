// Bytes used again and again by one thread; contents are lost when it grows. Growing touches no memory.
//
// They begin with a page, and large ones are huge pages where the kernel has them: storage fills a few long runs of
// memory up to twice as fast as many scattered pages.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <sys/mman.h>

#include "solar/bytes.hpp"
#include "solar/faults.hpp"

namespace solar::read {

inline constexpr std::size_t page_nbytes = 4 << 10;
inline constexpr std::size_t huge_page_nbytes = 2 << 20;
inline constexpr std::size_t large_nbytes = 128 << 10;

class Workspace {
 public:
  MutableBytes fit(std::size_t nbytes) {
    if (nbytes > size_) {
      bytes_.reset();  // never two at a time
      size_ = 0;
      bytes_.reset(allocate(nbytes));
      size_ = nbytes;
    }
    return {bytes_.get(), nbytes};
  }
  // Lets go of the bytes if they are more than `most`.
  void keep(std::size_t most) noexcept {
    if (size_ <= most) return;
    bytes_.reset();
    size_ = 0;
  }
  std::byte* data() const noexcept { return bytes_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
  };

  static std::byte* allocate(std::size_t nbytes) {
    if (faults::any()) faults::allocate(nbytes);
    const std::size_t page = nbytes > large_nbytes ? huge_page_nbytes : page_nbytes;
    if (nbytes > SIZE_MAX - page) throw std::bad_alloc();
    const std::size_t whole = (nbytes + page - 1) / page * page;
    void* const bytes = std::aligned_alloc(page, whole);
    if (bytes == nullptr) throw std::bad_alloc();
    if (page == huge_page_nbytes) static_cast<void>(::madvise(bytes, whole, MADV_HUGEPAGE));  // advice
    return static_cast<std::byte*>(bytes);
  }

  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_ = 0;
};

}  // namespace solar::read
