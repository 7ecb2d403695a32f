// SPDX-License-Identifier: Apache-2.0
// Many sequences by count, without ids and without bytes: what cbtop's cache offers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParitySequences, OpenedByCountUnderTheCallersOwnId) {
  Engine e({full_group(16, 10)});
  KVCacheManager& manager = e.manager;
  const Ticket step = must(manager.begin_step());
  const SequenceId sequence = must(manager.open_unnamed(40, {.caller_id = 7}));  // 3 blocks
  must(manager.finish(step));
  const SequenceId same = must(manager.find(7));
  EXPECT_EQ(sequence, same);
  EXPECT_EQ(e.usage().held, 3);
  EXPECT_EQ(e.info(sequence).length, 40);
  EXPECT_EQ(e.info(sequence).caller_id, 7u);
}

TEST(ParitySequences, ADuplicateIdIsRefusedByName) {
  Engine e({full_group(16, 10)});
  const SequenceId sequence = e.open({}, {.caller_id = 7}).sequence;
  const Result<Opened> again = e.manager.open({}, {.caller_id = 7});
  // again.error().message() is "open: an open sequence has caller_id 7 already"
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(again.error().message(), "open: an open sequence has caller_id 7 already");
  const auto fork = e.manager.fork(sequence, {.caller_id = 7});
  ASSERT_FALSE(fork.has_value());
  EXPECT_THAT(fork.error().message(), HasSubstr("caller_id 7"));
  EXPECT_EQ(e.manager.num_sequences(), 1);
  // Closed, it is free again.
  must(e.manager.close(sequence));
  EXPECT_EQ(e.manager.find(7).error().code(), ErrorCode::kNotFound);
  const SequenceId later = e.open({}, {.caller_id = 7}).sequence;
  EXPECT_NE(later, sequence);
  EXPECT_EQ(must(e.manager.find(7)), later);
}

TEST(ParitySequences, AnyOfTheirIdsIsFoundThroughManyOpensAndCloses) {
  Engine e({full_group(16, 4)}, {.max_sequences = 100});
  std::vector<std::uint64_t> open;
  std::uint64_t state = 1;
  for (int i = 0; i < 5000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t id = i % 3 == 0 ? state : (state >> 40) * 64;
    if (open.size() < 100 && !e.manager.find(id).has_value()) {
      e.open({}, {.caller_id = id});
      open.push_back(id);
    } else if (!open.empty()) {
      const std::size_t at = (state >> 33) % open.size();
      must(e.manager.close(must(e.manager.find(open[at]))));
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (const std::uint64_t other : open) {
      ASSERT_EQ(e.info(must(e.manager.find(other))).caller_id, other);
    }
  }
  ASSERT_TRUE(e.manager.find(open[0]).has_value());
  must(e.manager.check_invariants());
}

TEST(ParitySequences, OpenedByCountIsBothOrNeither) {
  Engine e({full_group(16, 2)});
  const Ticket step = must(e.manager.begin_step());
  const Counters before = e.counters();
  const auto opened = e.manager.open_unnamed(40, {.caller_id = 1});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code(), ErrorCode::kNoBlocks);
  EXPECT_EQ(opened.error().shortage()->needed, 3);
  EXPECT_EQ(opened.error().shortage()->free, 2);
  EXPECT_EQ(e.manager.num_sequences(), 0);
  EXPECT_EQ(e.counters().sequences_opened, before.sequences_opened);
  EXPECT_FALSE(e.manager.find(1).has_value());
  EXPECT_FALSE(e.manager.open_unnamed(-1).has_value());
  EXPECT_EQ(e.info(e.open({}).sequence).last_use, 1U);  // nor a tick
  must(e.manager.drop(step));
  EXPECT_EQ(e.manager.open_unnamed(1).error().code(), ErrorCode::kFailedPrecondition);
  must(e.manager.check_invariants());
}

