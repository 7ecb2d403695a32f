// SPDX-License-Identifier: Apache-2.0
//
// Promises of reserve() where others come to hold what the sequence may have to write: found by a
// review, a test for each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine.h"
#include "kvfolio/manager.h"

namespace kvfolio::testing_engine {
namespace {

// Takes all blocks that are free.
void fill(Engine& e) {
  if (e.usage().free == 0) return;
  const SequenceId greedy = e.open({}, {.prefix_cache = false}).sequence;
  const bool is_open = !e.manager.begin_step().has_value();
  must(e.manager.append(greedy, tokens(900, 4 * e.usage().free)));
  if (!is_open) static_cast<void>(must(e.manager.plan()));
}

TEST(Promise, APinThatFollowsATailEvictsNothing) {
  Engine e({window_group(4, 6, 8)});
  e.cache(tokens(1, 6));
  static_cast<void>(must(e.manager.pin(tokens(1, 6))));
  e.cache(tokens(500, 4));
  const SequenceId s = e.open({}, {.look_up = false}).sequence;
  must(e.manager.reserve(s, 12, {.most_per_step = 8}));
  e.feed(s, tokens(1, 8));
  e.feed(s, tokens(9, 4));
  must(e.manager.check_invariants());
}

TEST(Promise, HoldsIfAnotherHoldsTheTailThatGaveWayToACopyAndTheAppendIsUndone) {
  for (const bool drops : {false, true}) {
    Engine e({full_group(4, 7)});
    const SequenceId s = e.say(tokens(1, 8));
    must(e.manager.truncate(s, 6));
    must(e.manager.reserve(s, 2));
    const Ticket step = must(e.manager.begin_step());
    must(e.manager.append(s, tokens(50, 2)));  // to a copy
    EXPECT_EQ(e.open(tokens(1, 9)).cached_tokens, 8);
    if (!drops) must(e.manager.undo(s));
    must(e.manager.drop(step));
    EXPECT_EQ(e.info(s).reserved_tokens, 2);
    fill(e);
    must(e.manager.append(s, tokens(50, 2)));
    must(e.manager.check_invariants());
  }
}

TEST(Promise, HoldsIfAnotherGetsTheRightToWriteWhileTheAppendIsUndone) {
  Engine e({full_group(4, 4)});
  const SequenceId parent = e.say(tokens(1, 6));
  const SequenceId s = must(e.manager.fork(parent));
  must(e.manager.close(parent));  // the tail is findable, and no sequence writes it
  must(e.manager.reserve(s, 2));
  static_cast<void>(must(e.manager.begin_step()));
  must(e.manager.append(s, tokens(50, 2)));
  const Opened other = e.open(tokens(1, 7));
  EXPECT_EQ(other.cached_tokens, 6);
  must(e.manager.undo(s));
  must(e.manager.append(other.sequence, tokens(7, 1)));
  fill(e);
  must(e.manager.append(s, tokens(50, 2)));
  must(e.manager.check_invariants());
}

TEST(Promise, HoldsIfAnotherFindsTheTailThatADraftWasAppendedTo) {
  Engine e({full_group(4, 5)});
  const SequenceId s = e.say(tokens(1, 6));
  must(e.manager.close(must(e.manager.fork(s))));  // the tail is findable
  must(e.manager.reserve(s, 6, {.most_per_step = 2}));
  e.feed(s, tokens(50, 2), 2);
  EXPECT_EQ(e.open(tokens(1, 7)).cached_tokens, 6);
  {
    const SequenceId greedy = e.open({}, {.prefix_cache = false}).sequence;
    if (e.usage().free > 0) e.feed(greedy, tokens(900, 4 * e.usage().free));
  }
  must(e.manager.accept(s, 0));
  EXPECT_EQ(e.info(s).reserved_tokens, 6);
  for (const std::int32_t token : {60, 62, 64}) e.feed(s, tokens(token, 2));
  EXPECT_EQ(e.info(s).reserved_tokens, 0);
  must(e.manager.check_invariants());
}

// The undo gives the block that was reused back to what lies ready: the sequence owned it.
TEST(Promise, HoldsIfAnAppendIntoTheReplayedBlockIsUndone) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({window_group(4, 6, 8)}, {.order = order});
    e.cache(tokens(1, 9));
    const SequenceId s = e.open(tokens(1, 9)).sequence;
    must(e.manager.reserve(s, 8, {.most_per_step = 1}));
    fill(e);                                   // its step stays open
    must(e.manager.append(s, tokens(50, 1)));  // another token than the prompt's last one
    must(e.manager.undo(s));
    must(e.manager.check_invariants());
    fill(e);
    must(e.manager.append(s, tokens(50, 1)));
    must(e.manager.check_invariants());
  }
}

// A load holds all that it found before anything makes room.
TEST(Promise, ALoadThatSharesAnOwnTailEvictsNothingThatItFound) {
  Engine e({full_group(4, 6), window_group(4, 12, 5)}, {.max_transfers = 1});
  e.cache(tokens(1, 16));
  const Opened owner = e.open(tokens(1, 7));
  EXPECT_EQ(owner.cached_tokens, 6);
  must(e.manager.reserve(owner.sequence, 2));
  e.cache(tokens(500, 8));
  static_cast<void>(must(e.manager.evict(GroupId(1), 100)));
  ASSERT_EQ(e.usage().free, 0);
  const SequenceId s = e.open({}, {.look_up = false}).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 16), 16));
  EXPECT_EQ(load.begin, 8);
  must(e.manager.check_invariants());
  must(e.manager.finish_load(load.id, 8));
  e.feed(owner.sequence, tokens(50, 2));
  must(e.manager.check_invariants());
}

