// Run.

#include "solar/run.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bound.hpp"
#include "text.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::Array;
using solar::bind::BoundSource;
using solar::bind::nanoseconds;
using solar::bind::view;

constexpr std::chrono::seconds last_wait(1);  // for a Run that nobody closed

using Sizes = Array<std::int64_t>;
using BoundEpoch = std::tuple<Array<std::int32_t>, std::optional<Array<std::int32_t>>, Array<std::int64_t>,
                              Array<std::uint8_t>, Array<std::int32_t>, Array<std::int64_t>, Array<std::int32_t>,
                              Array<std::int64_t>, Array<std::int64_t>>;

// Its arrays are let go under the GIL: by what is called from Python, never by the Run's thread.
class BoundRun {
 public:
  BoundRun(nb::object reader, std::size_t staged, std::uint64_t scratch)
      : reader_(std::move(reader)),
        run_(std::make_unique<solar::Run>(solar::bind::native_reader(reader_), solar::bind::batch_pool(), staged, scratch)) {}
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
                   bool direct, std::uint64_t ahead, std::uint64_t gap) {
    nb::gil_scoped_release released;
    return run_->part({source.native, field, pages, page, stored, direct, ahead, gap});
  }

  void append(const Sizes& sizes, const std::vector<BoundEpoch>& parts) {
    auto keep = std::make_shared<const std::vector<BoundEpoch>>(parts);
    std::vector<solar::Run::Epoch> epochs;
    for (const auto& [rows, positions, starts, last, loads, ends, start, start_ends, start_due] : *keep) {
      solar::Run::Epoch epoch;
      epoch.rows = view(rows);
      if (positions) epoch.positions = view(*positions);
      epoch.starts = view(starts);
      epoch.last = view(last);
      epoch.loads = view(loads);
      epoch.ends = view(ends);
      epoch.start = view(start);
      epoch.start_ends = view(start_ends);
      epoch.start_due = view(start_due);
      epochs.push_back(epoch);
    }
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
    nb::list fields;
    for (auto& field : batch.fields) fields.append(solar::bind::array_of(std::move(field)));
    return nb::make_tuple(fields, solar::bind::counts_of(batch.counts));
  }

  nb::str waiting_for() const {
    std::string found;
    {
      nb::gil_scoped_release released;
      found = run_->waiting_for();
    }
    return solar::bind::text(found);
  }

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

}  // namespace

void bind_run(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<BoundRun>(module, "Run")
      .def("__init__",
           [](BoundRun* self, nb::object reader, std::size_t staged, std::uint64_t scratch) {
             new (self) BoundRun(std::move(reader), staged, scratch);
           },
           "reader"_a, "staged"_a, "scratch"_a)
      .def("part", &BoundRun::part, "source"_a, "field"_a, "pages"_a, "page"_a, "stored"_a, "direct"_a, "ahead"_a,
           "gap"_a)
      .def("append", &BoundRun::append, "sizes"_a, "parts"_a)
      .def("take", &BoundRun::take, "seconds"_a)
      .def("waiting_for", &BoundRun::waiting_for)
      .def("counts", &BoundRun::counts)
      .def("close", &BoundRun::close, "seconds"_a);
}
