// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conversion of contiguous elements between element types, with the meaning that dtype.h gives it:
// round to nearest, ties to even, one rounding from the source to the target; NaN stays NaN.

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kvfolio/dtype.h"

namespace kvfolio::kernels {

// Converts n elements. The ranges do not overlap.
using ConvertFn = void (*)(const std::byte* src, std::byte* dst, std::int64_t n);

// Equal types: a plain copy. What has a scale is no type of elements alone (see
// quantize.h) and opaque bytes become nothing else: null. Requires:
// both are element types, the processor has the isa.
[[nodiscard]] ConvertFn convert_fn(DType from, DType to, Isa isa = best_isa()) noexcept;

}  // namespace kvfolio::kernels
