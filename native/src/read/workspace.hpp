// Bytes used again and again by one thread; contents are lost when it grows. Growing touches no memory.
//
// They begin with a page, and what fills huge pages is such where the kernel has them: storage fills a few long runs of
// memory up to twice as fast as many scattered pages. No page is had beyond them: many requests are on their way at once.
// Large ones are no part of a heap: as they come and go, in sizes that differ by little, one would be left full of holes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "asan.hpp"
#include "pages.hpp"
#include "solar/bytes.hpp"
#include "solar/faults.hpp"

namespace solar::read {

inline constexpr std::size_t large_nbytes = SOLAR_ASAN ? SIZE_MAX : 64 << 10;

struct FreeBytes {
  std::size_t mapped = 0;  // pages of their own; 0: they are of the heap
  void operator()(std::byte* bytes) const noexcept { mapped > 0 ? unmap_pages(bytes, mapped) : std::free(bytes); }
};

class Workspace {
 public:
  MutableBytes fit(std::size_t nbytes) {
    if (nbytes > size_) {
      keep(0);  // never two at a time
      bytes_ = allocate(nbytes);
      size_ = nbytes;
    }
    return {bytes_.get(), nbytes};
  }
  // Lets go of the bytes if they are more than `most`.
  void keep(std::size_t most) noexcept {
    if (size_ <= most) return;
    bytes_ = Held();
    size_ = 0;
  }
  std::byte* data() const noexcept { return bytes_.get(); }
  std::size_t size() const noexcept { return size_; }

 private:
  using Held = std::unique_ptr<std::byte, FreeBytes>;

  static Held allocate(std::size_t nbytes) {
    if (faults::any()) faults::allocate(nbytes);
    if (nbytes > SIZE_MAX - page_nbytes) throw std::bad_alloc();
    const std::size_t whole = (nbytes + page_nbytes - 1) / page_nbytes * page_nbytes;
    if (whole >= large_nbytes) return Held(map_pages(whole), FreeBytes{whole});
    auto* const bytes = static_cast<std::byte*>(std::aligned_alloc(page_nbytes, whole));
    if (bytes == nullptr) throw std::bad_alloc();
    return Held(bytes);
  }

  Held bytes_;
  std::size_t size_ = 0;
};

}  // namespace solar::read
