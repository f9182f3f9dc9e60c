// HDF5's n-bit filter: of each number only its significant bits, without gaps between numbers.
//
// values: their number, 1 if nothing is packed, items of the chunk, then the type: class, size and what the class
// needs, compounds and arrays nested. It is laid out flat as runs of numbers before decoding.
#include "bits.hpp"
#include "integers.hpp"
#include "solar/decode.hpp"

namespace solar {
namespace {

enum NbitClass : std::uint32_t { atomic = 1, array = 2, compound = 3, opaque = 4 };

constexpr unsigned deepest = 8;
constexpr unsigned most_steps = 4096;  // of laying out one item; a type that needs more is left to libhdf5

// Numbers of one kind in a row, `at` bytes into the item.
struct Run {
  std::uint64_t at;
  std::uint32_t size;  // bytes of a number
  std::uint32_t count;
  std::uint32_t precision;
  std::uint32_t shift;
  bool big;
};

struct Unfit {
  const char* reason;
};

class BitPacking {
 public:
  explicit BitPacking(const std::vector<std::uint32_t>& values) : values_(values) {
    if (values.size() < 5 || values[0] != values.size()) throw Unfit{"its parameters are not counted right"};
    packed_ = values[1] == 0;
    items_ = values[2];
    size_ = values[4];
    if (!packed_) return;
    if (size_ == 0) throw Unfit{"its items have no bytes"};
    if (values[3] == opaque) throw Unfit{"its type is not packed"};
    at_ = 4;
    add(values[3], 0, size_, 0);
  }

  bool packed() const { return packed_; }
  std::uint64_t items() const { return items_; }
  std::uint64_t size() const { return size_; }
  const std::vector<Run>& runs() const { return runs_; }

 private:
  std::uint32_t next() {
    if (at_ >= values_.size()) throw Unfit{"its parameters end too early"};
    return values_[at_++];
  }

  std::uint32_t peek(std::size_t ahead) const { return at_ + ahead < values_.size() ? values_[at_ + ahead] : 0; }

  // The type of class `kind` that lies `at` bytes into the item and has `room` bytes.
  void add(std::uint32_t kind, std::uint64_t at, std::uint64_t room, unsigned depth) {
    if (depth > deepest || ++steps_ > most_steps) throw Unfit{"its type is too complex"};
    const std::uint32_t size = next();
    if (size == 0 || size > room) throw Unfit{"a part does not fit its type"};
    switch (kind) {
      case atomic:
        return add_numbers(at, size, 1);
      case opaque:
        return runs_.push_back({at, 1, size, 8, 0, false});
      case array:
        return add_array(at, size, depth);
      case compound:
        return add_members(at, size, depth);
      default:
        throw Unfit{"its type is unknown"};
    }
  }

  void add_numbers(std::uint64_t at, std::uint32_t size, std::uint32_t count) {
    const std::uint32_t order = next(), precision = next(), shift = next();
    if (size > 8 || order > 1) throw Unfit{"a number has no ordinary size or byte order"};
    if (precision == 0 || precision > 8 * size || shift > 8 * size - precision)
      throw Unfit{"the significant bits of a number are not inside it"};
    runs_.push_back({at, size, count, precision, shift, order == 1});
  }

  void add_array(std::uint64_t at, std::uint32_t size, unsigned depth) {
    const std::uint32_t kind = next();
    const std::size_t base = at_;
    if (kind == opaque) {  // its size is the base's, yet all bytes are meant
      next();
      runs_.push_back({at, 1, size, 8, 0, false});
      return;
    }
    const std::uint32_t base_size = next();
    if (base_size == 0 || base_size > size) throw Unfit{"a part does not fit its type"};
    if (kind == atomic) return add_numbers(at, base_size, size / base_size);
    for (std::uint32_t i = 0; i < size / base_size; ++i) {
      at_ = base;
      add(kind, at + std::uint64_t{i} * base_size, base_size, depth + 1);
    }
  }

  void add_members(std::uint64_t at, std::uint32_t size, unsigned depth) {
    const std::uint32_t members = next();
    std::uint64_t used = 0;
    for (std::uint32_t i = 0; i < members; ++i) {
      const std::uint32_t offset = next(), kind = next();
      used += peek(0);
      if (offset > size || used > size) throw Unfit{"a part does not fit its type"};
      if (kind == array && (peek(1) == array || peek(1) == compound))  // libhdf5 loses its place behind such a member
        throw Unfit{"it has an array of parts inside a compound type"};
      add(kind, at + offset, size - offset, depth + 1);
    }
  }

  const std::vector<std::uint32_t>& values_;
  std::size_t at_ = 0;
  unsigned steps_ = 0;
  bool packed_ = false;
  std::uint64_t items_ = 0;
  std::uint64_t size_ = 0;
  std::vector<Run> runs_;
};

void put_value(std::byte* out, std::uint64_t value, std::uint32_t size, bool big) {
  if (big) value = __builtin_bswap64(value) >> (64 - 8 * size);
  switch (size) {
    case 1:
      std::memcpy(out, &value, 1);
      break;
    case 2:
      std::memcpy(out, &value, 2);
      break;
    case 4:
      std::memcpy(out, &value, 4);
      break;
    default:
      std::memcpy(out, &value, size);
      break;
  }
}

void unpack_run(BitReader& bits, const Run& run, std::byte* out) {
  for (std::uint32_t i = 0; i < run.count; ++i)
    put_value(out + std::size_t{i} * run.size, bits.take(run.precision) << run.shift, run.size, run.big);
}

}  // namespace

std::string nbit_problem(const Filter& filter) {
  try {
    (void)BitPacking(filter.values);
  } catch (const Unfit& unfit) {
    return unfit.reason;
  }
  return {};
}

std::size_t decode_nbit(Bytes in, MutableBytes out, const Filter& filter) try {
  const BitPacking packing(filter.values);
  const std::uint64_t nbytes = packing.packed() ? packing.items() * packing.size() : in.size();
  if (nbytes > out.size()) throw Error(Kind::codec, "more than expected");
  if (!packing.packed()) {
    if (nbytes) std::memcpy(out.data(), in.data(), nbytes);
    return nbytes;
  }
  BitReader bits(in);
  if (nbytes) std::memset(out.data(), 0, nbytes);
  for (std::uint64_t item = 0; item < nbytes; item += packing.size())
    for (const Run& run : packing.runs()) unpack_run(bits, run, out.data() + item + run.at);
  return nbytes;
} catch (const Unfit& unfit) {
  throw Error(Kind::codec, unfit.reason);
}

}  // namespace solar
