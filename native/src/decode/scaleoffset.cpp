// HDF5's scale-offset filter: numbers less their minimum, in as many bits as the largest needs.
//
// A chunk: le32 bits, one byte width of the minimum, le minimum in 16 bytes, then the packed numbers. With a fill
// value, all bits set stand for it. Floating-point numbers were multiplied by 10^D and rounded to integers before.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "bits.hpp"
#include "integers.hpp"
#include "solar/decode.hpp"

namespace solar {
namespace {

constexpr std::size_t header_nbytes = 21;

// The filter's values by name; the fill value is in values 8 and 9.
struct Parameters {
  explicit Parameters(const std::vector<std::uint32_t>& v)
      : type(v[0]),
        factor(static_cast<std::int32_t>(v[1])),
        items(v[2]),
        real(v[3] == 1),
        itemsize(v[4]),
        big(v[6] == 1),
        filled(v[7] == 1),
        fill(std::uint64_t{v[9]} << 32 | v[8]) {}

  std::uint32_t type;
  std::int32_t factor;
  std::uint64_t items;
  bool real;
  std::uint32_t itemsize;
  bool big;
  bool filled;
  std::uint64_t fill;

  bool stored_as_is() const { return !real && factor == static_cast<std::int32_t>(8 * itemsize); }
};

struct Packed {
  BitReader bits;
  unsigned width;
  std::uint64_t minimum;
};

template <class Word>
Word reversed(Word word) {
  if constexpr (sizeof word == 2) return __builtin_bswap16(word);
  if constexpr (sizeof word == 4) return __builtin_bswap32(word);
  if constexpr (sizeof word == 8) return __builtin_bswap64(word);
  return word;
}

template <class To, class From>
To low_bytes(From value) {
  static_assert(sizeof(To) <= sizeof(From));
  To low;
  std::memcpy(&low, &value, sizeof low);
  return low;
}

// `value` turns a packed number into the bits of an item.
template <class Word, class Value>
void unpack(Packed& packed, const Parameters& p, std::byte* out, Value value) {
  const Word all = static_cast<Word>((std::uint64_t{1} << packed.width) - 1);
  for (std::uint64_t i = 0; i < p.items; ++i) {
    const Word number = packed.width ? static_cast<Word>(packed.bits.take(packed.width)) : Word{0};
    Word item = p.filled && number == all ? static_cast<Word>(p.fill) : value(number);
    if (p.big) item = reversed(item);
    std::memcpy(out + i * sizeof item, &item, sizeof item);
  }
}

template <class Word>
void unpack_integers(Packed& packed, const Parameters& p, std::byte* out) {
  const Word minimum = static_cast<Word>(packed.minimum);
  unpack<Word>(packed, p, out, [=](Word number) { return static_cast<Word>(number + minimum); });
}

template <class Real, class Word>
void unpack_reals(Packed& packed, const Parameters& p, std::byte* out) {
  const Real scale = std::pow(Real{10}, static_cast<Real>(p.factor)), minimum = low_bytes<Real>(packed.minimum);
  unpack<Word>(packed, p, out, [=](Word number) {
    return low_bytes<Word>(static_cast<Real>(static_cast<std::make_signed_t<Word>>(number)) / scale + minimum);
  });
}

void unpack(Packed& packed, const Parameters& p, std::byte* out) {
  if (p.real)
    return p.itemsize == 4 ? unpack_reals<float, std::uint32_t>(packed, p, out)
                           : unpack_reals<double, std::uint64_t>(packed, p, out);
  switch (p.itemsize) {
    case 1:
      return unpack_integers<std::uint8_t>(packed, p, out);
    case 2:
      return unpack_integers<std::uint16_t>(packed, p, out);
    case 4:
      return unpack_integers<std::uint32_t>(packed, p, out);
    default:
      return unpack_integers<std::uint64_t>(packed, p, out);
  }
}

void copy_reversed(Bytes in, std::size_t itemsize, std::byte* out) {
  for (std::size_t i = 0; i < in.size(); i += itemsize)
    std::reverse_copy(in.begin() + static_cast<std::ptrdiff_t>(i),
                      in.begin() + static_cast<std::ptrdiff_t>(i + itemsize), out + i);
}

}  // namespace

std::string scaleoffset_problem(const Filter& filter) {
  const auto& v = filter.values;
  if (v.size() != 20) return "it has not 20 parameters";
  if (v[3] > 1 || v[5] > 1 || v[6] > 1 || v[7] > 1) return "its type is unknown";
  const Parameters p(v);
  if (p.real && p.type != 0) return "its scale type is not D-scaling";
  if (!p.real && p.type != 2) return "its scale type does not fit integers";
  const bool sized = p.itemsize == 4 || p.itemsize == 8 || (!p.real && (p.itemsize == 1 || p.itemsize == 2));
  if (!sized) return "its item size is " + std::to_string(p.itemsize);
  if (!p.real && p.factor > static_cast<std::int32_t>(8 * p.itemsize)) return "it has more bits than its items";
  return {};
}

std::size_t decode_scaleoffset(Bytes in, MutableBytes out, const Filter& filter) {
  if (const auto problem = scaleoffset_problem(filter); !problem.empty()) throw Error(Kind::codec, problem);
  const Parameters p(filter.values);
  Cursor cursor(in, Kind::codec, "the chunk");
  const std::size_t nbytes = p.stored_as_is() ? in.size() : p.items * p.itemsize;
  if (nbytes > out.size()) throw Error(Kind::codec, "more than expected");
  if (p.stored_as_is()) {
    if (nbytes) std::memcpy(out.data(), in.data(), nbytes);
    return nbytes;
  }
  const std::uint32_t width = cursor.u32();
  const std::size_t minimum_nbytes = std::min<std::size_t>(cursor.u8(), 8);
  const std::uint64_t minimum = cursor.uint(minimum_nbytes);
  cursor.skip(header_nbytes - cursor.position());
  if (width > 8 * p.itemsize) throw Error(Kind::codec, "the numbers have more bits than the items");
  if (width == 8 * p.itemsize) {
    const std::size_t left = std::min<std::size_t>(nbytes, cursor.left());  // fewer, where another filter was before it
    const Bytes items = cursor.take(p.big ? left / p.itemsize * p.itemsize : left);
    if (p.big) copy_reversed(items, p.itemsize, out.data());
    else if (!items.empty())
      std::memcpy(out.data(), items.data(), items.size());
    return items.size();
  }
  Packed packed{BitReader(cursor.take(cursor.left())), width, minimum};
  unpack(packed, p, out.data());
  return nbytes;
}

}  // namespace solar
