// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the files of the Python extension share. Each file binds one family: add_spec(), ... below.
// The extension stands on the public headers only.
//
// Numbers of Python have no limit, so every integer argument is an Int, which saturates, and i32()
// refuses what does not fit, with the number. Errors of the library become the exceptions of
// kvfolio/errors.py.
//
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvfolio::python {

// ---- the GIL ----

// Gives up the GIL for as long as it lives. A daemon thread that wants it back while the
// interpreter ends is ended there (by pthread_exit(), up to Python 3.13): its stack is unwound
// through destructors that let nothing pass, which would abort the program. Here it waits for the
// end of the process instead, as in Python 3.14. It must own no mutex then, since objects that end
// later lock them: so locks are taken inside of this, and left before.
class ReleasedGil {
 public:
  // inner: a mutex that is locked inside and kept beyond this, or null.
  explicit ReleasedGil(std::mutex* inner = nullptr) noexcept
      : inner_(inner), thread_(PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  // What a thread does that is to end.
  [[noreturn]] static void wait_for_the_end() {
    for (;;) ::pause();
  }
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      if (inner_ != nullptr) inner_->unlock();
      wait_for_the_end();
    }
  }

 private:
  std::mutex* inner_;
  PyThreadState* thread_;
};

// Runs f() with the GIL, on whichever thread; not at all if the interpreter is gone.
template <typename F>
void with_gil(F&& f) noexcept {
  if (Py_IsInitialized() == 0) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  f();
  PyGILState_Release(state);
}

// An object of Python that anything may let go of, on any thread. Made under the GIL.
inline std::shared_ptr<PyObject> held(nb::handle object) {
  return {object.inc_ref().ptr(), [](PyObject* o) { with_gil([&] { Py_DECREF(o); }); }};
}

// NAME(*fields) of a module of Python: a record, or an error. That is code of Python, in which a
// daemon thread may end, too: so nothing is in here whose destructor needs the GIL.
inline nb::object new_record(const char* module, const char* name, const nb::tuple& fields) {
  PyObject* record = nullptr;
  try {
    PyObject* const from = PyImport_ImportModule(module);
    PyObject* const type = from != nullptr ? PyObject_GetAttrString(from, name) : nullptr;
    if (type != nullptr) record = PyObject_CallObject(type, fields.ptr());
    Py_XDECREF(type);
    Py_XDECREF(from);
  } catch (...) {
    ReleasedGil::wait_for_the_end();
  }
  if (record == nullptr) throw nb::python_error();
  return nb::steal(record);
}

// ---- errors ----

// Raises the exception of an error. num_done: what append_each() and the like have done, or -1.
[[noreturn]] void raise(const Status& status, std::int32_t num_done = -1);
[[noreturn]] void raise_invalid(const std::string& message);
[[noreturn]] void raise_type(const std::string& message);
// TypeError: "NAME: CLASS object, wanted: WANTED".
[[noreturn]] void raise_wanted(nb::handle object, const std::string& name,
                               const std::string& wanted);

inline void check(const Status& status) {
  if (!status) raise(status);
}
template <typename T>
T take(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}

// ---- numbers ----

// An integer of Python: any object with __index__. One beyond 64 bits is the nearest end.
struct Int {
  std::int64_t value = 0;
};
// An id: one that no 64 bits hold names nothing.
struct Id {
  std::uint64_t value = 0;

  operator SequenceId() const { return SequenceId(value); }
  operator PinId() const { return PinId(value); }
  operator Ticket() const { return Ticket(value); }
};

// InvalidArgument if the number is not within least .. most.
std::int64_t within(Int number, const char* name, std::int64_t least, std::int64_t most);
std::int32_t i32(Int number, const char* name);
// Bytes: an int, or text such as "64MiB" (parse_bytes() of kvfolio/_capacity.py). TypeError for
// another object, InvalidArgument for another text; one beyond 64 bits is the nearest end.
std::int64_t parse_bytes(nb::handle object, const char* name);
// "1 sequence", "2 sequences".
std::string counted(std::int64_t count, const char* noun);
inline GroupId group_id(Int group) { return GroupId(i32(group, "group")); }

