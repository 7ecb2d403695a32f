// SPDX-License-Identifier: Apache-2.0

// Devices: whether there is one, and what it is called.

#include "cuda_storage.h"
#include "driver.h"

namespace kvfolio::python {
namespace {

struct DeviceObject {
  std::shared_ptr<DeviceState> state;
};

std::shared_ptr<DeviceState> open_state(std::int32_t ordinal) {
  std::optional<Result<std::shared_ptr<DeviceState>>> state;
  {
    const ReleasedGil release;
    state.emplace(DeviceState::of(ordinal));
  }
  return take(*std::move(state));
}

// What keeps a device from being used, or ok.
Status missing() {
  if (!driver::has_kernels()) {
    return {ErrorCode::kUnavailable, "libkvfolio_cuda was built without nvcc and has no kernels"};
  }
  const ReleasedGil release;
  return driver::available();
}

}  // namespace

std::shared_ptr<DeviceState> device_of(nb::handle object) {
  if (nb::isinstance<DeviceObject>(object)) {
    return object_of<DeviceObject>(object, "device", "a Device or an int").state;
  }
  Int ordinal;
  if (PyBool_Check(object.ptr()) || !nb::try_cast(object, ordinal)) {
    raise_wanted(object, "device", "a Device or an int");
  }
  return open_state(i32(ordinal, "device"));
}

void add_device(nb::module_& m) {
  m.def(
      "available", [] { return missing().ok(); },
      "Whether there are kernels, a driver that is new enough, and a device.");
  m.def(
      "why_not",
      [] {
        const Status status = missing();
        return status.ok() ? std::optional<std::string>() : status.message();
      },
      nb::sig("def why_not() -> str | None"), "What is missing, or None if available().");
  m.def(
      "num_devices",
      [] {
        std::optional<Result<std::int32_t>> count;
        {
          const ReleasedGil release;
          count.emplace(driver::num_devices());
        }
        return take(*std::move(count));
      },
      "How many devices the driver has. Raises Unavailable with what is missing.");
  m.def("has_kernels", &driver::has_kernels, "Whether nvcc was there when this package was built.");
  m.def(
      "kernel_revision", [] { return cuda::kKernelRevision; },
      "Another one where a kernel may write other bits than before.");
  nb::class_<DeviceObject>(
      m, "Device",
      "One card, through its primary context, which torch uses, too. Raises Unavailable with what "
      "is missing, InvalidArgument if there is no device of this number, Unsupported for a card "
      "below compute capability 8.0.")
      .def(
          "__init__",
          [](DeviceObject* self, Int ordinal) {
            new (self) DeviceObject{open_state(i32(ordinal, "ordinal"))};
          },
          "ordinal"_a = Int{0}, nb::sig("def __init__(self, ordinal: int = 0) -> None"))
      .def_prop_ro("ordinal",
                   [](const DeviceObject& self) { return self.state->device().ordinal(); })
      .def_prop_ro("name", [](const DeviceObject& self) { return self.state->device().name(); })
      .def_prop_ro(
          "target", [](const DeviceObject& self) { return self.state->device().target(); },
          "\"cuda-sm90\": the architecture.")
      .def_prop_ro(
          "engine",
          [](const DeviceObject& self) {
            return self.state->device().target() + "-r" + std::to_string(cuda::kKernelRevision);
          },
          "\"cuda-sm90-r2\": target and revision of the kernels. It belongs into "
          "ModelIdentity.engine of what is computed here, so that no other target is served it.")
      .def_prop_ro(
          "capability",
          [](const DeviceObject& self) {
            const cuda::Device& device = self.state->device();
            return nb::make_tuple(device.capability_major(), device.capability_minor());
          },
          nb::sig("def capability(self) -> tuple[int, int]"))
      .def_prop_ro(
          "num_multiprocessors",
          [](const DeviceObject& self) { return self.state->device().num_multiprocessors(); })
      .def_prop_ro(
          "num_kept", [](const DeviceObject& self) { return self.state->num_kept(); },
          "Calls whose tensors are still kept. A later call or synchronize() lets go of "
          "those that are done.")
      .def(
          "synchronize", [](const DeviceObject& self) { self.state->synchronize(); },
          "Waits for all that was started on the device.")
      .def("__repr__", [](const DeviceObject& self) {
        const cuda::Device& device = self.state->device();
        return "Device(" + std::to_string(device.ordinal()) + ": " + device.name() + ", " +
               device.target() + ")";
      });
}

}  // namespace kvfolio::python
