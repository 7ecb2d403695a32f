// SPDX-License-Identifier: Apache-2.0
#pragma once

// What stands between attend() and the CPU targets: cuts a call into items, runs them on the
// caller's threads, merges what was cut along the positions. No cut changes a bit.

#include "base/checked.h"
#include "kernels/cpu/item.h"

namespace kvfolio {
struct AttentionArgs;  // kernels.h
struct KVView;         // view.h
}  // namespace kvfolio

namespace kvfolio::kernels {

// Requires: a checked view, num_threads >= 1.
[[nodiscard]] Checked cpu_workspace_bytes(const KVView& cache, std::int32_t max_kv_len,
                                          std::int32_t num_threads) noexcept;

// Requires: checked arguments with a resolved slice, a cache that the target takes.
void cpu_attend(const AttentionArgs& args, const TargetKernels& kernels) noexcept;

}  // namespace kvfolio::kernels
