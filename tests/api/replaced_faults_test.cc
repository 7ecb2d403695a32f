// SPDX-License-Identifier: Apache-2.0
// Faults of earlier systems that must not come back. The comment above a test has the fault's id:
// T, L, B and P are of block managers that kvfolio replaces, F of large inference engines.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "engine.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"

namespace kvfolio::testing_engine {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;
constexpr ErrorCode kNoBlocks = ErrorCode::kNoBlocks;

// ---- T: tables of many sequences without copies ----

// Fault T1.
TEST(Faults, ForkedSequencesNeverWriteTheSameSlot) {
  Engine e({full_group(16, 8)});
  const SequenceId a = e.say(tokens(1, 10));
  const SequenceId b = must(e.manager.fork(a));
  const Tokens slots_a = e.feed(a, {50}).slots;
  const Planned planned = e.feed(b, {60});
  EXPECT_NE(slots_a, planned.slots);
  EXPECT_EQ(planned.copy_src.size(), 1u);
  EXPECT_EQ(e.usage().held, 2);
}

// Fault T2.
TEST(Faults, TrimKeepsTheRecentWindow) {
  Engine e({full_group(16, 8)});
  const SequenceId s = e.say(tokens(1, 64));
  must(e.manager.trim(s, {.num_sinks = 16, .window = 16}));
  EXPECT_THAT(e.live(s), ElementsAre(0, 3));
}

// Fault T3.
TEST(Faults, PositionsNeverChangeAndNothingIsOverwrittenAfterATrim) {
  Engine e({full_group(16, 16)});
  const SequenceId s = e.say(tokens(1, 160));
  const Tokens before = e.table(s);
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 4, .window = 16})), 140);
  EXPECT_EQ(e.info(s).length, 160);
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{500}));
  const StepPlan& plan = *must(e.manager.plan());
  // The reader is told that 4 to 143 are no window, though block 0 still has 4 to 15.
  EXPECT_THAT(plan.kv_lens, ElementsAre(161));
  EXPECT_THAT(plan.trim_sinks, ElementsAre(4));
  EXPECT_THAT(plan.trim_first_kept, ElementsAre(144));
  const Tokens after = e.table(s);
  EXPECT_THAT(e.live(s), ElementsAre(0, 9, 10));
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(after[9], before[9]);
  // Position 160 goes to a block of its own, not over a token that is still read.
  EXPECT_THAT(plan.groups[0].slot_mapping, ElementsAre(after[10] * 16));
  EXPECT_NE(after[10], before[0]);
  EXPECT_NE(after[10], before[9]);
  must(e.manager.finish(ticket));
}

// Fault T4.
TEST(Faults, TrimDropsTheMiddle) {
  Engine e({full_group(16, 8)});
  const SequenceId s = e.say(tokens(1, 48));
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 32, .window = 1})), 15);
  EXPECT_EQ(e.info(s).trim_sinks, 32);
  EXPECT_EQ(e.info(s).trim_first_kept, 47);
  EXPECT_THAT(e.live(s), ElementsAre(0, 1, 2));  // the newest token is in the last block
}

// Fault T4.
TEST(Faults, WhatTheMiddleHeldIsFreed) {
  Engine e({full_group(16, 8)}, {.prefix_cache = false});
  const SequenceId s = e.say(tokens(1, 96));
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 32, .window = 1})), 63);
  EXPECT_THAT(e.live(s), ElementsAre(0, 1, 5));
  EXPECT_EQ(e.usage().free, 5);
}

// Fault T5.
TEST(Faults, TrimToSinksFreesTheRestAndTheNextBlockIsFresh) {
  Engine e({full_group(16, 8)}, {.prefix_cache = false});
  const SequenceId s = e.say(tokens(1, 64));
  const Tokens before = e.table(s);
  must(e.manager.trim(s, {.num_sinks = 32, .window = 0}));
  EXPECT_EQ(e.usage().held, 2);
  const Tokens slots = e.feed(s, tokens(100, 16)).slots;
  const Tokens after = e.table(s);
  EXPECT_THAT(after, ElementsAre(before[0], before[1], -1, -1, Ge(0)));
  // What is written is the block that the table names for these positions, and no block of others.
  ASSERT_EQ(slots.size(), 16u);
  for (std::int32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(slots[static_cast<std::size_t>(i)], after[4] * 16 + i);
  }
  EXPECT_THAT(before[0], testing::Ne(after[4]));
  EXPECT_THAT(before[1], testing::Ne(after[4]));
  EXPECT_EQ(e.usage().held, 3);
}

