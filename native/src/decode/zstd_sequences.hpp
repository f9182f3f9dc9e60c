// Sequences: so many literals, then bytes that came before once more (RFC 8878, 3.1.1.3.2).
#pragma once

#include "copy.hpp"
#include "zstd_tables.hpp"

namespace solar::zstd {

// The frame's output so far lies in [begin, at): it is the history too.
struct Output {
  std::byte* begin;
  std::byte* at;
  std::byte* end;

  std::size_t room() const { return static_cast<std::size_t>(end - at); }
  void append(const std::byte* from, std::size_t n);  // Error when there is no room
};

struct Literals {
  const std::byte* at;
  const std::byte* end;
  const std::byte* readable;  // >= end: wide copies may read up to here

  std::size_t left() const { return static_cast<std::size_t>(end - at); }
};

// Decodes a sequences section and carries it out behind `out.at`; the literals left over follow.
void decode_sequences(Bytes in, Literals literals, SequenceTables& tables, Output& out);

}  // namespace solar::zstd