// A sequence that closes touches nothing of a border that another one holds.
TEST(Promise, HoldsIfASequenceClosesWhoseBorderIsTheOwnTail) {
  Engine e({full_group(16, 8), window_group(4, 16, 5)}, {.order = Order::kUnordered});
  const SequenceId a = e.say(tokens(1, 23));
  const Opened owner = e.open(tokens(1, 15));
  EXPECT_EQ(owner.cached_tokens, 14);
  must(e.manager.reserve(owner.sequence, 1));
  const SequenceId other = e.say(tokens(500, 2));
  const Ticket in_flight = e.launch(other, tokens(502, 1));
  must(e.manager.close(a));
  const SequenceId greedy = e.open({}, {.prefix_cache = false}).sequence;
  const Ticket step = must(e.manager.begin_step());
  const GroupUsage usage = must(e.manager.usage(GroupId(1)));
  must(e.manager.append(greedy, tokens(900, 4 * (usage.free + usage.evictable))));
  must(e.manager.append(owner.sequence, tokens(50, 1)));
  must(e.manager.check_invariants());
  must(e.manager.drop(step));
  must(e.manager.complete(in_flight));
}

TEST(Promise, OfASequenceThatAdoptsIsRefused) {
  Engine e({full_group(4, 4)});
  const SequenceId parent = e.say(tokens(1, 6), {.prefix_cache = false});
  const SequenceId s = e.open({}).sequence;
  must(e.manager.reserve(s, 8));
  const Tokens table = e.table(parent);
  const std::span<const std::int32_t> tables[] = {table};
  EXPECT_EQ(e.manager.adopt(s, tables, 6).message(),
            "adopt: 8 tokens are reserved for sequence 1.1; reserve() 0 first, or after it");
}

TEST(Promise, AnUndoCountsIntoThePeak) {
  Engine e({full_group(4, 4)});
  const SequenceId s = e.say(tokens(1, 8));
  must(e.manager.truncate(s, 6));
  const Pinned pinned = must(e.manager.pin(tokens(1, 8)));
  must(e.manager.reserve(s, 2));
  const SequenceId other = e.open({}, {.prefix_cache = false}).sequence;
  static_cast<void>(must(e.manager.begin_step()));
  must(e.manager.append(s, tokens(50, 2)));
  must(e.manager.unpin(pinned.pin));
  must(e.manager.append(other, tokens(900, 4)));
  must(e.manager.undo(s));
  must(e.manager.check_invariants());
}

TEST(Promise, DoesNotGrowWithForksThatComeAndGo) {
  for (const bool windowed : {false, true}) {
    Engine e({windowed ? window_group(4, 40, 8) : full_group(4, 40)});
    const SequenceId s = e.say(tokens(1, 10), {.prefix_cache = false});
    must(e.manager.reserve(s, 4));
    std::int32_t first = 0;
    for (int i = 0; i < 20; ++i) {
      must(e.manager.close(must(e.manager.fork(s))));
      const Ticket step = must(e.manager.begin_step());
      must(e.manager.append(s, tokens(60, 1)));
      must(e.manager.drop(step));
      if (i == 0) first = e.usage().reserved;
      EXPECT_EQ(e.usage().reserved, first);
    }
    must(e.manager.check_invariants());
  }
}

TEST(Promise, MadeAgainAsksForNoMoreThanANewOne) {
  Engine e({full_group(4, 3)});
  const SequenceId s = e.say(tokens(1, 6), {.prefix_cache = false});
  must(e.manager.reserve(s, 2));
  must(e.manager.close(must(e.manager.fork(s))));
  must(e.manager.reserve(s, 6));
  EXPECT_EQ(e.usage().reserved, 1);
}

TEST(Admission, OfMoreTokensThanASequenceHasNamesThem) {
  const Engine e({full_group(4, 2)});
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(e.manager.admit(tokens(1, 3), {}, kMost).error().message(),
            "admit of 9223372036854775807 tokens behind a prompt, allowed: 0 to 1073741824");
}

TEST(Forget, TheLimitOfARequestDoesNotCount) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  EXPECT_EQ(must(e.manager.forget(tokens(1, 8), {.max_tokens = 4})).blocks, 1);
}

// Both share their blocks, so they should get equal names. If not, nothing is wrong but what they
// said.
TEST(LateNames, AForkThatIsNamedOtherwiseHangsNothingBehindAGap) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    for (int different = 0; different < 12; ++different) {
      for (int first = 0; first <= 12; first += 4) {
        Engine e({full_group(4, 12)}, {.order = order});
        const SequenceId s = e.say_count(12, {.late_names = true});
        const SequenceId child = must(e.manager.fork(s));
        Tokens other = tokens(1, 12);
        other[static_cast<std::size_t>(different)] = 99;
        must(e.manager.set_tokens(child, tokens(1, first)));
        must(e.manager.set_tokens(s, other));
        must(e.manager.check_invariants());
        must(e.manager.close(child));
        must(e.manager.close(s));
        must(e.manager.check_invariants());
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
