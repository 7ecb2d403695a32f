// SPDX-License-Identifier: Apache-2.0

// Errors of the library as exceptions of kvfolio/errors.py.

#include "bindings.h"

namespace kvfolio::python {
namespace {

nb::object shortage_of(const Shortage& shortage) {
  nb::dict fields;
  fields["group"] = shortage.group;
  fields["needed"] = shortage.needed;
  fields["free"] = shortage.free;
  fields["evictable"] = shortage.evictable;
  fields["pinned"] = shortage.pinned;
  fields["retiring"] = shortage.retiring;
  fields["loads"] = shortage.loads;
  fields["holds"] = shortage.holds;
  fields["reserved"] = shortage.reserved;
  fields["sequences"] = shortage.sequences;
  fields["pins"] = shortage.pins;
  fields["num_blocks"] = shortage.num_blocks;
  fields["kept"] = shortage.kept;
  fields["spared"] = shortage.spared;
  fields["never"] = shortage.never();
  return fields;
}

}  // namespace

void raise(const Status& status, std::int32_t num_done) {
  const nb::object done = num_done < 0 ? nb::none() : nb::cast(num_done);
  const nb::object shortage =
      status.shortage() == nullptr ? nb::none() : shortage_of(*status.shortage());
  const nb::object error = new_record(
      "kvfolio.errors", "_make",
      nb::make_tuple(static_cast<std::int32_t>(status.code()), status.message(), done, shortage));
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

void raise_invalid(const std::string& message) {
  raise(Status(ErrorCode::kInvalidArgument, message));
}

void raise_type(const std::string& message) { throw nb::type_error(message.c_str()); }

void raise_wanted(nb::handle object, const std::string& name, const std::string& wanted) {
  const bool raw = nb::type_check(object.type()) && !nb::inst_ready(object);
  raise_type(name + ": " + nb::inst_name(object).c_str() + " object" +
             (raw ? " without __init__" : "") + ", wanted: " + wanted);
}

std::vector<nb::object> items_of(nb::handle object, const char* name, const char* wanted) {
  const bool is_text = PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr());
  const bool is_other = is_text || PyDict_Check(object.ptr()) || nb::type_check(object.type());
  PyObject* iterator = is_other ? nullptr : PyObject_GetIter(object.ptr());
  if (iterator == nullptr) {
    PyErr_Clear();
    raise_wanted(object, name, wanted);
  }
  std::vector<nb::object> items;
  const nb::object owner = nb::steal(iterator);
  while (PyObject* item = PyIter_Next(iterator)) items.push_back(nb::steal(item));
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return items;
}

std::int64_t within(Int number, const char* name, std::int64_t least, std::int64_t most) {
  if (number.value >= least && number.value <= most) return number.value;
  const bool end = number.value == INT64_MAX || number.value == INT64_MIN;
  raise_invalid(std::string(name) + " is " + std::to_string(number.value) +
                (end ? " or beyond" : "") + ", allowed: " + std::to_string(least) + " to " +
                std::to_string(most));
}

std::int32_t i32(Int number, const char* name) {
  return static_cast<std::int32_t>(within(number, name, INT32_MIN, INT32_MAX));
}

std::int64_t parse_bytes(nb::handle object, const char* name) {
  const nb::object bytes =
      new_record("kvfolio._capacity", "parse_bytes", nb::make_tuple(nb::borrow(object), name));
  return nb::cast<Int>(bytes).value;
}

std::string counted(std::int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

void raise_unknown_word(const char* name, const char* word, const std::vector<const char*>& known) {
  std::string message = std::string(name) + " is '" + word + "', allowed: ";
  for (const char* each : known) {
    message += each == known.front() ? "'" : ", '";
    message += each;
    message += "'";
  }
  raise_invalid(message);
}

}  // namespace kvfolio::python

namespace nanobind::detail {
namespace {

// The integer of Python that an object is, or null without an error.
object index_of(handle src) noexcept {
  if (PyLong_Check(src.ptr())) return borrow(src);
  if (!PyIndex_Check(src.ptr())) return {};
  PyObject* number = PyNumber_Index(src.ptr());
  if (number == nullptr) PyErr_Clear();
  return steal(number);
}

}  // namespace

bool type_caster<kvfolio::python::Int>::from_python(handle src, std::uint32_t,
                                                    cleanup_list*) noexcept {
  const object number = index_of(src);
  if (!number.is_valid()) return false;
  int overflow = 0;
  const long long read = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  value.value = overflow == 0 ? read : overflow > 0 ? INT64_MAX : INT64_MIN;
  return true;
}

bool type_caster<kvfolio::python::Id>::from_python(handle src, std::uint32_t,
                                                   cleanup_list*) noexcept {
  const object number = index_of(src);
  if (!number.is_valid()) return false;
  const unsigned long long read = PyLong_AsUnsignedLongLong(number.ptr());
  const bool bad = read == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr;
  if (bad) PyErr_Clear();
  value.value = bad ? 0 : read;
  return true;
}

}  // namespace nanobind::detail
