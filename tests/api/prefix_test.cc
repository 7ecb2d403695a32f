// SPDX-License-Identifier: Apache-2.0
// Exact prefixes (docs/design.md, "Exact prefixes"), seen through the manager's API.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

MediaSpan media(std::int32_t begin, std::int32_t end, int content, bool attends_to_itself = false) {
  MediaSpan span{.begin = begin, .end = end, .attends_to_itself = attends_to_itself};
  span.content_id.fill(static_cast<std::byte>(content));
  return span;
}

TEST(Prefix, ProbeSaysWhatOpenFindsAndChangesNothing) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 10));
  for (const int n : {0, 1, 3, 4, 5, 8, 9, 10, 11, 14}) {
    const std::int32_t probed = e.probe(tokens(1, n));
    const Opened opened = e.open(tokens(1, n));
    EXPECT_EQ(opened.cached_tokens, probed) << n;
    EXPECT_EQ(probed, std::min(std::max(n - 1, 0), 10)) << n;
    must(e.manager.close(opened.sequence));
  }
}

TEST(Prefix, FullHitLeavesOneTokenWithSlotMinusOneAndCopiesNothing) {
  for (const int n : {8, 10, 1, 13}) {
    Engine e({full_group(4, 16)});
    e.cache(tokens(1, n));
    const GroupUsage before = e.usage();
    const Opened opened = e.open(tokens(1, n));
    EXPECT_EQ(opened.cached_tokens, n - 1);
    const Planned planned = e.feed(opened.sequence, {n});
    EXPECT_THAT(planned.slots, ElementsAre(-1)) << n;
    EXPECT_THAT(planned.copy_src, IsEmpty()) << n;
    EXPECT_EQ(e.usage().free, before.free) << n;
  }
}

TEST(Prefix, FullHitGivesSlotMinusOneInWindowGroupsToo) {
  Engine e({full_group(4, 16), window_group(2, 16, 6)});
  e.cache(tokens(1, 12));
  const Opened opened = e.open(tokens(1, 12));
  EXPECT_EQ(opened.cached_tokens, 11);
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(opened.sequence, Tokens{12}));
  for (const std::size_t g : {0u, 1u}) {
    EXPECT_THAT(e.plan(g).slots, ElementsAre(-1));
    EXPECT_THAT(e.plan(g).copy_src, IsEmpty());
  }
  must(e.manager.finish(t));
}

TEST(Prefix, AnotherLastTokenAfterAFullHitIsWritten) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 10));
  const Opened opened = e.open(tokens(1, 10));
  const Planned planned = e.feed(opened.sequence, {99});
  EXPECT_THAT(planned.slots, Each(testing::Ge(0)));
  // What was cached is as it was.
  EXPECT_EQ(e.probe(tokens(1, 11)), 10);
}

TEST(Prefix, HitInsideABlockCopiesAtTheFirstAppend) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 8));
  const Opened opened = e.open(joined(tokens(1, 6), {90, 91}));
  EXPECT_EQ(opened.cached_tokens, 6);
  const std::int32_t source = e.table(opened.sequence)[1];
  EXPECT_TRUE(e.findable(source));
  const Planned planned = e.feed(opened.sequence, {90, 91});
  EXPECT_THAT(planned.copy_src, ElementsAre(source));
  EXPECT_THAT(planned.copy_dst, ElementsAre(e.table(opened.sequence)[1]));
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Prefix, AdmitCountsTheCopyOfAHitInsideABlock) {
  Engine e({full_group(4, 2)});
  e.cache(tokens(1, 8));
  const Opened opened = e.open(joined(tokens(1, 6), {90}));
  EXPECT_EQ(opened.cached_tokens, 6);
  const SequenceId child = must(e.manager.fork(opened.sequence));
  // One block more than the table has: the copy. Both blocks are held by both sequences.
  const Status full = e.manager.admit(opened.sequence, 1);
  ASSERT_EQ(full.code(), ErrorCode::kNoBlocks);
  EXPECT_EQ(full.shortage()->needed, 1);
  const Ticket t = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(opened.sequence, Tokens{90}).code(), ErrorCode::kNoBlocks);
  must(e.manager.drop(t));
  must(e.manager.close(child));
  must(e.manager.admit(opened.sequence, 1));  // it is alone, and needs no copy
}

TEST(Prefix, CopySourceIsHeldUntilTheStepIsComplete) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  const Opened opened = e.open(joined(tokens(1, 6), {90}));
  const std::int32_t source = e.table(opened.sequence)[1];
  const Ticket t = e.launch(opened.sequence, {90});
  EXPECT_EQ(e.refs(source), 1);
  must(e.manager.complete(t));
  EXPECT_EQ(e.refs(source), 0);
  EXPECT_EQ(e.usage().cached, 1);
}

