// SPDX-License-Identifier: Apache-2.0
// Announcements: what soon() says, until when, and what it never does.
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

constexpr OpenOptions kAnnounce{.announce = true};

Soon soon(const Engine& e, const Tokens& prompt, const OpenOptions& options = {}) {
  return must(e.manager.soon(prompt, options));
}

TEST(Announce, ATwinHearsHowFarTheFirstOneWillReach) {
  Engine e({full_group(4, 16)});
  const SequenceId first = e.open(tokens(1, 10), kAnnounce).sequence;
  // A partial tail is findable once its sequence closes: the announcement ends before it.
  EXPECT_EQ(soon(e, tokens(1, 10)), (Soon{8, first}));
  EXPECT_EQ(soon(e, tokens(1, 8)), (Soon{7, first}));
  EXPECT_EQ(soon(e, joined(tokens(1, 6), {90, 91})), (Soon{6, first}));
  EXPECT_EQ(soon(e, joined(tokens(1, 3), {90, 91})), Soon{});
  EXPECT_EQ(soon(e, tokens(2, 10)), Soon{});
  EXPECT_EQ(soon(e, {}), Soon{});
  EXPECT_EQ(e.probe(tokens(1, 10)), 0);
  EXPECT_EQ(e.open(tokens(1, 10)).soon, (Soon{8, first}));
  EXPECT_EQ(must(e.manager.admit(tokens(1, 10), {}, 1)).soon, (Soon{8, first}));
  must(e.manager.check_invariants());
}

TEST(Announce, WithoutTheOptionNothingIsAnnounced) {
  Engine e({full_group(4, 16)});
  e.open(tokens(1, 10));
  EXPECT_EQ(soon(e, tokens(1, 10)), Soon{});
}

// Exact, if the leader appends its prompt and nothing is evicted: whatever its chunks, and where
// windows let blocks go meanwhile.
TEST(Announce, WhatIsSoonIsFoundOnceThatMuchIsPublished) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    for (const int chunk : {1, 3, 4, 7, 50}) {
      for (const int shared : {3, 4, 5, 11, 16, 17, 22, 23, 24, 40}) {
        Engine e({full_group(4, 64), window_group(2, 64, 6), window_group(8, 32, 9, 3)},
                 {.order = order});
        const Tokens prompt = tokens(1, 25);
        const SequenceId leader = e.open(prompt, kAnnounce).sequence;
        Tokens follower = tokens(1, std::min(shared, 25));
        if (shared < 25) follower.push_back(99);
        const Soon told = soon(e, follower);
        EXPECT_EQ(told.tokens, shared < 2 ? 0 : std::min(shared, 24)) << shared;
        for (std::size_t at = 0; at < prompt.size(); at += static_cast<std::size_t>(chunk)) {
          const Soon now = soon(e, follower);
          EXPECT_TRUE(now == told || now == Soon{}) << at;
          // A request that does not wait any more finds all of it, but inside its last unit.
          if (now == Soon{}) {
            EXPECT_GE(e.probe(follower), told.tokens - 1);
          }
          const auto end = std::min(at + static_cast<std::size_t>(chunk), prompt.size());
          e.feed(leader, Tokens(prompt.begin() + static_cast<std::ptrdiff_t>(at),
                                prompt.begin() + static_cast<std::ptrdiff_t>(end)));
          must(e.manager.check_invariants());
        }
        EXPECT_EQ(soon(e, follower), Soon{});
        EXPECT_EQ(e.probe(follower), told.tokens) << "chunk " << chunk << " shared " << shared;
      }
    }
  }
}

// With blocks of 2 and of 4 tokens the last full block of all groups counts.
TEST(Announce, EndsAtTheLastFullBlockOfAllGroups) {
  Engine e({full_group(2, 32), full_group(4, 16)});
  const SequenceId first = e.open(tokens(1, 7), kAnnounce).sequence;
  EXPECT_EQ(soon(e, tokens(1, 7)), (Soon{4, first}));
  e.feed(first, tokens(1, 7));
  EXPECT_EQ(e.probe(tokens(1, 7)), 4);
}

