// Run, and the Node that several of them share.

#include "solar/asked.hpp"
#include "solar/read_ahead.hpp"
#include "solar/run.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "bound.hpp"
#include "text.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::Array;
using solar::bind::BoundBoxes;
using solar::bind::BoundSource;
using solar::bind::nanoseconds;
using solar::bind::view;

constexpr std::chrono::seconds last_wait(1);  // for a Run that nobody closed

using Sizes = Array<std::int64_t>;
using BoundSamples = std::tuple<Array<std::int32_t>, Array<std::int64_t>, Array<std::int64_t>,
                                std::optional<Array<std::int32_t>>>;  // of boxes
using BoundTurns = std::pair<std::int64_t, std::int64_t>;  // of so many ranks, this one
using BoundEpoch =
    std::tuple<Array<std::int32_t>, std::optional<std::variant<Array<std::int32_t>, BoundTurns>>, Array<std::int64_t>, Array<std::uint8_t>,
               Array<std::int32_t>, Array<std::int64_t>, Array<std::int32_t>, Array<std::int64_t>, Array<std::int64_t>,
               std::optional<BoundSamples>, std::optional<std::tuple<bool, std::uint64_t, std::uint64_t>>>;
using BoundPack = std::tuple<std::string, std::string>;  // type of the numbers, predictor

solar::Pack pack_of(const BoundPack& asked) {
  using solar::Number;
  using solar::Predictor;
  static const std::map<std::string, Number> numbers{
      {"f4", Number::float32}, {"f8", Number::float64}, {"i1", Number::int8},  {"u1", Number::uint8},
      {"i2", Number::int16},   {"u2", Number::uint16},  {"i4", Number::int32}, {"u4", Number::uint32},
      {"i8", Number::int64},   {"u8", Number::uint64}};
  static const std::map<std::string, Predictor> predictors{
      {"none", Predictor::none}, {"x", Predictor::x}, {"xy", Predictor::xy}, {"xyz", Predictor::xyz}};
  const auto number = numbers.find(std::get<0>(asked));
  const auto predictor = predictors.find(std::get<1>(asked));
  if (number == numbers.end() || predictor == predictors.end()) {
    throw std::invalid_argument("rows are not packed as " + std::get<0>(asked) + " by " + std::get<1>(asked));
  }
  return {number->second, predictor->second};
}

struct BoundNode {
  BoundNode(int descriptor, unsigned rank, const std::vector<nb::str>& names, std::size_t nbytes) {
    std::vector<std::string> all;
    for (const nb::str& name : names) all.push_back(solar::bind::name_of(name));
    if (rank >= all.size()) {
      throw std::invalid_argument("rank " + std::to_string(rank) + " of " + std::to_string(all.size()) + " names");
    }
    nb::gil_scoped_release released;
    native = std::make_shared<solar::Node>(descriptor, rank, std::move(all), nbytes);
  }

  bool joined(double seconds) const {
    const std::chrono::nanoseconds limit = nanoseconds(seconds);
    nb::gil_scoped_release released;
    return native->wait(solar::Node::Count::joined, 1, limit);
  }

  nb::list missing() const {
    nb::list names;
    for (const unsigned rank : native->behind(solar::Node::Count::joined, 1)) {
      names.append(solar::bind::text(native->name(rank)));
    }
    return names;
  }

  void fail(const nb::str& why) { native->fail({solar::Kind::read, solar::bind::name_of(why)}); }
  void leave() { native->leave(); }

  std::shared_ptr<solar::Node> native;
};

struct BoundExtents {
  std::shared_ptr<const solar::Extents> native;

  BoundExtents(const Sizes& first, const Sizes& anchor, const Sizes& low, const Sizes& high, std::int64_t every,
               const Sizes& steps, const Sizes& sizes) {
    const auto copy = [](const Sizes& from) { return std::vector<std::int64_t>(view(from).begin(), view(from).end()); };
    auto made = std::make_shared<solar::Extents>(
        solar::Extents{copy(first), copy(anchor), copy(low), copy(high), every, copy(steps), copy(sizes)});
    made->check(INT32_MAX);  // which is what plans number
    native = std::move(made);
  }
};

