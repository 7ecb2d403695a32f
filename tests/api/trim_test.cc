// SPDX-License-Identifier: Apache-2.0
// trim(): StreamingLLM over blocks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;

struct Trimmed {
  Engine engine{{full_group(16, 64)}};
  SequenceId sequence;
  std::int32_t dropped = 0;

  Trimmed(int length, std::int64_t sinks, std::int64_t window) {
    sequence = engine.say(tokens(1, length));
    dropped = must(engine.manager.trim(sequence, {.num_sinks = sinks, .window = window}));
  }
};

TEST(Trim, KeepsSinksAndTheRecentWindow) {
  Trimmed t(64, 16, 16);
  EXPECT_EQ(t.dropped, 32);
  EXPECT_THAT(t.engine.live(t.sequence), ElementsAre(0, 3));
  EXPECT_EQ(t.engine.info(t.sequence).length, 64);
}

TEST(Trim, KeepsBorderBlocksAndCarriesTheBorders) {
  Trimmed t(160, 4, 16);
  EXPECT_EQ(t.dropped, 140);
  EXPECT_THAT(t.engine.live(t.sequence), ElementsAre(0, 9));
  EXPECT_EQ(t.engine.info(t.sequence).trim_sinks, 4);
  EXPECT_EQ(t.engine.info(t.sequence).trim_first_kept, 144);
  const Ticket ticket = must(t.engine.manager.begin_step());
  must(t.engine.manager.append(t.sequence, Tokens{500}));
  const StepPlan& plan = *must(t.engine.manager.plan());
  EXPECT_THAT(plan.kv_lens, ElementsAre(161));
  EXPECT_THAT(plan.trim_sinks, ElementsAre(4));
  EXPECT_THAT(plan.trim_first_kept, ElementsAre(144));
  must(t.engine.manager.finish(ticket));
}

TEST(Trim, FlashInferArraysListLiveBlocksOrAreRefusedWhereABlockIsCut) {
  for (const std::int64_t sinks : {4, 16}) {
    Trimmed t(160, sinks, 16);
    const Ticket ticket = must(t.engine.manager.begin_step());
    must(t.engine.manager.append(t.sequence, Tokens{500}));
    const auto plan = t.engine.manager.plan({.flashinfer = true});
    if (sinks == 4) {
      ASSERT_FALSE(plan.has_value());
      EXPECT_EQ(plan.error().code(), ErrorCode::kUnsupported);
      EXPECT_THAT(plan.error().message(), testing::HasSubstr("[4, 144)"));
    } else {
      ASSERT_TRUE(plan.has_value());
      EXPECT_EQ((*plan)->groups[0].kv_indices.size(), 3u);
    }
    must(t.engine.manager.finish(ticket));
  }
}

TEST(Trim, DropsTheMiddleNotTheEnd) {
  Trimmed t(48, 32, 1);
  EXPECT_EQ(t.dropped, 15);
  EXPECT_THAT(t.engine.live(t.sequence), ElementsAre(0, 1, 2));
  EXPECT_EQ(t.engine.info(t.sequence).trim_first_kept, 47);
}

TEST(Trim, WindowOfNothingGoesOnInTheNextBlock) {
  Trimmed t(64, 32, 0);
  EXPECT_EQ(t.dropped, 32);
  EXPECT_THAT(t.engine.live(t.sequence), ElementsAre(0, 1));
  const Planned planned = t.engine.feed(t.sequence, {500});
  const Tokens table = t.engine.table(t.sequence);
  ASSERT_EQ(table.size(), 5u);
  EXPECT_THAT(t.engine.live(t.sequence), ElementsAre(0, 1, 4));
  EXPECT_THAT(planned.slots, ElementsAre(table[4] * 16));
}

TEST(Trim, NothingToDropIsNothing) {
  Trimmed t(64, 32, 32);
  EXPECT_EQ(t.dropped, 0);
  EXPECT_EQ(t.engine.info(t.sequence).trim_first_kept, 0);
  EXPECT_EQ(t.engine.live(t.sequence).size(), 4u);
}

TEST(Trim, NoArgumentOverflows) {
  for (const auto& [sinks, window] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {kHuge, 2}, {2, kHuge}, {kHuge, kHuge}, {kHuge - 1, 3}, {std::int64_t{1} << 32, 0}}) {
    Trimmed t(100, sinks, window);
    EXPECT_EQ(t.dropped, 0) << sinks << " " << window;
    EXPECT_EQ(t.engine.live(t.sequence).size(), 7u);
  }
}

