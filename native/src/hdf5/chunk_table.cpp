// chunk_table, and the two indexes that need no structure in the file: one chunk, and all chunks one after another.
#include "chunk_walk.hpp"

namespace solar {

void walk_single(ChunkWalk& walk) {
  const Dataset& dataset = walk.dataset();
  if (walk.chunks() != 1) walk.fail(dataset.index_address, "one chunk cannot fill this dataset");
  const std::vector<std::uint64_t> origin(walk.rank(), 0);
  if (walk.filtered()) {
    walk.add(origin, {dataset.index_address, dataset.single_nbytes, dataset.single_mask});
  } else {
    walk.add(origin, {dataset.index_address, walk.chunk_nbytes(), 0});
  }
}

void walk_implicit(ChunkWalk& walk) {
  const std::uint64_t first = walk.dataset().index_address;
  if (walk.filtered()) walk.fail(first, "filtered chunks cannot be without an index");
  std::vector<std::uint64_t> at(walk.rank(), 0);
  for (;;) {
    // The place among all chunks the dataset may grow to.
    std::uint64_t place = 0;
    for (std::size_t axis = 0; axis < at.size(); ++axis) {
      if (walk.most()[axis] <= at[axis] || __builtin_mul_overflow(place, walk.most()[axis], &place) ||
          __builtin_add_overflow(place, at[axis], &place)) {
        walk.fail(first, "an extent beyond its maximum");
      }
    }
    std::uint64_t offset = 0;
    if (__builtin_mul_overflow(place, walk.chunk_nbytes(), &offset) || __builtin_add_overflow(offset, first, &offset)) {
      walk.fail(first, "more chunks than the file holds");
    }
    walk.add(at, {offset, walk.chunk_nbytes(), 0});

    std::size_t axis = at.size();
    while (axis > 0 && ++at[axis - 1] == walk.counts()[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

namespace {

void walk_index(ChunkWalk& walk, const Dataset& dataset) {
  if (dataset.index_address == undefined_address || walk.chunks() == 0) return;
  switch (dataset.index) {
    case Index::btree1: walk_btree1(walk); break;
    case Index::single: walk_single(walk); break;
    case Index::implicit: walk_implicit(walk); break;
    case Index::fixed_array: walk_fixed_array(walk); break;
    case Index::extensible_array: walk_extensible_array(walk); break;
    case Index::btree2: walk_btree2(walk); break;
    case Index::none: walk.fail(dataset.index_address, "no kind of index");
  }
}

}  // namespace

ChunkTable chunk_table(const File& file, const FileFacts& facts, const Dataset& dataset, std::uint64_t* found) {
  ChunkWalk walk(file, facts, dataset);
  walk.tell(found);
  walk_index(walk, dataset);
  return walk.finish();
}

ChunkTable chunk_table(const File& file, const FileFacts& facts, const Dataset& dataset, std::uint64_t& budget) {
  ChunkWalk walk(file, facts, dataset, budget);
  walk_index(walk, dataset);
  budget -= walk.spent();
  return walk.finish();
}

}  // namespace solar
