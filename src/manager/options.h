// SPDX-License-Identifier: Apache-2.0
#pragma once

// The options of a manager with all that was derived in place of 0. A pure function: the same spec
// and options give the same capacities on every machine.

#include "kvfolio/manager_types.h"

namespace kvfolio {

// kInvalidArgument: the spec, or an option with its value and what is allowed.
[[nodiscard]] Result<ManagerOptions> derive_options(const CacheSpec& spec,
                                                    const ManagerOptions& given);

}  // namespace kvfolio
