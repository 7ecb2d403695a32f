// SPDX-License-Identifier: Apache-2.0
// What counters, references, lengths and ids say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;

TEST(Questions, CountersCountWhatTheirNamesSay) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.say(tokens(1, 10));  // two full blocks are published, and one is not
  EXPECT_EQ(e.counters().sequences_opened, 1u);
  EXPECT_EQ(e.counters().tokens_looked_up, 10u);
  EXPECT_EQ(e.counters().tokens_reused, 0u);
  EXPECT_EQ(e.counters().tokens_committed, 10u);
  EXPECT_EQ(e.counters().blocks_published, 2u);
  must(e.manager.close(a));  // and the tail
  EXPECT_EQ(e.counters().blocks_published, 3u);
  EXPECT_EQ(e.counters().sequences_closed, 1u);

  const SequenceId b = e.say(tokens(1, 12));  // ten tokens are found
  EXPECT_EQ(e.counters().tokens_looked_up, 22u);
  EXPECT_EQ(e.counters().tokens_reused, 10u);
  EXPECT_EQ(e.counters().tokens_committed, 12u);
  EXPECT_EQ(e.counters().blocks_published, 4u);  // the tail's block, with more tokens
  EXPECT_EQ(e.probe(tokens(1, 12)), 11);         // probes count nothing
  EXPECT_EQ(e.counters().tokens_looked_up, 22u);

  const SequenceId child = must(e.manager.fork(b));
  must(e.manager.truncate(child, 9));
  const Ticket dropped = must(e.manager.begin_step());
  must(e.manager.append(child, Tokens{99}));
  must(e.manager.drop(dropped));
  EXPECT_EQ(e.counters().block_copies, 0u);  // planned, not committed
  e.feed(child, {99});
  EXPECT_EQ(e.counters().block_copies, 1u);
  EXPECT_EQ(e.counters().tokens_committed, 13u);
  must(e.manager.preempt(child));
  const Ticket bad = e.launch(b, tokens(13, 2));
  must(e.manager.fail(bad));
  EXPECT_EQ(e.counters().sequences_opened, 2u);  // forks not included
  EXPECT_EQ(e.counters().forks, 1u);
  EXPECT_EQ(e.counters().sequences_closed, 1u);
  EXPECT_EQ(e.counters().sequences_preempted, 1u);
  EXPECT_EQ(e.counters().sequences_aborted, 1u);

  const GroupUsage usage = e.usage();
  EXPECT_EQ(e.counters().blocks_allocated - e.counters().blocks_freed,
            static_cast<std::uint64_t>(usage.num_blocks - usage.free));
  const std::uint64_t cached = static_cast<std::uint64_t>(usage.cached);
  EXPECT_EQ(e.evict(16), usage.cached);
  EXPECT_EQ(e.counters().blocks_evicted, cached);
  EXPECT_EQ(e.counters().blocks_allocated, e.counters().blocks_freed);
}

TEST(Questions, ThePeakIsOfHeldBlocksOfAllGroups) {
  Engine e({full_group(4, 16), full_group(2, 16)});
  const SequenceId a = e.open({}).sequence;
  const Ticket first = e.launch(a, tokens(1, 8));  // 2 and 4 blocks
  must(e.manager.close(a));
  EXPECT_EQ(e.usage(1).retiring, 4);
  const SequenceId b = e.open({}).sequence;
  const Ticket second = e.launch(b, tokens(50, 4));  // 1 and 2 more
  EXPECT_EQ(e.counters().blocks_used_peak, 6u);      // those that retire have no owner any more
  must(e.manager.complete(first));
  must(e.manager.complete(second));
  must(e.manager.close(b));
  EXPECT_EQ(e.counters().blocks_used_peak, 6u);
}

TEST(Questions, InfoTellsLengthsAndTheOpenStep) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 10));
  EXPECT_EQ(e.info(s).published_length, 8);  // what stands on the tree
  EXPECT_FALSE(e.info(s).in_open_step);
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(11, 6)));
  EXPECT_TRUE(e.info(s).in_open_step);
  EXPECT_EQ(e.info(s).length, 16);
  EXPECT_EQ(e.info(s).accepted_length, 10);
  EXPECT_EQ(e.info(s).published_length, 8);
  must(e.manager.commit(t));
  EXPECT_FALSE(e.info(s).in_open_step);
  EXPECT_EQ(e.info(s).accepted_length, 16);
  EXPECT_EQ(e.info(s).published_length, 16);
}

