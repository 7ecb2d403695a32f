// SPDX-License-Identifier: Apache-2.0

// The AVX2 target: attend_phases.h over vectors of 8 floats, compiled with the flags of this target
// alone (CMakeLists.txt). Bytes of int8 become 16-bit pairs, since AVX2 has no exact dot product
// of bytes. Everything but avx2_kernels() is local to this source.

#include "kernels/cpu/attend_phases.h"
#include "kernels/cpu/simd_avx2.h"

namespace kvfolio::kernels {
namespace {

using F32 = F32Element<Avx2>;
using F16 = F16Element<Avx2>;
using Bf16 = Bf16Element<Avx2>;
using Int8 = Int8Element<Avx2>;

TargetKernels kernels() noexcept {
  return {
      .attend = {nullptr, attend_item<Avx2, F32, F32, PackF32<Avx2>>,
                 attend_item<Avx2, F16, F16, PackF16<Avx2>>,
                 attend_item<Avx2, Bf16, Bf16, PackBf16<Avx2>>,
                 attend_item<Avx2, Int8, Int8, PackInt8<Avx2>>},
      .merge = merge_states_of<Avx2>,
      .finish = finish_row<Avx2>,
  };
}

}  // namespace

TargetKernels avx2_kernels() noexcept { return kernels(); }

}  // namespace kvfolio::kernels