TEST(Announce, CountsFromTheBeginOfThePromptBehindAHitToo) {
  Engine e({full_group(4, 32)});
  e.cache(tokens(1, 6));
  const Tokens prompt = joined(tokens(1, 6), tokens(50, 10));
  const Opened first = e.open(prompt, kAnnounce);
  EXPECT_EQ(first.cached_tokens, 6);
  EXPECT_EQ(soon(e, prompt), (Soon{15, first.sequence}));
  EXPECT_EQ(soon(e, joined(tokens(1, 6), {50, 51, 9})), (Soon{8, first.sequence}));
  // No whole block is to come of what it shares with this one.
  EXPECT_EQ(soon(e, joined(tokens(1, 6), {50, 9, 9})), Soon{});
  EXPECT_EQ(soon(e, joined(tokens(2, 6), tokens(50, 10))), Soon{});
  e.cache(tokens(70, 8));
  e.open(tokens(70, 8), kAnnounce);  // 7 are found; the last block is another's
  EXPECT_EQ(soon(e, tokens(70, 8)).tokens, 7);
  must(e.manager.check_invariants());
}

TEST(Announce, OfSeveralTheDeepestAndThenTheFirstToOpenIsNamed) {
  Engine e({full_group(4, 32)});
  const SequenceId shallow = e.open(joined(tokens(1, 4), tokens(60, 8)), kAnnounce).sequence;
  const SequenceId first = e.open(joined(tokens(1, 8), tokens(70, 4)), kAnnounce).sequence;
  const SequenceId second = e.open(joined(tokens(1, 8), tokens(80, 4)), kAnnounce).sequence;
  EXPECT_EQ(soon(e, tokens(1, 12)), (Soon{8, first}));
  EXPECT_EQ(soon(e, joined(tokens(1, 8), tokens(80, 4))), (Soon{11, second}));
  EXPECT_EQ(soon(e, joined(tokens(1, 4), tokens(90, 4))), (Soon{4, shallow}));
  must(e.manager.close(first));
  EXPECT_EQ(soon(e, tokens(1, 12)), (Soon{8, second}));
}

TEST(Announce, AnotherRootKeyAndOtherMediaShareNothing) {
  Engine e({full_group(4, 32)});
  MediaSpan image{.begin = 5, .end = 7, .content_id = {}};
  image.content_id.fill(std::byte{1});
  MediaSpan other = image;
  other.content_id.fill(std::byte{2});
  const SequenceId first = e.open(tokens(1, 12), {.media = {&image, 1}, .announce = true}).sequence;
  EXPECT_EQ(soon(e, tokens(1, 12), {.media = {&image, 1}}), (Soon{11, first}));
  EXPECT_EQ(soon(e, tokens(1, 12), {.media = {&other, 1}}), (Soon{5, first}));
  EXPECT_EQ(soon(e, tokens(1, 12)), (Soon{5, first}));
  EXPECT_EQ(soon(e, tokens(1, 12), {.root = {.model = "another"}}), Soon{});
}

TEST(Announce, NoHitIsPromisedInsideASpanThatAttendsToItself) {
  Engine e({full_group(4, 32)});
  MediaSpan image{.begin = 5, .end = 11, .content_id = {std::byte{1}}, .attends_to_itself = true};
  const OpenOptions with{.media = {&image, 1}, .announce = true};
  const SequenceId first = e.open(tokens(1, 16), with).sequence;
  EXPECT_EQ(soon(e, tokens(1, 16), with), (Soon{15, first}));
  EXPECT_EQ(soon(e, tokens(1, 10), with), (Soon{5, first}));
  // A step that computes a part of the span: what follows is never findable.
  e.feed(first, tokens(1, 8));
  EXPECT_EQ(soon(e, tokens(1, 16), with), Soon{});
  must(e.manager.check_invariants());
}

// ---- how it ends ----

struct Leader {
  Engine e{{full_group(4, 32)}};
  SequenceId other = e.open({}).sequence;  // keeps the root key in use
  SequenceId id = e.open(tokens(1, 16), kAnnounce).sequence;
  [[nodiscard]] Soon seen() const {
    must(e.manager.check_invariants());
    return soon(e, tokens(1, 17));
  }
  [[nodiscard]] Soon whole() const { return {16, id}; }
};

TEST(Announce, ItEndsWhenTheSequenceEnds) {
  Leader closes;
  must(closes.e.manager.close(closes.id));
  EXPECT_EQ(closes.seen(), Soon{});
  Leader preempted;
  must(preempted.e.manager.begin_step());
  must(preempted.e.manager.append(preempted.id, tokens(1, 4)));
  must(preempted.e.manager.preempt(preempted.id));
  EXPECT_EQ(preempted.seen(), Soon{});
  Leader fails;
  const Ticket ticket = fails.e.launch(fails.id, tokens(1, 4));
  EXPECT_EQ(fails.seen(), fails.whole());
  must(fails.e.manager.fail(ticket));
  EXPECT_EQ(fails.seen(), Soon{});
}

