// SPDX-License-Identifier: Apache-2.0
// What --verify and `kvfolio prove` call equal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "prove_report.h"
#include "results.h"

namespace kvfolio::tools {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Each token comes out of a row of logits that holds its position.
llama::FinishedSample finished(const llama::Request& request, std::int32_t sample,
                               std::vector<std::int32_t> token_ids) {
  llama::FinishedSample result{
      .request = request, .sample = sample, .token_ids = {}, .logits = {}, .prompt_logits = {}};
  for (std::size_t i = 0; i < token_ids.size(); ++i) {
    auto step = std::make_shared<llama::LogitHistory>();
    step->row = {static_cast<float>(i), 0.5f};
    step->before = result.logits;
    result.logits = std::move(step);
  }
  result.token_ids = std::move(token_ids);
  return result;
}

struct Compared : testing::Test {
  std::vector<llama::Request> requests = std::vector<llama::Request>(2);
  Results paged{requests};
  Results twin{requests};
};

TEST_F(Compared, EqualSamplesAreCounted) {
  for (Results* results : {&paged, &twin}) {
    results->keep(finished(requests[0], 0, {1, 0}));
    results->keep(finished(requests[1], 0, {1}));
  }
  const Comparison comparison = compare(paged, twin);
  EXPECT_THAT(comparison.difference, IsEmpty());
  EXPECT_EQ(comparison.tokens, 3);
  EXPECT_EQ(comparison.logit_rows, 3);
}

TEST_F(Compared, ASampleThatOnlyOneSideHasIsADifference) {
  paged.keep(finished(requests[1], 0, {1}));
  twin.keep(finished(requests[1], 0, {1}));
  twin.keep(finished(requests[1], 1, {1}));
  EXPECT_THAT(compare(paged, twin).difference, HasSubstr("1 samples over blocks, 2 over"));
  EXPECT_THAT(compare(twin, paged).difference, HasSubstr("2 samples over blocks, 1 over"));
}

TEST_F(Compared, ATokenThatOnlyOneSideHasIsADifference) {
  paged.keep(finished(requests[0], 0, {1, 0}));
  twin.keep(finished(requests[0], 0, {1}));
  EXPECT_THAT(compare(paged, twin).difference, HasSubstr("2 tokens over blocks, 1 over"));
}

TEST_F(Compared, WhatThePoolIsTooSmallForIsLeftOut) {
  paged.reject(requests[0], "needs 3 blocks");
  twin.keep(finished(requests[0], 0, {1}));
  EXPECT_THAT(compare(paged, twin).difference, IsEmpty());
}

// No row of logits follows the last token of a sample, so that no hash shows it.
TEST_F(Compared, AProofIsNotEqualWhereOnlyTheLastTokenDiffers) {
  paged.keep(finished(requests[0], 0, {1, 0}));
  twin.keep(finished(requests[0], 0, {1, 1}));
  Comparison counts;
  const std::string found = difference(paged.all()[0].samples[0], twin.all()[0].samples[0], counts);
  EXPECT_THAT(found, HasSubstr("generated token 1 is 0 over blocks, 1 over"));

  Proof proof;
  proof.rows.resize(2);
  for (ProvedRow& row : proof.rows) row.sha256 = "same";
  EXPECT_TRUE(proof.good());
  proof.rows[1].difference = found;
  EXPECT_FALSE(proof.equal());
  EXPECT_FALSE(proof.good());
}

}  // namespace
}  // namespace kvfolio::tools