// Fault T6.
TEST(Faults, TrimAfterAForkReleasesAndNeverWritesTheSharedTail) {
  Engine e({full_group(16, 32)});
  const SequenceId parent = e.say(tokens(1, 150));
  const SequenceId child = must(e.manager.fork(parent));
  must(e.manager.trim(child, {.num_sinks = 0, .window = 6}));
  EXPECT_EQ(e.live(child).size(), 1u);
  const std::int32_t shared = e.table(parent)[9];
  for (const std::int32_t block : e.table(parent)) {
    EXPECT_EQ(e.refs(block), block == shared ? 2 : 1) << block;
  }
  const Planned planned = e.feed(child, {900});
  EXPECT_THAT(planned.copy_src, ElementsAre(shared));
  EXPECT_NE(e.table(child)[9], shared);
  must(e.manager.close(parent));
  EXPECT_EQ(e.info(child).length, 151);
}

// Fault T7.
TEST(Faults, TrimOfHugeSinksDropsNothing) {
  Engine e({full_group(16, 8)});
  const SequenceId s = e.say(tokens(1, 100));
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = kHuge, .window = 2})), 0);
  EXPECT_EQ(e.live(s).size(), 7u);
}

// Fault T8. J7 is the same wrap in a batch of one sequence.
TEST(Faults, AppendOfHugeCountsNeverWraps) {
  Engine e({full_group(16, 8)});
  const SequenceId s = e.say(tokens(1, 10));
  must(e.manager.begin_step());
  for (const std::int64_t n : {std::numeric_limits<std::int64_t>::max(), std::int64_t{-1}}) {
    EXPECT_FALSE(e.manager.append_unnamed(s, n).ok());
    EXPECT_EQ(e.info(s).length, 10);
  }
}

// Fault T9.
TEST(Faults, BlockSizeZeroIsRefused) {
  EXPECT_EQ(KVCacheManager::create(CacheSpec{{full_group(0, 8)}}).error().code(), kInvalid);
}

// Fault T10.
TEST(Faults, VictimsAreTheSameInEveryRun) {
  std::set<Tokens> outcomes;
  for (int run = 0; run < 32; ++run) {
    Engine e({full_group(4, 16)});
    for (int i = 0; i < 8; ++i) e.cache(tokens(100 * i, 8));
    e.evict(5);
    Tokens outcome;
    for (int i = 0; i < 8; ++i) outcome.push_back(e.probe(tokens(100 * i, 9)));
    outcomes.insert(outcome);
  }
  EXPECT_EQ(outcomes.size(), 1u);
}

// Fault T11.
TEST(Faults, PinnedPrefixesAreNoVictims) {
  Engine e({full_group(4, 4)});
  e.cache(tokens(1, 8));
  must(e.manager.pin(tokens(1, 9)));
  EXPECT_EQ(e.evict(4), 0);
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

// Fault T12.
TEST(Faults, NoSequenceIsPreemptedForBlocksThatOthersHold) {
  Engine e({full_group(4, 32)});
  const SequenceId first = e.say(tokens(1, 80));
  std::vector<SequenceId> forks;
  forks.reserve(8);
  for (int i = 0; i < 8; ++i) forks.push_back(must(e.manager.fork(first)));
  ASSERT_GT(e.manager.utilization(), 0.5);
  for (const VictimPolicy policy : {VictimPolicy::kLru, VictimPolicy::kLfu, VictimPolicy::kLongest,
                                    VictimPolicy::kLowestPriority}) {
    EXPECT_THAT(must(e.manager.preempt_to(0.5, policy)), IsEmpty());
  }
  EXPECT_EQ(e.evict(32), 0);
  EXPECT_EQ(e.usage().held, 20);
  for (const SequenceId fork : forks) EXPECT_EQ(e.info(fork).length, 80);
}

// Fault T13.
TEST(Faults, AFullPoolEvictsByItself) {
  Engine e({full_group(4, 4)});
  e.cache(tokens(1, 16));
  EXPECT_EQ(e.usage().free, 0);
  const SequenceId s = e.say(tokens(50, 16));
  EXPECT_EQ(e.info(s).length, 16);
  EXPECT_EQ(e.counters().blocks_evicted, 4u);
}

// Fault T15.
TEST(Faults, BytesFollowTheElementType) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    GroupSpec group = full_group(16, 8);
    group.dtype = dtype;
    const auto layouts = must(plan_layouts(CacheSpec{{group}}));
    EXPECT_EQ(layouts[0].bytes_per_block, 16 * (8 + 8) * dtype_bytes(dtype));
  }
}

// Fault T16.
TEST(Faults, ASequenceWithoutTokensHasNoBlock) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  EXPECT_THAT(e.table(s), IsEmpty());
  EXPECT_EQ(e.usage().free, 8);
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().free, 8);
}