// Its arrays stay the bound ones.
solar::Run::Epoch native_epoch(const BoundEpoch& bound) {
  const auto& [rows, positions, starts, last, loads, ends, start, start_ends, start_due, boxes, afresh] = bound;
  solar::Run::Epoch epoch;
  epoch.rows = view(rows);
  if (positions && std::holds_alternative<BoundTurns>(*positions)) {
    const auto& [ranks, rank] = std::get<BoundTurns>(*positions);
    if (ranks < 1) throw std::invalid_argument("turns of " + std::to_string(ranks) + " ranks");
    epoch.turns = {ranks, rank};
  } else if (positions) {
    epoch.positions = view(std::get<Array<std::int32_t>>(*positions));
  }
  epoch.starts = view(starts);
  epoch.last = view(last);
  epoch.loads = view(loads);
  epoch.ends = view(ends);
  epoch.start = view(start);
  epoch.start_ends = view(start_ends);
  epoch.start_due = view(start_due);
  if (boxes) {
    epoch.samples = view(std::get<0>(*boxes));
    epoch.corners = view(std::get<1>(*boxes));
    epoch.sample_starts = view(std::get<2>(*boxes));
    if (const auto& own = std::get<3>(*boxes)) epoch.own = view(*own);
  }
  if (afresh) epoch.afresh = {std::get<0>(*afresh), std::get<1>(*afresh), std::get<2>(*afresh)};
  return epoch;
}

solar::Run::Part part_of(const BoundSource& source, std::size_t field, std::size_t pages, std::size_t page, bool stored,
                         bool direct, std::uint64_t ahead, std::uint64_t gap, const BoundExtents* extents,
                         const BoundBoxes* boxes, const std::optional<BoundPack>& pack) {
  return {source.native,
          field,
          pages,
          page,
          stored,
          direct,
          ahead,
          gap,
          extents == nullptr ? nullptr : extents->native,
          boxes == nullptr ? nullptr : boxes->native,
          pack ? std::optional(pack_of(*pack)) : std::nullopt};
}

// Of rows that are read to such memory.
std::tuple<std::uint64_t, std::uint64_t> requests_of(const BoundSource& source, const Sizes& rows,
                                                     nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig> out,
                                                     unsigned threads) {
  solar::Work work;
  work.source = source.native;
  work.rows = view(rows);
  work.out = {reinterpret_cast<std::byte*>(out.data()), out.size()};
  nb::gil_scoped_release released;
  const solar::Requests made = solar::requests_of(work, threads);
  return {made.number, made.bytes};
}

// What a Run asks for. The reader is the one whose Run it would be.
class BoundAsked {
 public:
  BoundAsked(nb::object reader, std::uint64_t scratch, const solar::Run::Part& part)
      : reader_(std::move(reader)), native_(solar::bind::native_reader(reader_), part, scratch) {}

  std::tuple<std::uint64_t, std::uint64_t> epoch(const Sizes& sizes, const BoundEpoch& epoch) {
    nb::gil_scoped_release released;
    const solar::Requests made = native_.epoch({view(sizes).begin(), view(sizes).end()}, native_epoch(epoch));
    return {made.number, made.bytes};
  }

 private:
  nb::object reader_;
  solar::Asked native_;
};

std::shared_ptr<solar::MemoryPool> shared(std::shared_ptr<solar::MemoryPool> pool) { return pool; }

// Its arrays are let go under the GIL: by what is called from Python, never by the Run's thread.
class BoundRun {
 public:
  BoundRun(nb::object reader, std::size_t staged, std::uint64_t scratch, const BoundNode* node, std::size_t lends,
           const solar::bind::BoundPool* pool, bool passed_on)
      : reader_(std::move(reader)),
        run_(std::make_unique<solar::Run>(solar::bind::native_reader(reader_),
                                          pool == nullptr ? shared(solar::bind::batch_pool()) : shared(pool->native),
                                          staged, scratch, node == nullptr ? nullptr : node->native, lends,
                                          passed_on)) {}
  ~BoundRun() {
    bool closed = false;
    {
      nb::gil_scoped_release released;
      closed = run_->close(last_wait);
    }
    if (closed) return;
    static_cast<void>(run_.release());  // its thread may come back to all of this
    static_cast<void>(reader_.release());
  }
  BoundRun(const BoundRun&) = delete;
  BoundRun& operator=(const BoundRun&) = delete;

  std::size_t part(const BoundSource& source, std::size_t field, std::size_t pages, std::size_t page, bool stored,
                   bool direct, std::uint64_t ahead, std::uint64_t gap, const BoundExtents* extents,
                   const BoundBoxes* boxes, const std::optional<BoundPack>& pack) {
    nb::gil_scoped_release released;
    return run_->part(part_of(source, field, pages, page, stored, direct, ahead, gap, extents, boxes, pack));
  }

