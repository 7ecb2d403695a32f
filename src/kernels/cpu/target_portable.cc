// SPDX-License-Identifier: Apache-2.0

// The target for any machine: attend_phases.h over 4 floats, in the vectors of the compiler. On Arm
// the same source is the NEON target. int8 is computed in f32, which is exact here. It has no flags
// of its own. It also computes bent scores, which the faster targets do not yet. Everything but the
// last function is local to this source.

#include "kernels/cpu/attend_phases.h"
#include "kernels/cpu/simd_portable.h"

namespace kvfolio::kernels {
namespace {

using F32 = F32Element<Vector4>;
using F16 = F16Element<Vector4>;
using Bf16 = Bf16Element<Vector4>;
using Int8 = Int8FloatElement<Vector4>;

TargetKernels kernels() noexcept {
  return {
      .attend = {nullptr, attend_item<Vector4, F32, F32, PackF32<Vector4>>,
                 attend_item<Vector4, F16, F16, PackF16<Vector4>>,
                 attend_item<Vector4, Bf16, Bf16, PackBf16<Vector4>>,
                 attend_item<Vector4, Int8, Int8, PackInt8<Vector4>>},
      .bent = {nullptr, attend_bent_item<Vector4, F32, F32, PackF32<Vector4>>,
               attend_bent_item<Vector4, F16, F16, PackF16<Vector4>>,
               attend_bent_item<Vector4, Bf16, Bf16, PackBf16<Vector4>>,
               attend_bent_item<Vector4, Int8, Int8, PackInt8<Vector4>>},
      .merge = merge_states_of<Vector4>,
      .finish = finish_row<Vector4>,
  };
}

}  // namespace

#if defined(__aarch64__)
TargetKernels neon_kernels() noexcept { return kernels(); }
#else
TargetKernels portable_kernels() noexcept { return kernels(); }
#endif

}  // namespace kvfolio::kernels
