// The contents page of solar._native, and the one place where native errors become Python's.

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <string>
#include <system_error>

#include "solar/error.hpp"
#include "text.hpp"

namespace nb = nanobind;

void bind_metadata(nb::module_& module);
void bind_decode(nb::module_& module);
void bind_boxes(nb::module_& module);
void bind_pool(nb::module_& module);
void bind_reader(nb::module_& module);
void bind_convert(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_order(nb::module_& module);
void bind_codec(nb::module_& module);
void bind_run(nb::module_& module);
void bind_faults(nb::module_& module);
void bind_far(nb::module_& module);
void bind_serve(nb::module_& module);
void bind_stage(nb::module_& module);
void bind_device(nb::module_& module);

namespace {

const char* class_of(solar::Kind kind) {
  switch (kind) {
    case solar::Kind::layout: return "LayoutError";
    case solar::Kind::plan: return "PlanError";
    case solar::Kind::read: return "ReadError";
    case solar::Kind::codec: return "CodecError";
  }
  return "SolarError";
}

constexpr const char* no_memory =
    "the system gives no more memory: ask for less at a time, by a smaller batch_size, buffer or `ahead`";

constexpr const char* no_threads =
    "the system lets no more threads begin: raise its limit (`ulimit -u`, or `pids.max` of the control group), or let "
    "fewer read, by SOLAR_THREADS (";

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const solar::Error& error) {
    nb::object type = nb::module_::import_("solar.errors").attr(class_of(error.kind()));
    nb::object value = type(solar::bind::text(error.what()));
    if (error.kind() == solar::Kind::read && error.code() != 0) nb::setattr(value, "errno", nb::int_(error.code()));
    PyErr_SetObject(type.ptr(), value.ptr());
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, no_memory);
  } catch (const std::system_error& error) {  // of std::thread, which alone throws it
    const std::string said = std::string(no_threads) + error.code().message() + ")";
    PyErr_SetString(nb::module_::import_("solar.errors").attr("SolarError").ptr(), said.c_str());
  }
}

// Called by the interpreter when all of Python has ended. It takes these functions last in, first out: what was
// registered before this one, as what ends MPI is, is not called any more.
void exit_now() {
  std::fflush(nullptr);
  ::_exit(1);
}

}  // namespace

NB_MODULE(_native, module) {
  nb::register_exception_translator(translate);
  // The process-wide Reader and arrays in a training script's globals live until the very end; that is no leak.
  nb::set_leak_warnings(false);
  module.def("exit_after_python", [] { return Py_AtExit(exit_now) == 0; });
  bind_metadata(module);
  bind_decode(module);
  bind_boxes(module);
  bind_pool(module);
  bind_reader(module);
  bind_convert(module);
  bind_plan(module);
  bind_order(module);
  bind_codec(module);
  bind_run(module);
  bind_faults(module);
  bind_far(module);
  bind_serve(module);
  bind_stage(module);
  bind_device(module);
}
