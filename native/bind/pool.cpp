// The pool of this process's batches: take, pool_stats, and memory of others that it hands out.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "bound.hpp"

namespace nb = nanobind;

using solar::BatchPool;
using solar::MemoryPool;
using solar::MutableBytes;

namespace {

auto take_block(std::size_t nbytes) {
  std::unique_ptr<MemoryPool::Block> block;
  {
    nb::gil_scoped_release released;
    block = solar::bind::batch_pool()->take(nbytes);
  }
  return solar::bind::array_of(std::move(block));
}

nb::dict pool_stats() {
  nb::dict out;
  out["in_use"] = solar::bind::batch_pool()->in_use();
  out["idle"] = solar::bind::batch_pool()->idle();
  return out;
}

// How large the pool's memory around this address is; 0: it is none in use.
std::size_t pool_nbytes(std::uintptr_t address) {
  return solar::bind::batch_pool()->whole(reinterpret_cast<const std::byte*>(address)).size();
}

void pool_adopt(std::uintptr_t address, std::size_t nbytes) {
  nb::gil_scoped_release released;
  solar::bind::batch_pool()->adopt({reinterpret_cast<std::byte*>(address), nbytes});
}

bool pool_disown(std::uintptr_t address) {
  return solar::bind::batch_pool()->disown(reinterpret_cast<const std::byte*>(address));
}

}  // namespace

namespace solar::bind {

// It keeps a sixteenth of the machine's memory, at most 1 GiB.
const std::shared_ptr<BatchPool>& batch_pool() {
  static const auto* const made = [] {
    const auto machine = static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES))) * 4096;
    return new std::shared_ptr<BatchPool>(MemoryPool::make(std::min<std::size_t>(machine / 16, std::size_t{1} << 30)));
  }();
  return *made;
}

nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> array_of(std::unique_ptr<MemoryPool::Block> block) {
  const MutableBytes bytes = block->bytes();
  const nb::capsule owner(block.get(), [](void* p) noexcept { delete static_cast<MemoryPool::Block*>(p); });
  static_cast<void>(block.release());
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), {bytes.size()}, owner};
}

}  // namespace solar::bind

void bind_pool(nb::module_& module) {
  using namespace nb::literals;
  module.def("take", &take_block, "nbytes"_a);
  module.def("pool_stats", &pool_stats);
  module.def("pool_nbytes", &pool_nbytes, "address"_a);
  module.def("pool_adopt", &pool_adopt, "address"_a, "nbytes"_a);
  module.def("pool_disown", &pool_disown, "address"_a);
}
