// A Driver is CUDA's driver library, opened by name: its functions, with the types of its documented interface.
//
// The library stays open until the process ends. The functions are the library's own; any thread may call them as its
// documentation allows. The constructor throws Error(read) that names the library or the function that is not there.
// Functions return codes; check() makes an Error(read) of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace solar {

struct Driver {
  using Result = int;  // 0: done

  explicit Driver(const std::string& library);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Throws Error(read) unless the result is 0; `doing` is what was tried.
  void check(Result result, const char* doing) const;

  static constexpr Result not_ready = 600, already_pinned = 712;
  static constexpr unsigned blocking_sync = 1;  // whoever waits for an event sleeps
  static constexpr unsigned portable = 1;       // memory is pinned for all contexts

  Result (*init)(unsigned) = nullptr;
  Result (*device_get)(int*, int) = nullptr;
  Result (*context_retain)(void**, int) = nullptr;
  Result (*context_release)(int) = nullptr;
  Result (*context_push)(void*) = nullptr;
  Result (*context_pop)(void**) = nullptr;
  Result (*host_register)(void*, std::size_t, unsigned) = nullptr;
  Result (*host_unregister)(void*) = nullptr;
  Result (*copy_to_device)(std::uint64_t, const void*, std::size_t, std::uintptr_t) = nullptr;
  Result (*event_create)(void**, unsigned) = nullptr;
  Result (*event_destroy)(void*) = nullptr;
  Result (*event_record)(void*, std::uintptr_t) = nullptr;
  Result (*event_query)(void*) = nullptr;
  Result (*event_synchronize)(void*) = nullptr;
  Result (*event_elapsed)(float*, void*, void*) = nullptr;
  Result (*stream_wait)(std::uintptr_t, void*, unsigned) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;
  Result (*error_string)(Result, const char**) = nullptr;

 private:
  void* library_ = nullptr;
};

}  // namespace solar
