// SPDX-License-Identifier: Apache-2.0

#include "bridge.h"

#include <cstring>

#include "interface_id.h"
#include "kvfolio/version.h"

namespace kvfolio::python {
namespace {

#define KVFOLIO_TEXT_OF(x) #x
#define KVFOLIO_TEXT(x) KVFOLIO_TEXT_OF(x)
constexpr const char* kInterface = KVFOLIO_INTERFACE_ID
    "-abi" KVFOLIO_TEXT(__GXX_ABI_VERSION) "-cxx11-" KVFOLIO_TEXT(_GLIBCXX_USE_CXX11_ABI);
#undef KVFOLIO_TEXT
#undef KVFOLIO_TEXT_OF
// Who asks: kvfolio_tiers, kvfolio_cuda.
#ifndef KVFOLIO_WHEEL
#define KVFOLIO_WHEEL "kvfolio"
#endif
constexpr const char* kWheel = KVFOLIO_WHEEL;
// What the headers say, and not the library that was loaded.
constexpr int kVersion = KVFOLIO_VERSION;
std::string version_of_headers() {
  return std::to_string(kVersion / 1000000) + "." + std::to_string(kVersion / 1000 % 1000) + "." +
         std::to_string(kVersion % 1000);
}

// Empty, or what differs.
std::string difference(const std::string& version, const std::string& interface,
                       const std::string& other = "kvfolio") {
  if (version == version_of_headers() && interface == kInterface) return "";
  return other + " is " + version + " (" + interface + ") and " + kWheel + " is for " +
         version_of_headers() + " (" + kInterface + "): install both of one version";
}

// For as long as the process.
const char* own_version() {
  static const std::string version = version_of_headers();
  return version.c_str();
}

}  // namespace

std::string interface_id() { return kInterface; }

nb::capsule make_bridge(const std::shared_ptr<ManagerState>& manager) {
  return {new Bridge{own_version(), kInterface, manager}, Bridge::kName,
          [](void* bridge) noexcept { delete static_cast<Bridge*>(bridge); }};
}

nb::capsule make_storage_bridge(KVStorage storage, const std::shared_ptr<bool>& taken) {
  return {new StorageBridge{own_version(), kInterface, std::move(storage), taken},
          StorageBridge::kName,
          [](void* bridge) noexcept { delete static_cast<StorageBridge*>(bridge); }};
}

StorageBridge& storage_bridge_of(const nb::object& capsule) {
  auto* bridge =
      static_cast<StorageBridge*>(PyCapsule_GetPointer(capsule.ptr(), StorageBridge::kName));
  if (bridge == nullptr) throw nb::python_error();
  const std::string text = difference(bridge->version, bridge->interface_id, "kvfolio_cuda");
  if (!text.empty()) raise(Status(ErrorCode::kFailedPrecondition, text));
  return *bridge;
}

nb::capsule make_plan_bridge(const StepPlan& plan, std::shared_ptr<const void> keeper,
                             Reading reading) {
  return {new PlanBridge{own_version(), kInterface, &plan, std::move(keeper), std::move(reading)},
          PlanBridge::kName,
          [](void* bridge) noexcept { delete static_cast<PlanBridge*>(bridge); }};
}

nb::object plan_bridge_of(nb::handle plan, const StepPlan*& arrays) {
  if (!nb::hasattr(plan, "_bridge")) raise_wanted(plan, "plan", "a kvfolio.Plan");
  nb::object capsule = plan.attr("_bridge")();
  if (PyCapsule_IsValid(capsule.ptr(), PlanBridge::kName) == 0) {
    raise_wanted(plan, "plan", "a kvfolio.Plan");
  }
  const auto* bridge =
      static_cast<const PlanBridge*>(PyCapsule_GetPointer(capsule.ptr(), PlanBridge::kName));
  const std::string text = difference(bridge->version, bridge->interface_id);
  if (!text.empty()) raise(Status(ErrorCode::kFailedPrecondition, text));
  arrays = bridge->plan;
  return capsule;
}

void check_core() {
  const nb::object core = nb::module_::import_("kvfolio._core");
  const bool says = nb::hasattr(core, "_interface_id");
  const nb::object id = says ? core.attr("_interface_id")() : nb::str("of before there were tiers");
  const std::string text =
      difference(nb::cast<std::string>(core.attr("version")()), nb::cast<std::string>(id));
  if (!text.empty()) throw nb::import_error(text.c_str());
}

std::shared_ptr<ManagerState> manager_of(nb::handle manager) {
  if (!nb::hasattr(manager, "_bridge")) raise_wanted(manager, "manager", "a kvfolio.Manager");
  const nb::object capsule = manager.attr("_bridge")();
  const auto* bridge =
      static_cast<const Bridge*>(PyCapsule_GetPointer(capsule.ptr(), Bridge::kName));
  if (bridge == nullptr) throw nb::python_error();
  const std::string text = difference(bridge->version, bridge->interface_id);
  if (!text.empty()) raise(Status(ErrorCode::kFailedPrecondition, text));
  return bridge->manager;
}

}  // namespace kvfolio::python
