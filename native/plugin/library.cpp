// Finds the calling libhdf5's functions.
#include <dlfcn.h>

#include <cstdlib>

#include "plugin/hdf5.hpp"

namespace solar::plugin {

template <class Function>
void Library::find(Function& function, const char* symbol) noexcept {
  function = handle_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(handle_, symbol));
}

// The handle is kept: as long as the library is there, so are the functions, and no other comes to its address.
Library::Library(const void* address) noexcept : address_(address) {
  Dl_info found;
  if (dladdr(address, &found) != 0) handle_ = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  find(allocate_, "H5allocate_memory");
  find(free_, "H5free_memory");
  find(push_, "H5Epush2");
  find(get_filter_by_id, "H5Pget_filter_by_id2");
  find(get_filter, "H5Pget_filter2");
  find(modify_filter, "H5Pmodify_filter");
  find(get_chunk, "H5Pget_chunk");
  find(fill_value_defined, "H5Pfill_value_defined");
  find(get_fill_value, "H5Pget_fill_value");
  find(equal, "H5Tequal");
  int (*version)(unsigned*, unsigned*, unsigned*) = nullptr;
  find(version, "H5get_libversion");
  unsigned major = 0, minor = 0, release = 0;
  if (version != nullptr && version(&major, &minor, &release) >= 0)
    has_long_ids_ = major > 1 || (major == 1 && minor >= 10);
}

const Library& Library::around(const void* address) noexcept {
  static thread_local Library last(address);  // called again and again from the same two or three places
  if (last.address_ != address) last = Library(address);
  return last;
}

// libhdf5 may keep books of its memory, so it comes from it and goes back to it; only together, or not at all.
void* Library::allocate(std::size_t nbytes) const noexcept {
  return allocate_ != nullptr && free_ != nullptr ? allocate_(nbytes, false) : std::malloc(nbytes);
}

void Library::release(void* memory) const noexcept {
  if (allocate_ != nullptr && free_ != nullptr)
    free_(memory);
  else
    std::free(memory);
}

Id Library::variable(const char* symbol) const noexcept {
  const void* found = handle_ == nullptr ? nullptr : dlsym(handle_, symbol);
  return found == nullptr ? 0 : *static_cast<const Id*>(found);
}

Id Library::type_named(const char* symbol) const noexcept { return variable(symbol); }

void Library::tell(const char* message) const noexcept {
  if (push_ == nullptr || !has_long_ids_) return;
  push_(0, "solar", "filter", 0, variable("H5E_ERR_CLS_g"), variable("H5E_PLINE_g"), variable("H5E_CANTFILTER_g"),
        "solar: %s", message);
}

bool Library::can_be_asked() const noexcept {
  return has_long_ids_ && get_filter_by_id != nullptr && get_filter != nullptr && modify_filter != nullptr &&
         get_chunk != nullptr && fill_value_defined != nullptr && get_fill_value != nullptr && equal != nullptr;
}

}  // namespace solar::plugin
