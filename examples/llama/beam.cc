// SPDX-License-Identifier: Apache-2.0
#include "beam.h"

#include <algorithm>
#include <numeric>

#include "sampler.h"

namespace kvfolio::llama {

void best_candidates(std::span<const float> logits, std::int32_t count,
                     std::vector<Candidate>& out) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kept = std::min(static_cast<std::size_t>(count), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float logit_a = logits[static_cast<std::size_t>(a)];
                      const float logit_b = logits[static_cast<std::size_t>(b)];
                      return logit_a != logit_b ? logit_a > logit_b : a < b;
                    });
  const double norm = log_sum_exp(logits);
  out.clear();
  for (std::size_t rank = 0; rank < kept; ++rank) {
    const std::int32_t token = order[rank];
    out.push_back(
        {.token = token,
         .log_prob = static_cast<double>(logits[static_cast<std::size_t>(token)]) - norm});
  }
}

std::vector<BeamChoice> choose_beams(std::span<const Extendable> live,
                                     std::span<const double> ended_scores, std::int32_t num_beams) {
  std::vector<BeamChoice> choices;
  for (std::size_t i = 0; i < ended_scores.size(); ++i) {
    choices.push_back({.parent = static_cast<std::int32_t>(i), .score = ended_scores[i]});
  }
  for (std::size_t i = 0; i < live.size(); ++i) {
    for (const Candidate& candidate : live[i].candidates) {
      choices.push_back({.parent = static_cast<std::int32_t>(i),
                         .token = candidate.token,
                         .score = live[i].score + candidate.log_prob});
    }
  }
  const auto better = [](const BeamChoice& a, const BeamChoice& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.token != b.token) return a.token < b.token;
    return a.parent < b.parent;
  };
  std::sort(choices.begin(), choices.end(), better);
  if (choices.size() > static_cast<std::size_t>(num_beams)) {
    choices.resize(static_cast<std::size_t>(num_beams));
  }
  return choices;
}

}  // namespace kvfolio::llama
