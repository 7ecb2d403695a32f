// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of int8 and e4m3: dtype.h's quantize_scale(), quantize() and dequantize() for whole rows, in
// loops that compilers vectorise. The bits are those of dtype.h on every processor.

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kvfolio/dtype.h"

namespace kvfolio::kernels {

// Elements of K in format granule are stored with 128 added: the byte of a signed element, its top
// bit turned over. `flip` is that bit or 0.
inline constexpr std::uint8_t kGranuleFlip = 0x80;

// What rows of one element type need to become elements with a scale and to come back. `flip` is 0
// of e4m3.
struct QuantizeLoops {
  float most = 0;  // the largest magnitude of an element
  // The largest magnitude of n elements as f32; a NaN or infinity where there is one.
  float (*amax)(const std::byte* row, std::int64_t n) = nullptr;
  // n elements become bytes. `inverse` is quantize_inverse() of an amax that bounds them.
  void (*quantize)(const std::byte* src, std::byte* dst, std::int64_t n, float inverse,
                   std::uint8_t flip) = nullptr;
  // n bytes become element * scale in f32, then what dtype.h makes of that.
  void (*dequantize)(const std::byte* src, std::byte* dst, std::int64_t n, float scale,
                     std::uint8_t flip) = nullptr;
};

// For rows on their way into a cache with scales and out of it.
// Requires: an element type of rows (all null if it has scales itself); an isa that the processor
// has.
[[nodiscard]] QuantizeLoops quantize_loops(DType rows, DType cache, Isa isa = best_isa()) noexcept;

// n bytes of a type with scales become element * scale without rounding.
void dequantize_exactly(DType dtype, const std::byte* src, double* dst, std::int64_t n, float scale,
                        std::uint8_t flip) noexcept;

}  // namespace kvfolio::kernels