TEST(Prefix, DropPointsTheTableBackToTheSource) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  const Opened opened = e.open(joined(tokens(1, 6), {90}));
  const Tokens before = e.table(opened.sequence);
  const GroupUsage usage = e.usage();
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(opened.sequence, Tokens{90}));
  EXPECT_NE(e.table(opened.sequence), before);
  must(e.manager.drop(t));
  EXPECT_EQ(e.table(opened.sequence), before);
  EXPECT_EQ(e.info(opened.sequence).length, 6);
  EXPECT_EQ(e.usage().free, usage.free);
  EXPECT_EQ(e.usage().held, usage.held);
}

TEST(Prefix, OpenHoldsWhatItFound) {
  Engine e({full_group(4, 4)});
  e.cache(tokens(1, 8));
  const Opened opened = e.open(tokens(1, 9));
  EXPECT_EQ(opened.cached_tokens, 8);
  // Under pressure the pool gives what it has, but not the hit.
  const Opened other = e.open(tokens(50, 16));
  const Ticket t = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(other.sequence, tokens(50, 16)).code(), ErrorCode::kNoBlocks);
  EXPECT_TRUE(e.manager.append(other.sequence, tokens(50, 8)).ok());
  must(e.manager.finish(t));
  EXPECT_EQ(e.evict(4), 0);
  EXPECT_EQ(e.info(opened.sequence).length, 8);
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Prefix, TailsAreEvictedBeforeHeads) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 12));
  for (const int left : {8, 4, 0}) {
    EXPECT_EQ(e.evict(1), 1);
    EXPECT_EQ(e.probe(tokens(1, 13)), left);
  }
}

TEST(Prefix, ColdestIsEvictedFirst) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 4));
  e.cache(tokens(50, 4));
  e.cache(tokens(1, 4));  // used again
  EXPECT_EQ(e.evict(1), 1);
  EXPECT_EQ(e.probe(tokens(50, 5)), 0);
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
}

TEST(Prefix, OpenedButUnusedKeepsItsRank) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 4));
  e.cache(tokens(50, 4));
  const Opened unused = e.open(tokens(1, 5));
  EXPECT_EQ(unused.cached_tokens, 4);
  must(e.manager.close(unused.sequence));
  EXPECT_EQ(e.evict(1), 1);
  EXPECT_EQ(e.probe(tokens(1, 5)), 0);
  EXPECT_EQ(e.probe(tokens(50, 5)), 4);
}

TEST(Prefix, VictimSearchSkipsWhatIsOpenedAndUnused) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 4));
  e.cache(tokens(50, 4));
  const Opened unused = e.open(tokens(1, 5));
  EXPECT_EQ(e.evict(2), 1);
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
  EXPECT_EQ(e.probe(tokens(50, 5)), 0);
  must(e.manager.close(unused.sequence));
}

TEST(Prefix, CachedBlockAboveAHeldOneIsNotEvictable) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  // Its own copy of the first block is a duplicate; the second block is its own.
  const Opened opened = e.open(tokens(1, 9));
  EXPECT_EQ(opened.cached_tokens, 8);
  EXPECT_EQ(e.usage().evictable, 0);
  must(e.manager.close(opened.sequence));
  EXPECT_EQ(e.usage().evictable, 2);
}

TEST(Prefix, PinnedPrefixSurvivesPressure) {
  Engine e({full_group(4, 6), window_group(2, 12, 6)});
  e.cache(tokens(1, 12));
  const Pinned pinned = must(e.manager.pin(tokens(1, 12)));
  EXPECT_GE(pinned.pinned_tokens, 11);
  for (int i = 0; i < 5; ++i) e.cache(tokens(100 * (i + 1), 12));
  EXPECT_GE(e.probe(tokens(1, 13)), pinned.pinned_tokens);
  must(e.manager.unpin(pinned.pin));
  EXPECT_EQ(e.manager.unpin(pinned.pin).code(), ErrorCode::kNotFound);
  e.evict(6, 0);
  EXPECT_EQ(e.probe(tokens(1, 13)), 0);
}

TEST(Prefix, PinOfAnUnknownPromptHoldsNothing) {
  Engine e({full_group(4, 6)});
  const Pinned pinned = must(e.manager.pin(tokens(1, 12)));
  EXPECT_EQ(pinned.pinned_tokens, 0);
  EXPECT_EQ(e.usage().free, 6);
  must(e.manager.unpin(pinned.pin));
}

