// SPDX-License-Identifier: Apache-2.0
#pragma once

// From options to a store: what DiskTier::open() does, for any disk. Thread safety: free function.

#include <functional>
#include <memory>

#include "disk/store.h"

namespace kvfolio::disk {

// Checks the options, takes the directory, chooses the engine by a write and a read, and recovers.
Result<std::unique_ptr<SegmentStore>> open_store(DiskCalls& calls, const DiskTierOptions& options,
                                                 RingFaults* faults = nullptr);
// The same with an engine of the caller, who learns which descriptor it wakes.
using MakeEngine = std::function<Result<std::unique_ptr<IoEngine>>(int event_fd)>;
Result<std::unique_ptr<SegmentStore>> open_store(DiskCalls& calls, const DiskTierOptions& options,
                                                 std::span<const MakeEngine> engines);

}  // namespace kvfolio::disk
