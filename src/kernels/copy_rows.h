// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of bytes from one place to another, both with strides.

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"

namespace kvfolio::kernels {

// Row i of `count`: `bytes` bytes from src + i * src_stride to dst + i * dst_stride. What is read
// and what is written do not overlap.
using CopyRowsFn = void (*)(const std::byte* src, std::byte* dst, std::int64_t bytes,
                            std::int64_t count, std::int64_t src_stride, std::int64_t dst_stride);

// Requires: the processor has the isa.
[[nodiscard]] CopyRowsFn copy_rows_fn(Isa isa = best_isa()) noexcept;

}  // namespace kvfolio::kernels