TEST(Prefix, EqualTextInOtherFieldsOfTheRootKeyIsAnotherPrompt) {
  Engine e({full_group(4, 64)});
  const RootKey keys[] = {
      {},
      {.model = "ab"},
      {.adapter = "ab"},
      {.adapter = "a", .adapter_version = "b"},
      {.adapter_version = "ab"},
      {.tenant_salt = "ab"},
      {.model = "a", .adapter = "b"},
      {.model = "a", .tenant_salt = "b"},
      {.adapter = "a", .tenant_salt = "b"},
      {.epoch = 1},
      {.adapter = "ab", .epoch = 1},
      {.adapter = std::string_view("ab\0", 3)},
  };
  for (const RootKey& key : keys) {
    EXPECT_EQ(e.probe(tokens(1, 9), {.root = key}), 0);
    e.cache(tokens(1, 8), {.root = key});
    EXPECT_EQ(e.probe(tokens(1, 9), {.root = key}), 8);
  }
}

TEST(Prefix, EqualTokensBeforeOtherMediaMiss) {
  Engine e({full_group(4, 64)});
  const std::vector<MediaSpan> cat = {media(2, 6, 1)};
  const std::vector<MediaSpan> dog = {media(2, 6, 2)};
  const std::vector<MediaSpan> shifted = {media(1, 6, 1)};
  const Tokens prompt(12, 7);  // placeholders all over
  e.cache(prompt, {.media = cat});
  EXPECT_EQ(e.probe(prompt, {.media = cat}), 11);
  EXPECT_EQ(e.probe(prompt, {.media = dog}), 2);
  EXPECT_EQ(e.probe(prompt), 2);
  EXPECT_EQ(e.probe(prompt, {.media = shifted}), 1);
}

TEST(Prefix, MediaThatBeginsWhereTheHitEndsDoesNotMatter) {
  Engine e({full_group(4, 64)});
  e.cache(tokens(1, 8));
  const std::vector<MediaSpan> later = {media(8, 12, 1)};
  EXPECT_EQ(e.probe(tokens(1, 12), {.media = later}), 8);
}

TEST(Prefix, LastTokenOfASpanIsPartOfIt) {
  Engine e({full_group(1, 64)});
  const std::vector<MediaSpan> cat = {media(0, 3, 1)};
  const std::vector<MediaSpan> dog = {media(2, 3, 2)};
  e.cache(Tokens(6, 7), {.media = cat});
  e.cache(Tokens(6, 7));
  EXPECT_EQ(e.probe(Tokens(6, 7), {.media = dog}), 2);
}

TEST(Prefix, HitNeverEndsInsideASpanThatAttendsToItself) {
  Engine e({full_group(4, 64)});
  const std::vector<MediaSpan> spans = {media(3, 7, 1, true)};
  Tokens prompt = tokens(1, 12);
  e.cache(prompt, {.media = spans});
  for (std::size_t n = 1; n <= prompt.size(); ++n) {
    const Tokens part(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(n));
    const std::int32_t hit = e.probe(part, {.media = spans});
    EXPECT_TRUE(hit <= 3 || hit >= 7) << n << " tokens: " << hit;
    EXPECT_EQ(hit, n <= 4 ? static_cast<std::int32_t>(n) - 1
                          : (n <= 7 ? 3 : static_cast<std::int32_t>(n) - 1));
  }
}

// A step computes such a span with as much of it as it has.
TEST(Prefix, ASpanThatAttendsToItselfIsFoundOnlyIfOneStepComputedAllOfIt) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 64)}, {.order = order});
    const std::vector<MediaSpan> spans = {media(2, 8, 1, true)};
    const auto close_after = [&](const SequenceId s, const Tokens& rest) {
      e.feed(s, rest);
      must(e.manager.close(s));
    };
    // One prompt ends inside and is closed; another goes on, in a second step.
    e.cache(tokens(1, 5), {.media = spans});
    const SequenceId chunked = e.say(tokens(1, 5), {.media = spans});
    close_after(chunked, tokens(6, 7));
    EXPECT_EQ(e.probe(tokens(1, 13), {.media = spans}), 2);
    // All at once, but cut back to the inside of it, by hand or at the end of a draft.
    const SequenceId cut = e.say(tokens(1, 8), {.media = spans});
    EXPECT_EQ(e.probe(tokens(1, 13), {.media = spans}), 8);
    must(e.manager.truncate(cut, 6));
    close_after(cut, {90, 91, 92});
    EXPECT_EQ(e.probe({1, 2, 3, 4, 5, 6, 90, 91, 92, 93}, {.media = spans}), 2);
    EXPECT_EQ(e.probe(tokens(1, 13), {.media = spans}), 8);

    const std::vector<MediaSpan> others = {media(2, 8, 2, true)};
    const SequenceId drafted = e.open(tokens(1, 8), {.media = others}).sequence;
    e.feed(drafted, tokens(3, 6), 4);
    must(e.manager.accept(drafted, 1));
    close_after(drafted, tokens(6, 7));
    EXPECT_EQ(e.probe(tokens(1, 13), {.media = others}), 2);
    // What goes before the span makes all of it new.
    const SequenceId again = e.say(tokens(1, 5), {.media = others});
    must(e.manager.truncate(again, 2));
    close_after(again, tokens(3, 10));
    EXPECT_EQ(e.probe(tokens(1, 13), {.media = others}), 12);
    must(e.manager.check_invariants());
  }
}

