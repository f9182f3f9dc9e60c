#include "hdf5/describe.hpp"

#include <algorithm>

namespace solar::hdf5 {

namespace {

constexpr unsigned largest_rank = 32;

// Bytes of all elements; Error(layout) when that is no number.
std::uint64_t size_of(const Dataset& dataset) {
  std::uint64_t nbytes = dataset.null_space ? 0 : dataset.itemsize;
  bool overflow = false;
  for (const std::uint64_t n : dataset.shape) overflow |= __builtin_mul_overflow(nbytes, n, &nbytes);
  const bool empty = std::find(dataset.shape.begin(), dataset.shape.end(), 0u) != dataset.shape.end();
  if (overflow && !empty) throw Error(Kind::layout, "dataspace has more elements than can be counted");
  return empty ? 0 : nbytes;
}

// Storage of one piece must hold all elements, inside the file.
void check_piece(const Image& image, Dataset& dataset, std::uint64_t stored) {
  const std::uint64_t needed = size_of(dataset);
  if (dataset.address == undefined_address) return;
  const bool contiguous = dataset.storage == Storage::contiguous;
  const char* what = contiguous ? "contiguous storage" : "compact storage";
  const bool fits = contiguous ? stored >= needed && needed > 0 : stored == needed;
  if (!fits && !dataset.null_space) {
    damaged(what, dataset.address,
            "has " + std::to_string(stored) + " bytes, but its elements need " + std::to_string(needed));
  }
  // Compact bytes are inside the header: already absolute, already read.
  if (contiguous) dataset.address = image.absolute(dataset.address, needed, what);
  dataset.nbytes = needed;
}

// Messages that libhdf5 reads as well, in its order.
void fill_and_filters(Image& image, const ObjectHeader& header, Dataset& dataset) {
  if (const Message* filters = header.find(MessageType::filters)) {
    dataset.filters = parse_filters(image.facts, content(image, *filters));
  }
  bool has_fill = false;
  if (const Message* fill = header.find(MessageType::fill)) {
    has_fill = parse_fill(image.facts, content(image, *fill), dataset);
  } else if (const Message* old = header.find(MessageType::fill_old)) {
    has_fill = parse_old_fill(image.facts, content(image, *old), dataset);
  }
  const bool unwritten = dataset.address == undefined_address && dataset.index_address == undefined_address;
  if (!has_fill && unwritten && size_of(dataset) > 0) {
    dataset.elsewhere = "it was never written, and has no fill value";
  }
}

}  // namespace

void parse_dataspace(const FileFacts& facts, Bytes message, Dataset& dataset) {
  Fields fields(message, facts, "dataspace");
  const unsigned version = fields.u8();
  if (version < 1 || version > 2) fields.refuse("has version " + std::to_string(version));
  const unsigned rank = fields.u8();
  const unsigned flags = fields.u8();
  if (rank > largest_rank) fields.refuse("has " + std::to_string(rank) + " dimensions");
  const unsigned type = fields.u8();
  if (version == 1) fields.skip(4);
  if (version == 2 && (type > 2 || (type != 1 && rank > 0))) fields.refuse("has an invalid rank or type");
  dataset.null_space = version == 2 && type == 2;
  for (unsigned i = 0; i < rank; ++i) dataset.shape.push_back(fields.length());
  const std::uint64_t unlimited =
      facts.length_width == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * facts.length_width)) - 1;
  for (unsigned i = 0; (flags & 1) != 0 && i < rank; ++i) {
    const std::uint64_t most = fields.length();
    dataset.maxshape.push_back(most == unlimited ? ~std::uint64_t{0} : most);
    if (most < dataset.shape[i]) fields.refuse("is larger than its own maximum");
  }
}

void parse_datatype(Bytes message, Dataset& dataset) {
  Cursor fields(message, Kind::layout, "datatype");
  const unsigned version = fields.u8() >> 4;
  fields.skip(3);
  dataset.itemsize = fields.u32();
  if (version < 1 || version > 5) throw Error(Kind::layout, "datatype has version " + std::to_string(version));
  if (dataset.itemsize == 0) throw Error(Kind::layout, "datatype has no size");
}

std::vector<Filter> parse_filters(const FileFacts& facts, Bytes message) {
  constexpr unsigned most = 32;
  constexpr unsigned first_of_users = 256;
  Fields fields(message, facts, "filter pipeline");
  const unsigned version = fields.u8();
  const unsigned count = fields.u8();
  if (version < 1 || version > 2) fields.refuse("has version " + std::to_string(version));
  if (count > most) fields.refuse("has too many filters");
  if (version == 1) fields.skip(6);
  std::vector<Filter> filters(count);
  for (Filter& filter : filters) {
    filter.id = fields.u16();
    const unsigned name = version == 1 || filter.id >= first_of_users ? fields.u16() : 0u;
    if (version == 1 && name % 8 != 0) fields.refuse("has a damaged name");
    filter.flags = fields.u16();
    const unsigned values = fields.u16();
    const Bytes text = fields.take(name);
    if (name > 0 && std::find(text.begin(), text.end(), std::byte{0}) == text.end())
      fields.refuse("has a damaged name");
    if (values > fields.left() / 4) fields.refuse("is cut short");
    for (unsigned i = 0; i < values; ++i) filter.values.push_back(fields.u32());
    if (version == 1 && values % 2 != 0) fields.skip(4);
  }
  return filters;
}

Dataset describe(Image& image, const ObjectHeader& header, const std::string& name) {
  Dataset dataset;
  dataset.name = name;
  dataset.header_address = header.address + image.facts.base;
  try {
    dataset.datatype = datatype_of(image, *header.find(MessageType::datatype));
    parse_datatype(*dataset.datatype, dataset);
    parse_dataspace(image.facts, content(image, *header.find(MessageType::dataspace)), dataset);
    const Message* layout = header.find(MessageType::layout);
    if (layout == nullptr) throw Error(Kind::layout, "it has no layout message");
    parse_layout(image, *layout, dataset);
    fill_and_filters(image, header, dataset);
  } catch (const Elsewhere& elsewhere) {
    dataset.elsewhere = elsewhere.why;
    return dataset;
  }
  if (header.find(MessageType::external_files) != nullptr) {
    if (dataset.storage != Storage::contiguous)
      throw Error(Kind::layout, "external files hold more than contiguous storage");
    dataset.storage = Storage::external;
    dataset.elsewhere = "its data are in other, raw files";
  } else if (dataset.storage == Storage::virtual_) {
    dataset.elsewhere = "it is a virtual dataset: its data are in other datasets";
  } else if (dataset.storage == Storage::chunked) {
    size_of(dataset);
  } else {
    check_piece(image, dataset, dataset.nbytes);
    if (!dataset.filters.empty()) dataset.elsewhere = "it has filters, but no chunks";
  }
  return dataset;
}

}  // namespace solar::hdf5
