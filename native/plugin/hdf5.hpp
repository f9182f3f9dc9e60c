// What the plug-in and libhdf5 say to each other, declared here, so that no HDF5 is needed to build it.
//
// A process may hold several libhdf5, none of them linked to us and most of them hidden from the linker (each Python
// wheel brings its own). The one that called is found by the address it called from; Library has what we ask of it.
// Any thread may call; a Library is the calling thread's own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace solar::plugin {

using Id = std::int64_t;  // hid_t since HDF5 1.10

// H5Z_class2_t, the interface of filters since HDF5 1.8.
struct FilterClass {
  int version;
  int id;
  unsigned encoder_present, decoder_present;
  const char* name;
  int (*can_apply)(Id properties, Id type, Id space);
  int (*set_local)(Id properties, Id type, Id space);
  std::size_t (*filter)(unsigned flags, std::size_t count, const unsigned values[], std::size_t nbytes,
                        std::size_t* room, void** buffer);
};
inline constexpr int class_version = 1;          // H5Z_CLASS_T_VERS
inline constexpr int plugin_of_filters = 0;      // H5PL_TYPE_FILTER
inline constexpr unsigned reading = 0x0100;      // H5Z_FLAG_REVERSE
inline constexpr std::size_t most_values = 256;  // of a filter that H5Pget_filter hands out, or fails
inline constexpr int most_axes = 32;             // H5S_MAX_RANK
inline constexpr int filled_by_the_user = 2;     // H5D_FILL_VALUE_USER_DEFINED

class Library {
 public:
  // The library with the code at `address`. What it lacks is nullptr; chunks can be read and written without any.
  static const Library& around(const void* address) noexcept;

  // Memory that this library may release, and that of which it gives us. nullptr: there is none left.
  void* allocate(std::size_t nbytes) const noexcept;
  void release(void* memory) const noexcept;
  // Puts a message where the library's callers find it.
  void tell(const char* message) const noexcept;
  // Whether the rest can be called: all of it is there, and numbers objects as we do.
  bool can_be_asked() const noexcept;

  int (*get_filter_by_id)(Id properties, int id, unsigned* flags, std::size_t* count, unsigned* values,
                          std::size_t name_room, char* name, unsigned* config);
  int (*get_filter)(Id properties, unsigned position, unsigned* flags, std::size_t* count, unsigned* values,
                    std::size_t name_room, char* name, unsigned* config);
  int (*modify_filter)(Id properties, int id, unsigned flags, std::size_t count, const unsigned* values);
  int (*get_chunk)(Id properties, int room, std::uint64_t* lengths);
  int (*fill_value_defined)(Id properties, int* status);
  int (*get_fill_value)(Id properties, Id type, void* value);
  int (*equal)(Id one, Id other);
  Id type_named(const char* symbol) const noexcept;  // the type behind a global variable; 0: there is none

 private:
  explicit Library(const void* address) noexcept;
  template <class Function>
  void find(Function& function, const char* symbol) noexcept;
  Id variable(const char* symbol) const noexcept;

  void* handle_ = nullptr;
  const void* address_ = nullptr;
  bool has_long_ids_ = false;
  void* (*allocate_)(std::size_t, bool) = nullptr;
  int (*free_)(void*) = nullptr;
  int (*push_)(Id stack, const char* file, const char* function, unsigned line, Id kind, Id major, Id minor,
               const char* format, ...) = nullptr;
};

}  // namespace solar::plugin
