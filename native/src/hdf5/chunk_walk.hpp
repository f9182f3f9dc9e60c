// What every chunk index walker shares: checked reads of index structures, and the table being built.
//
// One ChunkWalk serves one call of chunk_table, in one thread. It guards three things for the walkers:
// - a read lies inside the file, and all reads together stay near the file's size, so that no cycle or shared node can
//   make a walk long;
// - a checksummed structure has its signature and its sum;
// - a chunk lies in the grid and in the file, and has a size that its filters can have.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "solar/metadata.hpp"

namespace solar {

class ChunkWalk {
 public:
  // Reads no more bytes than `budget`, and no more than the file can need for one dataset.
  ChunkWalk(const File& file, const FileFacts& facts, const Dataset& dataset, std::uint64_t budget = ~std::uint64_t{0});

  const FileFacts& facts() const noexcept { return facts_; }
  const Dataset& dataset() const noexcept { return dataset_; }
  std::size_t rank() const noexcept { return counts_.size(); }
  bool filtered() const noexcept { return !dataset_.filters.empty(); }
  std::uint64_t chunk_nbytes() const noexcept { return chunk_nbytes_; }
  std::uint64_t chunks() const noexcept { return chunks_; }                   // in the grid, present or not
  std::span<const std::uint64_t> counts() const noexcept { return counts_; }  // chunks along each axis
  std::uint64_t spent() const noexcept { return given_ - budget_; }
  std::span<const std::uint64_t> most() const noexcept { return most_; }  // as far as the axis may grow; 0: without end
  // Of one entry in the arrays and the version 2 B-tree, before its coordinates.
  bool entry_fits(std::uint64_t nbytes) const noexcept;

  // Whether each read of another place is a way to go: then those below several nodes are expected together.
  bool far() const noexcept { return file_.far(); }
  static constexpr std::size_t foreseen = 16;  // such nodes, whose children take a few MiB at most

  // Tells the system that a structure of about this size will be read soon, so that it fetches many at once.
  void expect(std::uint64_t address, std::uint64_t nbytes) const noexcept;
  // The bytes stay valid until the next read.
  Bytes read(std::uint64_t address, std::uint64_t nbytes);
  // A structure that opens with a signature and version 0 and ends with a checksum: returns what lies between.
  Bytes read_structure(std::uint64_t address, std::uint64_t nbytes, const char* signature);
  // Elements that end with a checksum: returns them without it.
  Bytes read_summed(std::uint64_t address, std::uint64_t nbytes);
  // The next address field: absolute, or undefined_address.
  std::uint64_t take_address(Cursor& cursor) const;

  struct Chunk {
    std::uint64_t offset = undefined_address;  // undefined: never written
    std::uint64_t nbytes = 0;
    std::uint32_t mask = 0;
  };
  // The next entry of `nbytes` bytes, one that entry_fits.
  Chunk take_chunk(Cursor& cursor, std::uint64_t nbytes) const;
  // Adds the chunk at these coordinates, counted in chunks. Outside the grid it is left out, as libhdf5 never looks
  // there.
  void add(std::span<const std::uint64_t> at, const Chunk& chunk);

  // From now on the number of chunks found goes there, too.
  void tell(std::uint64_t* found) noexcept { told_ = found; }

  // The table in order; two chunks of one place are an Error.
  ChunkTable finish();

  [[noreturn]] void fail(std::uint64_t address, const std::string& why) const;

 private:
  bool partial(std::span<const std::uint64_t> at) const;
  void check_extent(const Chunk& chunk, bool raw) const;
  void sort();

  const File& file_;
  const FileFacts& facts_;
  const Dataset& dataset_;
  std::vector<std::uint64_t> counts_, most_;
  std::uint64_t chunks_ = 1;
  std::uint64_t chunk_nbytes_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t given_ = 0, budget_ = 0;

  // The last part of the file that was read; longer while reads follow each other closely.
  std::vector<std::byte> window_;
  std::uint64_t window_at_ = 0;
  std::uint64_t ahead_ = 0;

  ChunkTable table_;
  std::uint64_t* told_ = nullptr;
};

// chunk_table for one of many datasets, which together have this budget: what it takes is taken off.
ChunkTable chunk_table(const File& file, const FileFacts& facts, const Dataset& dataset, std::uint64_t& budget);

// a before b, axis by axis.
bool before(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b);

// The walkers. REQUIRES: the index has an address and the grid has a chunk.
void walk_btree1(ChunkWalk& walk);
void walk_single(ChunkWalk& walk);
void walk_implicit(ChunkWalk& walk);
void walk_fixed_array(ChunkWalk& walk);
void walk_extensible_array(ChunkWalk& walk);
void walk_btree2(ChunkWalk& walk);

}  // namespace solar
