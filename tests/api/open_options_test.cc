// SPDX-License-Identifier: Apache-2.0
// What a sequence leaves behind, and whether it looks for what others left: Publish and look_up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::HasSubstr;

constexpr OpenOptions kFullBlocks{.publish = Publish::kFullBlocks};
constexpr OpenOptions kNothing{.publish = Publish::kNothing};
constexpr OpenOptions kBlind{.look_up = false};

TEST(OpenOptions, FullBlocksAloneAreLeftWithoutThePartialTail) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 16), window_group(2, 16, 6)}, {.order = order});
    must(e.manager.close(e.say(tokens(1, 7), kFullBlocks)));
    EXPECT_EQ(e.probe(tokens(1, 8)), 4);
    must(e.manager.preempt(e.say(tokens(50, 7), kFullBlocks)));
    EXPECT_EQ(e.probe(tokens(50, 8)), 4);
    // Closed while its step is in flight.
    const SequenceId s = e.open({}, kFullBlocks).sequence;
    const Ticket ticket = e.launch(s, tokens(80, 7));
    must(e.manager.close(s));
    must(e.manager.complete(ticket));
    EXPECT_EQ(e.probe(tokens(80, 8)), 4);
    e.cache(tokens(1, 7));
    EXPECT_EQ(e.probe(tokens(1, 8)), 7);
    must(e.manager.check_invariants());
  }
}

TEST(OpenOptions, WhoPublishesNothingMayHitAndLeavesNothing) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 6));
  const Opened opened = e.open(tokens(1, 9), kNothing);
  EXPECT_EQ(opened.cached_tokens, 6);
  EXPECT_EQ(e.info(opened.sequence).published_length, 0);
  e.feed(opened.sequence, tokens(7, 3));
  must(e.manager.check_invariants());
  must(e.manager.close(opened.sequence));
  EXPECT_EQ(e.probe(tokens(1, 10)), 6);
  must(e.manager.preempt(e.say(tokens(50, 9), kNothing)));
  EXPECT_EQ(e.probe(tokens(50, 9)), 0);
  must(e.manager.check_invariants());
}

TEST(OpenOptions, WhoPublishesNothingReplaysAPromptThatIsFoundWhole) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 8));
  const Opened opened = e.open(tokens(1, 8), kNothing);
  EXPECT_EQ(opened.cached_tokens, 7);
  EXPECT_THAT(e.feed(opened.sequence, {8}).slots, testing::ElementsAre(-1));
  must(e.manager.truncate(opened.sequence, 5));
  EXPECT_EQ(e.feed(opened.sequence, {70}).copy_src.size(), 1u);  // the block is findable
  must(e.manager.check_invariants());
  EXPECT_EQ(e.probe(tokens(1, 8)), 7);
}

TEST(OpenOptions, WhoPublishesNothingNeedsNoRoomForItsTokens) {
  const auto skipped = [](const OpenOptions& options) {
    Engine e({full_group(4, 32)}, {.max_table_entries = 64});
    e.cache(tokens(1, 9));
    e.feed(e.open(tokens(1, 9), options).sequence, tokens(9, 80));
    must(e.manager.check_invariants());
    return e.counters().publications_skipped;
  };
  EXPECT_EQ(skipped({}), 1u);  // it stops publishing
  EXPECT_EQ(skipped(kNothing), 0u);
}

TEST(OpenOptions, WhoPublishesNothingTakesNoRootKey) {
  Engine e({full_group(4, 16)}, {.max_root_keys = 1});
  const SequenceId one = e.say(tokens(1, 5));
  OpenOptions other = kNothing;
  other.root.model = "other";
  must(e.manager.close(e.say(tokens(1, 5), other)));
  EXPECT_EQ(e.counters().publications_skipped, 0u);
  must(e.manager.close(one));
}

