// SPDX-License-Identifier: Apache-2.0

#include "plan_array.h"

#include <cstring>

namespace kvfolio::python {
namespace {

template <typename Framework>
nb::object array_of_copy(const std::int32_t* data, std::size_t size,
                         const std::vector<std::size_t>& shape) {
  auto* copy = new std::vector<std::int32_t>(data, data + size);
  const nb::capsule owner(
      copy, [](void* p) noexcept { delete static_cast<std::vector<std::int32_t>*>(p); });
  return nb::cast(
      nb::ndarray<Framework, std::int32_t>(copy->data(), shape.size(), shape.data(), owner),
      nb::rv_policy::reference);
}

}  // namespace

void PlanArray::check_live(const char* name) const {
  if (is_live()) return;
  raise(Status(ErrorCode::kFailedPrecondition,
               std::string(name) +
                   ": this array lies in the buffers of its step, which has ended or was planned "
                   "again. plan(copy=True) gives arrays that stay"));
}

std::size_t PlanArray::size() const {
  std::size_t size = 1;
  for (const std::size_t extent : shape_) size *= extent;
  return size;
}

std::span<const std::int32_t> PlanArray::numbers(const char* name, std::size_t ndim) const {
  check_live(name);
  if (shape_.size() != ndim) {
    raise_invalid(std::string(name) + ": a plan array of " + std::to_string(shape_.size()) +
                  " dimensions, wanted: " + std::to_string(ndim));
  }
  return {data_, size()};
}

nb::object PlanArray::copy() const {
  check_live("plan array");
  return array_of_copy<nb::numpy>(data_, size(), shape_);
}

// The standard lets a producer copy unless copy=False is asked for. Only then the consumer gets the
// buffers themselves, whose contents change after the step.
nb::object PlanArray::dlpack(const nb::kwargs& options) const {
  check_live("plan array");
  nb::object array;
  if (options.contains("copy") && nb::object(options["copy"]).is(nb::handle(Py_False))) {
    auto* keeper = new std::shared_ptr<ManagerState>(keeper_);
    const nb::capsule owner(
        keeper, [](void* p) noexcept { delete static_cast<std::shared_ptr<ManagerState>*>(p); });
    array = nb::cast(
        nb::ndarray<nb::array_api, const std::int32_t>(data_, shape_.size(), shape_.data(), owner),
        nb::rv_policy::reference);
  } else {
    array = array_of_copy<nb::array_api>(data_, size(), shape_);
    if (options.contains("copy")) nb::del(options["copy"]);
  }
  return array.attr("__dlpack__")(**options);
}

void add_plan_array(nb::module_& m) {
  nb::class_<PlanArray>(m, "PlanArray",
                        "An int32 array of plan(copy=False), in the buffers of its step: every "
                        "access raises FailedPrecondition once the step has ended or was planned "
                        "again. numpy.asarray() makes a copy. So does DLPack, unless the consumer "
                        "asks with copy=False; what it gets then changes after the step.")
      .def_prop_ro(
          "shape",
          [](const PlanArray& array) {
            nb::list shape;
            for (const std::size_t extent : array.shape()) shape.append(extent);
            return nb::tuple(shape);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def("__repr__",
           [](const PlanArray& array) {
             std::string text = "<kvfolio.PlanArray of int32 [";
             for (const std::size_t extent : array.shape()) {
               text += (text.back() == '[' ? "" : ", ") + std::to_string(extent);
             }
             return text + (array.is_live() ? "]>" : "], not valid any more>");
           })
      .def("__len__", [](const PlanArray& array) { return array.shape()[0]; })
      .def(
          "__getitem__",
          [](const PlanArray& array, nb::handle key) {
            const nb::object copy = array.copy();
            return nb::object(copy[key]);
          },
          nb::sig("def __getitem__(self, key: typing.Any) -> typing.Any"), "The same of a copy.")
      .def(
          "__array__",
          [](const PlanArray& array, nb::handle dtype, nb::handle copy) -> nb::object {
            if (copy.is(nb::handle(Py_False))) {
              raise_invalid("copy is False, but NumPy gets a copy of a plan array");
            }
            nb::object result = array.copy();
            return dtype.is_none() ? result : result.attr("astype")(dtype);
          },
          "dtype"_a = nb::none(), "copy"_a = nb::none(),
          nb::sig("def __array__(self, dtype: typing.Any = None, copy: bool | None = None) -> "
                  "numpy.typing.NDArray[typing.Any]"))
      .def("__dlpack__", &PlanArray::dlpack,
           nb::sig("def __dlpack__(self, **options: typing.Any) -> typing.Any"))
      .def(
          "__dlpack_device__",
          [](const PlanArray& array) {
            array.check_live("plan array");
            return nb::make_tuple(nb::device::cpu::value, 0);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace kvfolio::python
