// SPDX-License-Identifier: Apache-2.0
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvfolio::llama {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64: every bit of the input moves half of the output's.
std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

double uniform(std::uint64_t seed, std::uint64_t position) noexcept {
  const std::uint64_t bits = mix(mix(seed + kGolden) + (position + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

bool is_distribution(std::span<const float> logits) noexcept {
  bool any_finite = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) return false;
    any_finite |= std::isfinite(logit);
  }
  return any_finite;
}

std::int32_t argmax(std::span<const float> logits) noexcept {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double log_sum_exp(std::span<const float> logits) noexcept {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

std::int32_t Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                             std::uint64_t position) {
  const std::int32_t best = argmax(logits);
  if (params.temperature == 0.0) return best;

  const double largest = logits[static_cast<std::size_t>(best)];
  weights_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits[i]) - largest) / params.temperature);
  }
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
    const double weight_a = weights_[static_cast<std::size_t>(a)];
    const double weight_b = weights_[static_cast<std::size_t>(b)];
    return weight_a != weight_b ? weight_a > weight_b : a < b;
  });

  const auto weight_at = [&](std::size_t rank) {
    return weights_[static_cast<std::size_t>(order_[rank])];
  };
  double total = 0.0;
  for (std::size_t rank = 0; rank < order_.size(); ++rank) total += weight_at(rank);
  double kept = 0.0;
  std::size_t num_kept = 0;
  while (num_kept < order_.size()) {
    kept += weight_at(num_kept++);
    if (kept >= params.top_p * total) break;
  }

  const double drawn = uniform(params.seed, position) * kept;
  double sum = 0.0;
  for (std::size_t rank = 0; rank < num_kept; ++rank) {
    sum += weight_at(rank);
    if (sum > drawn) return order_[rank];
  }
  return order_[num_kept - 1];  // drawn was rounded up to kept
}

}  // namespace kvfolio::llama