TEST(Prefix, APromptThatEndsInsideASpanThatAttendsToItselfKeepsNoTokenOfAWholeOne) {
  Engine e({full_group(4, 64)});
  const std::vector<MediaSpan> spans = {media(3, 8, 1, true)};
  e.cache(tokens(1, 8), {.media = spans});
  const Opened opened = e.open(tokens(1, 4), {.media = spans});
  EXPECT_EQ(opened.cached_tokens, 3);
  EXPECT_THAT(e.feed(opened.sequence, {4}).slots, testing::Not(ElementsAre(-1)));
}

TEST(Prefix, EqualTokensAreKeptOnce) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.open(tokens(1, 8)).sequence;
  const SequenceId b = e.open(tokens(1, 8)).sequence;  // nothing is cached yet
  e.feed(a, tokens(1, 8));
  e.feed(b, tokens(1, 8));
  EXPECT_EQ(e.usage().held, 4);
  must(e.manager.close(a));
  must(e.manager.close(b));
  EXPECT_EQ(e.usage().cached, 2);
  EXPECT_EQ(e.usage().free, 14);
}

TEST(Prefix, LaterExactCopyFillsAnEvictedEntry) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.open(tokens(1, 8)).sequence;
  const SequenceId b = e.open(tokens(1, 8)).sequence;
  e.feed(a, tokens(1, 8));
  e.feed(b, tokens(1, 8));
  must(e.manager.close(a));
  EXPECT_EQ(e.evict(2), 2);
  must(e.manager.close(b));
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Prefix, NothingIsFindableWithoutThePrefixCache) {
  Engine off({full_group(4, 16)}, {.prefix_cache = false});
  off.cache(tokens(1, 8));
  EXPECT_EQ(off.probe(tokens(1, 9)), 0);
  EXPECT_EQ(off.usage().free, 16);

  Engine on({full_group(4, 16)});
  on.cache(tokens(1, 8), {.prefix_cache = false});
  EXPECT_EQ(on.probe(tokens(1, 9)), 0);
  EXPECT_EQ(on.usage().free, 16);
  on.cache(tokens(1, 8));
  EXPECT_EQ(on.probe(tokens(1, 9), {.prefix_cache = false}), 0);
}

TEST(Prefix, HitNeedsWhatEveryGroupReads) {
  Engine e({full_group(4, 16), window_group(2, 16, 6)});
  e.cache(tokens(1, 16));
  EXPECT_EQ(e.probe(tokens(1, 17)), 16);
  EXPECT_GT(e.evict(16, 1), 0);
  EXPECT_GT(e.usage(0).cached, 0);  // is no use without the window's blocks
  EXPECT_EQ(e.probe(tokens(1, 17)), 0);
}

// In a block with sinks every token below the hit has to be there: the sequence may be cut back
// into it, and would offer it as an exact copy of the whole when it closes.
TEST(Prefix, ATailThatHoldsTheSinksServesNoLongerHit) {
  Engine e({full_group(4, 16), window_group(4, 16, 4, 1)});
  const SequenceId first = e.say(tokens(1, 12));
  must(e.manager.trim(first, {.num_sinks = 0, .window = 4}));  // lets blocks 0 and 1 go
  EXPECT_EQ(e.evict(2, 1), 2);
  EXPECT_EQ(e.probe(tokens(1, 13)), 0);
  e.cache(tokens(1, 2));  // a copy of the sinks that ends behind token 1
  EXPECT_EQ(e.probe(tokens(1, 13)), 2);
  const SequenceId hit = e.open(tokens(1, 13)).sequence;
  EXPECT_EQ(e.manager.check_invariants().message(), "ok");
  must(e.manager.close(hit));
  EXPECT_EQ(e.manager.check_invariants().message(), "ok");
}

