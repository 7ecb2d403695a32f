// SPDX-License-Identifier: Apache-2.0
#pragma once

// A cache in the memory of a device, its views, and the tensors that others see it as.

#include <memory>
#include <optional>

#include "device_state.h"
#include "kvfolio/storage.h"

namespace kvfolio::python {

class PlanMemory;  // attend.h

// What views and exported tensors keep alive. It ends when the streams that it was used on have
// passed, on any thread.
struct StorageState {
  StorageState(std::shared_ptr<DeviceState> device_in, KVStorage storage_in, Owners lent_in);
  StorageState(const StorageState&) = delete;
  StorageState& operator=(const StorageState&) = delete;
  ~StorageState();

  // Where appends to a group, and where gathers of it report the first entry that named no place.
  [[nodiscard]] cuda::Fault slot_fault(GroupId group) const {
    return faults + 2 * static_cast<std::size_t>(group.value());
  }
  [[nodiscard]] cuda::Fault table_fault(GroupId group) const { return slot_fault(group) + 1; }
  // Words for faults, in device memory. Requires: no GIL.
  Status make_faults();
  // What they say; they say nothing afterwards. Requires: no GIL, nothing is on its way.
  Status read_faults();
  Status clear_faults();

  std::shared_ptr<DeviceState> device;
  Owners lent;
  std::optional<KVStorage> storage;
  // For a manager over this memory: its copies wait for what was enqueued on the storage.
  std::unique_ptr<MemoryResource> ordered;
  std::shared_ptr<bool> taken = std::make_shared<bool>(false);  // a manager has it
  LastWork last;                                                // guarded by the device's mutex
  std::unique_ptr<PlanMemory> plans;  // for calls of attend() without a plan; under the GIL
  cuda::Fault faults = nullptr;
  std::size_t num_words = 0;
};

struct CudaView {
  std::shared_ptr<StorageState> state;
  GroupId group;
  KVView view;
};

// What a consumer of DLPack sees. exported.keep keeps `last`, too.
struct CudaTensor {
  std::shared_ptr<DeviceState> device;
  const LastWork* last = nullptr;
  Exported exported;
};

class CudaStorage {
 public:
  explicit CudaStorage(std::shared_ptr<StorageState> state) : state_(std::move(state)) {}
  [[nodiscard]] const std::shared_ptr<StorageState>& state() const { return state_; }

 private:
  std::shared_ptr<StorageState> state_;
};

// What a kvfolio.Manager is made over.
nb::capsule bridge_of(const CudaStorage& storage);

// The device of an argument: a Device, its ordinal.
std::shared_ptr<DeviceState> device_of(nb::handle object);

void add_device(nb::module_& m);
void add_cuda_storage(nb::module_& m);
void add_moves(nb::module_& m);
void add_device_plan(nb::module_& m);

}  // namespace kvfolio::python
