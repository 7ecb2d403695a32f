// SPDX-License-Identifier: Apache-2.0
// What --verify and `kvfolio prove` call equal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine.h"
#include "host_compute.h"
#include "pool_size.h"
#include "prove_report.h"
#include "results.h"
#include "test_checkpoint.h"

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

TEST_F(Compared, RowsOfThePromptCountWhereBothSidesComputedThem) {
  for (Results* results : {&paged, &twin}) {
    llama::FinishedSample sample = finished(requests[0], 0, {1});
    // The last row is the one that chose the token, so it is among the logits already.
    sample.prompt_logits = std::make_shared<llama::PromptLogits>(
        llama::PromptLogits{{}, {1.0f, results == &twin ? 2.5f : 2.0f}, {3.0f, 4.0f}});
    results->keep(sample);
  }
  EXPECT_THAT(compare(paged, twin).difference,
              HasSubstr("prompt position 1: the logit of id 1 is 2.000000"));
  EXPECT_THAT(compare(paged, paged).difference, IsEmpty());
  EXPECT_EQ(compare(paged, paged).logit_rows, 2);
}

// A text is scored by two engines, of which one may keep another type of cache.
TEST(ScoredTwice, EveryRowOfBothEnginesIsSeen) {
  const llama::TempFolder folder;
  folder.write("config.json", llama::kTinyConfig);
  folder.write("model.safetensors", llama::safetensors_file(llama::tiny_tensors()));
  const Result<llama::Model> model = llama::Model::load(folder.path());
  ASSERT_TRUE(model.has_value()) << model.error().message();
  const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(1);
  llama::HostCompute compute(*pool, KernelTarget::kReference);
  std::vector<std::int32_t> text(150);  // of windows of 64: two, and a part
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::int32_t>(i * i % 10);
  for (const DType twin_dtype : {DType::kF64, DType::kBF16}) {
    const auto make_engine = [&](DType dtype, bool contiguous) {
      CacheSpec spec = llama::cache_spec(model->config(), {.block_size = 4, .dtype = dtype});
      for (GroupSpec& group : spec.groups) group.num_blocks = 16;
      return llama::Engine::create(
          *model, spec, {.max_batch_tokens = 10, .max_tokens = 64, .contiguous = contiguous},
          compute, *pool);
    };
    const auto engine = make_engine(DType::kF64, false);
    const auto twin = make_engine(twin_dtype, true);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    ASSERT_TRUE(twin.has_value()) << twin.error().message();
    std::size_t rows_seen = 0;
    std::vector<std::size_t> positions;
    std::string first_difference;
    const Result<llama::Perplexity> scored = (*engine)->perplexity(
        text, **twin,
        [&](std::size_t first, std::span<const float> rows, std::span<const float> twin_rows) {
          positions.push_back(first);
          ASSERT_EQ(rows.size(), twin_rows.size());
          rows_seen += rows.size() / 10;
          if (first_difference.empty()) first_difference = row_difference(rows, twin_rows);
        });
    ASSERT_TRUE(scored.has_value()) << scored.error().message();
    EXPECT_EQ(rows_seen, 63u + 63u + 21u);
    EXPECT_THAT(positions, testing::ElementsAre(0, 10, 20, 30, 40, 50, 60, 64, 74, 84, 94, 104, 114,
                                                124, 128, 138, 148));
    EXPECT_EQ(scored->scored_tokens, 63 + 63 + 21);
    EXPECT_EQ(scored->bits_per_token, (*engine)->perplexity(text)->bits_per_token);
    EXPECT_EQ(first_difference.empty(), twin_dtype == DType::kF64) << first_difference;
  }
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

TEST(ProvedRow, NamesItsKernelsWhereTheyAreOthersThanTheTarget) {
  ProvedRow row;
  row.sha256 = "0123456789abcdef";
  row.happened.kernels = {"avx512"};
  const std::string alone = table_row(row, "avx512");
  EXPECT_THAT(alone, testing::EndsWith("  0123456789ab\n"));
  row.happened.kernels = {"cuda-merge", "cuda-node"};
  EXPECT_EQ(table_row(row, "cuda-sm90-r1"), alone + "    by cuda-merge, cuda-node\n");
}

}  // namespace
}  // namespace kvfolio::tools
