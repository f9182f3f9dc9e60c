#include "driver.hpp"

#include <dlfcn.h>

#include "solar/error.hpp"

namespace solar {

namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  void* const found = ::dlsym(library, name);
  if (found == nullptr) throw Error(Kind::read, std::string("the driver of the device has no function ") + name);
  function = reinterpret_cast<Function>(found);
}

}  // namespace

// Never closed: threads of the driver's own may run in it.
Driver::Driver(const std::string& library) : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    const char* const why = ::dlerror();
    throw Error(Kind::read, "no driver of a device: " + std::string(why == nullptr ? library.c_str() : why));
  }
  find(library_, "cuInit", init);
  find(library_, "cuDeviceGet", device_get);
  find(library_, "cuDevicePrimaryCtxRetain", context_retain);
  find(library_, "cuDevicePrimaryCtxRelease_v2", context_release);
  find(library_, "cuCtxPushCurrent_v2", context_push);
  find(library_, "cuCtxPopCurrent_v2", context_pop);
  find(library_, "cuMemHostRegister_v2", host_register);
  find(library_, "cuMemHostUnregister", host_unregister);
  find(library_, "cuMemcpyHtoDAsync_v2", copy_to_device);
  find(library_, "cuEventCreate", event_create);
  find(library_, "cuEventDestroy_v2", event_destroy);
  find(library_, "cuEventRecord", event_record);
  find(library_, "cuEventQuery", event_query);
  find(library_, "cuEventSynchronize", event_synchronize);
  find(library_, "cuEventElapsedTime", event_elapsed);
  find(library_, "cuStreamWaitEvent", stream_wait);
  find(library_, "cuGetErrorName", error_name);
  find(library_, "cuGetErrorString", error_string);
}

Driver::~Driver() = default;

void Driver::check(Result result, const char* doing) const {
  if (result == 0) return;
  const char *name = nullptr, *text = nullptr;
  static_cast<void>(error_name(result, &name));
  static_cast<void>(error_string(result, &text));
  throw Error(Kind::read, std::string("the device failed ") + doing + ": " +
                              (name == nullptr ? "error " + std::to_string(result) : name) +
                              (text == nullptr ? "" : std::string(" (") + text + ")"));
}

}  // namespace solar
