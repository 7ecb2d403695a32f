// SPDX-License-Identifier: Apache-2.0

// What kvfolio.hf asks of a model in front of each forward: whether its modules are as they were,
// and some elements of its tensors. In Python this takes a twentieth of a small model's forward.
// Nothing of torch is needed: a module is an object with these dicts, and a tensor is an address.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"

namespace kvfolio::python {
namespace {

constexpr std::array<const char*, 2> kTensors = {"_parameters", "_buffers"};

// The entries of a module's __dict__ that are looked at.
struct Words {
  nb::object training = nb::str("training"), config = nb::str("config"),
             forward = nb::str("forward"), moved = nb::str("_hf_hook"),
             modules = nb::str("_modules"), after = nb::str("_forward_hooks"),
             before = nb::str("_forward_pre_hooks");
  std::array<nb::object, 2> tensors = {nb::str(kTensors[0]), nb::str(kTensors[1])};
};

// Refers to an object weakly, as the model alone decides what is kept. None has no such reference.
nb::object weak(nb::handle thing) {
  if (thing.is_none()) return nb::none();
  PyObject* reference = PyWeakref_NewRef(thing.ptr(), nullptr);
  if (reference == nullptr) throw nb::python_error();
  return nb::steal(reference);
}

// What a weak reference refers to, not owned, or None. The successor that owns what it returns is
// of Python 3.13, and no reference can go while this thread has the GIL.
PyObject* target(const nb::object& reference) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return PyWeakref_GetObject(reference.ptr());
#pragma GCC diagnostic pop
}

bool is(const nb::object& known, PyObject* thing) {
  if (known.is_none()) return thing == Py_None;
  return thing != Py_None && target(known) == thing;
}

struct Module {
  nb::object self, type, training, config;  // config: null if there is none
  bool moved = false;                       // accelerate may put other tensors there while it runs
  std::vector<nb::object> tensors, modules;
  std::vector<std::pair<nb::object, nb::object>> values;  // attributes that are numbers or words
};

nb::object entry(const nb::object& entries, const nb::object& word) {
  return nb::borrow(PyDict_GetItemWithError(entries.ptr(), word.ptr()));
}

nb::object entries_of(PyObject* module) {
  nb::object entries = nb::steal(PyObject_GenericGetDict(module, nullptr));
  if (!entries.is_valid()) PyErr_Clear();
  return entries;
}

// Numbers of modules.
struct Seen {
  std::vector<std::int64_t> hooked, forwards;
};

class ModuleWatch {
 public:
  ModuleWatch(nb::handle modules, nb::handle names)
      : names_(items_of(names, "names", "a list of words")) {
    for (const nb::object& name : names_) {
      if (!PyUnicode_CheckExact(name.ptr())) raise_wanted(name, "names", "a word");
    }
    for (const nb::object& module : items_of(modules, "modules", "a list of modules")) {
      note(module);
    }
    static_cast<void>(holds(false));  // for the lists
  }

  bool holds(bool within) {
    Seen seen;
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      if (!module_holds(modules_[i], static_cast<std::int64_t>(i), within, seen)) return false;
    }
    seen_ = std::move(seen);
    return true;
  }

  [[nodiscard]] nb::list hooked() const { return list_of(seen_.hooked); }
  [[nodiscard]] nb::list forwards() const { return list_of(seen_.forwards); }

 private:
  static nb::list list_of(const std::vector<std::int64_t>& numbers) {
    nb::list list;
    for (const std::int64_t number : numbers) list.append(number);
    return list;
  }

  void note(const nb::object& module) {
    const nb::object entries = entries_of(module.ptr());
    Module known;
    if (!entries.is_valid() || !fill(known, module, entries)) {
      raise_wanted(module, "modules", "a torch.nn.Module");
    }
    modules_.push_back(std::move(known));
  }

  bool fill(Module& known, const nb::object& module, const nb::object& entries) {
    known.training = entry(entries, words_.training);
    known.config = entry(entries, words_.config);
    known.moved = entry(entries, words_.moved).is_valid();
    if (!known.training.is_valid()) return false;
    for (const nb::object& word : words_.tensors) {
      if (!add(known.tensors, entry(entries, word))) return false;
    }
    if (!add(known.modules, entry(entries, words_.modules))) return false;
    for (const nb::object& name : names_) {
      nb::object value = nb::getattr(module, name, nb::handle());
      if (value.is_valid() && is_plain(value)) known.values.emplace_back(name, std::move(value));
    }
    known.self = weak(module);
    known.type = nb::borrow(module.type());
    return true;
  }

