// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of int8: dtype.h's quantize_scale(), quantize() and dequantize() for whole rows, in loops
// that compilers vectorise. The bits are those of dtype.h on every processor.

#include <cstddef>
#include <cstdint>

#include "kvfolio/dtype.h"

namespace kvfolio::kernels {

// Elements of K in format granule are stored with 128 added: the byte of a signed element, its top
// bit turned over. `flip` is that bit or 0.
inline constexpr std::uint8_t kGranuleFlip = 0x80;

// The largest magnitude of n elements as f32; a NaN or infinity where there is one.
using AmaxFn = float (*)(const std::byte* row, std::int64_t n);
// n elements become bytes. `inverse` is quantize_inverse() of an amax that bounds them.
using QuantizeFn = void (*)(const std::byte* src, std::byte* dst, std::int64_t n, float inverse,
                            std::uint8_t flip);
// n bytes become element * scale in f32, then what dtype.h makes of that.
using DequantizeFn = void (*)(const std::byte* src, std::byte* dst, std::int64_t n, float scale,
                              std::uint8_t flip);

// Requires, of all three: an element type of rows, not int8.
[[nodiscard]] AmaxFn amax_fn(DType from) noexcept;
[[nodiscard]] QuantizeFn quantize_fn(DType from) noexcept;
[[nodiscard]] DequantizeFn dequantize_fn(DType to) noexcept;

// n bytes become element * scale without rounding.
void dequantize_exactly(const std::byte* src, double* dst, std::int64_t n, float scale,
                        std::uint8_t flip) noexcept;

}  // namespace kvfolio::kernels
