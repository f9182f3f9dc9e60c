// The description of one dataset, from the messages of its object header.
//
// The messages are those of a file that nobody vouches for: lengths, ranks and sizes are checked before they are used,
// and memory is taken only for what the message itself holds. The Image must outlive the call; nothing of it is kept.
// One thread at a time uses an Image.
#pragma once

#include <string>

#include "hdf5/header.hpp"

namespace solar::hdf5 {

inline bool is_dataset(const ObjectHeader& header) {
  return header.find(MessageType::datatype) != nullptr && header.find(MessageType::dataspace) != nullptr;
}

// REQUIRES: is_dataset(header). Error(layout) for damage; what only libhdf5 can read is said in `elsewhere`.
Dataset describe(Image& image, const ObjectHeader& header, const std::string& name);

// Each fills its part of the dataset. Those after parse_datatype need shape and itemsize.
void parse_dataspace(const FileFacts& facts, Bytes message, Dataset& dataset);
void parse_datatype(Bytes message, Dataset& dataset);
void parse_layout(Image& image, const Message& message, Dataset& dataset);
// Both return whether data that were never written have a value.
bool parse_fill(const FileFacts& facts, Bytes message, Dataset& dataset);
bool parse_old_fill(const FileFacts& facts, Bytes message, Dataset& dataset);
std::vector<Filter> parse_filters(const FileFacts& facts, Bytes message);

}  // namespace solar::hdf5
