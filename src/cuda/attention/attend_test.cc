// SPDX-License-Identifier: Apache-2.0

// What the host side refuses, and in which words.

#include "cuda/attention/attend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace kvfolio::cuda {
namespace {

using ::testing::HasSubstr;

// A call whose pointers are never followed.
struct Fixture {
  alignas(64) std::array<char, 64> memory = {};
  std::vector<std::int32_t> start = {0, 1, 3}, lens = {40, 70};
  AttentionCall call;

  Fixture() {
    CacheArgs& cache = call.cache;
    cache.element = Element::kBF16;
    cache.k = cache.v = memory.data();
    cache.k_strides = cache.v_strides = {16 * 2 * 256, 16 * 256, 256};
    cache.block_size = 16;
    cache.num_blocks = 100;
    cache.num_heads = 2;
    cache.dim_k = cache.dim_v = 128;
    call.block_table = reinterpret_cast<const std::int32_t*>(memory.data());
    call.block_table_stride = 5;
    call.device_query_start = call.device_kv_lens = call.block_table;
    call.q = call.out = memory.data();
    call.q_token_stride = call.out_token_stride = 8 * 256;
    call.q_head_stride = call.out_head_stride = 256;
    call.lengths = {start, lens, {}, {}};
    call.group_size = 4;
    call.scale = 0.1;
  }
};

std::string refusal(const AttentionCall& call) {
  const Result<AttentionPlan> plan = plan_attention(call);
  return plan ? "accepted" : to_string(plan.error());
}

TEST(CudaAttention, RefusesEachWrongArgumentByNameAndValue) {
  struct Fault {
    void (*make)(Fixture&);
    const char* sentence;
  };
  const Fault faults[] = {
      {[](Fixture& f) { f.call.cache.element = static_cast<Element>(9); }, "cache.element is 9"},
      {[](Fixture& f) { f.call.cache.dim_k = 0; }, "cache.dim_k is 0, allowed: at least 8"},
      {[](Fixture& f) { f.call.cache.dim_v = 12; },
       "cache.dim_v is 12, the kernels take multiples of 8 up to 576"},
      {[](Fixture& f) { f.call.cache.dim_k = 584; }, "cache.dim_k is 584"},
      {[](Fixture& f) { f.call.cache.block_size = 257; },
       "cache.block_size is 257, the kernels take up to 256"},
      {[](Fixture& f) { f.call.cache.block_size = 0; }, "cache.block_size is 0, allowed: 1 to 256"},
      {[](Fixture& f) { f.call.cache.num_blocks = 0; }, "cache.num_blocks is 0"},
      {[](Fixture& f) { f.call.cache.k = nullptr; }, "cache.k is null"},
      {[](Fixture& f) { f.call.cache.v = f.memory.data() + 8; },
       "cache.v is not aligned to 16 bytes"},
      {[](Fixture& f) { f.call.cache.k_strides.token = 264; },
       "cache.k has a stride of 264 bytes, allowed: multiples of 16"},
      {[](Fixture& f) { f.call.cache.v_strides.head = -16; }, "cache.v has a stride of -16"},
      {[](Fixture& f) { f.call.cache.k_strides.block = std::int64_t{1} << 31; },
       "allowed: 68719476736 bytes for a layer"},
      {[](Fixture& f) { f.call.cache.k_scales = f.memory.data(); },
       "scales are of int8 and e4m3 only"},
      {[](Fixture& f) { f.call.cache.element = Element::kInt8; }, "cache.k_scales is null"},
      {[](Fixture& f) { f.call.scale = 0; }, "scale is 0, negative or not finite"},
      {[](Fixture& f) { f.call.scale = std::nan(""); }, "scale is 0, negative or not finite"},
      {[](Fixture& f) { f.call.soft_cap = -1; },
       "soft_cap is negative, NaN or out of range, allowed: 0 (none), or 1e-30 to 1e30"},
      {[](Fixture& f) { f.call.mask.rule = Rule::kChunked; },
       "mask.window is 0, allowed: at least 1"},
      {[](Fixture& f) { f.call.mask.num_sinks = -3; }, "mask.num_sinks is -3"},
      {[](Fixture& f) { f.call.group_size = 0; }, "group_size is 0, allowed: 1 to 1024"},
      {[](Fixture& f) {
         f.start.pop_back();
         f.call.lengths.query_start = f.start;
       },
       "query_start has 2 entries for 2 sequences, allowed: 3"},
      {[](Fixture& f) { f.start[0] = 1; }, "query_start[0] is 1, allowed: 0"},
      {[](Fixture& f) { f.start[2] = 0; }, "query_start falls from 1 to 0 at sequence 1"},
      {[](Fixture& f) { f.lens[1] = 1; }, "kv_lens[1] is 1, allowed: its 2 queries to"},
      {[](Fixture& f) { f.lens[0] = 81; },
       "kv_lens[0] is 81, its table row holds 5 blocks of 16 tokens"},
      {[](Fixture& f) { f.call.block_table = nullptr; }, "block_table is null"},
      {[](Fixture& f) { f.call.device_kv_lens = nullptr; }, "device_kv_lens is null"},
      {[](Fixture& f) { f.call.q_element = Element::kInt8; },
       "q_element is 3, allowed: f32, f16, bf16"},
      {[](Fixture& f) { f.call.out = nullptr; }, "out is null"},
      {[](Fixture& f) { f.call.q_head_stride = 100; },
       "q has a stride of 100 bytes, allowed: multiples of 16"},
  };
  for (const Fault& fault : faults) {
    Fixture fixture;
    ASSERT_EQ(refusal(fixture.call), "accepted");
    fault.make(fixture);
    EXPECT_THAT(refusal(fixture.call), HasSubstr(fault.sentence));
  }
}

TEST(CudaAttention, RefusesTrimsThatDoNotFitTheirSequences) {
  Fixture f;
  std::vector<std::int32_t> sinks = {0, 4}, kept = {41, 9};
  f.call.device_trim_sinks = f.call.device_trim_first_kept = f.call.block_table;
  f.call.lengths.trim_sinks = sinks;
  EXPECT_THAT(refusal(f.call), HasSubstr("trim_sinks has 2 entries and trim_first_kept 0"));
  f.call.lengths.trim_first_kept = kept;
  EXPECT_THAT(refusal(f.call), HasSubstr("trim_first_kept[0] is 41, allowed: 0 to 40"));
  kept[0] = 40;
  EXPECT_EQ(refusal(f.call), "accepted");
  f.call.device_trim_sinks = nullptr;
  EXPECT_THAT(refusal(f.call), HasSubstr("device_trim_sinks is null"));
}

TEST(CudaAttention, TheKernelFollowsFromElementsAndHeadDimsAlone) {
  Fixture f;
  EXPECT_EQ(plan_attention(f.call)->family, Family::kTiles128);
  f.call.q_element = Element::kF32;
  EXPECT_EQ(plan_attention(f.call)->family, Family::kGeneral);
  f.call.q_element = Element::kBF16;
  f.call.cache.k_strides.block += 16;
  f.call.cache.block_size = 32;
  EXPECT_EQ(plan_attention(f.call)->family, Family::kTiles128);
  f.call.cache.dim_k = f.call.cache.dim_v = 256;
  f.call.q_head_stride = f.call.out_head_stride = 512;
  EXPECT_EQ(plan_attention(f.call)->family, Family::kTiles256);
  f.call.cache.dim_k = f.call.cache.dim_v = 80;
  EXPECT_EQ(plan_attention(f.call)->family, Family::kGeneral);
}

TEST(CudaAttention, AKernelThatNoDeviceHasShownIsChosenByNameAlone) {
  for (const Element element : {Element::kBF16, Element::kInt8})
    for (const std::int32_t dim : {64, 128}) {
      Fixture f;
      f.lens = {40, 80};
      f.start = {0, 1, 41};
      f.call.lengths = {f.start, f.lens, {}, {}};
      f.call.cache.element = element;
      f.call.cache.dim_k = f.call.cache.dim_v = dim;
      if (element == Element::kInt8) {
        f.call.cache.k_scales = f.call.cache.v_scales = f.memory.data();
        f.call.cache.k_scale_strides = f.call.cache.v_scale_strides = {128, 64, 4};
      }
      const bool has_wgmma = element == Element::kBF16 && dim == 128;
      const auto prefill_of = [&](const KernelChoice& choice) {
        const Result<AttentionPlan> plan = plan_attention(f.call, choice);
        return plan && !plan->work.prefill_items.empty() ? to_string(plan->prefill) : "cuda-node";
      };
      EXPECT_EQ(prefill_of({}), has_wgmma ? "cuda-wgmma" : "cuda-prefill");
      EXPECT_EQ(prefill_of(*choice_named("cuda-wgmma", {})), prefill_of({}));
      EXPECT_EQ(prefill_of(*choice_named("cuda-wgmma-tiles", {})),
                has_wgmma ? "cuda-wgmma" : "cuda-wgmma-tiles");
      EXPECT_EQ(prefill_of(*choice_named("cuda-wgmma-tiles", {.wgmma = false})), "cuda-prefill");
      EXPECT_EQ(prefill_of(*choice_named("cuda-prefill", {})), "cuda-prefill");
      EXPECT_EQ(prefill_of(*choice_named("cuda-node", {})), "cuda-node");
    }
  EXPECT_EQ(choice_named("cuda-stream", {}).error().message(),
            "the kernel for chunks is cuda-stream, allowed: cuda-node, cuda-prefill, cuda-wgmma, "
            "cuda-wgmma-tiles");
}

// A captured graph keeps the block table and its stride: a longer row would be the next one's.
TEST(CudaAttention, ACapacityThatNoRowOfTheBlockTableHoldsIsRefusedWithBothNumbers) {
  Fixture f;
  EXPECT_TRUE(plan_attention(f.call, {},
                             {.max_sequences = 2, .max_sequence_tokens = 80, .max_queries = 2}));
  const Result<AttentionPlan> plan =
      plan_attention(f.call, {}, {.max_sequences = 2, .max_sequence_tokens = 81, .max_queries = 2});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message(),
            "block_table_stride is 5, needed: 6, for capacity.max_sequence_tokens 81 in blocks of "
            "16 tokens");
}