TEST(Announce, ItEndsWhenTheSequenceStopsToPublish) {
  Leader reset;
  reset.e.manager.reset();
  EXPECT_EQ(reset.seen(), Soon{});
  Leader forgotten;
  forgotten.e.feed(forgotten.id, tokens(1, 4));
  must(forgotten.e.manager.forget(tokens(1, 4)));
  EXPECT_EQ(forgotten.seen(), Soon{});
}

// forget() takes away what is there: tokens that were only announced are not.
TEST(Announce, AForgetOfWhatIsOnlyAnnouncedEndsNothing) {
  Leader leader;
  leader.e.feed(leader.id, tokens(1, 4));
  must(leader.e.manager.forget(tokens(1, 8)));
  EXPECT_EQ(leader.seen(), leader.whole());
  leader.e.feed(leader.id, tokens(5, 12));
  EXPECT_EQ(leader.e.probe(tokens(1, 17)), 16);
}

TEST(Announce, ItEndsWhenTheSequenceIsCutBack) {
  Leader leader;
  leader.e.feed(leader.id, tokens(1, 8));
  must(leader.e.manager.truncate(leader.id, 8));
  EXPECT_EQ(leader.seen(), leader.whole());
  must(leader.e.manager.truncate(leader.id, 7));
  EXPECT_EQ(leader.seen(), Soon{});
  Leader trimmed;
  trimmed.e.feed(trimmed.id, tokens(1, 10));
  EXPECT_EQ(must(trimmed.e.manager.trim(trimmed.id, {.num_sinks = 10, .window = 4})), 0);
  EXPECT_EQ(trimmed.seen(), trimmed.whole());
  EXPECT_EQ(must(trimmed.e.manager.trim(trimmed.id, {.num_sinks = 1, .window = 4})), 5);
  EXPECT_EQ(trimmed.seen(), Soon{});
}

TEST(Announce, ItEndsWhenTheSequenceGoesAnotherWay) {
  Leader leader;
  leader.e.feed(leader.id, tokens(1, 6));
  EXPECT_EQ(leader.seen(), leader.whole());
  leader.e.feed(leader.id, {7, 90});
  EXPECT_EQ(leader.seen(), Soon{});
  // Behind the last announced token it may say what it likes.
  Leader longer;
  longer.e.feed(longer.id, tokens(1, 14));
  EXPECT_EQ(longer.seen(), longer.whole());
  longer.e.feed(longer.id, {15, 16, 90, 91});
  EXPECT_EQ(longer.e.probe(tokens(1, 17)), 16);
  Leader unnamed;
  unnamed.e.feed_count(unnamed.id, 2);
  EXPECT_EQ(unnamed.seen(), Soon{});
}

TEST(Announce, AGuessThatReachesIntoItEndsIt) {
  Leader guesses;
  guesses.e.feed(guesses.id, tokens(1, 8), 1);
  EXPECT_EQ(guesses.seen(), Soon{});
  Leader behind;
  const Ticket ticket = must(behind.e.manager.begin_step());
  must(behind.e.manager.append(behind.id, tokens(1, 18), {.draft = 2}));
  EXPECT_EQ(behind.seen(), behind.whole());
  must(behind.e.manager.finish(ticket));
  EXPECT_EQ(behind.e.probe(tokens(1, 17)), 16);
}

TEST(Announce, ItEndsWhenTheSequenceAdoptsBlocks) {
  Leader leader;
  const SequenceId other = leader.e.say(tokens(60, 4));
  const Tokens blocks = leader.e.table(other);
  const std::span<const std::int32_t> table(blocks);
  must(leader.e.manager.adopt(leader.id, {&table, 1}, 4));
  EXPECT_EQ(leader.seen(), Soon{});
}

TEST(Announce, UndoAndDropNeitherEndItNorBringItBack) {
  Leader leader;
  const Ticket ticket = must(leader.e.manager.begin_step());
  must(leader.e.manager.append(leader.id, tokens(1, 5)));
  must(leader.e.manager.undo(leader.id));
  EXPECT_EQ(leader.seen(), leader.whole());
  must(leader.e.manager.append(leader.id, tokens(1, 5)));
  must(leader.e.manager.drop(ticket));
  EXPECT_EQ(leader.seen(), leader.whole());
  must(leader.e.manager.begin_step());
  must(leader.e.manager.append(leader.id, tokens(2, 5)));
  must(leader.e.manager.undo(leader.id));
  EXPECT_EQ(leader.seen(), Soon{});
}

