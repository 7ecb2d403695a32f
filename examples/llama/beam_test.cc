// SPDX-License-Identifier: Apache-2.0
#include "beam.h"

#include <gtest/gtest.h>

#include <vector>

#include "sampler.h"

namespace kvfolio::llama {
namespace {

TEST(BestCandidates, AreRankedByLogitThenId) {
  std::vector<Candidate> best;
  const std::vector<float> logits{1, 3, 0, 3, 2};
  best_candidates(logits, 3, best);
  ASSERT_EQ(best.size(), 3u);
  EXPECT_EQ(best[0].token, 1);
  EXPECT_EQ(best[1].token, 3);
  EXPECT_EQ(best[2].token, 4);
  EXPECT_EQ(best[0].log_prob, 3.0 - log_sum_exp(logits));
}

TEST(BestCandidates, StopAtTheVocabulary) {
  std::vector<Candidate> best;
  best_candidates(std::vector<float>{1, 2}, 5, best);
  EXPECT_EQ(best.size(), 2u);
}

TEST(ChooseBeams, TakesTheBestOfAllExtensions) {
  const std::vector<Candidate> after_first{{.token = 7, .log_prob = -3.0}};
  const std::vector<Candidate> after_second{{.token = 2, .log_prob = -0.5},
                                            {.token = 4, .log_prob = -0.6}};
  const std::vector<Extendable> live{{.score = -1.0, .candidates = after_first},
                                     {.score = -2.0, .candidates = after_second}};
  const auto choices = choose_beams(live, {}, 2);
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].parent, 1);
  EXPECT_EQ(choices[0].token, 2);
  EXPECT_EQ(choices[0].score, -2.5);
  EXPECT_EQ(choices[1].token, 4);
}

TEST(ChooseBeams, EqualScoresGoToTheLowerTokenThenTheHigherRank) {
  const std::vector<Candidate> a{{.token = 9, .log_prob = -1.0}, {.token = 5, .log_prob = -1.0}};
  const std::vector<Candidate> b{{.token = 5, .log_prob = -1.0}, {.token = 3, .log_prob = -1.0}};
  const std::vector<Extendable> live{{.score = 0.0, .candidates = a},
                                     {.score = 0.0, .candidates = b}};
  const auto choices = choose_beams(live, {}, 3);
  EXPECT_EQ(choices[0].token, 3);
  EXPECT_EQ(choices[1].token, 5);
  EXPECT_EQ(choices[1].parent, 0);
  EXPECT_EQ(choices[2].token, 5);
  EXPECT_EQ(choices[2].parent, 1);
}

TEST(ChooseBeams, AnEndedHypothesisHoldsItsPlaceUntilItIsOutranked) {
  const std::vector<Candidate> next{{.token = 1, .log_prob = -0.5}, {.token = 2, .log_prob = -9.0}};
  const std::vector<Extendable> live{{.score = -1.0, .candidates = next}};
  const std::vector<double> ended{-2.0};
  const auto choices = choose_beams(live, ended, 2);
  EXPECT_EQ(choices[0].token, 1);
  EXPECT_EQ(choices[1].token, -1);
  EXPECT_EQ(choices[1].parent, 0);
  EXPECT_EQ(choices[1].score, -2.0);
}

}  // namespace
}  // namespace kvfolio::llama