// Fault T8: append(usize::MAX) wrapped the length.
TEST(ParitySequences, AppendBeyondThePoolChangesNothing) {
  Engine e({full_group(16, 2)});
  const SequenceId sequence = e.say_count(20);
  const Ticket step = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append_unnamed(sequence, 20).code(), ErrorCode::kNoBlocks);
  EXPECT_EQ(e.manager.append_unnamed(sequence, std::numeric_limits<std::int64_t>::max()).code(),
            ErrorCode::kInvalidArgument);
  must(e.manager.append_unnamed(sequence, 12));
  must(e.manager.finish(step));
  EXPECT_EQ(e.info(sequence).length, 32);
}

TEST(ParitySequences, InfoSaysTokensBlocksUsesAndPriority) {
  Engine e({full_group(16, 10)});
  const SequenceId a = e.say_count(20, {.priority = 3});
  e.feed_count(a, 1);
  const SequenceInfo info = must(e.manager.info(a));
  const std::span<const std::int32_t> block_ids = must(e.manager.block_table(a, GroupId(0)));
  EXPECT_EQ(info.length, 21);
  EXPECT_THAT(block_ids, ElementsAre(0, 1));
  EXPECT_EQ(info.priority, 3);
  EXPECT_EQ(info.use_count, 3u);  // open and two appends
  EXPECT_EQ(info.last_use, 3u);
}

TEST(ParitySequences, AUseIsAnOpenAnAppendAndAForksChild) {
  Engine e({full_group(16, 10)});
  const SequenceId a = e.open(tokens(1, 4)).sequence;
  EXPECT_EQ(e.info(a).last_use, 1u);
  e.probe(tokens(1, 4));
  static_cast<void>(e.table(a));
  EXPECT_EQ(e.info(a).last_use, 1u);
  e.feed(a, tokens(1, 4));
  EXPECT_EQ(e.info(a).last_use, 2u);
  must(e.manager.set_priority(a, 9));
  const SequenceId child = must(e.manager.fork(a));
  EXPECT_EQ(e.info(a).last_use, 2u);  // the parent is not touched
  EXPECT_EQ(e.info(a).use_count, 2u);
  EXPECT_EQ(e.info(child).last_use, 3u);
  EXPECT_EQ(e.info(child).use_count, 1u);
  EXPECT_EQ(e.info(child).priority, 0);  // not inherited
  EXPECT_FALSE(e.info(child).caller_id.has_value());
  // What is undone was no use.
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(a, Tokens{5}));
  must(e.manager.undo(a));
  must(e.manager.drop(step));
  EXPECT_EQ(e.info(a).last_use, 2u);
  EXPECT_EQ(e.info(a).use_count, 2u);
}

TEST(ParitySequences, ListOfTheOpenOnes) {
  Engine e({full_group(16, 10)});
  const SequenceId a = e.open({}).sequence;
  const SequenceId b = e.open({}).sequence;
  const SequenceId c = e.open({}).sequence;
  must(e.manager.close(b));
  std::vector<SequenceId> all(static_cast<std::size_t>(e.manager.num_sequences()));
  e.manager.sequences(all);
  EXPECT_THAT(all, ElementsAre(a, c));
  std::array<SequenceId, 1> room;
  EXPECT_EQ(e.manager.sequences(room), 1);
}

TEST(ParitySequences, TrimKeepsSinksAndTheRecentWindow) {
  struct Case {
    std::int64_t length, sinks, window;
    Tokens kept;
    std::int32_t dropped;
  };
  for (const Case& c : {Case{64, 16, 16, {0, 3}, 32}, Case{160, 4, 16, {0, 9}, 140},
                        Case{48, 32, 1, {0, 1, 2}, 15}, Case{64, 32, 0, {0, 1}, 32}}) {
    Engine e({full_group(16, 24)});
    const SequenceId sequence = e.say_count(c.length);
    const SequenceId fork = must(e.manager.fork(sequence));
    const Tokens before = e.table(fork);
    const std::int32_t dropped =
        must(e.manager.trim(sequence, {.num_sinks = c.sinks, .window = c.window}));
    EXPECT_EQ(dropped, c.dropped);
    EXPECT_EQ(e.live(sequence), c.kept);
    EXPECT_EQ(e.table(fork), before);
    e.feed_count(sequence, 1);
    EXPECT_EQ(e.live(sequence).back(), static_cast<std::int32_t>(c.length / 16));
    EXPECT_EQ(e.table(fork), before);
    must(e.manager.check_invariants());
  }
}

