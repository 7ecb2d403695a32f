// SPDX-License-Identifier: Apache-2.0
// What the users of vLLM, FlashInfer and llama.cpp call and hold, and the calls beside it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "parity_vectors.h"

namespace kvfolio::parity {
namespace {

using testing::ElementsAre;
using testing_engine::Engine;
using testing_engine::full_group;
using testing_engine::joined;
using testing_engine::Tokens;
using testing_engine::tokens;
using testing_engine::window_group;

TEST(ParityEngines, AVllmSchedulerFindsAllocatesAndPreempts) {
  Engine e({full_group(16, 6)});
  e.cache(tokens(1, 32));
  const SequenceId running = e.say_count(48);
  const Tokens prompt = joined(tokens(1, 32), tokens(100, 20));
  // shown: vllm schedule
  const Opened opened = must(e.manager.open(prompt, {.caller_id = 7}));  // get_computed_blocks
  const auto rest = std::span(prompt).subspan(static_cast<std::size_t>(opened.cached_tokens));
  const Ticket step = must(e.manager.begin_step());
  Status status = e.manager.append(opened.sequence, rest);  // allocate_slots
  while (status.shortage() != nullptr) {                    // there: None
    const std::optional<SequenceId> victim = e.manager.select_victim(VictimPolicy::kLongest);
    if (!victim || *victim == opened.sequence) break;  // close it, and ask again later
    must(e.manager.preempt(*victim));
    status = e.manager.append(opened.sequence, rest);
  }
  // shown end
  must(status);
  EXPECT_EQ(opened.cached_tokens, 32);
  EXPECT_EQ(e.manager.info(running).error().code(), ErrorCode::kNotFound);
  // shown: vllm arrays
  const StepPlan& plan = *must(e.manager.plan());
  const GroupPlan& of = plan.groups[0];
  const std::span<const std::int32_t> query_start_loc = plan.query_start;
  const std::span<const std::int32_t> seq_lens = plan.kv_lens;
  const std::span<const std::int32_t> slot_mapping = of.slot_mapping;
  const std::span<const std::int32_t> block_table = of.block_table;  // rows of block_table_stride
  // Before the step writes, copy block of.copy_src[i] to of.copy_dst[i] in each layer.
  // shown end
  EXPECT_THAT(query_start_loc, ElementsAre(0, 20));
  EXPECT_THAT(seq_lens, ElementsAre(52));
  ASSERT_EQ(block_table.size(), 4u);
  EXPECT_EQ(slot_mapping.size(), 20u);
  EXPECT_EQ(slot_mapping[0], block_table[2] * 16);
  EXPECT_EQ(slot_mapping[19], block_table[3] * 16 + 3);
  EXPECT_TRUE(of.copy_src.empty());
  must(e.manager.finish(step));
}

// One layer, pages of [2, page_size, heads, head_dim]: K and V of a page lie together.
TEST(ParityEngines, AFlashInferTensorIsBorrowedAsItIs) {
  constexpr std::int32_t kPages = 5, kPageSize = 16, kHeads = 2, kHeadDim = 8;
  std::vector<float> pages(std::size_t{kPages} * 2 * kPageSize * kHeads * kHeadDim);
  // shown: flashinfer memory
  GroupSpec layer{.num_kv_heads = kHeads, .head_dim_k = kHeadDim, .head_dim_v = kHeadDim};
  layer.block_size = kPageSize;
  layer.num_blocks = kPages;
  const std::int64_t half_bytes = std::int64_t{4} * kPageSize * kHeads * kHeadDim;
  auto* const base =
      reinterpret_cast<std::byte*>(pages.data());  // [pages, 2, page_size, heads, dim]
  BorrowedGroup lent{.k = base, .v = base + half_bytes};
  lent.k_bytes = (2 * kPages) * half_bytes;
  lent.v_bytes = (2 * kPages - 1) * half_bytes;
  lent.k_strides.block = 2 * half_bytes;
  lent.k_strides.token = std::int64_t{4} * kHeads * kHeadDim;
  lent.k_strides.head = std::int64_t{4} * kHeadDim;
  lent.v_strides = lent.k_strides;
  const KVStorage storage = must(KVStorage::borrow(CacheSpec{{layer}}, std::span(&lent, 1)));
  // shown end
  float k[kHeadDim] = {1}, v[kHeadDim] = {2};
  const auto row = [](float* data) {
    return ConstRowsView(reinterpret_cast<const std::byte*>(data), 4 * kHeadDim, 4 * kHeadDim, 1, 1,
                         kHeadDim, DType::kF32);
  };
  must(write_token(must(storage.view(GroupId(0))), {.head = 1, .slot = 3 * kPageSize + 4}, row(k),
                   row(v)));
  const auto at = [](std::size_t half) {
    return (((3 * 2 + half) * kPageSize + 4) * kHeads + 1) * kHeadDim;
  };
  EXPECT_EQ(pages[at(0)], 1);
  EXPECT_EQ(pages[at(1)], 2);
}

TEST(ParityEngines, FlashInferArraysListLivePagesWhosePositionsCountFromTheEnd) {
  constexpr std::int32_t block_size = 4;
  Engine e({full_group(block_size, 64), window_group(block_size, 64, 6)});
  std::vector<SequenceId> open = {e.say(tokens(1, 3)), e.say(tokens(100, 30)),
                                  e.say(tokens(200, 17))};
  std::int32_t most_dropped = 0;
  for (int round = 0; round < 20; ++round) {
    const Ticket step = must(e.manager.begin_step());
    for (const SequenceId s : open) must(e.manager.append(s, tokens(round, 1 + round % 3)));
    // shown: flashinfer arrays
    const StepPlan& plan = *must(e.manager.plan({.flashinfer = true}));
    const GroupPlan& of = plan.groups[1];
    // plan(qo_indptr = plan.query_start, paged_kv_indptr = of.kv_indptr,
    //      paged_kv_indices = of.kv_indices, paged_kv_last_page_len = of.kv_last_page_len, ...)
    // shown end
    // shown: flashinfer positions
    // Position p of sequence i is position p - dropped(i) of its pages.
    const auto dropped = [&](std::size_t i) {
      const std::int32_t pages = of.kv_indptr[i + 1] - of.kv_indptr[i];
      return plan.kv_lens[i] - ((pages - 1) * block_size + of.kv_last_page_len[i]);
    };
    // shown end
    for (std::size_t i = 0; i < open.size(); ++i) {
      most_dropped = std::max(most_dropped, dropped(i));
      const auto page = [&](std::int32_t p) {
        const std::int32_t index = of.kv_indptr[i] + (p - dropped(i)) / block_size;
        return of.kv_indices[static_cast<std::size_t>(index)];
      };
      const Tokens table = e.table(open[i], 1);
      for (std::int32_t p = dropped(i); p < plan.kv_lens[i]; ++p) {
        EXPECT_EQ(page(p), table[static_cast<std::size_t>(p / block_size)]) << "position " << p;
      }
      for (std::int32_t t = plan.query_start[i]; t < plan.query_start[i + 1]; ++t) {
        const std::int32_t p = plan.kv_lens[i] - (plan.query_start[i + 1] - t);
        EXPECT_EQ(of.slot_mapping[static_cast<std::size_t>(t)],
                  page(p) * block_size + (p - dropped(i)) % block_size);
      }
      EXPECT_LE(dropped(i), std::max(0, plan.kv_lens[i] - 6)) << "what the window reads is listed";
    }
    must(e.manager.finish(step));
  }
  EXPECT_GT(most_dropped, 40);
}

TEST(ParityEngines, TheSequenceCallsOfLlamaCpp) {
  Engine e({full_group(16, 16)});
  const SequenceId sequence = e.say(tokens(1, 40));
  // shown: llama seq
  const SequenceId copy = must(e.manager.fork(sequence));              // seq_cp(mem, 0, 1, -1, -1)
  must(e.manager.truncate(copy, 20));                                  // seq_rm(mem, 1, 20, -1)
  const std::int32_t pos_max = must(e.manager.info(copy)).length - 1;  // seq_pos_max(mem, 1)
  must(e.manager.trim(sequence, {.num_sinks = 4, .window = 16}));      // seq_rm(mem, 0, 4, 24)
  must(e.manager.close(copy));                                         // seq_rm(mem, 1, -1, -1)
  // shown end
  EXPECT_EQ(pos_max, 19);
  const SequenceInfo info = e.info(sequence);
  EXPECT_EQ(info.length, 40);
  EXPECT_EQ(info.trim_sinks, 4);
  EXPECT_EQ(info.trim_first_kept, 24);
  EXPECT_EQ(e.manager.num_sequences(), 1);
}

}  // namespace
}  // namespace kvfolio::parity
