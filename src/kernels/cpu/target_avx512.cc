// SPDX-License-Identifier: Apache-2.0

// The AVX-512 target: attend_phases.h over vectors of 16 floats, for CPUs without the dot products
// of BF16 and VNNI (target_avx512_bf16.cc has those). Compiled with the flags of this target alone
// (CMakeLists.txt). Everything but avx512_kernels() is local to this source.

#include "kernels/cpu/attend_phases.h"
#include "kernels/cpu/simd_avx512.h"

namespace kvfolio::kernels {
namespace {

template <template <class> class E, template <class> class Pack>
constexpr AttendFn kAttend = attend_item<Avx512, E<Avx512>, E<Avx512Half>, Pack<Avx512>>;

}  // namespace

TargetKernels avx512_kernels() noexcept {
  return {
      .attend = {nullptr, kAttend<F32Element, PackF32>, kAttend<F16Element, PackF16>,
                 kAttend<Bf16Element, PackBf16>, kAttend<Int8Element, PackInt8>},
      .merge = merge_states_of<Avx512>,
      .finish = finish_row<Avx512>,
  };
}

}  // namespace kvfolio::kernels