TEST(Announce, AForkAnnouncesNothing) {
  Leader leader;
  leader.e.feed(leader.id, tokens(1, 4));
  const SequenceId child = must(leader.e.manager.fork(leader.id));
  EXPECT_EQ(leader.seen(), leader.whole());
  leader.e.feed(child, tokens(90, 4));
  EXPECT_EQ(leader.seen(), leader.whole());
  must(leader.e.manager.close(leader.id));
  EXPECT_EQ(leader.seen(), Soon{});
}

TEST(Announce, ALoadOfTheAnnouncedTokensKeepsIt) {
  Leader leader;
  const Load load = must(leader.e.manager.begin_load(leader.id, tokens(1, 16), 8));
  EXPECT_EQ(leader.seen(), leader.whole());
  must(leader.e.manager.finish_load(load.id, 8));
  EXPECT_EQ(leader.seen(), leader.whole());
  EXPECT_EQ(leader.e.probe(tokens(1, 17)), 8);
  const Load other =
      must(leader.e.manager.begin_load(leader.id, joined(tokens(1, 8), tokens(80, 4)), 12));
  EXPECT_EQ(leader.seen(), leader.whole());
  must(leader.e.manager.finish_load(other.id, 4));
  EXPECT_EQ(leader.seen(), Soon{});
}

// ---- who announces and who asks ----

TEST(Announce, WhoPublishesNothingAnnouncesNothingAndMayAsk) {
  Engine e({full_group(4, 32)});
  e.open(tokens(1, 8), {.publish = Publish::kNothing, .announce = true});
  e.open(tokens(1, 8), {.prefix_cache = false, .announce = true});
  EXPECT_EQ(soon(e, tokens(1, 9)), Soon{});
  const SequenceId first = e.open(tokens(1, 8), kAnnounce).sequence;
  EXPECT_EQ(soon(e, tokens(1, 9), {.publish = Publish::kNothing}), (Soon{8, first}));
  EXPECT_EQ(soon(e, tokens(1, 9), {.prefix_cache = false}), Soon{});
  Engine off({full_group(4, 32)}, {.prefix_cache = false});
  off.open(tokens(1, 8), kAnnounce);
  EXPECT_EQ(soon(off, tokens(1, 8)), Soon{});
}

TEST(Announce, WhoLooksNothingUpAsksNothingAndAnnounces) {
  Engine e({full_group(4, 32)});
  e.cache(tokens(1, 4));
  const OpenOptions blind{.look_up = false, .announce = true};
  const SequenceId first = e.open(tokens(1, 8), blind).sequence;
  EXPECT_EQ(soon(e, tokens(1, 9)), (Soon{8, first}));
  EXPECT_EQ(soon(e, tokens(1, 9), blind), Soon{});
  const Opened second = e.open(tokens(1, 9), blind);
  EXPECT_EQ(second.soon, Soon{});
  EXPECT_EQ(must(e.manager.admit(tokens(1, 9), blind, 0)).soon, Soon{});
}

TEST(Announce, KUnorderedWaitsLastUntilTheStepIsComplete) {
  Engine e({full_group(4, 32)}, {.order = Order::kUnordered});
  const SequenceId first = e.open(tokens(1, 8), kAnnounce).sequence;
  const Ticket ticket = e.launch(first, tokens(1, 8));
  EXPECT_EQ(soon(e, tokens(1, 9)), (Soon{8, first}));
  must(e.manager.complete(ticket));
  EXPECT_EQ(soon(e, tokens(1, 9)), Soon{});
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  // Closed in flight: nothing is announced of what its step brings.
  const SequenceId second = e.open(tokens(50, 8), kAnnounce).sequence;
  e.launch(second, tokens(50, 8));
  must(e.manager.close(second));
  EXPECT_EQ(soon(e, tokens(50, 9)), Soon{});
  must(e.manager.check_invariants());
}

TEST(Announce, WithoutRoomForAllOfItAnAnnouncementIsLeftOutAndCounted) {
  Engine e({full_group(4, 32)}, {.max_announced_tokens = 11});
  const SequenceId first = e.open(tokens(1, 9), kAnnounce).sequence;
  e.open(tokens(50, 8), kAnnounce);
  EXPECT_EQ(e.counters().announcements_skipped, 1u);
  EXPECT_EQ(soon(e, tokens(50, 8)), Soon{});
  EXPECT_EQ(soon(e, tokens(1, 9)), (Soon{8, first}));
  // Tokens that are published take no room.
  e.feed(first, tokens(1, 4));
  e.open(tokens(60, 4), kAnnounce);
  EXPECT_EQ(e.counters().announcements_skipped, 1u);
  EXPECT_EQ(soon(e, tokens(60, 5)).tokens, 4);
  must(e.manager.check_invariants());
  EXPECT_EQ(
      Engine({full_group(4, 32), window_group(2, 8, 4)}).manager.options().max_announced_tokens,
      128);
}