  void append(const Sizes& sizes, const std::vector<BoundEpoch>& parts) {
    auto keep = std::make_shared<const std::vector<BoundEpoch>>(parts);
    std::vector<solar::Run::Epoch> epochs;
    for (const BoundEpoch& one : *keep) epochs.push_back(native_epoch(one));
    {
      nb::gil_scoped_release released;
      run_->append({view(sizes).begin(), view(sizes).end()}, std::move(epochs), keep);
    }
    run_->retired();
  }

  nb::object take(double seconds) {
    const std::chrono::nanoseconds limit = nanoseconds(seconds);
    solar::Run::Batch batch;
    bool here = false;
    {
      nb::gil_scoped_release released;
      here = run_->take(limit, batch);
    }
    run_->retired();
    if (!here) return nb::none();
    return solar::bind::tuple_of(std::move(batch));
  }

  void ask(std::uint64_t number) { run_->ask(number); }
  void retire() { run_->retired(); }
  solar::Run& native() { return *run_; }

  nb::str waiting_for() const {
    std::string found;
    {
      nb::gil_scoped_release released;
      found = run_->waiting_for();
    }
    return solar::bind::text(found);
  }

  solar::Reader::Ticket due() const { return run_->due(); }

  nb::dict counts() const {
    const solar::RunStats stats = run_->stats();
    nb::dict out;
    out["steps"] = stats.steps;
    out["reads"] = stats.reads;
    out["hits"] = stats.hits;
    out["requests"] = stats.requests;
    out["bytes"] = stats.bytes;
    out["held_bytes"] = stats.held_bytes;
    out["peak_bytes"] = stats.peak_bytes;
    out["recovered"] = stats.recovered;
    out["stall_ns"] = stats.stall_ns;
    return out;
  }

  bool close(double seconds) {
    const std::chrono::nanoseconds limit = nanoseconds(seconds);
    nb::gil_scoped_release released;
    return run_->close(limit);
  }

 private:
  nb::object reader_;  // goes last
  std::unique_ptr<solar::Run> run_;
};

// Its reader and sources stay as long as it does.
class BoundReadAhead {
 public:
  BoundReadAhead(nb::object reader, const std::vector<const BoundSource*>& fields) : reader_(std::move(reader)) {
    std::vector<std::shared_ptr<const solar::Source>> sources;
    for (const BoundSource* one : fields) sources.push_back(one->native);
    native_ = std::make_unique<solar::ReadAhead>(solar::bind::native_reader(reader_), shared(solar::bind::batch_pool()),
                                                 std::move(sources));
  }
  ~BoundReadAhead() {
    nb::gil_scoped_release released;
    native_.reset();
  }
  BoundReadAhead(const BoundReadAhead&) = delete;
  BoundReadAhead& operator=(const BoundReadAhead&) = delete;

  void begin(const Sizes& rows) {
    nb::gil_scoped_release released;
    native_->begin(view(rows));
  }

  void begin_each(const std::vector<Sizes>& rows_of_fields) {
    std::vector<std::span<const std::int64_t>> views;
    for (const Sizes& rows : rows_of_fields) views.push_back(view(rows));
    nb::gil_scoped_release released;
    native_->begin(views);
  }

  nb::object take(double seconds) {
    const std::chrono::nanoseconds limit = nanoseconds(seconds);
    solar::Batches::Batch batch;
    bool here = false;
    {
      nb::gil_scoped_release released;
      here = native_->take(limit, batch);
    }
    if (!here) return nb::none();
    return solar::bind::tuple_of(std::move(batch));
  }

  nb::list leave() {
    std::deque<solar::ReadAhead::Begun> batches;
    {
      nb::gil_scoped_release released;
      batches = native_->leave();
    }
    nb::list left;
    for (auto& begun : batches) {
      nb::list fields, tickets;
      for (auto& field : begun.fields) fields.append(solar::bind::array_of(std::move(field)));
      for (const solar::Reader::Ticket ticket : begun.tickets) tickets.append(ticket);
      left.append(nb::make_tuple(fields, tickets, solar::bind::counts_of(begun.counts)));
    }
    return left;
  }

  std::vector<solar::Reader::Ticket> oldest() const { return native_->oldest(); }
  solar::ReadAhead& native() { return *native_; }

 private:
  nb::object reader_;  // goes last
  std::unique_ptr<solar::ReadAhead> native_;
};

}  // namespace