TEST(OpenOptions, WithoutLookUpEverythingIsComputedAnewAndPublished) {
  Engine e({full_group(4, 16)});
  const SequenceId first = e.say(tokens(1, 8));
  const Opened again = e.open(tokens(1, 9), kBlind);
  EXPECT_EQ(again.cached_tokens, 0);
  EXPECT_TRUE(e.table(again.sequence).empty());
  e.feed(again.sequence, tokens(1, 12));
  for (const std::int32_t block : e.table(again.sequence)) {
    EXPECT_THAT(e.table(first), testing::Not(testing::Contains(block)));
  }
  must(e.manager.close(again.sequence));
  must(e.manager.close(first));
  must(e.manager.check_invariants());
  EXPECT_EQ(e.probe(tokens(1, 13)), 12);
}

TEST(OpenOptions, WithoutThePrefixCacheNothingIsLookedUpOrPublishedWhateverElseIsSaid) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 8));
  for (const bool look_up : {false, true}) {
    for (const Publish publish : {Publish::kAll, Publish::kFullBlocks, Publish::kNothing}) {
      const OpenOptions options{.prefix_cache = false, .look_up = look_up, .publish = publish};
      EXPECT_EQ(e.open(tokens(1, 9), options).cached_tokens, 0);
      e.cache(tokens(50, 8), options);
      EXPECT_EQ(e.probe(tokens(50, 9)), 0);
      EXPECT_EQ(e.probe(tokens(1, 9), options), 0);
    }
  }
}

TEST(OpenOptions, AForkLeavesBehindWhatItsParentWould) {
  Engine e({full_group(4, 16)});
  const auto found_after_fork = [&](std::int32_t first, const OpenOptions& options) {
    const SequenceId parent = e.say(tokens(first, 5), options);
    const SequenceId child = must(e.manager.fork(parent));
    e.feed(child, tokens(first + 5, 5));
    must(e.manager.close(child));
    must(e.manager.check_invariants());
    const std::int32_t found = e.probe(tokens(first, 11));
    must(e.manager.close(parent));
    return found;
  };
  EXPECT_EQ(found_after_fork(1, {}), 10);
  EXPECT_EQ(found_after_fork(20, kFullBlocks), 8);
  EXPECT_EQ(found_after_fork(40, kNothing), 0);
  EXPECT_EQ(found_after_fork(60, kBlind), 10);
  EXPECT_EQ(found_after_fork(80, {.prefix_cache = false}), 0);
}

TEST(OpenOptions, ProbeAndPinIgnorePublishAndHonourLookUp) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 8));
  for (const OpenOptions& options : {kFullBlocks, kNothing}) {
    EXPECT_EQ(e.probe(tokens(1, 9), options), 8);
    EXPECT_EQ(must(e.manager.pin(tokens(1, 9), options)).pinned_tokens, 8);
  }
  EXPECT_EQ(e.probe(tokens(1, 9), kBlind), 0);
  EXPECT_EQ(must(e.manager.pin(tokens(1, 9), kBlind)).pinned_tokens, 0);
}

TEST(OpenOptions, APublishThatIsNoneIsRefusedWithItsValue) {
  Engine e({full_group(4, 16)});
  for (const std::int32_t value : {-1, 3, 1 << 30}) {
    const OpenOptions options{.publish = static_cast<Publish>(value)};
    const auto refused = e.manager.open(tokens(1, 3), options);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message(), "open: publish is " + std::to_string(value) +
                                             ", allowed: 0 (kAll), 1 (kFullBlocks) and 2 "
                                             "(kNothing)");
    const Ticket ticket = must(e.manager.begin_step());
    const auto unnamed = e.manager.open_unnamed(3, options);
    EXPECT_FALSE(unnamed.has_value());
    EXPECT_THAT(unnamed.error().message(), HasSubstr("publish is " + std::to_string(value)));
    must(e.manager.drop(ticket));
  }
  EXPECT_EQ(e.manager.num_sequences(), 0);
}

}  // namespace
}  // namespace kvfolio::testing_engine
