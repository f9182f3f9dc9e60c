#include "hdf5/image.hpp"

#include <algorithm>

#include "hdf5/lookup3.hpp"

namespace solar::hdf5 {

Image::Image(const File& file) : file_(file), budget_(free_bytes) {
  facts.end = file.nbytes();
  if (__builtin_mul_overflow(file.nbytes(), free_turns, &budget_)) budget_ = ~std::uint64_t{0} - free_bytes;
  budget_ += free_bytes;
}

void Image::spend(std::uint64_t nbytes) {
  if (nbytes > budget_) {
    exhausted_ = true;
    throw Exhausted(Kind::layout, "its metadata refers to more bytes than a file of " + std::to_string(file_.nbytes()) +
                                      " bytes can need: it is damaged");
  }
  budget_ -= nbytes;
}

std::uint64_t Image::absolute(std::uint64_t address, std::uint64_t nbytes, const char* what) const {
  std::uint64_t begin = 0;
  if (__builtin_add_overflow(address, facts.base, &begin) || begin > facts.end || nbytes > facts.end - begin) {
    damaged(what, address,
            "needs " + std::to_string(nbytes) + " bytes, but the file ends at byte " + std::to_string(facts.end));
  }
  return begin;
}

const std::byte* Image::page(std::uint64_t number) {
  Page& page = pages_[number % pages_.size()];
  if (page.number == number) return page.bytes.get();
  if (!page.bytes) page.bytes = std::make_unique_for_overwrite<std::byte[]>(page_nbytes);
  page.number = ~std::uint64_t{0};
  const std::uint64_t begin = number * page_nbytes;
  file_.read(begin, {page.bytes.get(), static_cast<std::size_t>(std::min(page_nbytes, file_.nbytes() - begin))});
  page.number = number;
  return page.bytes.get();
}

void Image::read(std::uint64_t address, MutableBytes out, const char* what) {
  std::uint64_t at = absolute(address, out.size(), what);
  spend(out.size());
  if (out.size() > 2 * page_nbytes) return file_.read(at, out);
  while (!out.empty()) {
    const std::uint64_t inside = at % page_nbytes;
    const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(page_nbytes - inside, out.size()));
    std::memcpy(out.data(), page(at / page_nbytes) + inside, n);
    out = out.subspan(n);
    at += n;
  }
}

std::vector<std::byte> Image::read(std::uint64_t address, std::uint64_t nbytes, const char* what) {
  absolute(address, nbytes, what);
  if (nbytes > largest_structure) damaged(what, address, "claims " + std::to_string(nbytes) + " bytes");
  std::vector<std::byte> bytes(static_cast<std::size_t>(nbytes));
  read(address, bytes, what);
  return bytes;
}

void damaged(const char* what, std::uint64_t address, const std::string& why) {
  const std::string place = address == undefined_address ? "no address" : "address " + std::to_string(address);
  throw Error(Kind::layout, std::string(what) + " at " + place + " " + why);
}

void Fields::checksum(Bytes whole) {
  const Bytes summed = whole.first(position());
  if (!has_sum(summed, u32())) refuse("has a wrong checksum");
}

}  // namespace solar::hdf5
