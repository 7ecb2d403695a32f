// SPDX-License-Identifier: Apache-2.0
#pragma once

// OffloadOptions from what Python says, with the memory that they point into.

#include <memory>
#include <vector>

#include "bindings.h"
#include "identity.h"
#include "kvfolio/offload.h"
#include "tier_state.h"

namespace kvfolio::python {

// The tiers that an Offload uses. It gives them back when it ends.
class LentTiers {
 public:
  LentTiers() = default;
  LentTiers(const LentTiers&) = delete;
  LentTiers& operator=(const LentTiers&) = delete;
  ~LentTiers() { give_back(false); }

  void lend(std::shared_ptr<TierState> tier);
  void give_back(bool owe);
  [[nodiscard]] const std::vector<std::shared_ptr<TierState>>& all() const { return tiers_; }

 private:
  std::vector<std::shared_ptr<TierState>> tiers_;
};

class HeldOffload {
 public:
  // `tiers`: Tier or OffloadTier, which are lent to `lent`; `epochs`: NameEpochs or None.
  HeldOffload(nb::handle model, nb::handle tiers, nb::handle epochs, LentTiers& lent);
  HeldOffload(const HeldOffload&) = delete;
  HeldOffload& operator=(const HeldOffload&) = delete;

  OffloadOptions options;

 private:
  HeldModel model_;
  std::vector<OffloadTier> tiers_;
  std::vector<RootEpoch> roots_;
};

nb::object epochs_record(const NameEpochs& epochs);
nb::object counters_record(const OffloadCounters& counters);
nb::object tier_counters_record(const OffloadTierCounters& counters);

}  // namespace kvfolio::python
