// HDF5 metadata, read by our own code: which datasets a file has and where their bytes lie.
//
// The file is hostile input. Every address, size and count is checked against the file before use; nothing is
// allocated on the file's word alone; depth, objects and bytes visited are bounded; cycles end. Damage is
// Error(Kind::layout) naming path, object and byte. What is sound but outside our reach (see Dataset::elsewhere) is left to
// libhdf5. Where libhdf5 refuses a file or dataset, so do we: never a value that libhdf5 would not give.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "solar/file.hpp"
#include "solar/filter.hpp"

namespace solar {

enum class Storage { compact, contiguous, chunked, external, virtual_ };
enum class Index { none, btree1, single, implicit, fixed_array, extensible_array, btree2 };

inline constexpr std::uint64_t undefined_address = ~std::uint64_t{0};

// One dataset as its object header describes it; the chunk index is not walked (see chunk_table).
struct Dataset {
  std::string name;                    // absolute path inside the file that was asked for
  std::string path;                    // not empty: the file that holds it, to which links lead from the one asked for
  std::string target;                  // not empty: its path without links in the file that holds it
  std::string problem;                 // not empty: damaged or refused, everything below may be unset
  std::string elsewhere;               // not empty: sound, but only libhdf5 can read it, and why
  bool null_space = false;
  std::vector<std::uint64_t> shape;    // empty for a scalar
  std::vector<std::uint64_t> maxshape; // ~0 = unlimited; empty: as shape
  // The datatype message, decoded in io/hdf5/datatype.py; datasets of one committed type share it. Null with a problem.
  std::shared_ptr<const std::vector<std::byte>> datatype;
  std::uint64_t itemsize = 0;
  Storage storage = Storage::contiguous;
  std::uint64_t address = undefined_address;  // contiguous and compact: absolute file offset of the data
  std::uint64_t nbytes = 0;                   // contiguous and compact: bytes stored there
  std::vector<std::uint64_t> chunk;           // chunk shape, same rank as shape
  Index index = Index::none;
  std::vector<Filter> filters;
  std::vector<std::byte> fill;                // empty: zeros; else itemsize bytes
  // Chunk index, for chunk_table only:
  std::uint64_t index_address = undefined_address;  // absolute
  std::uint64_t single_nbytes = 0;                  // Index::single, filtered: stored size
  std::uint32_t single_mask = 0;
  std::uint8_t layout_flags = 0;                    // layout message v4
  std::uint8_t layout_version = 0;
  std::uint64_t header_address = undefined_address; // of the object header, absolute
  Identity identity;                                // of the file that holds it
};

// A group that is listed by another name, or below this one, which is a link.
struct Alias {
  std::string name;
  std::string path;    // of the file that holds it, if that is another one
  std::string target;  // its path there
};

struct FileFacts {
  std::uint64_t base = 0;         // superblock base address: added to every address of the file
  std::uint8_t offset_width = 8;
  std::uint8_t length_width = 8;
  std::uint64_t end = 0;          // end of file as far as addresses may go (absolute)
  std::uint32_t chunk_node_entries = 64;  // of a version 1 B-tree of chunks: twice its K
};

struct Metadata {
  FileFacts facts;                    // of the file that was asked for
  std::vector<Dataset> datasets;      // in name order (groups depth-first as h5py's visititems)
  std::vector<Dataset> linked;        // what soft and external links lead to, by their names; in no order
  std::vector<Alias> aliases;         // groups that links lead to
  std::vector<std::string> problems;  // links that lead nowhere, damaged groups: name and reason
};

// All datasets below the root, or only the one called `name` (a path; soft and external links are followed).
// With `name`, Error(layout) says what is missing and the near miss if there is one, and which links led there.
// With Dataset::header_address of an earlier call as well, the dataset is taken from there and no group is read: how to
// come back to many. The address is checked like any of the file.
// `most`: about how many datasets are looked for; from where on no others were is one of the problems.
// `prefixes`: where external links are looked for first, with colons between: what HDF5_EXT_PREFIX says.
Metadata read_metadata(const File& file, const std::string& name = {},
                       std::uint64_t header_address = undefined_address, const std::string& prefixes = {},
                       std::size_t most = std::numeric_limits<std::size_t>::max());

// Where each chunk lies, in order of its linear (C order) index in the grid of chunks. Chunks never written are absent.
struct ChunkTable {
  std::vector<std::uint64_t> index;
  std::vector<std::uint64_t> offset;  // absolute; offset + nbytes is inside the file (checked)
  std::vector<std::uint64_t> nbytes;
  std::vector<std::uint32_t> mask;
};

// Walks the chunk index of any of the six types. REQUIRES: dataset.storage == chunked and no problem. `found` has the
// chunks found so far, for another thread to look at: it is stored by an atomic_ref.
ChunkTable chunk_table(const File& file, const FileFacts& facts, const Dataset& dataset,
                       std::uint64_t* found = nullptr);

}  // namespace solar
