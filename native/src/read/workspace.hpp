// Bytes used again and again by one thread; contents are lost when it grows. Growing touches no memory.
//
// They begin with a page, and what fills huge pages is such where the kernel has them: storage fills a few long runs of
// memory up to twice as fast as many scattered pages. No page is had beyond them: many requests are on their way at once.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <sys/mman.h>

#include "solar/bytes.hpp"
#include "solar/faults.hpp"

namespace solar::read {

inline constexpr std::size_t page_nbytes = 4 << 10;
inline constexpr std::size_t huge_page_nbytes = 2 << 20;

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
    const std::size_t huge = nbytes / huge_page_nbytes * huge_page_nbytes;
    if (nbytes > SIZE_MAX - page_nbytes) throw std::bad_alloc();
    const std::size_t whole = (nbytes + page_nbytes - 1) / page_nbytes * page_nbytes;
    void* bytes = nullptr;
    if (::posix_memalign(&bytes, huge > 0 ? huge_page_nbytes : page_nbytes, whole) != 0) throw std::bad_alloc();
    if (huge > 0) static_cast<void>(::madvise(bytes, huge, MADV_HUGEPAGE));  // advice
    return static_cast<std::byte*>(bytes);
  }

  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_ = 0;
};

}  // namespace solar::read