// Fault T17.
TEST(Faults, EveryFreedBlockIsCounted) {
  Engine e({full_group(4, 16)}, {.prefix_cache = false});
  const SequenceId s = e.say(tokens(1, 40));
  must(e.manager.trim(s, {.num_sinks = 4, .window = 4}));
  EXPECT_EQ(e.counters().blocks_allocated, 10u);
  EXPECT_EQ(e.counters().blocks_freed, 8u);
  must(e.manager.close(s));
  EXPECT_EQ(e.counters().blocks_freed, 10u);
}

// Fault T18.
TEST(Faults, SlotsBeyondInt32AreRefused) {
  const Status error = KVCacheManager::create(CacheSpec{{full_group(1024, 1 << 24)}}).error();
  EXPECT_EQ(error.code(), kInvalid);
  EXPECT_THAT(error.message(), HasSubstr("slots"));
}

// Fault T18. A block is held by sequences, by pins and by steps that copy from it for a sequence; a
// table has a block once. The options bound them all.
TEST(Faults, NoBlockCanHaveMoreReferencesThanItsCounterHolds) {
  constexpr std::int64_t kSequences = 1 << 23;
  constexpr std::int64_t kPins = 1 << 24;
  constexpr std::int64_t kSteps = 64 + 1;  // in flight, and the open one
  static_assert(kSequences + kPins + kSteps * kSequences < std::numeric_limits<int>::max());
  const CacheSpec spec{{full_group(4, 8)}};
  EXPECT_EQ(KVCacheManager::create(spec, {.max_sequences = kSequences + 1}).error().code(),
            kInvalid);
  EXPECT_EQ(KVCacheManager::create(spec, {.max_pins = kPins + 1}).error().code(), kInvalid);
  EXPECT_EQ(KVCacheManager::create(spec, {.max_steps_in_flight = 65}).error().code(), kInvalid);
}

// Fault T18. A step reads a sequence, and its append is the use: the sequence that computes is not
// the oldest.
TEST(Faults, AStepThatReadsASequenceIsAUseOfIt) {
  Engine e({full_group(4, 8)});
  const SequenceId a = e.say(tokens(1, 4));
  const SequenceId b = e.say(tokens(50, 4));
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), a);
  e.feed(a, {5});
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), b);
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLfu), b);
}

// ---- L: leaks and double owners ----

// Fault L1.
TEST(Faults, AnAppendThatDoesNotFitLeaksNothing) {
  Engine e({full_group(4, 10)});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(s, tokens(1, 44)).code(), kNoBlocks);
  EXPECT_EQ(e.usage().free, 10);
  EXPECT_TRUE(e.manager.append(s, tokens(1, 40)).ok());
  must(e.manager.finish(t));
}

// Fault L2.
TEST(Faults, NoBlockIsHandedOutTwice) {
  Engine e({full_group(1, 8)}, {.prefix_cache = false});
  const SequenceId gone = e.say(tokens(1, 4));
  const Tokens freed = e.table(gone);
  must(e.manager.close(gone));
  // A block that is free gets no reference.
  const SequenceId thief = e.open({}).sequence;
  for (const std::int32_t block : freed) {
    const Tokens blocks = {block};
    const std::span<const std::int32_t> tables[] = {blocks};
    EXPECT_EQ(e.manager.adopt(thief, tables, 1).code(), kInvalid);
    EXPECT_EQ(e.refs(block), 0);
  }
  EXPECT_EQ(e.usage().free, 8);
  const SequenceId a = e.say(tokens(1, 4));
  const SequenceId b = e.say(tokens(50, 4));
  std::set<std::int32_t> all;
  for (const SequenceId s : {a, b}) {
    for (const std::int32_t block : e.table(s)) EXPECT_TRUE(all.insert(block).second);
  }
  EXPECT_EQ(e.usage().free, 0);
  must(e.manager.close(a));
  must(e.manager.close(b));
  EXPECT_EQ(e.usage().free, 8);
  must(e.manager.check_invariants());
}

// Fault L3.
TEST(Faults, DoubleCloseIsAnErrorAndFreesOnce) {
  Engine e({full_group(4, 4)}, {.prefix_cache = false});
  const SequenceId s = e.say(tokens(1, 8));
  must(e.manager.close(s));
  EXPECT_EQ(e.manager.close(s).code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.usage().free, 4);
}

// Fault L4.
TEST(Faults, AStaleIdNeverFreesTheNewOwnersBlocks) {
  Engine e({full_group(4, 2)}, {.max_sequences = 1, .prefix_cache = false});
  const SequenceId old = e.say(tokens(1, 8));
  must(e.manager.close(old));
  const SequenceId owner = e.say(tokens(50, 8));
  EXPECT_EQ(e.manager.close(old).code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.info(owner).length, 8);
  EXPECT_EQ(e.usage().held, 2);
}

