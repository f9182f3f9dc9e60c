// Bytes used again and again by one thread; contents are lost when it grows. Growing touches no memory.
#pragma once

#include <memory>

#include "solar/bytes.hpp"

namespace solar::read {

class Buffer {
 public:
  MutableBytes fit(std::size_t nbytes) {
    if (nbytes > size_) {
      bytes_.reset();  // never two at a time
      size_ = 0;
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(nbytes);
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
  std::byte* data() noexcept { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

}  // namespace solar::read
