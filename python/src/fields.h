// SPDX-License-Identifier: Apache-2.0
#pragma once

// The attributes of dataclasses of Python, read when a call gets them.

#include <cstdint>
#include <string>
#include <utility>

#include "bindings.h"

namespace kvfolio::python {

// The attributes of a dataclass of Python: of argument NAME, which is to be a WANTED.
class Fields {
 public:
  Fields(nb::handle object, std::string name, const char* wanted)
      : object_(object), name_(std::move(name)), wanted_(wanted) {}

  [[nodiscard]] nb::object get(const char* field) const {
    if (!nb::hasattr(object_, field)) raise_wanted(object_, name_, wanted_);
    return nb::getattr(object_, field);
  }
  [[nodiscard]] std::int32_t number(const char* field) const {
    Int value;
    if (!nb::try_cast(get(field), value)) refuse(field, "an int");
    return i32(value, (name_ + "." + field).c_str());
  }
  // Any int of 64 bits; one beyond is the nearest end.
  [[nodiscard]] std::int64_t number64(const char* field) const {
    Int value;
    if (!nb::try_cast(get(field), value)) refuse(field, "an int");
    return value.value;
  }
  [[nodiscard]] bool flag(const char* field) const {
    bool value = false;
    if (!nb::try_cast(get(field), value)) refuse(field, "a bool");
    return value;
  }
  [[nodiscard]] std::string text(const char* field) const {
    const nb::object value = get(field);
    if (!PyUnicode_Check(value.ptr())) refuse(field, "a str");
    return utf8(value);
  }
  // str as UTF-8, or bytes.
  [[nodiscard]] std::string bytes(const char* field) const {
    const nb::object value = get(field);
    if (PyUnicode_Check(value.ptr())) return utf8(value);
    if (!PyBytes_Check(value.ptr())) refuse(field, "bytes or str");
    const auto& content = nb::borrow<nb::bytes>(value);
    return {static_cast<const char*>(content.data()), content.size()};
  }

 private:
  [[noreturn]] void refuse(const char* field, const char* wanted) const {
    raise_wanted(get(field), name_ + "." + field, wanted);
  }
  static std::string utf8(nb::handle text) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    return {data, static_cast<std::size_t>(size)};
  }

  nb::handle object_;
  std::string name_;
  const char* wanted_;
};

inline std::string item_name(const char* name, std::size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

}  // namespace kvfolio::python
