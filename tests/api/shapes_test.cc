// SPDX-License-Identifier: Apache-2.0
// Plans of fixed shapes, as captured graphs want them, and the null block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine.h"
#include "kvfolio/kernels.h"
#include "kvfolio/plan_attention.h"
#include "kvfolio/storage.h"

namespace kvfolio::testing_engine {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::array<std::int32_t, 2> kStrides = {4, 6};

// A step of two sequences, of 6 and 10 tokens, of which it brings 3 and 1; the window of the second
// has moved.
struct TwoSequences {
  Engine e;
  SequenceId a = e.say(tokens(1, 3));
  SequenceId b = e.say(tokens(50, 9));
  Ticket ticket = must(e.manager.begin_step());

  explicit TwoSequences(const ManagerOptions& options = {})
      : e({full_group(4, 17), window_group(2, 17, 4)}, options) {
    must(e.manager.append(a, tokens(4, 3)));
    must(e.manager.append(b, Tokens{59}));
  }
  const StepPlan& plan(const PlanOptions& options) { return *must(e.manager.plan(options)); }
  Status refused(const PlanOptions& options) {
    const Result<const StepPlan*> plan = e.manager.plan(options);
    return plan ? Status() : plan.error();
  }
};

PlanOptions everything() {
  return {.changed_entries = true,
          .flashinfer = true,
          .shared_prefixes = true,
          .positions = true,
          .caller_ids = true,
          .table_stride = kStrides,
          .padded_sequences = 4,
          .padded_tokens = 6};
}

template <typename T>
Tokens padded(std::span<const T> array, std::size_t size, std::int32_t with) {
  Tokens all(array.begin(), array.end());
  all.resize(size, with);
  return all;
}

TEST(FixedShapes, RowsOfPaddingHaveNoTokensAndNameNoRow) {
  TwoSequences t;
  const StepPlan& plan = t.plan(everything());
  EXPECT_EQ(plan.num_tokens, 4);
  EXPECT_THAT(plan.sequences, ElementsAre(t.a, t.b));
  EXPECT_THAT(plan.caller_ids, ElementsAre(0, 0));
  EXPECT_THAT(plan.query_start, ElementsAre(0, 3, 4, 4, 4));
  EXPECT_THAT(plan.kv_lens, ElementsAre(6, 10, 0, 0));
  EXPECT_THAT(plan.rows.subspan(2), ElementsAre(-1, -1));
  EXPECT_THAT(plan.trim_sinks, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(plan.trim_first_kept, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(plan.rewinds, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(plan.positions, ElementsAre(3, 4, 5, 9, 0, 0));
  EXPECT_THAT(plan.groups[0].slot_mapping, SizeIs(6));
  EXPECT_THAT(plan.groups[0].slot_mapping.subspan(4), ElementsAre(-1, -1));
}

TEST(FixedShapes, TablesHaveTheStrideOfTheirGroupAndRowsOfPadding) {
  TwoSequences t;
  const StepPlan& plan = t.plan(everything());
  for (std::int32_t g = 0; g < 2; ++g) {
    const GroupPlan& group = plan.groups[static_cast<std::size_t>(g)];
    const auto stride = static_cast<std::size_t>(kStrides[static_cast<std::size_t>(g)]);
    EXPECT_EQ(group.block_table_stride, kStrides[static_cast<std::size_t>(g)]);
    EXPECT_THAT(group.block_table, SizeIs(4 * stride));
    EXPECT_THAT(plan.table_of(GroupId(g), 0),
                ElementsAreArray(padded<std::int32_t>(t.e.table(t.a, g), stride, -1)));
    EXPECT_THAT(plan.table_of(GroupId(g), 1),
                ElementsAreArray(padded<std::int32_t>(t.e.table(t.b, g), stride, -1)));
    EXPECT_THAT(plan.table_of(GroupId(g), 2), Each(-1));
    EXPECT_THAT(plan.table_of(GroupId(g), 3), Each(-1));
  }
}

TEST(FixedShapes, FlashInferArraysOfPaddingNameNoPages) {
  TwoSequences t;
  const StepPlan& plan = t.plan(everything());
  EXPECT_THAT(plan.groups[0].kv_indptr, ElementsAre(0, 2, 5, 5, 5));
  EXPECT_THAT(plan.groups[0].kv_last_page_len, ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(plan.groups[0].kv_first_live, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(plan.groups[0].kv_indices, SizeIs(5));
  EXPECT_THAT(plan.groups[1].kv_indptr, SizeIs(5));
  EXPECT_THAT(plan.groups[1].kv_first_live, ElementsAre(0, testing::Gt(0), 0, 0));
}

TEST(FixedShapes, WhatIsNotFixedIsAsLargeAsTheStep) {
  TwoSequences t;
  const std::array<std::int32_t, 2> second_only = {0, 7};
  const StepPlan& plan = t.plan({.table_stride = second_only, .int64_slots = true});
  EXPECT_EQ(plan.groups[0].block_table_stride, 3);
  EXPECT_EQ(plan.groups[1].block_table_stride, 7);
  EXPECT_THAT(plan.kv_lens, ElementsAre(6, 10));
  EXPECT_THAT(plan.groups[0].slot_mapping_64, SizeIs(4));
}

TEST(FixedShapes, SlotsOfSixtyFourBitsAreTheSameNumbers) {
  TwoSequences t;
  PlanOptions options = everything();
  const StepPlan& plan = t.plan(options);
  const Tokens slots(plan.groups[1].slot_mapping.begin(), plan.groups[1].slot_mapping.end());
  EXPECT_THAT(plan.groups[1].slot_mapping_64, IsEmpty());
  options.int64_slots = true;
  t.plan(options);
  EXPECT_THAT(plan.groups[1].slot_mapping_64, ElementsAreArray(slots));
  EXPECT_THAT(plan.groups[1].slot_mapping, IsEmpty());
}

TEST(FixedShapes, CopiesAreThoseOfTheStep) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.say(tokens(1, 6));
  const SequenceId b = must(e.manager.fork(a));
  must(e.manager.begin_step());
  must(e.manager.append(a, Tokens{7}));
  must(e.manager.append(b, Tokens{8}));
  const std::int32_t stride = 2;
  const StepPlan& plan = *must(e.manager.plan({.flashinfer = true,
                                               .shared_prefixes = true,
                                               .table_stride = {&stride, 1},
                                               .padded_sequences = 8,
                                               .padded_tokens = 8}));
  EXPECT_THAT(plan.groups[0].copy_src, ElementsAre(e.table(a)[1]));
  EXPECT_THAT(plan.groups[0].copy_dst, ElementsAre(e.table(b)[1]));
  EXPECT_THAT(plan.groups[0].shared_prefixes, ElementsAre(SharedPrefix{0, 2, 1}));
}

// ---- memory of the caller ----

// Where each array begins in the memory, and that it ends there too.
std::vector<std::int64_t> offsets_of(const StepPlan& plan, std::span<const std::byte> memory) {
  std::vector<std::int64_t> offsets;
  const auto note = [&](const auto& array) {
    const auto* begin = reinterpret_cast<const std::byte*>(array.data());
    offsets.push_back(begin - memory.data());
    EXPECT_GE(offsets.back(), 0);
    EXPECT_EQ(offsets.back() % 16, 0);
    EXPECT_LE(offsets.back() + static_cast<std::int64_t>(array.size_bytes()),
              static_cast<std::int64_t>(memory.size()));
  };
  note(plan.query_start);
  note(plan.rows);
  note(plan.kv_lens);
  note(plan.trim_sinks);
  note(plan.trim_first_kept);
  note(plan.rewinds);
  note(plan.positions);
  for (const GroupPlan& group : plan.groups) {
    note(group.slot_mapping_64);
    note(group.block_table);
    note(group.kv_indptr);
    note(group.kv_indices);
    note(group.kv_last_page_len);
    note(group.kv_first_live);
    note(group.changed_rows);
    note(group.changed_columns);
    note(group.changed_blocks);
  }
  return offsets;
}

TEST(FixedShapes, EqualOptionsPutEachArrayAtTheSamePlaceInMemoryOfTheCaller) {
  TwoSequences t;
  PlanOptions options = everything();
  options.int64_slots = true;
  std::vector<std::uint64_t> words(static_cast<std::size_t>(must(t.e.manager.plan_bytes(options))) /
                                   8);
  const auto memory = std::as_writable_bytes(std::span(words));
  options.memory = memory;
  const std::vector<std::int64_t> offsets = offsets_of(t.plan(options), memory);
  // The bound is exact: one word less is refused.
  options.memory = memory.first(memory.size() - 8);
  EXPECT_THAT(t.refused(options).message(),
              HasSubstr("memory has " + std::to_string(memory.size() - 8) +
                        " bytes, needed: " + std::to_string(memory.size())));
  options.memory = memory;
  must(t.e.manager.finish(t.ticket));
  // Another step, of other sequences, with a copy.
  const SequenceId c = must(t.e.manager.fork(t.b));
  must(t.e.manager.begin_step());
  must(t.e.manager.append(c, Tokens{1, 2}));
  EXPECT_EQ(offsets_of(t.plan(options), memory), offsets);
  EXPECT_THAT(t.plan(options).groups[0].copy_src, SizeIs(1));
}

TEST(FixedShapes, MemoryOfTheCallerOutlivesTheStepUnchanged) {
  TwoSequences t;
  PlanOptions options = everything();
  std::vector<std::uint64_t> words(static_cast<std::size_t>(must(t.e.manager.plan_bytes(options))) /
                                   8);
  options.memory = std::as_writable_bytes(std::span(words));
  const StepPlan& plan = t.plan(options);
  const auto* slots = plan.groups[0].slot_mapping.data();
  const Tokens before(slots, slots + 6);
  must(t.e.manager.finish(t.ticket));
  t.e.say(tokens(80, 9));
  EXPECT_EQ(Tokens(slots, slots + 6), before);
}

TEST(FixedShapes, PlanBytesSaysWhichSizeIsLeftOpen) {
  TwoSequences t;
  const auto open = [&](auto change) {
    PlanOptions options = everything();
    change(options);
    const Result<std::int64_t> bytes = t.e.manager.plan_bytes(options);
    return bytes ? std::string() : bytes.error().message();
  };
  const std::array<std::int32_t, 2> first_only = {4, 0};
  EXPECT_THAT(open([](PlanOptions& o) { o.padded_sequences = 0; }),
              HasSubstr("padded_sequences is 0, so the size depends on the step"));
  EXPECT_THAT(open([](PlanOptions& o) { o.padded_tokens = 0; }), HasSubstr("padded_tokens is 0"));
  EXPECT_THAT(open([&](PlanOptions& o) { o.table_stride = first_only; }),
              HasSubstr("table_stride[1] is 0"));
  EXPECT_EQ(open([](PlanOptions& o) {
              o.table_stride = {};
              o.block_tables = o.flashinfer = o.changed_entries = false;
            }),
            "");
}

// ---- what does not fit ----

TEST(FixedShapes, AStepThatDoesNotFitIsRefusedWithBothNumbersAndThePlanBeforeStays) {
  TwoSequences t;
  const StepPlan& before = t.plan({});
  const Tokens slots(before.groups[0].slot_mapping.begin(), before.groups[0].slot_mapping.end());
  const std::array<std::int32_t, 2> narrow = {4, 4};
  std::array<std::uint64_t, 4> few{};
  const auto message = [&](auto change) {
    PlanOptions options;
    change(options);
    const Status status = t.refused(options);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message([&](PlanOptions& o) { o.table_stride = narrow; }),
              HasSubstr("table_stride[1] is 4, the step has 5 blocks in a table"));
  EXPECT_THAT(message([](PlanOptions& o) { o.padded_sequences = 1; }),
              HasSubstr("padded_sequences is 1, the step has 2 sequences"));
  EXPECT_THAT(message([](PlanOptions& o) { o.padded_tokens = 3; }),
              HasSubstr("padded_tokens is 3, the step has 4 tokens"));
  EXPECT_THAT(message([&](PlanOptions& o) { o.memory = std::as_writable_bytes(std::span(few)); }),
              HasSubstr("memory has 32 bytes, needed: "));
  EXPECT_THAT(before.groups[0].slot_mapping, ElementsAreArray(slots));
  EXPECT_THAT(before.kv_lens, ElementsAre(6, 10));
  must(t.e.manager.commit(t.ticket));
}

TEST(FixedShapes, ShapesThatCannotBeAreNamed) {
  TwoSequences t({.max_sequences = 8});
  const auto both = [&](auto change, const std::string& text) {
    PlanOptions options = everything();
    change(options);
    EXPECT_THAT(t.refused(options).message(), HasSubstr("plan: " + text));
    EXPECT_THAT(t.e.manager.plan_bytes(options).error().message(),
                HasSubstr("plan_bytes: " + text));
  };
  // The longest table: as many entries as all tables together have.
  const auto longest = static_cast<std::int32_t>(t.e.manager.options().max_table_entries);
  const std::string allowed = "allowed: 0 to " + std::to_string(longest) +
                              ", the most entries that a table of the group can have";
  const std::array<std::int32_t, 2> negative = {4, -1};
  const std::array<std::int32_t, 2> wide = {longest, longest + 1};
  const std::array<std::int32_t, 3> three = {4, 4, 4};
  std::array<std::uint64_t, 4096> words{};
  both([](PlanOptions& o) { o.padded_sequences = -1; }, "padded_sequences is -1, allowed: 0 to 8");
  both([](PlanOptions& o) { o.padded_sequences = 9; }, "padded_sequences is 9, allowed: 0 to 8");
  both([](PlanOptions& o) { o.padded_tokens = (1 << 30) + 1; },
       "padded_tokens is 1073741825, allowed: 0 to 1073741824");
  both([&](PlanOptions& o) { o.table_stride = negative; }, "table_stride[1] is -1, " + allowed);
  both([&](PlanOptions& o) { o.table_stride = wide; },
       "table_stride[1] is " + std::to_string(longest + 1) + ", " + allowed);
  both([&](PlanOptions& o) { o.table_stride = three; }, "table_stride has 3 entries for 2 groups");
  both([&](PlanOptions& o) { o.memory = std::as_writable_bytes(std::span(words)).subspan(4); },
       "memory begins 4 bytes behind a multiple of 8");
}

// Where there is room for its table the longest sequence decides, not the expected length.
TEST(FixedShapes, AStrideBeyondTheBlocksOfTheLongestSequenceIsRefused) {
  constexpr std::int64_t kRoom = std::int64_t{1} << 22;  // 16 MiB
  Engine e({full_group(512, 17), window_group(1024, 17, 4)},
           {.max_sequence_tokens = 64, .max_table_entries = kRoom});
  const auto refusal = [&](std::int32_t first, std::int32_t second) {
    const std::array<std::int32_t, 2> strides = {first, second};
    const Result<std::int64_t> bytes =
        e.manager.plan_bytes({.table_stride = strides, .padded_sequences = 1, .padded_tokens = 1});
    return bytes ? std::string() : bytes.error().message();
  };
  constexpr std::int32_t kFirst = (1 << 30) / 512;
  constexpr std::int32_t kSecond = (1 << 30) / 1024;
  EXPECT_EQ(refusal(kFirst, kSecond), "");
  EXPECT_THAT(refusal(kFirst + 1, 1),
              HasSubstr("table_stride[0] is 2097153, allowed: 0 to 2097152,"));
  EXPECT_THAT(refusal(1, kSecond + 1), HasSubstr("[1] is 1048577, allowed: 0 to 1048576,"));
}

// Hosts lay out their tables by widest(), also where no such table has room.
TEST(FixedShapes, AStrideAsWideAsTheExpectedLengthIsAllowed) {
  Engine e({full_group(4, 17)},
           {.max_sequences = 1, .max_sequence_tokens = 32768, .max_table_entries = 4096});
  const std::int32_t widest = must(e.manager.widest(GroupId(0)));
  ASSERT_EQ(widest, 8192);
  const SequenceId s = e.open({}).sequence;
  must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 6)));
  const std::array<std::int32_t, 1> stride = {widest};
  EXPECT_EQ(must(e.manager.plan({.table_stride = stride}))->groups[0].block_table.size(), 8192u);
  const std::array<std::int32_t, 1> wider = {widest + 1};
  EXPECT_THAT(e.manager.plan({.table_stride = wider}).error().message(),
              HasSubstr("table_stride[0] is 8193, allowed: 0 to 8192,"));
  EXPECT_THAT(e.manager.plan_bytes({.table_stride = wider}).error().message(),
              HasSubstr("table_stride[0] is 8193, allowed: 0 to 8192,"));
}

TEST(FixedShapes, AStepWithoutSequencesIsPaddingAlone) {
  Engine e({full_group(4, 17), window_group(2, 17, 4)});
  must(e.manager.begin_step());
  const StepPlan& plan = *must(e.manager.plan(everything()));
  EXPECT_EQ(plan.num_tokens, 0);
  EXPECT_THAT(plan.query_start, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(plan.groups[1].slot_mapping, ElementsAre(-1, -1, -1, -1, -1, -1));
  EXPECT_THAT(plan.groups[1].kv_indptr, ElementsAre(0, 0, 0, 0, 0));
}

// ---- attention ----

TEST(FixedShapes, AttentionOverPaddedRowsIsThatOfTheStep) {
  KVCacheManager manager = must(KVCacheManager::create(
      must(KVStorage::create(CacheSpec{{full_group(4, 8)}})), {.null_block = true}));
  must(manager.storage()->fill(std::byte{0x3c}));
  const SequenceId id = must(manager.open({})).sequence;
  must(manager.begin_step());
  must(manager.append(id, tokens(1, 6)));
  const std::int32_t stride = 3;
  const auto attended = [&](const PlanOptions& options) {
    const StepPlan& plan = *must(manager.plan(options));
    const std::vector<float> q(6 * 8, 0.5f);
    std::vector<float> out(6 * 8, -1.0f);
    const KVView view = must(manager.storage()->view(GroupId(0)));
    std::vector<std::byte> workspace(
        static_cast<std::size_t>(must(attention_workspace_bytes(view, 1, 1024))));
    must(attend({.cache = view,
                 .batch = attention_batch(plan, GroupId(0)),
                 .params = attention_params(manager.spec().groups[0], 1.0),
                 .q = contiguous_rows(q.data(), 6, 1, 8),
                 .out = contiguous_rows(out.data(), 6, 1, 8),
                 .workspace = workspace}));
    return out;
  };
  const std::vector<float> plain = attended({});
  EXPECT_EQ(attended({.table_stride = {&stride, 1}, .padded_sequences = 4, .padded_tokens = 16}),
            plain);
  EXPECT_THAT(plain, Each(testing::Ne(-1.0f)));
}

// ---- the null block ----

const ManagerOptions kNullBlock{.null_block = true};

TEST(NullBlock, IsNeverGivenToAnybody) {
  Engine e({full_group(4, 5), window_group(2, 9, 4)}, kNullBlock);
  const SequenceId id = e.say(tokens(1, 16));  // all the others of the first group
  EXPECT_THAT(e.table(id), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(e.usage().free, 0);
  must(e.manager.begin_step());
  const Status full = e.manager.append(id, Tokens{17});
  ASSERT_NE(full.shortage(), nullptr);
  EXPECT_EQ(full.shortage()->num_blocks, 4);
  EXPECT_EQ(full.shortage()->pinned, 4);
  EXPECT_TRUE(full.shortage()->never());
  must(e.manager.check_invariants());
}

TEST(NullBlock, IsCountedNowhere) {
  Engine e({full_group(4, 5)}, kNullBlock);
  EXPECT_EQ(e.usage().num_blocks, 4);
  EXPECT_EQ(e.usage().held, 0);
  EXPECT_EQ(e.usage().free, 4);
  EXPECT_EQ(e.manager.utilization(), 0.0);
  EXPECT_EQ(e.manager.bytes_used(), 0);
  EXPECT_EQ(e.manager.bytes_total(), 4 * 2 * 4 * 8 * 4);  // blocks, K and V, tokens, f32
  EXPECT_EQ(e.manager.counters().blocks_allocated, 0u);
  EXPECT_EQ(must(e.manager.widest(GroupId(0))), 4);
  EXPECT_THAT(e.manager.describe(), HasSubstr("blocks used: 0/4"));
  EXPECT_THAT(e.manager.describe(), HasSubstr("null block: 0, held and not counted"));
  e.cache(tokens(1, 16));
  EXPECT_EQ(e.manager.utilization(), 0.0);
  EXPECT_EQ(e.usage().cached, 4);
  must(e.manager.check_invariants());
}

TEST(NullBlock, IsHeldForEver) {
  Engine e({full_group(4, 5)}, kNullBlock);
  e.cache(tokens(1, 16));
  must(e.manager.evict(GroupId(0), 5));
  static_cast<void>(e.manager.reset());
  EXPECT_EQ(e.usage().free, 4);
  EXPECT_EQ(must(e.manager.ref_count(GroupId(0), BlockId(0))), 1);
  EXPECT_EQ(must(e.manager.block_state(GroupId(0), BlockId(0))), BlockState::kHeld);
  EXPECT_FALSE(must(e.manager.is_findable(GroupId(0), BlockId(0))));
  const std::int32_t null_block = 0;
  EXPECT_THAT(e.manager.hold_blocks(GroupId(0), {&null_block, 1}).error().message(),
              HasSubstr("block 0 of group 0 has no token yet"));
  const SequenceId id = e.open({}).sequence;
  const std::span<const std::int32_t> table(&null_block, 1);
  EXPECT_THAT(e.manager.adopt(id, {&table, 1}, 1).message(),
              HasSubstr("block 0 of group 0 holds 0 tokens"));
}

TEST(NullBlock, PlansArePaddedWithIt) {
  TwoSequences t(kNullBlock);
  const StepPlan& plan = t.plan({});
  EXPECT_THAT(plan.table_of(GroupId(0), 0), ElementsAre(testing::Gt(0), testing::Gt(0), 0));
  EXPECT_EQ(plan.table_of(GroupId(1), 1)[0], 0);  // the window has moved on
  t.plan(everything());
  EXPECT_THAT(plan.table_of(GroupId(1), 3), Each(0));
  EXPECT_THAT(plan.groups[0].kv_indices, Each(testing::Gt(0)));
}

TEST(NullBlock, NeedsAnotherBlockInEachGroup) {
  const Status status =
      KVCacheManager::create(CacheSpec{{full_group(4, 8), full_group(4, 1)}}, kNullBlock).error();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("null_block needs 2 blocks in each group, group 1 has 1"));
}

TEST(NullBlock, BeginsAsZerosInStorage) {
  KVStorage storage = must(KVStorage::create(CacheSpec{{full_group(4, 3)}}));
  must(storage.fill(std::byte{0xff}));
  KVCacheManager manager = must(KVCacheManager::create(std::move(storage), kNullBlock));
  std::vector<std::byte> image(
      static_cast<std::size_t>(manager.storage()->block_image_bytes(GroupId(0))));
  for (const std::int32_t block : {0, 1}) {
    must(manager.storage()->read_blocks(GroupId(0), {&block, 1}, image));
    EXPECT_THAT(image, Each(std::byte{block == 0 ? std::uint8_t{0} : std::uint8_t{0xff}}));
  }
}

TEST(NullBlock, IsPartOfWhatCopiesAndHashesCompare) {
  ManagerOptions options = Engine({full_group(4, 8)}).manager.options();  // nothing is derived
  Engine without({full_group(4, 8)}, options);
  options.null_block = true;
  Engine with({full_group(4, 8)}, options);
  Engine other({full_group(4, 8)}, options);
  EXPECT_THAT(with.manager.copy_to(without.manager).message(),
              HasSubstr("null_block is 1, the target's is 0"));
  EXPECT_NE(must(with.manager.state_hash()), must(without.manager.state_hash()));
  with.cache(tokens(1, 9));
  must(with.manager.copy_to(other.manager));
  EXPECT_EQ(must(with.manager.state_hash()), must(other.manager.state_hash()));
  EXPECT_EQ(other.probe(tokens(1, 9)), 8);
  must(other.manager.check_invariants());
}

}  // namespace
}  // namespace kvfolio::testing_engine