// Fault L5.
TEST(Faults, UnknownIdsAreErrors) {
  Engine e({full_group(4, 4)});
  EXPECT_EQ(e.manager.close(SequenceId(12345)).code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.manager.fork(SequenceId(12345)).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.manager.unpin(PinId(12345)).code(), ErrorCode::kNotFound);
  EXPECT_FALSE(e.manager.ref_count(GroupId(0), BlockId(4)).has_value());
}

// Fault L10.
TEST(Faults, BlockIdsOutOfRangeNeverCrash) {
  Engine e({full_group(4, 4)});
  for (const std::int32_t block : {-1, 4, 1 << 30, std::numeric_limits<std::int32_t>::min()}) {
    EXPECT_FALSE(e.manager.is_findable(GroupId(0), BlockId(block)).has_value());
  }
}

// Fault L11.
TEST(Faults, EveryTableHasTheBlockSizeOfItsGroup) {
  Engine e({full_group(32, 4), full_group(16, 8)});
  const SequenceId s = e.say(tokens(1, 64));
  EXPECT_EQ(e.table(s, 0).size(), 2u);
  EXPECT_EQ(e.table(s, 1).size(), 4u);
  Tokens slots(64);
  for (const std::int32_t g : {0, 1}) {
    must(e.manager.slot_mapping(s, GroupId(g), 0, slots));
    EXPECT_EQ(std::set<std::int32_t>(slots.begin(), slots.end()).size(), 64u);
  }
}

// Fault L12.
TEST(Faults, BlockSizeZeroNeverReachesASlot) {
  GroupSpec bad = full_group(16, 4);
  bad.block_size = 0;
  EXPECT_FALSE(KVCacheManager::create(CacheSpec{{bad}}).has_value());
}

// Fault L13.
TEST(Faults, TokensThatWereNotComputedAreNeverShared) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open(tokens(1, 8)).sequence;
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);  // opened, not appended
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 8)));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);  // appended, not committed
  EXPECT_EQ(e.info(s).accepted_length, 0);
  must(e.manager.drop(t));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
  EXPECT_EQ(e.usage().free, 8);
}

// Fault L14.
TEST(Faults, ClosedSequencesGiveTheirBlocksBack) {
  Engine e({full_group(4, 8)}, {.prefix_cache = false});
  for (int i = 0; i < 100; ++i) e.cache(tokens(i, 32));
  EXPECT_EQ(e.usage().free, 8);
}

// Faults L14 and B15. Losing an id frees nothing: the manager still knows the sequence.
TEST(Faults, ASequenceWhoseIdIsLostIsStillListedAndCanBeClosed) {
  Engine e({full_group(4, 8)}, {.prefix_cache = false});
  for (int i = 0; i < 4; ++i) static_cast<void>(e.say(tokens(100 * i, 8)));
  EXPECT_EQ(e.usage().free, 0);
  std::vector<SequenceId> lost(static_cast<std::size_t>(e.manager.num_sequences()));
  EXPECT_EQ(e.manager.sequences(lost), 4);
  for (const SequenceId s : lost) must(e.manager.close(s));
  EXPECT_EQ(e.usage().free, 8);
}

// Fault L15. The step is the unit: with one layer of two written, nothing counts and nothing is
// found. When the engine commits a step, the manager trusts that it was written.
TEST(Faults, ATokenOfAStepThatWasGivenUpNeverCounts) {
  GroupSpec group = full_group(4, 8);
  group.num_layers = 2;
  group.dtype = DType::kF32;
  KVCacheManager manager =
      must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{group}}))));
  const KVView cache = must(manager.storage()->view(GroupId(0)));
  const std::vector<float> rows(8 * 8, 1.0F);
  const ConstRowsView view(reinterpret_cast<const std::byte*>(rows.data()), 32, 32, 8, 1, 8,
                           DType::kF32);
  const SequenceId s = must(manager.open(tokens(1, 8))).sequence;
  Ticket t = must(manager.begin_step());
  must(manager.append(s, tokens(1, 8)));
  must(append(cache, 0, view, view, must(manager.plan())->groups[0].slot_mapping));
  // Layer 1 was not written when the engine gave up.
  EXPECT_EQ(must(manager.info(s)).accepted_length, 0);
  EXPECT_EQ(must(manager.probe(tokens(1, 9))), 0);
  must(manager.drop(t));
  EXPECT_EQ(must(manager.info(s)).length, 0);
  must(manager.close(s));
  EXPECT_EQ(must(manager.probe(tokens(1, 9))), 0);
  EXPECT_EQ(must(manager.usage(GroupId(0))).free, 8);
  // Nor when the step had been enqueued and failed then.
  const SequenceId again = must(manager.open(tokens(1, 8))).sequence;
  t = must(manager.begin_step());
  must(manager.append(again, tokens(1, 8)));
  must(append(cache, 0, view, view, must(manager.plan())->groups[0].slot_mapping));
  must(manager.commit(t));
  must(manager.fail(t));
  EXPECT_EQ(manager.info(again).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(must(manager.probe(tokens(1, 9))), 0);
  EXPECT_EQ(must(manager.usage(GroupId(0))).free, 8);
}

