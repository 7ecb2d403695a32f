// SPDX-License-Identifier: Apache-2.0
#pragma once

// Beam search as arithmetic: which hypotheses live on. It knows scores and tokens, no cache; the
// scheduler makes the block tables follow by fork and close.
//
// The score of a hypothesis is the sum of the log-probabilities of its tokens: no length penalty.
// With equal scores the lower token id comes first, then the hypothesis that ranked higher before.
// A hypothesis that has ended keeps its score and its place among the others; since scores only
// fall, nothing that it has outranked can come back.
//
// Thread safety: no state.

#include <cstdint>
#include <span>
#include <vector>

namespace kvfolio::llama {

// A token that may come next.
struct Candidate {
  std::int32_t token = 0;
  double log_prob = 0.0;
};

// A hypothesis that can go on: its score and the best tokens after it.
struct Extendable {
  double score = 0.0;
  std::span<const Candidate> candidates;
};

// One of the hypotheses that live on. token -1: ended[parent] stays as it is; else `token` behind
// live[parent].
struct BeamChoice {
  std::int32_t parent = 0;
  std::int32_t token = -1;
  double score = 0.0;
};

// The `count` most probable tokens (fewer when the vocabulary is smaller), best first, the lower id
// first among equals. log_prob = logit - log_sum_exp, in f64.
void best_candidates(std::span<const float> logits, std::int32_t count,
                     std::vector<Candidate>& out);

// The best `num_beams` of all extensions and all ended hypotheses, best first.
[[nodiscard]] std::vector<BeamChoice> choose_beams(std::span<const Extendable> live,
                                                   std::span<const double> ended_scores,
                                                   std::int32_t num_beams);

}  // namespace kvfolio::llama
