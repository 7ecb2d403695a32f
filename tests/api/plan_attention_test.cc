// SPDX-License-Identifier: Apache-2.0
// The arrays of a plan as arguments of attend(): window, sinks and trims arrive, none is forgotten.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine.h"
#include "kvfolio/plan_attention.h"
#include "kvfolio/storage.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;

// Queries of zeros weigh all that they read alike, and V of position p is p: a row of the result is
// the mean of the positions that it reads. A full and a window group, in f64.
class MeanEngine {
 public:
  MeanEngine() {
    GroupSpec full = full_group(4, 32);
    GroupSpec window = window_group(4, 32, /*window=*/5, /*sinks=*/2);
    full.dtype = window.dtype = DType::kF64;
    manager = std::make_unique<KVCacheManager>(
        must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{full, window}})))));
  }

  // Appends n tokens to each sequence in one step and writes them; attend with `args_of`.
  template <typename ArgsOf>
  Status step(const std::vector<SequenceId>& sequences, int n, const ArgsOf& args_of) {
    const Ticket ticket = must(manager->begin_step());
    for (const SequenceId sequence : sequences) must(manager->append(sequence, tokens(1, n)));
    const StepPlan& plan = *must(manager->plan());
    must(manager->run_copies());
    const std::int32_t num_tokens = plan.num_tokens;
    std::vector<double> k(static_cast<std::size_t>(num_tokens) * 8), v = k;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      for (std::int32_t row = plan.query_start[i]; row < plan.query_start[i + 1]; ++row) {
        const std::int32_t position = plan.kv_lens[i] - plan.query_start[i + 1] + row;
        std::fill_n(v.begin() + row * 8, 8, static_cast<double>(position));
      }
    }
    const std::vector<double> q(k.size());
    out.assign(2, std::vector<double>(k.size()));
    Status status;
    for (std::int32_t g = 0; g < 2 && status.ok(); ++g) {
      const KVView view = must(manager->storage()->view(GroupId(g)));
      must(append(view, 0, contiguous_rows(std::as_const(k).data(), num_tokens, 1, 8),
                  contiguous_rows(std::as_const(v).data(), num_tokens, 1, 8),
                  plan.groups[static_cast<std::size_t>(g)].slot_mapping));
      std::vector<std::byte> workspace(
          static_cast<std::size_t>(must(attention_workspace_bytes(view, 1, 1024))));
      AttentionArgs args = args_of(plan, GroupId(g));
      args.cache = view;
      args.q = contiguous_rows(q.data(), num_tokens, 1, 8);
      args.out = contiguous_rows(out[static_cast<std::size_t>(g)].data(), num_tokens, 1, 8);
      args.workspace = workspace;
      status = attend(args);
    }
    must(manager->finish(ticket));
    return status;
  }

  [[nodiscard]] AttentionArgs good(const StepPlan& plan, GroupId group) const {
    const GroupSpec& spec = manager->spec().groups[static_cast<std::size_t>(group.value())];
    return {.batch = attention_batch(plan, group), .params = attention_params(spec, 1.0)};
  }

  std::unique_ptr<KVCacheManager> manager;
  std::vector<std::vector<double>> out;  // [group][row * 8]
};

// The mean of the positions that the query at p reads.
double mean(std::int32_t p, std::int32_t window, std::int32_t sinks, const SequenceInfo& info) {
  double sum = 0;
  double count = 0;
  for (std::int32_t j = 0; j <= p; ++j) {
    if (window > 0 && j <= p - window && j >= sinks) continue;
    if (j >= info.trim_sinks && j < info.trim_first_kept) continue;
    sum += j;
    ++count;
  }
  return sum / count;
}

TEST(PlanAttention, EveryRowReadsWhatItsGroupSaysInPrefillDecodeAndBehindATrim) {
  MeanEngine engine;
  const std::vector<SequenceId> all = {must(engine.manager->open({})).sequence,
                                       must(engine.manager->open({})).sequence};
  const auto good = [&](const StepPlan& plan, GroupId group) { return engine.good(plan, group); };
  std::int32_t length = 0;
  for (const int n : {11, 1, 1, 1, 7, 1, 1, 1, 1}) {
    must(engine.step(all, n, good));
    length += n;
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const SequenceInfo info = must(engine.manager->info(all[i]));
        for (int t = 0; t < n; ++t) {
          const double got =
              engine
                  .out[g][(i * static_cast<std::size_t>(n) + static_cast<std::size_t>(t)) * 8 + 3];
          EXPECT_NEAR(got, mean(length - n + t, g == 0 ? 0 : 5, g == 0 ? 0 : 2, info), 1e-12)
              << "group " << g << " sequence " << i << " length " << length;
        }
      }
    }
    if (length == 13) {  // one of the two is trimmed: positions 3 to 6 are gone
      EXPECT_GT(must(engine.manager->trim(all[1], {.num_sinks = 3, .window = 6})), 0);
    }
  }
}

TEST(PlanAttention, AForgottenWindowIsAnErrorThatAsksForIt) {
  MeanEngine engine;
  const std::vector<SequenceId> one = {must(engine.manager->open({})).sequence};
  const auto forgets = [&](const StepPlan& plan, GroupId group) {
    AttentionArgs args = engine.good(plan, group);
    args.params.rule = {};
    return args;
  };
  must(engine.step(one, 16, forgets));  // nothing was dropped yet: wrong numbers, no error
  const Status status = engine.step(one, 1, forgets);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("block_table[0, 1] is -1"));
  EXPECT_THAT(status.message(), HasSubstr("does the call lack the window?"));
}

TEST(PlanAttention, AnUnknownGroupGivesABatchThatIsRefused) {
  StepPlan plan;
  const GroupPlan group{.block_table_stride = 1};
  plan.groups = {&group, 1};
  EXPECT_EQ(attention_batch(plan, GroupId(0)).block_table_stride, 1);
  for (const std::int32_t g : {-1, 1, 1 << 30}) {
    const AttentionBatch batch = attention_batch(plan, GroupId(g));
    EXPECT_TRUE(batch.query_start.empty());
    EXPECT_EQ(batch.block_table_stride, 0);
  }
}

TEST(AttentionParams, TakeTheRuleOfTheirGroup) {
  const AttentionParams window = attention_params(window_group(4, 8, 5, 2), 0.25);
  EXPECT_EQ(window.scale, 0.25);
  EXPECT_TRUE(window.causal);
  EXPECT_EQ(window.rule, GroupRule::of_window(5, 2));
  const AttentionParams full = attention_params(full_group(4, 8), 0.5);
  EXPECT_EQ(full.rule, GroupRule());
}

}  // namespace
}  // namespace kvfolio::testing_engine