// Fault L19.
TEST(Faults, LengthsComeFromAppendsOnly) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 5));
  EXPECT_EQ(e.manager.truncate(s, 6).code(), kInvalid);
  EXPECT_EQ(e.manager.accept(s, 1).code(), kInvalid);
  EXPECT_EQ(e.info(s).length, 5);
  EXPECT_EQ(e.info(s).accepted_length, 5);
  // Nor do more tokens come from blocks than were written to them.
  const SequenceId other = e.open({}).sequence;
  const Tokens blocks = e.table(s);
  const std::span<const std::int32_t> tables[] = {blocks};
  EXPECT_EQ(e.manager.adopt(other, tables, 6).code(), kInvalid);
  EXPECT_EQ(e.info(other).length, 0);
}

// Fault L16.
TEST(Faults, AnotherManagersSequenceIsRefused) {
  Engine a({full_group(4, 8)}, {.prefix_cache = false, .id_tag = 1});
  Engine b({full_group(4, 8)}, {.prefix_cache = false, .id_tag = 2});
  const SequenceId of_a = a.say(tokens(1, 8));
  const SequenceId of_b = b.say(tokens(1, 8));
  EXPECT_EQ(b.manager.close(of_a).code(), ErrorCode::kNotFound);
  EXPECT_EQ(b.info(of_b).length, 8);
  EXPECT_EQ(b.usage().held, 2);
}

// Fault L16. It and P8 are solved for managers with distinct tags. Two managers with tag 0 give
// equal ids, as equal managers always do.
TEST(Faults, IdsSayWhoseTheyAreOnlyWithTags) {
  Engine a({full_group(4, 8)});
  Engine b({full_group(4, 8)});
  EXPECT_EQ(a.manager.options().id_tag, 0);
  EXPECT_EQ(a.open({}).sequence, b.open({}).sequence);
}

// Fault L18.
TEST(Faults, HugeDemandsAreErrorsNotCrashes) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  EXPECT_FALSE(e.manager.admit(s, kHuge).ok());
  EXPECT_EQ(e.evict(std::numeric_limits<std::int32_t>::max()), 0);
  const Ticket t = must(e.manager.begin_step());
  EXPECT_FALSE(e.manager.append_unnamed(s, kHuge).ok());
  EXPECT_FALSE(e.manager.open_unnamed(kHuge).has_value());
  EXPECT_EQ(e.manager.append_unnamed(s, kMaxSequenceTokens).code(), kNoBlocks);
  must(e.manager.drop(t));
  EXPECT_EQ(e.usage().free, 8);
}

// Fault L20.
TEST(Faults, ForkAndPrefixReuseAreForUsersAndWritesCheckSharing) {
  Engine e({full_group(4, 8)});
  const SequenceId a = e.say(tokens(1, 5));
  const SequenceId b = must(e.manager.fork(a));
  EXPECT_EQ(e.refs(e.table(a)[1]), 2);
  e.feed(b, {9});
  EXPECT_EQ(e.refs(e.table(a)[1]), 1);
  EXPECT_EQ(e.refs(e.table(b)[1]), 1);
}

// ---- B: slot mappings ----

// Fault B15.
TEST(Faults, ClosingReturnsBlocksToThePool) {
  Engine e({full_group(4, 8)}, {.prefix_cache = false});
  const SequenceId s = e.say(tokens(1, 32));
  EXPECT_EQ(e.usage().free, 0);
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().free, 8);
}

// Fault B1.
TEST(Faults, ResetReturnsBlocksToThePool) {
  Engine e({full_group(4, 8)}, {.prefix_cache = false});
  const SequenceId s = e.say(tokens(1, 32));
  must(e.manager.truncate(s, 0));
  EXPECT_EQ(e.usage().free, 8);
  e.feed(s, tokens(50, 32));
  must(e.manager.clear(s));
  EXPECT_EQ(e.usage().free, 8);
  EXPECT_EQ(e.say(tokens(50, 32)).valid(), true);
}

