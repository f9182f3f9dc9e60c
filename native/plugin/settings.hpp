// What the values of the HDF5 filter say (io/FORMAT.md, "The filter's values"): tables for all, and for a writer what
// was asked and what the chunks are. The values are of a file, and hostile.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "solar/codec.hpp"

namespace solar::plugin {

// The chunks' numbers, and libhdf5's variable for the type. Codes are those of chunks.
struct Type {
  std::uint32_t code;
  Number number;
  std::size_t nbytes;
  const char* symbol;
};
std::span<const Type> types();

// The learned predictor's number: chunks of such a data set that do not use it are still read, and none is written.
inline constexpr Predictor removed_predictor{24};

struct Asked {
  double bound = 0;
  Coder coder = Coder::smaller;
  Predictor predictor = Predictor::tried;
  const Type* type = nullptr;      // nullptr: the data set is not yet made
  std::vector<std::size_t> chunk;  // its shape, empty with no type
  std::vector<std::byte> marks, limits;  // numbers of the type (Marks)

  std::size_t nbytes() const;  // of a chunk; REQUIRES: a type
  void check_writable() const;  // throws Error(Kind::codec) if no chunk can be encoded like this
};

struct Settings {
  Bytes tables;                // inside the values
  std::optional<Asked> asked;  // nothing: chunks come ready made
};

// Throws Error(Kind::codec) where they contradict themselves. No values at all ask for lossless chunks.
Settings parse(std::span<const unsigned> values);
std::vector<unsigned> values_of(const Settings& settings);

}  // namespace solar::plugin
