// SPDX-License-Identifier: Apache-2.0
#pragma once

// What plan_attention() checks, but for lengths: other layers of a plan have the same.

#include "cuda/attention/attend.h"

namespace kvfolio::cuda {

[[nodiscard]] Status check_memory_of(const AttentionCall& call);

}  // namespace kvfolio::cuda