TEST(Announce, AnnouncingTakesNoRoomFromTheTables) {
  // Room for the tables of one sequence and its tokens, and for no copy of these.
  for (const bool announces : {false, true}) {
    Engine e({full_group(4, 32)}, {.max_table_entries = 64});
    const SequenceId one = e.open(tokens(1, 24), {.announce = announces}).sequence;
    e.feed(one, tokens(1, 24));
    EXPECT_EQ(e.counters().publications_skipped, 0u);
    must(e.manager.check_invariants());
  }
}

TEST(Announce, ACopyAnnouncesWhatItsSourceDoes) {
  Leader leader;
  leader.e.feed(leader.id, tokens(1, 6));
  Engine copy({full_group(4, 32)});
  copy.open(tokens(60, 8), kAnnounce);
  must(leader.e.manager.copy_to(copy.manager));
  EXPECT_EQ(must(copy.manager.state_hash()), must(leader.e.manager.state_hash()));
  EXPECT_EQ(soon(copy, tokens(1, 17)), leader.whole());
  EXPECT_EQ(soon(copy, tokens(60, 8)), Soon{});
  copy.feed(leader.id, {90});
  EXPECT_EQ(soon(copy, tokens(1, 17)), Soon{});
  EXPECT_EQ(leader.seen(), leader.whole());
  must(copy.manager.check_invariants());
}

TEST(Announce, IsPartOfTheState) {
  const auto hash = [](bool announces) {
    Engine e({full_group(4, 32)});
    e.open(tokens(1, 8), {.announce = announces});
    return must(e.manager.state_hash());
  };
  EXPECT_EQ(hash(true), hash(true));
  EXPECT_NE(hash(true), hash(false));
}

TEST(Announce, BadQuestionsAndOptionsAreRefusedWithTheirNumbers) {
  Leader leader;
  EXPECT_EQ(leader.e.manager.soon(Tokens{1, -2}).error().message(),
            "soon: token 1 is -2, allowed: 0 and above");
  const auto made = [](std::int64_t tokens) {
    return KVCacheManager::create(CacheSpec{{full_group(4, 32)}}, {.max_announced_tokens = tokens});
  };
  for (const std::int64_t tokens : {std::int64_t{-1}, (std::int64_t{1} << 30) + 1}) {
    EXPECT_EQ(made(tokens).error().code(), kInvalid);
    EXPECT_EQ(
        made(tokens).error().message(),
        "option max_announced_tokens is " + std::to_string(tokens) + ", allowed: 0 to 1073741824");
  }
  EXPECT_TRUE(made(1).has_value());  // less than a block: nothing is kept
}

// S1: a burst of equal prompts, of which each waits for an older one that shares more with it than
// the cache has: as many tokens are computed as are different.
TEST(Announce, ABurstOfTwinsComputesWhatTheyShareOnce) {
  Engine e({full_group(4, 256)});
  std::vector<Tokens> waiting;
  waiting.reserve(6);
  for (int i = 0; i < 6; ++i) waiting.push_back(joined(tokens(1, 24), tokens(100 * (i + 1), 5)));
  std::uint64_t prompt_tokens = 0;
  for (const Tokens& prompt : waiting) prompt_tokens += prompt.size();
  std::vector<std::pair<SequenceId, Tokens>> running;
  int steps = 0;
  for (; !waiting.empty(); ++steps) {
    std::vector<Tokens> later;
    std::vector<std::pair<SequenceId, Tokens>> entered;
    for (const Tokens& prompt : waiting) {
      if (soon(e, prompt).tokens - e.probe(prompt) >= 4) {
        later.push_back(prompt);
        continue;
      }
      const Opened opened = e.open(prompt, kAnnounce);
      entered.emplace_back(opened.sequence,
                           Tokens(prompt.begin() + opened.cached_tokens, prompt.end()));
    }
    const Ticket ticket = must(e.manager.begin_step());
    for (const auto& [id, rest] : entered) must(e.manager.append(id, rest));
    must(e.manager.finish(ticket));
    waiting = later;
  }
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(e.counters().tokens_reused, 5u * 24u);
  EXPECT_EQ(e.counters().tokens_committed + e.counters().tokens_reused, prompt_tokens);
}

}  // namespace
}  // namespace kvfolio::testing_engine
