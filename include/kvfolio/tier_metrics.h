// SPDX-License-Identifier: Apache-2.0
#pragma once

// What an Offload and its tiers have for /metrics: see metrics.h, whose text they join.
//
// Each tier has the label `tier`, its name, and a number behind it if two have one name.
// kvfolio_tier_up is 1 if the tier says that it is usable and its last stores succeeded: a tier
// that is silently unable to store shows there, whatever it says of itself.
//
// kvfolio_corrupt_records_total is the one metric for damage: each damaged record that was found,
// whether the tier found it when it was asked for it or by itself, or it came and did not verify,
// or it lay in host memory, which has the label tier="host". Thread safety: none.

#include <string>

#include "kvfolio/export.h"
#include "kvfolio/metrics.h"
#include "kvfolio/offload.h"

namespace kvfolio {

// A tier with this many failed stores in a row is unhealthy.
inline constexpr std::uint64_t kUnhealthyStores = 8;

// What the metrics say of one tier: Offload::tier_counters() and Tier::health().
[[nodiscard]] KVFOLIO_API std::uint64_t corrupt_records(const OffloadTierCounters& counters,
                                                        const TierHealth& health) noexcept;
[[nodiscard]] KVFOLIO_API bool is_up(const OffloadTierCounters& counters,
                                     const TierHealth& health) noexcept;

KVFOLIO_API void add_metrics(Metrics& metrics, const Offload& offload, MetricLabels labels = {});
// A whole text of one Offload, without its manager.
KVFOLIO_API void write_metrics(std::string& out, const Offload& offload, MetricLabels labels = {});

}  // namespace kvfolio