TEST(CudaAttention, AnImageOfMoreThan4GiBIsRefusedBeforeItIsMade) {
  Fixture f;
  f.call.block_table_stride = 1 << 20;
  const auto said = [&](std::int32_t sequences, std::int32_t tokens, std::int32_t queries) {
    const Result<AttentionPlan> plan = plan_attention(
        f.call, {},
        {.max_sequences = sequences, .max_sequence_tokens = tokens, .max_queries = queries});
    return plan ? "accepted" : std::string(plan.error().message());
  };
  // 2^20 sequences of 256 nodes, and as many groups as sequences.
  EXPECT_EQ(said(1 << 20, 1 << 18, 2),
            "the capacity makes an image of 4311744528 bytes, allowed: 4294967296: lower "
            "max_sequences, max_tokens or max_queries");
  // Numbers whose product has more than 64 bits.
  f.call.block_table_stride = 1 << 26;
  f.call.group_size = 1024;
  f.call.cache.num_heads = 16;
  EXPECT_THAT(said(1 << 20, 1 << 30, 1 << 16), HasSubstr(" items, allowed: 2147483647"));
}

// Their products with sizes of a cache have more than 64 bits: the undefined sanitizer sees it.
TEST(CudaAttention, ACapacityOf2To50TokensIsManyBytesOfAnyCache) {
  Fixture f;
  f.start = {0};
  f.lens = {};
  f.call.lengths = {f.start, f.lens, {}, {}};
  f.call.cache.num_heads = 65535;
  f.call.cache.k_strides.head = f.call.cache.v_strides.head = 0;
  f.call.block_table_stride = 1 << 26;
  const Result<AttentionPlan> plan =
      plan_attention(f.call, {}, {.max_sequences = 1 << 20, .max_sequence_tokens = 1 << 30});
  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().message(), HasSubstr(" items, allowed: 2147483647"));
}

