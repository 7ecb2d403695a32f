// SPDX-License-Identifier: Apache-2.0
#pragma once

// The prompts of `kvfolio prove`, and the requests that put them to an engine.
//
// Thread safety: values.

#include <cstdint>
#include <span>
#include <vector>

#include "config.h"
#include "kvfolio/status.h"
#include "request.h"

namespace kvfolio::tools {

using Tokens = std::vector<std::int32_t>;

inline constexpr std::int32_t kSamplesPerPrompt = 2;
inline constexpr std::int32_t kNewTokens = 12;
inline constexpr std::int32_t kNumPrompts = 8;  // of every row
inline constexpr std::int32_t kNumSamples = kNumPrompts * kSamplesPerPrompt;
// Some rows have one more prompt, of one sample. Where the model has the positions, its attention
// crosses one of the promised splits of 1024 tokens.
inline constexpr std::int32_t kLongPrompt = 1040;
// So that prompts are longer than the longest chunk, 64.
inline constexpr std::int32_t kFewestPositions = 96;

struct PromptSet {
  std::vector<Tokens> prompts;

  [[nodiscard]] std::int32_t longest() const;
};

[[nodiscard]] constexpr std::int32_t samples_of(std::size_t prompt) {
  return prompt == static_cast<std::size_t>(kNumPrompts) ? 1 : kSamplesPerPrompt;
}

// With the long prompt, which is the last. kInvalidArgument: the model has too few positions.
Result<PromptSet> make_prompt_set(const llama::ModelConfig& config);

// One request for each prompt with all of its samples, which fork where there are two; or one for
// each sample, in the order of prompts, then samples. Both draw the same.
[[nodiscard]] std::vector<llama::Request> scored_requests(const PromptSet& set, bool forked);

// Where what the cache knows of a prompt ends.
enum class Known {
  kWhole,         // all of it
  kInsideABlock,  // a part that ends inside a block (unless blocks have one token)
  kAtABorder,     // a part that ends with a block
};

// Requests that run before, so that the cache knows the prompts. They generate one token each,
// which is no input, so what the cache holds afterwards are the prompts of these requests.
[[nodiscard]] std::vector<llama::Request> warming_requests(const PromptSet& set, Known known,
                                                           std::int32_t block_size);

// Tokens that a cache with these prompts has of `prompt`: the longest common beginning, and always
// less than the whole.
[[nodiscard]] std::int32_t expected_hit(const Tokens& prompt,
                                        std::span<const llama::Request> warming);

// The same of prompts that are computed now, and whose full blocks alone are found.
[[nodiscard]] std::int32_t expected_soon(const Tokens& prompt,
                                         std::span<const llama::Request> older,
                                         std::int32_t block_size);

}  // namespace kvfolio::tools
