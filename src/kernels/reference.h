// SPDX-License-Identifier: Apache-2.0
#pragma once

// The reference attention: the definition of what every other target computes.

#include <cstdint>

#include "base/checked.h"
#include "kvfolio/kernels.h"

namespace kvfolio::kernels {

// Bytes of workspace; not ok() when it overflows.
[[nodiscard]] Checked reference_workspace_bytes(const KVView& cache, std::int32_t num_q_heads,
                                                std::int32_t max_kv_len,
                                                std::int32_t num_threads) noexcept;

// Requires: every argument is checked, slice counts are resolved (no -1).
void reference_attend(const AttentionArgs& args) noexcept;

}  // namespace kvfolio::kernels