// What is captured with it is replayed for batches that have rows.
TEST(CudaAttention, APaddedBatchOfNoRowsHasItsRowsChecked) {
  Fixture f;
  const auto started = [](void*, const KernelLaunch&) -> Status { return {}; };
  const Launcher launcher = {started, nullptr};
  f.start = {0};
  f.lens = {};
  f.call.lengths = {f.start, f.lens, {}, {}};
  const Result<AttentionPlan> plan =
      plan_attention(f.call, {}, {.max_sequences = 2, .max_sequence_tokens = 80});
  ASSERT_TRUE(plan);
  const auto said = [&](void (*change)(AttentionCall&)) {
    AttentionCall call = f.call;
    change(call);
    return std::string(attend(call, *plan, f.memory.data(), f.memory.data(), launcher).message());
  };
  EXPECT_EQ(said([](AttentionCall&) {}), "ok");
  EXPECT_EQ(said([](AttentionCall& call) { call.q = nullptr; }), "q is null");
  EXPECT_EQ(said([](AttentionCall& call) { call.q = static_cast<const char*>(call.q) + 8; }),
            "q is not aligned to 16 bytes");
  EXPECT_EQ(said([](AttentionCall& call) { call.q_head_stride = 8; }),
            "q has a stride of 8 bytes, allowed: multiples of 16");
  EXPECT_EQ(said([](AttentionCall& call) { call.out_token_stride = 24; }),
            "out has a stride of 24 bytes, allowed: multiples of 16");
  EXPECT_EQ(said([](AttentionCall& call) { call.out_element = Element::kInt8; }),
            "out_element is 3, allowed: f32, f16, bf16");
}

TEST(CudaAttention, ARefusedLaunchAndMissingMemoryAreSaid) {
  Fixture f;
  f.lens = {40, 70};
  const Result<AttentionPlan> plan = plan_attention(f.call);
  ASSERT_TRUE(plan.has_value());
  auto refuse = [](void*, const KernelLaunch& launch) -> Status {
    return {ErrorCode::kUnavailable, std::string(to_string(launch.kernel)) + " was refused"};
  };
  const Launcher launcher = {refuse, nullptr};
  EXPECT_THAT(attend(f.call, *plan, nullptr, nullptr, launcher).message(),
              HasSubstr("image is null"));
  EXPECT_THAT(attend(f.call, *plan, f.memory.data() + 4, nullptr, launcher).message(),
              HasSubstr("image is not aligned to 16 bytes"));
  EXPECT_THAT(to_string(attend(f.call, *plan, f.memory.data(), f.memory.data(), launcher)),
              HasSubstr("was refused"));
}

}  // namespace
}  // namespace kvfolio::cuda