  static bool add(std::vector<nb::object>& list, const nb::object& children) {
    if (!children.is_valid() || !PyDict_Check(children.ptr())) return false;
    PyObject *name = nullptr, *child = nullptr;
    for (Py_ssize_t place = 0; PyDict_Next(children.ptr(), &place, &name, &child);) {
      list.push_back(weak(child));
    }
    return true;
  }

  static bool is_plain(const nb::object& value) {
    return value.is_none() || PyBool_Check(value.ptr()) || PyFloat_CheckExact(value.ptr()) ||
           PyLong_CheckExact(value.ptr()) || PyUnicode_CheckExact(value.ptr());
  }

  bool module_holds(const Module& known, std::int64_t number, bool within, Seen& seen) const {
    PyObject* module = target(known.self);
    if (module == Py_None || reinterpret_cast<PyObject*>(Py_TYPE(module)) != known.type.ptr()) {
      return false;
    }
    const nb::object entries = entries_of(module);
    if (!entries.is_valid()) return false;
    if (is_there(entries, words_.before) || is_there(entries, words_.after)) {
      seen.hooked.push_back(number);
    }
    if (entry(entries, words_.forward).is_valid()) seen.forwards.push_back(number);
    return entry(entries, words_.training).is(known.training) &&
           entry(entries, words_.config).is(known.config) &&
           entry(entries, words_.moved).is_valid() == known.moved &&
           ((within && known.moved) || same_tensors(known, entries)) &&
           same(known.modules, 0, entry(entries, words_.modules)) ==
               static_cast<std::ptrdiff_t>(known.modules.size()) &&
           same_values(known, entries, module);
  }

  static bool same_values(const Module& known, const nb::object& entries, PyObject* module) {
    for (const auto& [name, before] : known.values) {
      nb::object now = entry(entries, name);
      if (!now.is_valid()) now = nb::getattr(module, name, nb::handle());  // of its class
      if (now.is(before)) continue;
      if (!now.is_valid() || !now.type().is(before.type()) || !now.equal(before)) return false;
    }
    return true;
  }

  bool same_tensors(const Module& known, const nb::object& entries) const {
    std::ptrdiff_t done = 0;
    for (const nb::object& word : words_.tensors) {
      done = same(known.tensors, done, entry(entries, word));
      if (done < 0) return false;
    }
    return done == static_cast<std::ptrdiff_t>(known.tensors.size());
  }

  // Where the known children behind `done` end that these are; -1 if they are others.
  static std::ptrdiff_t same(const std::vector<nb::object>& known, std::ptrdiff_t done,
                             const nb::object& children) {
    if (!children.is_valid() || !PyDict_Check(children.ptr())) return -1;
    PyObject *name = nullptr, *child = nullptr;
    for (Py_ssize_t place = 0; PyDict_Next(children.ptr(), &place, &name, &child); ++done) {
      if (done == static_cast<std::ptrdiff_t>(known.size())) return -1;
      if (!is(known[static_cast<std::size_t>(done)], child)) return -1;
    }
    return done;
  }

  static bool is_there(const nb::object& entries, const nb::object& word) {
    const nb::object hooks = entry(entries, word);
    return hooks.is_valid() && PyDict_Check(hooks.ptr()) && PyDict_Size(hooks.ptr()) > 0;
  }

  Words words_;
  std::vector<nb::object> names_;
  std::vector<Module> modules_;
  Seen seen_;  // at the last look that found all as it was
};

// Where some elements of a tensor on the CPU lie: how many there are, bytes from one to the next,
// and bytes of one.
struct Spots {
  std::size_t tensor;
  std::uint64_t count, stride, size;
  std::uint64_t address;  // of the first one
};

class TensorWatch {
 public:
  // `spots`: four numbers for each tensor that is looked into, its number and those of Spots.
  TensorWatch(nb::handle references, nb::handle data_ptr, nb::handle spots)
      : tensors_(items_of(references, "references", "a list of weak references")),
        data_ptr_(nb::borrow(data_ptr)) {
    for (const nb::object& reference : tensors_) {
      if (!PyWeakref_CheckRef(reference.ptr())) {
        raise_wanted(reference, "references", "a weak reference");
      }
    }
    const Input<std::uint64_t> input(spots, "spots");
    const auto numbers = input.span();
    if (numbers.size() % 4 != 0) {
      raise_invalid("spots has " + std::to_string(numbers.size()) +
                    " numbers, 4 for each tensor are needed");
    }
    for (std::size_t i = 0; i < numbers.size(); i += 4) {
      if (numbers[i] >= tensors_.size() || target(tensors_[numbers[i]]) == Py_None) {
        raise_invalid("spots names tensor " + std::to_string(numbers[i]) + " of " +
                      std::to_string(tensors_.size()));
      }
      const auto tensor = static_cast<std::size_t>(numbers[i]);
      spots_.push_back({tensor, numbers[i + 1], numbers[i + 2], numbers[i + 3],
                        address(target(tensors_[tensor]))});
    }
  }

