// SPDX-License-Identifier: Apache-2.0
#include "paged_backend.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "host_compute.h"
#include "kvfolio/executor.h"

namespace kvfolio::llama {
namespace {

constexpr std::int32_t kPagedBlock = 16;
constexpr std::int32_t kNumBlocks = 8;

// A cache of 8 blocks with one sequence that has nothing yet.
class PagedAdmission : public testing::Test {
 protected:
  void open(std::int32_t window, Order order) {
    ModelConfig config;
    config.num_layers = config.num_q_heads = config.num_kv_heads = 1;
    config.head_dim = 8;
    config.sliding_window = window;
    CacheSpec spec = cache_spec(config, {.block_size = kPagedBlock});
    spec.groups[0].num_blocks = kNumBlocks;
    auto made = PagedBackend::create(
        config, spec, {.max_sequences = 4, .max_tokens = 2000, .order = order}, compute_);
    ASSERT_TRUE(made) << made.error();
    backend_ = *std::move(made);
    const auto opened = backend_->open({}, {.max_tokens = 2000});
    ASSERT_TRUE(opened) << opened.error();
    sequence_ = opened->sequence;
  }
  Status admit(std::int64_t num_tokens, std::int64_t most_per_step) {
    return backend_->admit(sequence_, num_tokens, most_per_step);
  }

  std::unique_ptr<ThreadPool> pool_ = *ThreadPool::create(1);
  HostCompute compute_{*pool_, KernelTarget::kPortable};
  std::unique_ptr<PagedBackend> backend_{};
  SequenceId sequence_{};
};

TEST_F(PagedAdmission, WithoutAWindowAllOfThePromptHasToFitWhateverAStepTakes) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    open(0, order);
    EXPECT_TRUE(admit(kNumBlocks * kPagedBlock, kPagedBlock).ok());
    const Status status = admit(kNumBlocks * kPagedBlock + 1, kPagedBlock);
    ASSERT_NE(status.shortage(), nullptr) << status;
    EXPECT_EQ(backend_->tokens_too_many(*status.shortage()), 0);
  }
}

// A window of 32 begins and ends inside a block: three blocks, and those of a step beside them.
TEST_F(PagedAdmission, InAWindowAPromptComesInStepsOfWhatTheShortageLeaves) {
  open(32, Order::kInOrder);
  const Status status = admit(1500, 512);
  ASSERT_NE(status.shortage(), nullptr) << status;
  const std::int64_t too_many = backend_->tokens_too_many(*status.shortage());
  EXPECT_GT(too_many, 0);
  ASSERT_LT(too_many, 512 - kPagedBlock);
  EXPECT_TRUE(admit(1500, 512 - too_many).ok());
  EXPECT_FALSE(admit(1500, 512 - too_many + kPagedBlock).ok());
}

TEST_F(PagedAdmission, UnorderedAWindowIsAskedForTheTokensOfAStep) {
  open(32, Order::kUnordered);
  EXPECT_TRUE(admit(1500, kNumBlocks * kPagedBlock).ok());
  EXPECT_FALSE(admit(1500, kNumBlocks * kPagedBlock + 1).ok());
}

}  // namespace
}  // namespace kvfolio::llama
