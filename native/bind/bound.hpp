// What the bindings of Source and Reader hold, for those that work with them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "solar/batches.hpp"
#include "solar/convert.hpp"
#include "solar/memory.hpp"
#include "solar/decoded.hpp"
#include "solar/reader.hpp"
#include "solar/serve.hpp"
#include "solar/stage.hpp"

namespace solar::bind {

struct BoundSource {
  std::shared_ptr<const Source> native;
};

struct BoundStage {
  std::shared_ptr<Stage> native;
};

struct BoundDecodedFile {
  std::shared_ptr<const DecodedFile> native;
};

// Boxes, and the Source that they are of.
struct BoundBoxes {
  BoundBoxes(const BoundSource& from, std::vector<std::uint64_t> block, std::vector<std::uint64_t> box,
             std::vector<std::uint64_t> shape, std::vector<std::int64_t> lengths)
      : source(from.native),
        native(std::make_shared<const Boxes>(Boxes{std::move(block), std::move(box), std::move(shape), std::move(lengths)})) {
    native->check(*source);
  }
  // Runs of the rows of these blocks.
  explicit BoundBoxes(const BoundSource& from)
      : source(from.native), native(std::make_shared<const Boxes>(Boxes::runs_of(*from.native))) {
    native->check(*source);
  }
  std::shared_ptr<const Source> source;
  std::shared_ptr<const Boxes> native;
};

struct BoundConversion {
  std::shared_ptr<const Conversion> native;
};

struct BoundPool {
  std::shared_ptr<SharedPool> native;
};

// The Reader in solar._native.Reader; TypeError for anything else. Whoever uses it keeps `reader` alive.
Reader& native_reader(nanobind::handle reader);

// What makes batches, in a solar._native.Run or ReadAhead; TypeError for anything else. Whoever uses it keeps it alive.
Batches& native_batches(nanobind::handle from);
// A batch as Python takes it: its fields, and its counts.
nanobind::tuple tuple_of(Batches::Batch batch);

// What batches are put together in. One for the process, never destroyed: arrays give their memory back at any time.
const std::shared_ptr<BatchPool>& batch_pool();
// An array that owns the block.
nanobind::ndarray<nanobind::numpy, std::uint8_t, nanobind::ndim<1>> array_of(std::unique_ptr<MemoryPool::Block> block);

// The counts in the order of count_names().
nanobind::tuple counts_of(const ReaderStats& stats);

// ValueError for what is no number.
std::chrono::nanoseconds nanoseconds(double seconds);

}  // namespace solar::bind
