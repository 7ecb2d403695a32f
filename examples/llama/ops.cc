// SPDX-License-Identifier: Apache-2.0
#include "ops.h"

#include <bit>
#include <cmath>

namespace kvfolio::llama {
namespace {

// exp(x) to 2 units in the last place, branch-free so that the compiler makes vectors of it.
// x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) by its series; 2^n by the exponent's bits.
float exp_f32(float x) noexcept {
  constexpr float kLowest = -87.0f;  // 2^-126 or more: no subnormal
  constexpr float kHighest = 88.0f;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest whole number in the low bits
  constexpr float kLn2High = 0x1.62e4p-1f;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  x = x < kLowest ? kLowest : x;
  x = x > kHighest ? kHighest : x;
  const float shifted = x * 0x1.715476p0f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  return series * std::bit_cast<float>(exponent + 0x3f800000u);
}

}  // namespace

void rms_norm(const float* row, const float* weight, std::int32_t size, float eps,
              float* out) noexcept {
  double squares = 0.0;
  for (std::int32_t i = 0; i < size; ++i) squares += double{row[i]} * double{row[i]};
  const auto scale = static_cast<float>(1.0 / std::sqrt(squares / size + double{eps}));
  for (std::int32_t i = 0; i < size; ++i) out[i] = row[i] * scale * weight[i];
}

void rope_table(std::int32_t position, std::span<const double> inverse_frequencies, float* cosines,
                float* sines) noexcept {
  for (std::size_t i = 0; i < inverse_frequencies.size(); ++i) {
    const double angle = position * inverse_frequencies[i];
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
}

void rope_rotate(float* heads, std::int32_t num_heads, std::int32_t head_dim, const float* cosines,
                 const float* sines) noexcept {
  const std::int32_t half = head_dim / 2;
  for (std::int32_t head = 0; head < num_heads; ++head) {
    float* const low = heads + std::int64_t{head} * head_dim;
    float* const high = low + half;
    for (std::int32_t i = 0; i < half; ++i) {
      const float x = low[i];
      const float y = high[i];
      low[i] = x * cosines[i] - y * sines[i];
      high[i] = y * cosines[i] + x * sines[i];
    }
  }
}

void swiglu(const float* gate, const float* up, std::int32_t size, float* out) noexcept {
  for (std::int32_t i = 0; i < size; ++i) out[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

void add_row(float* residual, const float* row, std::int32_t size) noexcept {
  for (std::int32_t i = 0; i < size; ++i) residual[i] += row[i];
}

}  // namespace kvfolio::llama
