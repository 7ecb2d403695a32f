// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the extension of another wheel (kvfolio_tiers) gets at a manager of kvfolio._core, and a
// manager at the storage of another wheel (kvfolio_cuda). All are
// compiled from headers of one state and link the one libkvfolio.so.0 of the base wheel; that they
// are is not believed: a capsule says the version and a digest of the headers, and what has
// others is refused before anything of it is touched.

#include <memory>
#include <optional>
#include <string>

#include "bindings.h"
#include "kvfolio/step_plan.h"
#include "kvfolio/storage.h"
#include "plan_array.h"

namespace kvfolio::python {

struct Bridge {
  static constexpr const char* kName = "kvfolio.Manager";  // of the capsule

  // These two come first in every version.
  const char* version = nullptr;
  const char* interface_id = nullptr;
  std::shared_ptr<ManagerState> manager{};
};

// The other way round: what cuda.Storage._storage_bridge() gives a Manager.
struct StorageBridge {
  static constexpr const char* kName = "kvfolio.cuda.Storage";

  const char* version = nullptr;
  const char* interface_id = nullptr;
  std::optional<KVStorage> storage{};  // in the memory of the other, which outlives it
  std::shared_ptr<bool> taken{};       // whether a manager has it; under the GIL
};

// What Plan._bridge() gives a cuda.DevicePlan: its arrays, and what keeps them.
struct PlanBridge {
  static constexpr const char* kName = "kvfolio.Plan";

  const char* version = nullptr;
  const char* interface_id = nullptr;
  const StepPlan* plan = nullptr;
  std::shared_ptr<const void> keeper{};
  Reading reading{};  // while it is read without the GIL
};

// The digest of this extension's headers, and the binary interface of its compiler.
std::string interface_id();
// What Manager._bridge() gives.
nb::capsule make_bridge(const std::shared_ptr<ManagerState>& manager);
nb::capsule make_storage_bridge(KVStorage storage, const std::shared_ptr<bool>& taken);
// What a kvfolio.cuda.Storage gives, which keeps it. FailedPrecondition: of another build.
StorageBridge& storage_bridge_of(const nb::object& capsule);
nb::capsule make_plan_bridge(const StepPlan& plan, std::shared_ptr<const void> keeper,
                             Reading reading);
// The capsule of a kvfolio.Plan, and what is in it. TypeError: another object. FailedPrecondition:
// of another build, or its arrays are not valid any more.
nb::object plan_bridge_of(nb::handle plan, const StepPlan*& arrays);
// ImportError with both versions if kvfolio._core is of another build than this extension.
void check_core();
// The state of a kvfolio.Manager. TypeError: another object. FailedPrecondition: of another build.
std::shared_ptr<ManagerState> manager_of(nb::handle manager);

}  // namespace kvfolio::python
