// SPDX-License-Identifier: Apache-2.0
#pragma once

// The targets that attend() (kernels.h) is compiled for: their names, and those of this machine.
// Thread safety: values, and functions without state.

#include <cstdint>
#include <span>
#include <string_view>

#include "kvfolio/export.h"
#include "kvfolio/status.h"

namespace kvfolio {

// Which implementation computes. Results of one target never depend on batch, chunk, block size,
// format, block ids, slices or threads, except for the sign and payload of a NaN. Results of two
// targets differ by rounding. Most targets compute in f32. With a bf16 cache, kAvx512Bf16 rounds
// weights, and queries of other types, to bf16. With an int8 cache, all but kReference round both
// to 8 bits. docs/kernels.md says what that costs.
enum class KernelTarget : std::int32_t {
  // The target that the environment variable KVFOLIO_KERNEL names (it is read at each call). If it
  // names none: the fastest target that this CPU runs and that computes the call. That is the
  // reference for f64 and for head dims that are above 256 or no multiple of 8, and kPortable or
  // kNeon with a soft cap or ALiBi, which the others do not compute yet. Shapes that attend()
  // refuses are not refused here.
  // Over bf16 the fastest target costs accuracy on a CPU with BF16 instructions, which is
  // kAvx512Bf16: the relative L2 error of a call may be 5e-3 instead of 2e-6 (normally distributed
  // q and k). Name kAvx512 for products in f32, of which a core computes half as many.
  kAuto = -1,
  kReference = 0,   // plain loops in f64: defines what the others compute
  kPortable = 1,    // 128-bit vectors of the compiler, on any machine except Arm
  kAvx2 = 2,        // AVX2, FMA and F16C
  kAvx512 = 3,      // x86-64-v4: F, BW, DQ, VL
  kAvx512Bf16 = 4,  // kAvx512 and the dot products of BF16 and VNNI
  kNeon = 5,        // Armv8
};

// "auto", "reference", "portable", "avx2", "avx512", "avx512-bf16", "neon".
[[nodiscard]] KVFOLIO_API const char* to_string(KernelTarget target) noexcept;
// kInvalidArgument: no target has this name; lists the names.
KVFOLIO_API Result<KernelTarget> parse_kernel_target(std::string_view name);
// The targets that this build has and this CPU runs, slowest first.
[[nodiscard]] KVFOLIO_API std::span<const KernelTarget> kernel_targets() noexcept;

}  // namespace kvfolio
