// Device, and Lander, which copies batches there.

#include "solar/device.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bound.hpp"
#include "solar/lander.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::nanoseconds;

struct BoundDevice {
  BoundDevice(const std::string& library, int number) {
    nb::gil_scoped_release released;
    native = solar::Device::open(library, number);
  }
  std::shared_ptr<solar::Device> native;
};

class BoundLander {
 public:
  BoundLander(const BoundDevice& device, std::uintptr_t stream, nb::object from, std::size_t most)
      : from_(std::move(from)),
        native_(std::make_unique<solar::Lander>(device.native, stream, solar::bind::batch_pool(),
                                                solar::bind::native_batches(from_), most)) {}
  ~BoundLander() {
    nb::gil_scoped_release released;
    native_.reset();
  }
  BoundLander(const BoundLander&) = delete;
  BoundLander& operator=(const BoundLander&) = delete;

  void begin(solar::Lander::Target target) { native_->begin(std::move(target)); }

  nb::object take(double seconds, std::uintptr_t stream) {
    const std::chrono::nanoseconds limit = nanoseconds(seconds);
    solar::ReaderStats counts;
    bool here = false;
    {
      nb::gil_scoped_release released;
      here = native_->take(limit, stream, counts);
    }
    if (!here) return nb::none();
    return solar::bind::counts_of(counts);
  }

  bool copying() const { return native_->copying(); }
  std::uint64_t copied_ns() const { return native_->copied_ns(); }

  // The batches that are left; the error of the next is raised by failed().
  nb::list stop() {
    std::vector<solar::Batches::Batch> left;
    {
      nb::gil_scoped_release released;
      std::tie(left, error_) = native_->stop();
    }
    nb::list found;
    for (auto& batch : left) found.append(solar::bind::tuple_of(std::move(batch)));
    return found;
  }

  void failed() {
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  nb::object from_;  // goes last
  std::unique_ptr<solar::Lander> native_;
  std::exception_ptr error_;
};

}  // namespace

void bind_device(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<BoundDevice>(module, "Device")
      .def(nb::init<const std::string&, int>(), "library"_a, "number"_a)
      .def_prop_ro("pinned", [](const BoundDevice& device) { return device.native->pinned(); });
  nb::class_<BoundLander>(module, "Lander")
      .def(nb::init<const BoundDevice&, std::uintptr_t, nb::object, std::size_t>(), "device"_a, "stream"_a, "batches"_a,
           "most"_a)
      .def("begin", &BoundLander::begin, "target"_a)
      .def("take", &BoundLander::take, "seconds"_a, "stream"_a)
      .def("copying", &BoundLander::copying)
      .def("copied_ns", &BoundLander::copied_ns)
      .def("stop", &BoundLander::stop)
      .def("failed", &BoundLander::failed);
}
