// Fuzzes what is read of an HDF5 file before any value is: superblock, headers, groups, heaps, B-trees, chunk indexes.
//
// The input is the file. Whatever is in it, reading ends in what it holds or in an Error; a dataset that is found is
// found again by its name and by its address; chunks lie in the file, in order and in their grid; and those that our
// filters decode come out the same whatever was in memory before. Checksums of metadata are not looked at in this
// build (lookup3.hpp), or no input would come behind them.
#include <algorithm>
#include <optional>

#include "fuzz.hpp"
#include "solar/attributes.hpp"
#include "solar/groups.hpp"
#include "solar/metadata.hpp"
#include "solar/varying.hpp"

namespace {

using solar::Bytes;
using solar::Dataset;
using solar::File;

constexpr std::size_t most_datasets = 8, most_chunks = 4;  // of a file are looked at closely
constexpr std::uint64_t most_nbytes = 1 << 20;             // of a chunk; more is slow, and no different

std::uint64_t product(const std::vector<std::uint64_t>& lengths, std::uint64_t product) {
  for (const std::uint64_t length : lengths)
    if (__builtin_mul_overflow(product, length, &product)) return UINT64_MAX;
  return product;
}

std::optional<fuzz::Values> decoded(const solar::Pipeline& pipeline, Bytes stored, std::uint32_t mask,
                                    std::uint64_t nbytes, int before) {
  fuzz::Values out(nbytes, static_cast<std::byte>(before));
  solar::Scratch scratch;
  try {
    pipeline.decode(stored, mask, out, scratch);
    return out;
  } catch (const solar::Error&) {
    return {};
  }
}

void decode_some(const File& file, const Dataset& dataset, const solar::ChunkTable& table) {
  const std::uint64_t nbytes = product(dataset.chunk, dataset.itemsize);
  if (nbytes > most_nbytes || !solar::Pipeline::unsupported(dataset.filters, dataset.itemsize).empty()) return;
  const solar::Pipeline pipeline(dataset.filters, dataset.itemsize, nbytes);
  for (std::size_t i = 0; i < std::min(table.index.size(), most_chunks); ++i) {
    if (table.nbytes[i] > most_nbytes) continue;
    fuzz::Values stored(table.nbytes[i]);
    file.read(table.offset[i], stored);
    const auto one = decoded(pipeline, stored, table.mask[i], nbytes, 0);
    const auto other = decoded(pipeline, stored, table.mask[i], nbytes, 255);
    fuzz::require(one == other, "a chunk decodes to what was in memory before");
  }
}

void check_table(const File& file, const Dataset& dataset, const solar::ChunkTable& table) {
  std::uint64_t grid = 1;
  for (std::size_t axis = 0; axis < dataset.shape.size(); ++axis)
    grid *= (dataset.shape[axis] + dataset.chunk[axis] - 1) / dataset.chunk[axis];
  for (std::size_t i = 0; i < table.index.size(); ++i) {
    const bool inside = table.offset[i] <= file.nbytes() && table.nbytes[i] <= file.nbytes() - table.offset[i];
    fuzz::require(inside, "a chunk leaves its file");
    fuzz::require(table.index[i] < grid && (i == 0 || table.index[i - 1] < table.index[i]), "chunks are out of order");
  }
}

void check_chunks(const File& file, const solar::FileFacts& facts, const Dataset& dataset) {
  solar::ChunkTable table;
  try {
    table = solar::chunk_table(file, facts, dataset);
  } catch (const solar::Error& error) {
    fuzz::require(error.kind() == solar::Kind::layout, "a damaged index is an error of another kind");
    return;
  }
  check_table(file, dataset, table);
  decode_some(file, dataset, table);
}

// What is found of attributes is what was asked for, each once, with its bytes or with what is wrong with it.
void check_attributes(const File& file, const Dataset& dataset) {
  static const std::vector<std::string> wanted{"scale_factor", "_FillValue", "units", "CLASS", "NAME"};
  std::vector<solar::Attribute> found;
  try {
    found = solar::read_attributes(file, dataset.name, wanted);
  } catch (const solar::Error& error) {
    fuzz::require(error.kind() == solar::Kind::layout, "a damaged attribute is an error of another kind");
  }
  for (const solar::Attribute& one : found) {
    const auto named = [&](const solar::Attribute& other) { return other.name == one.name; };
    fuzz::require(std::ranges::find(wanted, one.name) != wanted.end(), "an attribute was not asked for");
    fuzz::require(std::ranges::count_if(found, named) == 1, "an attribute is found twice");
    fuzz::require(!one.problem.empty() || !one.datatype.empty(), "an attribute has no type");
  }
}

// The dataset read alone is the one that was found among all.
void check_alone(const File& file, const Dataset& dataset) {
  for (const std::uint64_t address : {solar::undefined_address, dataset.header_address}) {
    try {
      const Dataset alone = solar::read_metadata(file, dataset.name, address).datasets.at(0);
      const bool same = alone.shape == dataset.shape && alone.address == dataset.address &&
                        alone.chunk == dataset.chunk && alone.itemsize == dataset.itemsize &&
                        alone.storage == dataset.storage && alone.index_address == dataset.index_address;
      fuzz::require(same, "a dataset read alone is another one");
    } catch (const solar::Error&) {  // a name with a slash in it; a budget that this way spends otherwise
    }
  }
}

// What links lead to is found by its name too, in the same file. Names there may lead to any file: only ours is checked.
void check_links(const File& file, const std::vector<Dataset>& linked) {
  for (std::size_t i = 0; i < std::min(linked.size(), most_datasets); ++i) {
    if (!linked[i].problem.empty()) continue;
    try {
      const Dataset alone = solar::read_metadata(file, linked[i].name).datasets.at(0);
      const bool same = alone.shape == linked[i].shape && alone.address == linked[i].address &&
                        alone.path == linked[i].path && alone.target == linked[i].target;
      fuzz::require(same, "a dataset behind a link is another one when it is read alone");
    } catch (const solar::Error&) {  // as in check_alone
    }
    const bool inside = linked[i].nbytes <= linked[i].identity.nbytes || linked[i].address == solar::undefined_address;
    fuzz::require(inside, "values leave their file");
  }
}

// Groups that hold a dataset of this name: as many of each fact as there are groups, and chunks that lie in the file.
void check_groups(const File& file, const std::string& name) {
  try {
    const solar::GroupTable found = solar::read_groups(file, "", {name.substr(name.rfind('/') + 1)});
    const solar::GroupColumn& column = found.columns.at(0);
    const std::size_t groups = found.begins.size() - 1;
    const bool fits = column.kind.size() == groups && column.shape.size() == groups * column.rank &&
                      column.first.size() == groups + 1 && found.begins.back() == found.names.size() &&
                      static_cast<std::size_t>(column.first.back()) == column.chunks.offset.size();
    fuzz::require(fits, "the columns of groups differ in length");
    for (std::size_t i = 0; i < column.chunks.offset.size(); ++i) {
      const bool inside = column.chunks.offset[i] <= file.nbytes() &&
                          column.chunks.nbytes[i] <= file.nbytes() - column.chunks.offset[i];
      fuzz::require(inside, "a chunk of a group leaves its file");
    }
  } catch (const solar::Error& error) {
    fuzz::require(error.kind() == solar::Kind::layout, "a damaged group is an error of another kind");
  }
}

// Values of 16 bytes, as if they were of variable length: what they lead to lies in the file.
void check_varying(const File& file, const Dataset& dataset) {
  constexpr std::uint64_t width = 16, itemsize = 4;
  if (dataset.itemsize != width || dataset.nbytes > most_nbytes) return;
  fuzz::Values references(dataset.nbytes / width * width);
  file.read(dataset.address, references);
  try {
    const solar::VaryingPlaces found = solar::varying_places(file, references, itemsize);
    for (std::size_t i = 0; i < found.length.size(); ++i) {
      const bool inside =
          found.offset[i] <= file.nbytes() && found.length[i] * itemsize <= file.nbytes() - found.offset[i];
      fuzz::require(inside, "values of variable length leave their file");
    }
  } catch (const solar::Error& error) {
    fuzz::require(error.kind() == solar::Kind::layout, "a damaged heap is an error of another kind");
  }
}

void check(const File& file) {
  const solar::Metadata found = solar::read_metadata(file);
  check_links(file, found.linked);
  for (std::size_t i = 0; i < std::min(found.datasets.size(), most_datasets); ++i) {
    const Dataset& dataset = found.datasets[i];
    if (!dataset.problem.empty()) continue;
    check_alone(file, dataset);
    check_attributes(file, dataset);
    check_groups(file, dataset.name);
    if (dataset.storage == solar::Storage::contiguous && dataset.address != solar::undefined_address)
      check_varying(file, dataset);
    if (!dataset.elsewhere.empty()) continue;
    if (dataset.storage == solar::Storage::chunked) {
      check_chunks(file, found.facts, dataset);
    } else if (dataset.address != solar::undefined_address) {
      const bool inside = dataset.address <= file.nbytes() && dataset.nbytes <= file.nbytes() - dataset.address;
      fuzz::require(inside, "values leave their file");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::MemoryFile memory;
  memory.write(std::as_bytes(std::span(data, size)));
  const File file(memory.path());
  try {
    check(file);
  } catch (const solar::Error& error) {
    fuzz::require(error.kind() == solar::Kind::layout, "a damaged file is an error of another kind");
  }
  return 0;
}