TEST(Prefix, UnnamedTokensAreNeverFindable) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 4));
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append_unnamed(s, 4));
  must(e.manager.commit(t));
  EXPECT_EQ(e.probe(tokens(1, 9)), 4);
  must(e.manager.set_tokens(s, tokens(5, 4)));
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);  // the later of commit and set_tokens
  must(e.manager.complete(t));

  const Ticket t2 = must(e.manager.begin_step());
  must(e.manager.append_unnamed(s, 4));
  must(e.manager.finish(t2));
  EXPECT_FALSE(e.manager.set_tokens(s, tokens(9, 4)).ok());  // too late
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 13)), 8);
}

TEST(Prefix, TokensAfterATrimAreNeverFindable) {
  Engine e({full_group(4, 32)});
  const SequenceId s = e.say(tokens(1, 16));
  EXPECT_EQ(must(e.manager.trim(s, {.num_sinks = 4, .window = 4})), 8);
  e.feed(s, tokens(17, 8));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 25)), 16);
}

TEST(Prefix, DraftsAreFindableWhenAccepted) {
  Engine e({full_group(4, 32)});
  const SequenceId s = e.say(tokens(1, 4));
  e.feed(s, tokens(5, 4), 4);
  EXPECT_EQ(e.probe(tokens(1, 9)), 4);
  must(e.manager.accept(s, 4));
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Prefix, TinyIndexPublishesWhatFitsAndCountsTheRest) {
  Engine e({full_group(4, 64)}, {.max_index_tokens = 16});
  const SequenceId s = e.say(tokens(1, 40));
  EXPECT_LE(e.probe(tokens(1, 41)), 16);
  EXPECT_GT(e.counters().publications_skipped, 0u);
  must(e.manager.close(s));
  // Cold entries make room for new ones.
  for (int i = 0; i < 10; ++i) e.cache(tokens(1000 * (i + 1), 8));
  EXPECT_EQ(e.probe(tokens(10000, 9)), 8);
  must(e.manager.check_invariants());
}

// docs/decisions/0005-a-pin-holds-whole-blocks.md
TEST(Prefix, APinHoldsWholeBlocksAndALongerTailTakesNothingFromIt) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 6));  // the tail [5 6]
  const Pinned pinned = must(e.manager.pin(tokens(1, 6)));
  EXPECT_EQ(pinned.pinned_tokens, 4);
  EXPECT_EQ(e.usage().held, 1);
  // The same tokens are computed again, in other blocks, and one token more.
  const SequenceId s = e.open(tokens(1, 4)).sequence;
  must(e.manager.truncate(s, 0));
  e.feed(s, tokens(1, 8));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  e.evict(16);
  EXPECT_EQ(e.probe(joined(tokens(1, 6), {99})), 4);
  must(e.manager.check_invariants());
  must(e.manager.unpin(pinned.pin));
  e.evict(16);
  EXPECT_EQ(e.probe(tokens(1, 7)), 0);
}

TEST(Prefix, APinEndsWhereBlocksOfAllGroupsDo) {
  Engine e({full_group(4, 32), full_group(8, 32), full_group(12, 32)});
  e.cache(tokens(1, 50));
  for (const auto& [asked, pinned] : {std::pair{23, 0}, {24, 24}, {40, 24}, {49, 48}, {99, 48}}) {
    const Pinned pin = must(e.manager.pin(tokens(1, asked)));
    EXPECT_EQ(pin.pinned_tokens, pinned) << asked;
    must(e.manager.unpin(pin.pin));
  }
}

// What the window has passed is evicted: 24 tokens are found, and their last two units' end is not
// all there.
TEST(Prefix, APinGoesBackToAnEndThatTheWindowServes) {
  Engine e({full_group(4, 32), window_group(4, 32, 8)});
  const SequenceId s = e.say(tokens(1, 10));
  const Pinned early = must(e.manager.pin(tokens(1, 10)));
  EXPECT_EQ(early.pinned_tokens, 8);
  e.feed(s, tokens(11, 14));
  must(e.manager.close(s));
  e.evict(32, 1);
  const Pinned late = must(e.manager.pin(tokens(1, 24)));
  EXPECT_EQ(late.pinned_tokens, 8);  // of which the first pin holds what a hit reads
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  must(e.manager.check_invariants());
}

}  // namespace
}  // namespace kvfolio::testing_engine