// Fault B3.
TEST(Faults, EveryAppendGetsItsOwnRoom) {
  Engine e({full_group(16, 8)});
  const SequenceId s = e.open({}).sequence;
  // The device has finished neither when the second asks.
  const Ticket first = e.launch(s, tokens(1, 16));
  const Ticket second = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(17, 16)));
  const Tokens table = e.table(s);
  ASSERT_EQ(table.size(), 2u);
  EXPECT_NE(table[0], table[1]);
  EXPECT_EQ(e.plan().slots.front(), table[1] * 16);
  // In one step a sequence asks once, and two sequences each get theirs.
  EXPECT_EQ(e.manager.append(s, tokens(33, 16)).code(), ErrorCode::kFailedPrecondition);
  const SequenceId other = e.open({}).sequence;
  must(e.manager.append(other, tokens(100, 16)));
  EXPECT_THAT(table, testing::Not(Contains(e.table(other)[0])));
  must(e.manager.plan());
  must(e.manager.commit(second));
  must(e.manager.complete(first));
  must(e.manager.complete(second));
  // Nor are two promised the room of one.
  const AppendDemand demands[] = {{s, 48}, {other, 48}};
  EXPECT_EQ(e.manager.admit(demands).code(), kNoBlocks);
  must(e.manager.admit(s, 48));
}

// Fault B4.
TEST(Faults, NoLayersAreRefused) {
  GroupSpec group = full_group(16, 8);
  group.num_layers = 0;
  EXPECT_EQ(KVCacheManager::create(CacheSpec{{group}}).error().code(), kInvalid);
}

// Fault B5.
TEST(Faults, GroupsNeverDisagreeOnLengths) {
  Engine e({full_group(4, 16), full_group(2, 10)});
  const SequenceId s = e.say(tokens(1, 11));
  must(e.manager.truncate(s, 7));
  EXPECT_EQ(e.table(s, 0).size(), 2u);
  EXPECT_EQ(e.table(s, 1).size(), 4u);
  // What one group has no room for, no group gets.
  const Ticket t = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(s, tokens(8, 20)).code(), kNoBlocks);
  EXPECT_EQ(e.table(s, 0).size(), 2u);
  EXPECT_EQ(e.table(s, 1).size(), 4u);
  must(e.manager.append(s, tokens(8, 2)));
  EXPECT_EQ(e.plan(0).slots.size(), e.plan(1).slots.size());
  must(e.manager.finish(t));
  EXPECT_EQ(e.table(s, 0).size(), 3u);
  EXPECT_EQ(e.table(s, 1).size(), 5u);
}

// Fault B6.
TEST(Faults, SlotsNeverOverflow) {
  EXPECT_EQ(KVCacheManager::create(CacheSpec{{full_group(16, 200000000)}}).error().code(),
            kInvalid);
}

// Fault B7.
TEST(Faults, SlotsPastTheLengthAreRefused) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 5));
  Tokens out(1);
  EXPECT_EQ(e.manager.slot_mapping(s, GroupId(0), 5, out).code(), kInvalid);
}

// Fault B8.
TEST(Faults, LengthsBeyondTheTokensAreRefused) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 5));
  EXPECT_EQ(e.manager.truncate(s, 8).code(), kInvalid);
}

// Fault B15, with all that may be open. The address sanitizer would find a leak.
TEST(Faults, DestroyingAManagerWithOpenSequencesIsFine) {
  auto e = std::make_unique<Engine>(std::vector<GroupSpec>{full_group(4, 8)});
  e->cache(tokens(1, 5));
  e->say(tokens(100, 5));
  EXPECT_EQ(must(e->manager.pin(tokens(1, 5))).pinned_tokens, 4);
  must(e->manager.begin_step());
  e.reset();
  EXPECT_EQ(e, nullptr);
}

// Fault B15.
TEST(Faults, WhatGoesWhileAStepIsInFlightGivesItsBlocksBack) {
  Engine e({full_group(4, 8)}, {.prefix_cache = false});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = e.launch(s, tokens(1, 32));
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().retiring, 8);
  must(e.manager.complete(t));
  EXPECT_EQ(e.usage().free, 8);
}

// Fault B16.
TEST(Faults, SlotsStayInsideThePool) {
  Engine e({full_group(4, 8), window_group(2, 20, 6)});
  const SequenceId s = e.open({}).sequence;
  for (int i = 0; i < 6; ++i) {
    const Ticket t = must(e.manager.begin_step());
    must(e.manager.append(s, tokens(5 * i, 5)));
    EXPECT_THAT(e.plan(0).slots, Each(AllOf(Ge(0), Lt(8 * 4))));
    EXPECT_THAT(e.plan(1).slots, Each(AllOf(Ge(0), Lt(20 * 2))));
    must(e.manager.finish(t));
  }
}

