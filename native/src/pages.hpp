// map_pages() and unmap_pages() get memory from the system and give it back, in whole pages, past every heap.
//
// The caller owns what it gets, and gives it back with the same length. Any thread may call both. What is given back
// goes to the system at once, and leaves no holes in a heap. std::bad_alloc where the system has no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <sys/mman.h>

namespace solar {

inline constexpr std::size_t page_nbytes = 4 << 10;
inline constexpr std::size_t huge_page_nbytes = 2 << 20;

// So many bytes, whole pages. Where there are huge pages of them they begin at a multiple of those, which the kernel is
// asked for. Pages come where threads first write to them, beside each other: the loop would wait for all that it asked for.
inline std::byte* map_pages(std::size_t nbytes) {
  const std::size_t huge = nbytes / huge_page_nbytes * huge_page_nbytes;
  const std::size_t more = huge > 0 ? huge_page_nbytes : 0;  // is given back at both ends
  if (nbytes > SIZE_MAX - more) throw std::bad_alloc();
  void* const got = ::mmap(nullptr, nbytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(got);
  if (huge == 0) return begin;
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % huge_page_nbytes;
  const std::size_t head = (huge_page_nbytes - past) % huge_page_nbytes;
  if (head > 0) ::munmap(begin, head);
  if (head < more) ::munmap(begin + head + nbytes, more - head);
  static_cast<void>(::madvise(begin + head, huge, MADV_HUGEPAGE));  // advice
  return begin + head;
}

inline void unmap_pages(std::byte* bytes, std::size_t nbytes) noexcept { ::munmap(bytes, nbytes); }

}  // namespace solar
