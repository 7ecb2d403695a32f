// SPDX-License-Identifier: Apache-2.0

// Kernels that succeed take no memory.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "heap_calls/heap_calls.h"
#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using testing_heap::num_heap_calls;

// Fault J8: a batch append, too.
TEST(Kernels, CallsThatSucceedTakeNoMemory) {
  if (!testing_heap::kCountsHeapCalls) GTEST_SKIP() << "clang's thread sanitizer counts none";
  using testing_cache::TestCache;
  using testing_cache::TestRows;
  struct Case {
    DType source;
    DType dtype;
    Format format;
  };
  for (const auto& [source, dtype, format] :
       {Case{DType::kF32, DType::kF32, Format::kHnd}, Case{DType::kF64, DType::kF32, Format::kHnd},
        Case{DType::kF32, DType::kInt8, Format::kNhd},
        Case{DType::kF32, DType::kInt8, Format::kGranule},
        Case{DType::kF32, DType::kE4M3, Format::kNhd},
        Case{DType::kF64, DType::kBF16, Format::kGranule}}) {
    TestCache cache({.num_kv_heads = 2,
                     .head_dim_k = 8,
                     .head_dim_v = 8,
                     .dtype = dtype,
                     .format = format,
                     .num_blocks = 2});
    TestRows rows(20, 2, 8, source);
    TestRows out(20, 2, 8, source);
    rows.fill(1);
    std::vector<std::int32_t> slots(20);
    for (int t = 0; t < 20; ++t) slots[static_cast<std::size_t>(t)] = t;
    const std::int32_t table[] = {0, 1};
    const std::int32_t query_start[] = {0, 20};
    const std::int32_t kv_lens[] = {20};
    const std::int32_t src[] = {0};
    const std::int32_t dst[] = {1};
    std::vector<std::byte> workspace(1 << 20);
    AttentionArgs args{.cache = cache.view, .params = {.scale = 1.0}, .workspace = workspace};
    args.batch = {query_start, kv_lens, table, 2};
    args.q = rows.rows;
    args.out = out.rows;
    TestRows one(1, 1, 8, source);

    const std::uint64_t before = num_heap_calls();
    bool ok = append(cache.view, 0, rows.rows, rows.rows, slots).ok();
    ok = ok &&
         gather(
             {.cache = cache.view, .block_table = table, .length = 20, .count = 20, .k = out.rows})
             .ok();
    ok = ok && write_token(cache.view, {.slot = 3}, one.rows, one.rows).ok();
    ok = ok && read_token(cache.view, {.slot = 3}, one.rows, one.rows).ok();
    ok = ok && copy_blocks(cache.view, src, dst).ok();
    ok = ok && convert(rows.rows, out.rows).ok();
    ok = ok && attention_workspace_bytes(cache.view, 2, 20).has_value();
    ok = ok && attend(args).ok();
    const ConstRowsView lse{rows.rows.data, 8, 8, 1, 1, 1, source};
    const AttentionState state{one.rows, lse};
    ok = ok && merge_states(state, state, one.rows).ok();
    const std::uint64_t taken = num_heap_calls() - before;
    EXPECT_TRUE(ok);
    EXPECT_EQ(taken, 0U);
  }
}

TEST(Kernels, NoTargetTakesMemoryAloneOrOnThreads) {
  if (!testing_heap::kCountsHeapCalls) GTEST_SKIP() << "clang's thread sanitizer counts none";
  using testing_cache::TestCache;
  using testing_cache::TestRows;
  Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::create(2);
  ASSERT_TRUE(pool);
  const Executor executor = (*pool)->executor();
  TestCache cache({.num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64, .num_blocks = 200});
  constexpr int kTokens = 3000;
  TestRows rows(kTokens, 2, 64, DType::kF32);
  rows.fill(1);
  std::vector<std::int32_t> slots(kTokens);
  std::vector<std::int32_t> table(200);
  for (int t = 0; t < kTokens; ++t) slots[static_cast<std::size_t>(t)] = t;
  for (int b = 0; b < 200; ++b) table[static_cast<std::size_t>(b)] = b;
  ASSERT_TRUE(append(cache.view, 0, rows.rows, rows.rows, slots).ok());
  TestRows q(1, 4, 64, DType::kF32);
  TestRows out(1, 4, 64, DType::kF32);
  q.fill(2);
  const std::int32_t query_start[] = {0, 1};
  const std::int32_t kv_lens[] = {kTokens};
  AttentionArgs args{.cache = cache.view, .params = {.scale = 1.0}};
  args.batch = {query_start, kv_lens, table, 200};
  args.q = q.rows;
  args.out = out.rows;
  for (const KernelTarget target : kernel_targets()) {
    args.target = target;
    const Result<std::int64_t> bytes =
        attention_workspace_bytes(cache.view, 4, kTokens, target, executor.num_threads);
    ASSERT_TRUE(bytes);
    std::vector<std::byte> workspace(static_cast<std::size_t>(*bytes));
    args.workspace = workspace;
    for (const Executor* threads : {static_cast<const Executor*>(nullptr), &executor}) {
      args.executor = threads;
      const std::uint64_t before = num_heap_calls();
      const bool ok = attend(args).ok();
      EXPECT_EQ(num_heap_calls() - before, 0U) << to_string(target);
      EXPECT_TRUE(ok);
    }
  }
}

}  // namespace
}  // namespace kvfolio
