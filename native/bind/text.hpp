// Text between Python and native code, where it is bytes: what is not UTF-8 becomes lone surrogates in Python and comes
// back as the same bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace solar::bind {

inline std::string held(PyObject* object) {
  const auto bytes = nanobind::steal<nanobind::bytes>(object);
  if (!bytes.is_valid()) nanobind::raise_python_error();
  return {bytes.c_str(), bytes.size()};
}

// Of a path: in the encoding of the file system.
inline std::string bytes_of(nanobind::handle path) { return held(PyUnicode_EncodeFSDefault(path.ptr())); }

// Of a name inside a file: in UTF-8, whatever the locale.
inline std::string name_of(nanobind::handle name) {
  return held(PyUnicode_AsEncodedString(name.ptr(), "utf-8", "surrogateescape"));
}

inline nanobind::str text(const std::string& bytes) {
  PyObject* object = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape");
  if (object == nullptr) nanobind::raise_python_error();
  return nanobind::steal<nanobind::str>(object);
}

}  // namespace solar::bind