TEST(ParitySequences, CountersSayTheirUnit) {
  Engine e({full_group(16, 10)});
  const SequenceId a = e.say_count(40);
  const SequenceId b = must(e.manager.fork(a));
  must(e.manager.preempt(a));  // a's id is gone; blocks that others hold stay
  EXPECT_EQ(e.counters().blocks_allocated, 3u);
  EXPECT_EQ(e.counters().blocks_freed, 0u);  // the fork holds them
  EXPECT_EQ(e.counters().sequences_preempted, 1u);
  EXPECT_EQ(e.counters().forks, 1u);
  EXPECT_EQ(e.counters().blocks_used_peak, 3u);
  must(e.manager.close(b));
  EXPECT_EQ(e.counters().blocks_freed, 3u);
}

TEST(ParitySequences, CountersOfHitsCopiesAndEvictions) {
  Engine e({full_group(16, 4)});
  e.cache(tokens(1, 40));
  // 33 of its tokens are found, the last of them inside a block, which is copied at the append.
  Tokens prompt = tokens(1, 33);
  prompt.push_back(500);
  e.cache(prompt);
  const Counters& counters = e.manager.counters();
  const std::uint64_t reused = counters.tokens_reused;    // tokens that were not computed again
  const std::uint64_t copies = counters.block_copies;     // blocks, by copy-on-write
  const std::uint64_t evicted = counters.blocks_evicted;  // cached blocks that made room
  EXPECT_EQ(reused, 33u);
  EXPECT_EQ(copies, 1u);
  EXPECT_EQ(evicted, 0u);
  static_cast<void>(e.say(tokens(1000, 64)));  // all four blocks of the pool
  EXPECT_EQ(e.counters().blocks_evicted, 4u);
  EXPECT_EQ(e.counters().tokens_reused, 33u);
}

// Fault T15: memory figures were those of f16 whatever the type.
TEST(ParitySequences, BytesAreThoseOfTheElementType) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    GroupSpec group = full_group(16, 10);
    group.num_layers = 2;
    group.dtype = dtype;
    Engine e({group});
    static_cast<void>(e.say_count(40));
    // 2 layers x 16 tokens x (8 + 8) elements
    const auto block_bytes = std::int64_t{2 * 16 * 16} * dtype_bytes(dtype);
    EXPECT_EQ(e.manager.bytes_total(), 10 * block_bytes);
    EXPECT_EQ(e.manager.bytes_used(), 3 * block_bytes);
  }
}

TEST(ParitySequences, PrintedFormIsAFactALine) {
  Engine e({full_group(16, 10)});
  const SequenceId a = e.say_count(40);
  static_cast<void>(must(e.manager.fork(a)));
  const std::string facts = e.manager.describe();  // a fact a line
  const std::int64_t used = e.manager.bytes_used();
  const std::int64_t total = e.manager.bytes_total();
  EXPECT_EQ(used, 3072);
  EXPECT_EQ(total, 10240);
  EXPECT_EQ(facts,
            "policy: lru\n"
            "attention: full\n"
            "block size: 16 tokens\n"
            "blocks used: 3/10 (30.0 %)\n"
            "blocks cached: 0, retiring: 0, free: 7\n"
            "bytes used: 3072/10240\n"
            "sequences: 2\n"
            "pins: 0\n"
            "loads: 0, holds: 0\n"
            "tokens found: 0/0 (0.0 %)\n"
            "copies: 0 blocks\n"
            "allocations: 3 blocks\n"
            "frees: 0 blocks\n"
            "evictions: 0 blocks\n"
            "preemptions: 0 sequences\n"
            "forks: 1\n");
}

TEST(ParitySequences, PrintedFormNamesTheGroupsWhereThereAreSeveral) {
  Engine e({full_group(4, 3), window_group(2, 8, 6)});
  EXPECT_THAT(e.manager.describe(), HasSubstr("group 1 block size: 2 tokens\n"));
  EXPECT_THAT(e.manager.describe(), HasSubstr("group 0 blocks used: 0/3 (0.0 %)\n"));
}

}  // namespace
}  // namespace kvfolio::testing_engine