// ---- P: prefix caches ----

// Fault P1.
TEST(Faults, AHalfFilledTailIsNeverAppendedToByTwo) {
  Engine e({full_group(16, 16)});
  const Tokens prompt = tokens(1, 20);
  e.cache(prompt);
  const Opened a = e.open(prompt);
  const Opened b = e.open(prompt);
  EXPECT_EQ(a.cached_tokens, 19);
  EXPECT_EQ(b.cached_tokens, 19);
  const std::int32_t tail = e.table(a.sequence)[1];
  EXPECT_EQ(e.table(b.sequence)[1], tail);  // the half-filled block is shared
  EXPECT_EQ(e.refs(tail), 2);
  e.feed(a.sequence, {prompt[19]});
  e.feed(b.sequence, {prompt[19]});
  const Tokens slots_a = e.feed(a.sequence, {50}).slots;
  const Planned planned_b = e.feed(b.sequence, {60});
  EXPECT_NE(slots_a, planned_b.slots);
  EXPECT_NE(e.table(a.sequence)[1], e.table(b.sequence)[1]);
  EXPECT_EQ(e.counters().block_copies, 1u);
}

// Fault P2.
TEST(Faults, ARequestTooLargeForThePoolKeepsNothing) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open(tokens(1, 100)).sequence;
  const Ticket t = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(s, tokens(1, 100)).code(), kNoBlocks);
  EXPECT_EQ(e.usage().free, 8);
  must(e.manager.drop(t));
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().free, 8);
}

// Fault P3.
TEST(Faults, ShortPromptsAreReleasedToo) {
  Engine e({full_group(16, 8)});
  for (int i = 0; i < 50; ++i) e.cache(tokens(100 * i, 3));
  EXPECT_EQ(e.usage().held, 0);
  e.evict(8);
  EXPECT_EQ(e.usage().free, 8);
}

// Fault P3.
TEST(Faults, DecodedBlocksAreReleasedToo) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 6));
  for (int i = 0; i < 20; ++i) e.feed(s, {100 + i});
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().held, 0);
  e.evict(16);
  EXPECT_EQ(e.usage().free, 16);
}

// Fault P4.
TEST(Faults, AResetNeitherLeaksNorTakesWhatOthersHold) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 10));
  const SequenceId fork = must(e.manager.fork(s));
  const PinId pin = must(e.manager.pin(tokens(1, 8))).pin;
  const Ticket t = e.launch(s, tokens(11, 12));  // a step in flight has three blocks of its own
  must(e.manager.clear(s));
  EXPECT_EQ(e.info(fork).length, 10);
  EXPECT_EQ(e.info(s).length, 0);
  must(e.manager.complete(t));
  EXPECT_EQ(e.usage().retiring, 0);
  const Opened again = e.open(tokens(1, 9));
  EXPECT_EQ(again.cached_tokens, 8);
  must(e.manager.close(again.sequence));
  must(e.manager.close(fork));
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().held, 2);  // by the pin
  e.evict(16);
  EXPECT_EQ(e.usage().free, 14);
  must(e.manager.unpin(pin));
  e.evict(16);
  EXPECT_EQ(e.usage().free, 16);
  must(e.manager.check_invariants());
}

// Fault P5.
TEST(Faults, ALostHeadIsNeverPartOfAHit) {
  Engine e({full_group(4, 6)});
  e.cache(tokens(1, 12));
  for (int evicted = 1; evicted <= 3; ++evicted) {
    e.evict(1);
    const Opened opened = e.open(tokens(1, 13));
    EXPECT_EQ(opened.cached_tokens, 12 - 4 * evicted);
    EXPECT_THAT(e.table(opened.sequence), testing::Not(Contains(-1)));
    must(e.manager.close(opened.sequence));
  }
}

// Fault P7.
TEST(Faults, ClosingTwiceNeverGivesAwayASharedBlock) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  const Opened a = e.open(tokens(1, 9));
  const Opened b = e.open(tokens(1, 9));
  must(e.manager.close(a.sequence));
  EXPECT_FALSE(e.manager.close(a.sequence).ok());
  EXPECT_EQ(e.evict(8), 0);
  EXPECT_EQ(e.info(b.sequence).length, 8);
  EXPECT_EQ(e.refs(e.table(b.sequence)[0]), 1);
}