// ---- objects ----

// The T that an argument is. TypeError for another object, and for one without __init__.
template <typename T>
T& object_of(nb::handle object, const char* name, const char* wanted) {
  if (!nb::isinstance<T>(object) || !nb::inst_ready(object)) raise_wanted(object, name, wanted);
  return nb::cast<T&>(object);
}
// The items of a list or of another thing with items, but no text.
std::vector<nb::object> items_of(nb::handle object, const char* name, const char* wanted);

// ---- words ----

// An enum is a word in Python. Raises InvalidArgument with all words for another one.
template <typename Enum>
struct Word {
  const char* text;
  Enum value;
};
[[noreturn]] void raise_unknown_word(const char* name, const char* word,
                                     const std::vector<const char*>& known);
template <typename Enum, std::size_t N>
Enum parse_word(const char* name, const char* word, const Word<Enum> (&words)[N]) {
  std::vector<const char*> known;
  for (const Word<Enum>& each : words) {
    if (std::string_view(each.text) == word) return each.value;
    known.push_back(each.text);
  }
  raise_unknown_word(name, word, known);
}
DType parse_dtype(const char* name, const char* word);
Format parse_format(const char* word);
std::optional<VictimPolicy> parse_policy(const char* name, nb::handle word);  // None: none

// ---- spec ----

// From a sequence of kvfolio.GroupSpec, which is the argument `name`.
CacheSpec spec_of(nb::handle groups, const char* name = "groups");
// As a list of kvfolio.GroupSpec.
nb::list groups_of(const CacheSpec& spec);

// Root key and media of Python, with the memory that the views of OpenOptions point into.
struct HeldRoot {
  std::string model, adapter, adapter_version, tenant_salt;
  RootKey key{};

  explicit HeldRoot(nb::handle root);  // a kvfolio.RootKey or None
  HeldRoot(const HeldRoot&) = delete;
  HeldRoot& operator=(const HeldRoot&) = delete;
};
std::vector<MediaSpan> media_of(nb::handle media);  // of a sequence of kvfolio.MediaSpan

// ---- manager ----

// A plan whose arrays lie in the manager. It is dead when its step has ended or was planned again.
struct Lease {
  bool live = true;
  std::int32_t num_readers = 0;  // kernels that read it without the GIL
};

struct ManagerState;  // manager_state.h
class Manager;

// The classes of _types.py that are made here.
nb::object make_record(const char* name, const nb::tuple& fields);
nb::list ended_list(const std::vector<EndedSequence>& ended);

// ---- families ----

void add_spec(nb::module_& m);
void add_storage(nb::module_& m);
void add_kernels(nb::module_& m);
void add_attention(nb::module_& m);
void add_token_store(nb::module_& m);
void add_block_store(nb::module_& m);
nb::object soon_record(const Soon& soon);
void add_records(nb::module_& m);
void add_manager(nb::module_& m);
void add_step(nb::module_& m);
void add_plan(nb::module_& m);
void add_module_watch(nb::module_& m);

}  // namespace kvfolio::python

namespace nanobind::detail {

template <>
struct type_caster<kvfolio::python::Int> {
  NB_TYPE_CASTER(kvfolio::python::Int, const_name("int"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept;
  static handle from_cpp(kvfolio::python::Int number, rv_policy, cleanup_list*) noexcept {
    return PyLong_FromLongLong(number.value);
  }
};

template <>
struct type_caster<kvfolio::python::Id> {
  NB_TYPE_CASTER(kvfolio::python::Id, const_name("int"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept;
  static handle from_cpp(kvfolio::python::Id id, rv_policy, cleanup_list*) noexcept {
    return PyLong_FromUnsignedLongLong(id.value);
  }
};

}  // namespace nanobind::detail