TEST(Trim, NegativeArgumentsAreRefusedWithTheirValue) {
  Engine e({full_group(16, 8)});
  const SequenceId s = e.say(tokens(1, 64));
  const Status sinks = e.manager.trim(s, {.num_sinks = -3, .window = 1}).error();
  EXPECT_EQ(sinks.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(sinks.message(), testing::HasSubstr("-3"));
  EXPECT_EQ(e.manager.trim(s, {.num_sinks = 1, .window = std::numeric_limits<std::int64_t>::min()})
                .error()
                .code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.live(s).size(), 4u);
}

TEST(Trim, CountsWhatIsDroppedNow) {
  Trimmed t(64, 16, 16);
  EXPECT_EQ(must(t.engine.manager.trim(t.sequence, {.num_sinks = 16, .window = 16})), 0);
  t.engine.feed(t.sequence, tokens(500, 16));
  EXPECT_EQ(must(t.engine.manager.trim(t.sequence, {.num_sinks = 16, .window = 16})), 16);
  EXPECT_THAT(t.engine.live(t.sequence), ElementsAre(0, 4));
}

TEST(Trim, SinksCannotGrowAgain) {
  Trimmed t(64, 4, 16);
  EXPECT_EQ(must(t.engine.manager.trim(t.sequence, {.num_sinks = 32, .window = 8})), 8);
  EXPECT_EQ(t.engine.info(t.sequence).trim_sinks, 4);
  EXPECT_EQ(t.engine.info(t.sequence).trim_first_kept, 56);
}

TEST(Trim, ReleasedBlocksAreFreeForOthers) {
  Engine e({full_group(16, 4)}, {.prefix_cache = false});
  const SequenceId s = e.say(tokens(1, 64));
  EXPECT_EQ(e.usage().free, 0);
  must(e.manager.trim(s, {.num_sinks = 16, .window = 16}));
  EXPECT_EQ(e.usage().free, 2);
  e.say(tokens(100, 32));
}

TEST(Trim, NothingOfAForkChanges) {
  Engine e({full_group(16, 64)});
  const SequenceId parent = e.say(tokens(1, 160));
  const SequenceId child = must(e.manager.fork(parent));
  const Tokens before = e.table(parent);
  EXPECT_EQ(must(e.manager.trim(child, {.num_sinks = 4, .window = 16})), 140);
  EXPECT_EQ(e.table(parent), before);
  EXPECT_EQ(e.info(parent).length, 160);
  EXPECT_EQ(e.info(parent).trim_first_kept, 0);
  EXPECT_EQ(e.refs(before[5]), 1);
  EXPECT_EQ(e.refs(before[9]), 2);
  // The child's next token does not land in the parent's block.
  must(e.manager.truncate(child, 150));
  e.feed(child, {900});
  EXPECT_NE(e.table(child)[9], before[9]);
  EXPECT_EQ(e.table(parent), before);
}

TEST(Trim, TruncateIntoWhatWasDroppedIsAnErrorThatNamesTheGroup) {
  Trimmed t(160, 4, 16);
  const Status bad = t.engine.manager.truncate(t.sequence, 100);
  EXPECT_EQ(bad.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(bad.message(), testing::HasSubstr("every group"));
  must(t.engine.manager.truncate(t.sequence, 150));
  must(t.engine.manager.truncate(t.sequence, 3));
  t.engine.feed(t.sequence, tokens(4, 5));
  EXPECT_EQ(t.engine.info(t.sequence).length, 8);
  EXPECT_LE(t.engine.info(t.sequence).trim_first_kept, 8);
}

TEST(Trim, WindowGroupsDropTheirBlocksToo) {
  Engine e({full_group(4, 32), window_group(2, 64, 12)});
  const SequenceId s = e.say(tokens(1, 32));
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 2, .window = 4})), 26);
  EXPECT_THAT(e.live(s, 0), ElementsAre(0, 7));
  EXPECT_THAT(e.live(s, 1), ElementsAre(14, 15));
}

TEST(Trim, ClearForgetsIt) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 16));
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 4, .window = 4})), 8);
  must(e.manager.clear(s));
  EXPECT_EQ(e.info(s).length, 0);
  EXPECT_EQ(e.info(s).trim_sinks, 0);
  EXPECT_EQ(e.info(s).trim_first_kept, 0);
  e.feed(s, tokens(50, 8));
  EXPECT_EQ(e.probe(tokens(50, 9)), 8);  // findable again
}

// Sinks of the first trim that lie in the window of the second.
TEST(Trim, KeepsItsWindowWhereItReachesBeforeAnEarlierGap) {
  Engine e({full_group(1, 32)});
  const SequenceId s = e.say(tokens(1, 10));
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 4, .window = 2})), 4);
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 2, .window = 7})), 0);
  EXPECT_THAT(e.live(s), ElementsAre(0, 1, 2, 3, 8, 9));
  // A window that begins where the gap does leaves one gap.
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 2, .window = 6})), 2);
  EXPECT_THAT(e.live(s), ElementsAre(0, 1, 8, 9));
  must(e.manager.check_invariants());
}

TEST(Trim, FewerSinksDropNoBlockThatTheWindowReaches) {
  Engine e({full_group(4, 32)});
  const SequenceId s = e.say(tokens(1, 3));
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 1, .window = 1})), 1);
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 0, .window = 1})), 1);
  EXPECT_THAT(e.live(s), ElementsAre(0));
  must(e.manager.check_invariants());
}

}  // namespace
}  // namespace kvfolio::testing_engine
