// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a decoder layer does to one row besides products: RMSNorm, RoPE, SwiGLU. Each function sees
// one row and works in a fixed order, so a row's bits depend on nothing else. exp is our own: the
// C library's may give other bits on another processor.
//
// Thread safety: pure functions.

#include <cstdint>
#include <span>

namespace kvfolio::llama {

// out[i] = row[i] / sqrt(mean(row^2) + eps) * weight[i]; the mean is summed in f64.
void rms_norm(const float* row, const float* weight, std::int32_t size, float eps,
              float* out) noexcept;

// cosines and sines of position * inverse_frequencies[i], from f64 angles.
void rope_table(std::int32_t position, std::span<const double> inverse_frequencies, float* cosines,
                float* sines) noexcept;

// Rotates the heads [num_heads, head_dim] in place. Element i pairs with i + head_dim/2, the
// convention of Hugging Face checkpoints.
void rope_rotate(float* heads, std::int32_t num_heads, std::int32_t head_dim, const float* cosines,
                 const float* sines) noexcept;

// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)).
void swiglu(const float* gate, const float* up, std::int32_t size, float* out) noexcept;

// residual[i] += row[i]
void add_row(float* residual, const float* row, std::int32_t size) noexcept;

}  // namespace kvfolio::llama
