// SPDX-License-Identifier: Apache-2.0
#pragma once

// From the name of a target to its functions. dispatch.cc also defines what kernels.h says of
// targets: which there are, and which take a cache.

#include "kernels/cpu/item.h"
#include "kvfolio/kernel_target.h"

namespace kvfolio::kernels {

// The functions of a target that kernel_targets() names, kReference apart.
[[nodiscard]] TargetKernels kernels_of(KernelTarget target) noexcept;

// Whether scores are more than q . k times the scale, so that TargetKernels::bent computes the
// call.
[[nodiscard]] inline bool bends_scores(const AttentionParams& params) noexcept {
  return params.soft_cap > 0.0 || !params.alibi_slopes.empty();
}

// What computes such a call over a cache of this type; null if the target has nothing for it.
[[nodiscard]] inline AttendFn attend_of(const TargetKernels& kernels, const AttentionParams& params,
                                        DType dtype) noexcept {
  // Rows of e4m3 are packed to f32.
  const auto index = static_cast<std::size_t>(dtype == DType::kE4M3 ? DType::kF32 : dtype);
  return bends_scores(params) ? kernels.bent[index] : kernels.attend[index];
}

}  // namespace kvfolio::kernels