namespace solar::bind {

Batches& native_batches(nb::handle from) {
  if (nb::isinstance<BoundRun>(from)) return nb::cast<BoundRun&>(from).native();
  return nb::cast<BoundReadAhead&>(from).native();
}

nb::tuple tuple_of(Batches::Batch batch) {
  nb::list fields;
  for (auto& field : batch.fields) fields.append(array_of(std::move(field)));
  return nb::make_tuple(fields, counts_of(batch.counts));
}

}  // namespace solar::bind

void bind_run(nb::module_& module) {
  using namespace nb::literals;
  module.def("make_node", &solar::Node::make, "ranks"_a, "nbytes"_a, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<BoundNode>(module, "Node")
      .def(nb::init<int, unsigned, const std::vector<nb::str>&, std::size_t>(), "descriptor"_a, "rank"_a, "names"_a,
           "nbytes"_a)
      .def("joined", &BoundNode::joined, "seconds"_a)
      .def("missing", &BoundNode::missing)
      .def("fail", &BoundNode::fail, "why"_a)
      .def("leave", &BoundNode::leave);
  nb::class_<BoundExtents>(module, "Extents")
      .def(nb::init<const Sizes&, const Sizes&, const Sizes&, const Sizes&, std::int64_t, const Sizes&, const Sizes&>(),
           "first"_a, "anchor"_a, "low"_a, "high"_a, "every"_a, "steps"_a, "sizes"_a);
  module.def("pack_scratch", &solar::Pack::scratch, "row_nbytes"_a, "itemsize"_a);
  module.def("requests_of", &requests_of, "source"_a, "rows"_a, "out"_a, "threads"_a);
  nb::class_<BoundAsked>(module, "Asked")
      .def(
          "__init__",
          [](BoundAsked* self, nb::object reader, std::uint64_t scratch, const BoundSource& source, std::size_t pages,
             std::size_t page, bool stored, bool direct, std::uint64_t ahead, std::uint64_t gap,
             const BoundExtents* extents, const BoundBoxes* boxes, const std::optional<BoundPack>& pack) {
            new (self) BoundAsked(std::move(reader), scratch,
                                  part_of(source, 0, pages, page, stored, direct, ahead, gap, extents, boxes, pack));
          },
          "reader"_a, "scratch"_a, "source"_a, "pages"_a, "page"_a, "stored"_a, "direct"_a, "ahead"_a, "gap"_a,
          "extents"_a = nb::none(), "boxes"_a = nb::none(), "pack"_a = nb::none())
      .def("epoch", &BoundAsked::epoch, "sizes"_a, "epoch"_a);
  nb::class_<BoundRun>(module, "Run")
      .def(
          "__init__",
          [](BoundRun* self, nb::object reader, std::size_t staged, std::uint64_t scratch, const BoundNode* node,
             std::size_t lends, const solar::bind::BoundPool* pool, bool passed_on) {
            new (self) BoundRun(std::move(reader), staged, scratch, node, lends, pool, passed_on);
          },
          "reader"_a, "staged"_a, "scratch"_a, "node"_a = nb::none(), "lends"_a = 0, "pool"_a = nb::none(),
          "passed_on"_a = false)
      .def("part", &BoundRun::part, "source"_a, "field"_a, "pages"_a, "page"_a, "stored"_a, "direct"_a, "ahead"_a,
           "gap"_a, "extents"_a = nb::none(), "boxes"_a = nb::none(), "pack"_a = nb::none())
      .def("append", &BoundRun::append, "sizes"_a, "parts"_a)
      .def("take", &BoundRun::take, "seconds"_a)
      .def("ask", &BoundRun::ask, "number"_a)
      .def("retire", &BoundRun::retire)
      .def("waiting_for", &BoundRun::waiting_for)
      .def("due", &BoundRun::due)
      .def("counts", &BoundRun::counts)
      .def("close", &BoundRun::close, "seconds"_a);
  nb::class_<BoundReadAhead>(module, "ReadAhead")
      .def(nb::init<nb::object, const std::vector<const BoundSource*>&>(), "reader"_a, "fields"_a)
      .def("begin", &BoundReadAhead::begin, "rows"_a.noconvert())
      .def("begin_each", &BoundReadAhead::begin_each, "rows_of_fields"_a)
      .def("take", &BoundReadAhead::take, "seconds"_a)
      .def("oldest", &BoundReadAhead::oldest)
      .def("leave", &BoundReadAhead::leave);
}