  // Version and address of each; empty if one is gone.
  [[nodiscard]] nb::bytes states() const {
    std::string bytes;
    bytes.reserve(tensors_.size() * 16);
    for (const nb::object& reference : tensors_) {
      const nb::object tensor = nb::borrow(target(reference));
      if (tensor.is_none()) return nb::bytes("", 0);
      add(bytes, number_of(nb::getattr(tensor, version_)));
      add(bytes, address(tensor.ptr()));
    }
    return nb::bytes(bytes.data(), bytes.size());
  }

  // Empty if a tensor is gone or has other memory. Nothing of Python runs between the question
  // where a tensor lies and the reading.
  [[nodiscard]] nb::bytes samples() const {
    std::string bytes;
    for (const Spots& spots : spots_) {
      const nb::object tensor = nb::borrow(target(tensors_[spots.tensor]));
      if (tensor.is_none() || address(tensor.ptr()) != spots.address) return nb::bytes("", 0);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address is what Python has of a tensor
      const auto* from = reinterpret_cast<const char*>(static_cast<std::uintptr_t>(spots.address));
      for (std::uint64_t i = 0; from != nullptr && i < spots.count; ++i) {
        bytes.append(from + i * spots.stride, spots.size);
      }
    }
    return nb::bytes(bytes.data(), bytes.size());
  }

 private:
  static void add(std::string& bytes, std::uint64_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }

  static std::uint64_t number_of(const nb::object& number) {
    const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return value;
  }

  [[nodiscard]] std::uint64_t address(PyObject* tensor) const {
    nb::object number = nb::steal(PyObject_CallFunctionObjArgs(data_ptr_.ptr(), tensor, nullptr));
    if (!number.is_valid()) throw nb::python_error();
    return number_of(number);
  }

  std::vector<nb::object> tensors_;
  nb::object data_ptr_, version_ = nb::str("_version");
  std::vector<Spots> spots_;
};

}  // namespace

void add_module_watch(nb::module_& m) {
  nb::class_<ModuleWatch>(
      m, "ModuleWatch",
      "For kvfolio.hf: the modules of a model as they are now, which are referred to "
      "weakly: class, training mode, configuration, parameters, buffers, modules, and the "
      "attributes "
      "of these names that are numbers or words.")
      .def(nb::init<nb::handle, nb::handle>(), "modules"_a, "names"_a,
           nb::sig("def __init__(self, modules: collections.abc.Sequence[typing.Any], "
                   "names: collections.abc.Sequence[str]) -> None"))
      .def("holds", &ModuleWatch::holds, "within"_a = false,
           "All of it is as it was. `within` a forward: but for the tensors of modules that "
           "accelerate "
           "serves.")
      .def_prop_ro("hooked", &ModuleWatch::hooked, nb::sig("def hooked(self) -> list[int]"),
                   "Modules that had hooks when holds() was true last, by number.")
      .def_prop_ro("forwards", &ModuleWatch::forwards, nb::sig("def forwards(self) -> list[int]"),
                   "Modules with a forward of their own then.");
  nb::class_<TensorWatch>(m, "TensorWatch",
                          "For kvfolio.hf: tensors of a model, which are referred to weakly, and "
                          "some elements of those on the "
                          "CPU. Four numbers for each tensor that is looked into: which one, how "
                          "many elements, bytes from one "
                          "to the next, bytes of one.")
      .def(nb::init<nb::handle, nb::handle, nb::handle>(), "references"_a, "data_ptr"_a, "spots"_a,
           nb::sig("def __init__(self, references: collections.abc.Sequence[typing.Any], data_ptr: "
                   "collections.abc.Callable[[typing.Any], int], spots: "
                   "kvfolio._types.Uint64Input) -> None"))
      .def("states", &TensorWatch::states,
           "Version and address of each tensor; empty if one is gone. Raises what torch raises "
           "where there is none.")
      .def("samples", &TensorWatch::samples,
           "The elements that are looked at; empty if a tensor is gone or has other memory.");
}

}  // namespace kvfolio::python