TEST(Questions, ReferencesAreTableEntriesPinsAndCopiesInFlight) {
  Engine e({full_group(4, 16)});
  const SequenceId parent = e.say(tokens(1, 6));
  const std::int32_t head = e.table(parent)[0];
  const std::int32_t tail = e.table(parent)[1];
  EXPECT_EQ(e.refs(head), 1);
  const PinId pin = must(e.manager.pin(tokens(1, 4))).pin;
  EXPECT_EQ(e.refs(head), 2);
  const SequenceId child = must(e.manager.fork(parent));
  EXPECT_EQ(e.refs(head), 3);
  EXPECT_EQ(e.refs(tail), 2);
  const Ticket t = e.launch(child, {90});  // writes to a copy of the tail
  EXPECT_NE(e.table(child)[1], tail);
  EXPECT_EQ(e.refs(tail), 2);  // the parent's, and the copy's until it has run
  must(e.manager.complete(t));
  EXPECT_EQ(e.refs(tail), 1);
  must(e.manager.unpin(pin));
  EXPECT_EQ(e.refs(head), 2);
}

TEST(Questions, SlotsOfDroppedBlocksAreMinusOne) {
  Engine e({window_group(2, 16, 4)});
  const SequenceId s = e.say(tokens(1, 8));
  Tokens slots(8);
  must(e.manager.slot_mapping(s, GroupId(0), 0, slots));
  const Tokens table = e.table(s);
  EXPECT_THAT(slots, ElementsAre(-1, -1, -1, -1, table[2] * 2, table[2] * 2 + 1, table[3] * 2,
                                 table[3] * 2 + 1));
}

TEST(Questions, BytesCountThePadding) {
  GroupSpec group{.head_dim_k = 3};  // 12 bytes of f32, 64 with padding
  group.block_size = 1;
  group.num_blocks = 4;
  Engine e({group});
  static_cast<void>(e.say_count(2));
  EXPECT_EQ(e.manager.bytes_total(), 4 * 64);
  EXPECT_EQ(e.manager.bytes_used(), 2 * 64);
}

TEST(Questions, AnIdHasItsTagGenerationAndSlot) {
  Engine e({full_group(4, 8)}, {.max_sequences = 2, .id_tag = 0xbeef});
  const SequenceId a = e.open({}).sequence;
  const SequenceId b = e.open({}).sequence;
  EXPECT_EQ(a.value(), std::uint64_t{0xbeef} << 48 | std::uint64_t{1} << 24 | 0u);
  EXPECT_EQ(b.value(), std::uint64_t{0xbeef} << 48 | std::uint64_t{1} << 24 | 1u);
  must(e.manager.close(b));
  EXPECT_EQ(e.open({}).sequence.value(), b.value() + (std::uint64_t{1} << 24));
  EXPECT_EQ(must(e.manager.pin(tokens(1, 4))).pin.value(),
            std::uint64_t{0xbeef} << 48 | std::uint64_t{1} << 24 | 0u);
}

TEST(Questions, MetadataSaysWhatIsReservedAndWhatOfItIsInUse) {
  Engine e({full_group(4, 64)}, {.max_sequences = 4});
  const MemoryUse empty = e.manager.metadata();
  EXPECT_LT(empty.used, empty.reserved);
  const SequenceId s = e.say(tokens(1, 100));
  const MemoryUse held = e.manager.metadata();
  must(e.manager.close(s));
  const MemoryUse cached = e.manager.metadata();
  EXPECT_EQ(must(e.manager.evict(GroupId(0), 64)), 25);
  const MemoryUse evicted = e.manager.metadata();
  for (const MemoryUse& each : {held, cached, evicted}) EXPECT_EQ(each.reserved, empty.reserved);
  EXPECT_GT(held.used, cached.used);               // the table went
  EXPECT_GE(cached.used, empty.used + 100 * 4);    // the tokens are in the tree
  EXPECT_LT(evicted.used, cached.used - 100 * 4);  // and leave with the last block
}

// Some seconds in a release build, a minute with checks or sanitizers.
TEST(Questions, AnIdComesBackOnlyWhenItsSlotWasReusedTwoToThe24MinusOneTimes) {
#ifndef NDEBUG
  GTEST_SKIP() << "release builds only";
#else
  Engine e({full_group(4, 8)}, {.max_sequences = 1, .prefix_cache = false});
  const SequenceId first = e.open({}).sequence;
  must(e.manager.close(first));
  for (int reuse = 1; reuse < (1 << 24) - 1; ++reuse) {
    const Result<Opened> opened = e.manager.open({});
    if (!opened.has_value() || opened->sequence == first) FAIL() << "at reuse " << reuse;
    if (!e.manager.close(opened->sequence).ok()) FAIL() << "at reuse " << reuse;
  }
  EXPECT_EQ(e.open({}).sequence, first);
#endif
}

}  // namespace
}  // namespace kvfolio::testing_engine
