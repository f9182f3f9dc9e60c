#include "solar/buffer.hpp"

#include <new>
#include <numeric>
#include <string>
#include <sys/mman.h>

#include "solar/error.hpp"

namespace solar {

Buffer::Buffer(std::size_t keys, std::size_t pages, std::size_t page_nbytes, std::byte* memory)
    : pages_(pages),
      page_nbytes_(page_nbytes),
      first_(keys, none),
      next_(pages),
      free_(pages == 0 ? end : 0),
      memory_(memory) {
  if (pages >= end || (page_nbytes > 0 && pages > SIZE_MAX / 2 / page_nbytes)) throw std::bad_alloc();
  if (pages > 0) {
    std::iota(next_.begin(), next_.end(), 1);
    next_.back() = end;
  }
  if (memory != nullptr || pages * page_nbytes == 0) return;
  mapped_ = pages * page_nbytes;
  void* const got = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(got);
  static_cast<void>(::madvise(got, mapped_, MADV_HUGEPAGE));  // advice: storage fills a few long runs faster
  static_cast<void>(::madvise(got, mapped_, MADV_DONTFORK));  // a forked process has no use for it
}

Buffer::~Buffer() {
  if (mapped_ > 0) ::munmap(memory_, mapped_);
}

void Buffer::take(std::size_t key, std::size_t pages) {
  if (holds(key)) throw Error(Kind::plan, "the plan reads what is in the buffer already: key " + std::to_string(key));
  if (pages > pages_ - held_) {
    throw Error(Kind::plan, "the plan needs " + std::to_string((held_ + pages) * page_nbytes_) + " bytes of a buffer of " +
                                std::to_string(pages_ * page_nbytes_));
  }
  std::uint32_t first = end;
  for (std::size_t i = 0; i < pages; ++i) {  // the chain grows at its front: any order of pages does
    const std::uint32_t page = free_;
    free_ = next_[page];
    next_[page] = first;
    first = page;
  }
  first_[key] = first;
  held_ += pages;
  peak_ = held_ > peak_ ? held_ : peak_;
}

void Buffer::drop(std::size_t key) noexcept {
  std::uint32_t page = first_[key];
  first_[key] = none;
  while (page != end) {
    const std::uint32_t next = next_[page];
    next_[page] = free_;
    free_ = page;
    page = next;
    --held_;
  }
}

std::byte* Buffer::page(std::size_t key, std::size_t number) const noexcept {
  std::uint32_t page = first_[key];
  for (; number > 0; --number) page = next_[page];
  return at(page);
}

}  // namespace solar
