// Global heaps are collections of objects of any size, to which values of variable length refer by address and number.
//
// These functions belong to the thread of their Image. They return values of the caller: where objects lie, never their
// bytes. Damage is Error(layout), and each collection is paid for by its size (image.hpp).
#pragma once

#include <vector>

#include "hdf5/image.hpp"

namespace solar::hdf5 {

// What a value of variable length is where it is stored.
struct HeapReference {
  std::uint32_t values = 0;
  std::uint64_t address = undefined_address;  // of the collection
  std::uint32_t number = 0;                   // of the object in it
};

// As many bytes as one takes; and what they say.
inline std::size_t reference_nbytes(const FileFacts& facts) { return 8u + facts.offset_width; }
HeapReference parse_reference(const FileFacts& facts, Bytes bytes);

struct HeapObject {
  std::uint32_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t nbytes = 0;
};

// All objects of a collection, in order of number; their own bytes are not read. Error(layout) for damage.
std::vector<HeapObject> heap_objects(Image& image, std::uint64_t address);
// The one of this number; Error(layout) where there is none, or it has fewer bytes.
const HeapObject& object_at(const std::vector<HeapObject>& objects, std::uint32_t number, std::uint64_t nbytes);

}  // namespace solar::hdf5
