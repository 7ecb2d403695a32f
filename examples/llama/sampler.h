// SPDX-License-Identifier: Apache-2.0
#pragma once

// From logits to a token. All arithmetic is f64 in a fixed order, so equal logits give equal tokens
// whatever the batch was; a draw is a function of (seed, position) alone, so a sequence that was
// preempted and resumed, or that ran beside others, draws what it would have drawn alone.
//
// Thread safety: free functions without state; Sampler keeps scratch memory, one for each thread.

#include <cstdint>
#include <span>
#include <vector>

#include "kvfolio/status.h"

namespace kvfolio::llama {

// Uniform in [0, 1) with 53 bits: a counter-based generator. The seed is spread by one round of
// the SplitMix64 finaliser, the position is mixed in by a second:
//   u = mix(mix(seed + g) + (position + 1) * g) >> 11, times 2^-53,  g = 0x9e3779b97f4a7c15
[[nodiscard]] double uniform(std::uint64_t seed, std::uint64_t position) noexcept;

// Neither NaN nor +infinity anywhere, and not all are -infinity.
[[nodiscard]] bool is_distribution(std::span<const float> logits) noexcept;

// The largest, the lower id of equals.
[[nodiscard]] std::int32_t argmax(std::span<const float> logits) noexcept;

// log of the sum of exp(logits), in order of ids.
[[nodiscard]] double log_sum_exp(std::span<const float> logits) noexcept;

struct SamplingParams {
  double temperature = 0.0;  // 0 is greedy
  double top_p = 1.0;
  std::uint64_t seed = 0;
};

class Sampler {
 public:
  // The token at `position` of its sequence. Tokens are ranked by probability, the lower id first
  // among equals; the smallest leading set that holds top_p of the mass is kept, and `uniform`
  // picks in it. Requires: is_distribution(logits).
  std::int32_t sample(std::span<const float> logits, const SamplingParams& params,
                      std::uint64_t position);

 private:
  std::vector<std::int32_t> order_;  // ids by rank
  std::vector<double> weights_;      // exp((logit - largest) / temperature), by id
};

}  // namespace kvfolio::llama