// Fault P8.
TEST(Faults, IdsOfTwoManagersNeverPassForEachOther) {
  Engine a({full_group(4, 8)}, {.id_tag = 1});
  Engine b({full_group(4, 8)}, {.id_tag = 2});
  const SequenceId sequence = a.open({}).sequence;
  const PinId pin = must(a.manager.pin(tokens(1, 2))).pin;
  EXPECT_NE(b.open({}).sequence, sequence);
  EXPECT_NE(must(b.manager.pin(tokens(1, 2))).pin, pin);
  EXPECT_EQ(b.manager.close(sequence).code(), ErrorCode::kNotFound);
  EXPECT_EQ(b.manager.unpin(pin).code(), ErrorCode::kNotFound);
  EXPECT_EQ(b.manager.counters().sequences_closed, 0u);
}

// Fault P9.
TEST(Faults, EvictionNeverTakesABlockInUse) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 8));
  EXPECT_EQ(e.evict(8), 0);
  EXPECT_EQ(e.usage().held, 2);
  must(e.manager.close(s));
  EXPECT_EQ(e.evict(8), 2);
}

// ---- F: large engines ----

// Fault F1.
TEST(Faults, AHitIsHeldFromTheLookupOn) {
  Engine e({full_group(4, 4)});
  e.cache(tokens(1, 8));
  const Opened hit = e.open(tokens(1, 9));
  const SequenceId other = e.open({}).sequence;
  const Ticket t = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(other, tokens(50, 12)).code(), kNoBlocks);
  must(e.manager.append(other, tokens(50, 4)));
  must(e.manager.append(hit.sequence, Tokens{9}));
  must(e.manager.finish(t));
  EXPECT_THAT(e.table(other), testing::Not(Contains(e.table(hit.sequence)[0])));
}

// Fault F2.
TEST(Faults, AReaderOfTheSameStepNeverSeesUnwrittenTokens) {
  Engine e({full_group(4, 8)});
  const SequenceId writer = e.open({}).sequence;
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(writer, tokens(1, 8)));
  EXPECT_EQ(e.open(tokens(1, 9)).cached_tokens, 0);
  must(e.manager.drop(t));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);  // and aborted work leaves nothing
}

// Fault F3.
TEST(Faults, NothingIsReusedWhileAStepMayTouchIt) {
  Engine e({full_group(4, 4)}, {.prefix_cache = false});
  const SequenceId first = e.open({}).sequence;
  const Ticket t = e.launch(first, tokens(1, 8));
  const Tokens busy = e.table(first);
  must(e.manager.close(first));
  const SequenceId second = e.open({}).sequence;
  const Ticket t2 = must(e.manager.begin_step());
  must(e.manager.append(second, tokens(50, 8)));
  for (const std::int32_t block : e.table(second)) EXPECT_THAT(busy, testing::Not(Contains(block)));
  EXPECT_EQ(e.manager.admit(first, 1).code(), ErrorCode::kNotFound);
  must(e.manager.commit(t2));
  must(e.manager.complete(t));
  EXPECT_EQ(e.usage().free, 2);
}

// Fault F4.
TEST(Faults, RetiringBlocksAreCountedSoThatNoSequenceIsPreemptedForNothing) {
  Engine e({full_group(4, 4)}, {.prefix_cache = false});
  const SequenceId a = e.open({}).sequence;
  const Ticket t = e.launch(a, tokens(1, 16));
  must(e.manager.preempt(a));
  const SequenceId b = e.open({}).sequence;
  const Status later = e.manager.admit(b, 4);
  ASSERT_EQ(later.code(), kNoBlocks);
  EXPECT_EQ(later.shortage()->retiring, 4);
  EXPECT_EQ(later.shortage()->pinned, 0);
  must(e.manager.complete(t));
  EXPECT_TRUE(e.manager.admit(b, 16).ok());
}

// Fault F8.
TEST(Faults, EqualPlaceholdersOfOtherMediaAreOtherPrompts) {
  Engine e({full_group(4, 32)});
  MediaSpan cat{.begin = 1, .end = 5};
  cat.content_id.fill(std::byte{1});
  MediaSpan dog = cat;
  dog.content_id[31] = std::byte{2};  // the last byte counts
  const Tokens prompt(10, 7);
  e.cache(prompt, {.media = {&cat, 1}});
  EXPECT_EQ(e.probe(prompt, {.media = {&dog, 1}}), 1);
  EXPECT_EQ(e.probe(prompt, {.media = {&cat, 1}}), 9);
}

// Fault F19.
TEST(Faults, AFullHitComputesOneTokenOnly) {
  Engine e({full_group(16, 8)});
  e.cache(tokens(1, 64));
  EXPECT_EQ(e.open(tokens(1, 64)).cached_tokens, 63);
}

}  // namespace
}  // namespace kvfolio::testing_engine
