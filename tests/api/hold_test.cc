// SPDX-License-Identifier: Apache-2.0
//
// Holds, and what an owner learns of what became findable: enough to copy blocks elsewhere and to
// know them again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"
#include "kvfolio/manager.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Hold, KeepsABlockThatEverybodyElseHasLetGo) {
  Engine e({full_group(4, 4)});
  const SequenceId s = e.say(tokens(1, 8));
  const Tokens blocks = e.table(s);
  const HoldId hold = must(e.manager.hold_blocks(GroupId(0), blocks));
  EXPECT_EQ(e.usage().on_hold, 2);
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().held, 2);
  EXPECT_EQ(e.evict(4), 0);
  // All others are taken; these are not among them.
  const SequenceId other = e.say(tokens(50, 8));
  const std::int32_t token = 7;
  const Ticket t = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(other, {&token, 1}).code(), ErrorCode::kNoBlocks);
  must(e.manager.drop(t));
  must(e.manager.check_invariants());
  must(e.manager.release_hold(hold));
  EXPECT_EQ(e.usage().cached, 2);
  EXPECT_EQ(e.usage().on_hold, 0);
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  must(e.manager.check_invariants());
  EXPECT_EQ(e.manager.release_hold(hold).code(), ErrorCode::kNotFound);
}

TEST(Hold, OutlivesResetForgetAndFail) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open(tokens(1, 8)).sequence;
  const Ticket t = e.launch(s, tokens(1, 8));
  const Tokens blocks = e.table(s);
  const HoldId hold = must(e.manager.hold_blocks(GroupId(0), blocks));
  e.manager.reset();
  EXPECT_EQ(must(e.manager.fail(t)).size(), 1u);
  EXPECT_EQ(e.usage().held, 2);
  EXPECT_FALSE(e.findable(blocks[0]));
  must(e.manager.check_invariants());
  must(e.manager.release_hold(hold));
  EXPECT_EQ(e.usage().free, 8);
  must(e.manager.check_invariants());
}

TEST(Hold, ChangesNothingInTheOrderOfEviction) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 4));
  const std::int32_t old = 0;
  e.cache(tokens(50, 4));
  const HoldId hold = must(e.manager.hold_blocks(GroupId(0), {&old, 1}));
  must(e.manager.release_hold(hold));
  std::int32_t victim = -1;
  EXPECT_EQ(must(e.manager.evict(GroupId(0), 1, {&victim, 1})), 1);
  EXPECT_EQ(victim, old);
}

TEST(Hold, OfABlockThatASequenceWritesDisturbsNobody) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 6));
  const std::int32_t tail = e.table(s)[1];
  const HoldId hold = must(e.manager.hold_blocks(GroupId(0), {&tail, 1}));
  EXPECT_THAT(e.feed(s, {7}).copy_src, IsEmpty());  // behind what the hold reads
  must(e.manager.truncate(s, 5));
  EXPECT_THAT(e.feed(s, {60}).copy_src, ElementsAre(tail));  // not over it
  must(e.manager.release_hold(hold));
  must(e.manager.check_invariants());
}

TEST(Hold, RefusesFreeBlocksAndThoseThatDoNotExist) {
  Engine e({full_group(4, 8)});
  for (const std::int32_t block : {-1, 0, 7, 8}) {
    EXPECT_EQ(e.manager.hold_blocks(GroupId(0), {&block, 1}).error().code(),
              ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(e.manager.hold_blocks(GroupId(1), {}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.manager.release_hold(HoldId()).code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.manager.release_hold(HoldId(77)).code(), ErrorCode::kNotFound);
  must(e.manager.check_invariants());
}

TEST(Hold, RefusesWhatNobodyHasWrittenYet) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open(tokens(1, 5)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 5), 4));
  std::vector<LoadBlock> blocks(1);
  ASSERT_EQ(must(e.manager.blocks_to_load(load.id, GroupId(0), blocks)), 1);
  const std::int32_t block = blocks[0].block.value();
  EXPECT_THAT(e.manager.hold_blocks(GroupId(0), {&block, 1}).error().message(),
              HasSubstr("has no token yet"));
  must(e.manager.finish_load(load.id, 4));
  EXPECT_TRUE(e.manager.hold_blocks(GroupId(0), {&block, 1}).has_value());
}

TEST(Hold, RefusesWhatTheOpenStepWrites) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 3)));
  const std::int32_t block = e.table(s)[0];
  EXPECT_THAT(e.manager.hold_blocks(GroupId(0), {&block, 1}).error().message(),
              HasSubstr("is written by step 1, which is open"));
  must(e.manager.commit(t));
  const HoldId hold = must(e.manager.hold_blocks(GroupId(0), {&block, 1}));
  must(e.manager.complete(t));
  must(e.manager.close(s));
  must(e.manager.release_hold(hold));
  must(e.manager.check_invariants());
}

TEST(Hold, TheSameBlockMayBeInSeveral) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 4));
  const std::int32_t twice[] = {0, 0};
  const HoldId a = must(e.manager.hold_blocks(GroupId(0), twice));
  const HoldId b = must(e.manager.hold_blocks(GroupId(0), {twice, 1}));
  EXPECT_EQ(e.usage().on_hold, 3);
  EXPECT_EQ(e.usage().held, 1);
  must(e.manager.release_hold(a));
  must(e.manager.check_invariants());
  EXPECT_EQ(e.usage().held, 1);
  must(e.manager.release_hold(b));
  EXPECT_EQ(e.usage().cached, 1);
}

TEST(Hold, OfAPromisesBlocksNeedsRoomForOthers) {
  Engine e({window_group(2, 6, 4)});
  const SequenceId s = e.open({}).sequence;
  must(e.manager.reserve(s, 40, {.most_per_step = 1}));
  e.feed(s, {1});
  std::int32_t block = e.table(s)[0];
  int held = 0;
  std::vector<HoldId> holds;
  for (int i = 0; i < 8; ++i) {
    const Result<HoldId> hold = e.manager.hold_blocks(GroupId(0), {&block, 1});
    if (!hold.has_value()) {
      EXPECT_EQ(hold.error().code(), ErrorCode::kNoBlocks);
      break;
    }
    holds.push_back(*hold);
    ++held;
    for (int n = 0; n < 2; ++n) e.feed(s, {1});
    const Tokens live = e.live(s);
    block = e.table(s)[static_cast<std::size_t>(live.back())];
  }
  EXPECT_GT(held, 0);
  EXPECT_LT(held, 8);
  for (int n = 0; n < 8; ++n) e.feed(s, {1});  // the promise is kept
  for (const HoldId hold : holds) must(e.manager.release_hold(hold));
  must(e.manager.check_invariants());
}

// ---- what became findable ----

std::vector<FindableBlock> taken(Engine& e) {
  std::vector<FindableBlock> all(64);
  all.resize(static_cast<std::size_t>(e.manager.take_findable(all)));
  return all;
}

TEST(Findable, BlocksAreListedOnceTheirStepIsComplete) {
  Engine e({full_group(4, 8)}, {.list_findable = true});
  const SequenceId s = e.open(tokens(1, 9)).sequence;
  const Ticket t = e.launch(s, tokens(1, 9));
  EXPECT_TRUE(e.findable(e.table(s)[0]));
  EXPECT_THAT(taken(e), IsEmpty());  // the device may still write
  must(e.manager.complete(t));
  const auto blocks = taken(e);
  ASSERT_EQ(blocks.size(), 2u);
  for (const FindableBlock& each : blocks) {
    EXPECT_TRUE(e.findable(each.block.value()));
    EXPECT_EQ(each.end % 4, 0);
    EXPECT_EQ(must(e.manager.entry_serial(each.group, each.block)), each.serial);
    EXPECT_NE(each.serial, 0u);
  }
  EXPECT_THAT(taken(e), IsEmpty());
  must(e.manager.close(s));  // the tail
  ASSERT_EQ(taken(e).size(), 1u);
  must(e.manager.check_invariants());
}

TEST(Findable, OnlyAsManyAsFitAreTaken) {
  Engine e({full_group(4, 8)}, {.list_findable = true});
  e.cache(tokens(1, 20));
  std::vector<FindableBlock> two(2);
  EXPECT_EQ(e.manager.take_findable(two), 2);
  EXPECT_EQ(taken(e).size(), 3u);
}

TEST(Findable, WhatIsGoneAgainIsNotHandedOut) {
  Engine e({full_group(4, 8)}, {.list_findable = true});
  e.cache(tokens(1, 8));
  e.evict(1);
  ASSERT_EQ(taken(e).size(), 1u);
  e.cache(tokens(50, 8));
  e.manager.reset();
  EXPECT_THAT(taken(e), IsEmpty());
  must(e.manager.check_invariants());
}

TEST(Findable, ABlockThatGetsAnotherEntryGetsAnotherSerial) {
  Engine e({full_group(4, 1)}, {.list_findable = true});
  e.cache(tokens(1, 4));
  const auto first = taken(e);
  e.cache(tokens(50, 4));  // in the same block
  const auto second = taken(e);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(first[0].block, second[0].block);
  EXPECT_LT(first[0].serial, second[0].serial);
  e.manager.reset();
  EXPECT_EQ(must(e.manager.entry_serial(GroupId(0), BlockId(0))), 0u);
}

TEST(Findable, NothingIsListedUnlessAsked) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  EXPECT_THAT(taken(e), IsEmpty());
  EXPECT_EQ(must(e.manager.entry_serial(GroupId(0), BlockId(0))), 0u);
}

TEST(Findable, LoadedBlocksAreListedToo) {
  Engine e({full_group(4, 8)}, {.list_findable = true});
  const SequenceId s = e.open(tokens(1, 9)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 9), 8));
  EXPECT_THAT(taken(e), IsEmpty());
  must(e.manager.finish_load(load.id, 8));
  EXPECT_EQ(taken(e).size(), 2u);
}

TEST(Findable, TheListIsCopiedWithTheManager) {
  Engine e({full_group(4, 8)}, {.list_findable = true});
  Engine copy({full_group(4, 8)}, {.list_findable = true});
  Engine other({full_group(4, 8)});
  e.cache(tokens(1, 8));
  must(e.manager.copy_to(copy.manager));
  EXPECT_EQ(taken(copy).size(), 2u);
  EXPECT_EQ(taken(e).size(), 2u);
  EXPECT_THAT(e.manager.copy_to(other.manager).message(), HasSubstr("list_findable is 1"));
  must(copy.manager.check_invariants());
}

TEST(Findable, ThePathOfABlockIsTold) {
  Engine e({full_group(4, 8), window_group(2, 16, 4)});
  std::vector<MediaSpan> media(2);
  media[0] = {.begin = 1, .end = 6, .attends_to_itself = true};
  media[0].content_id.fill(std::byte{3});
  media[1] = {.begin = 9, .end = 20, .content_id = {std::byte{4}}};
  const RootKey root{
      .model = "m", .adapter = "a", .adapter_version = {}, .tenant_salt = "s", .epoch = 7};
  e.cache(tokens(1, 8), {.root = root, .media = media});
  const SequenceId s = e.say(joined(tokens(1, 8), tokens(50, 4)), {.root = root, .media = media});
  const SequenceId beside =
      e.say(joined(tokens(1, 8), tokens(70, 4)), {.root = root, .media = media});  // splits the run
  const BlockId block(e.table(s)[2]);
  Tokens path(12);
  std::vector<MediaSpan> spans(4);
  const BlockPrefix prefix = must(e.manager.prefix_of(GroupId(0), block, 0, path, spans));
  EXPECT_EQ(prefix.num_tokens, 12);
  EXPECT_EQ(path, joined(tokens(1, 8), tokens(50, 4)));
  EXPECT_EQ(prefix.root.model, "m");
  EXPECT_EQ(prefix.root.adapter, "a");
  EXPECT_EQ(prefix.root.adapter_version, "");
  EXPECT_EQ(prefix.root.tenant_salt, "s");
  EXPECT_EQ(prefix.root.epoch, 7u);
  ASSERT_EQ(prefix.num_media, 2);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(spans[i].begin, media[i].begin);
    EXPECT_EQ(spans[i].end, media[i].end);
    EXPECT_EQ(spans[i].content_id, media[i].content_id);
    EXPECT_EQ(spans[i].attends_to_itself, media[i].attends_to_itself);
  }
  // The block in front of it, of either group, and a piece of its tokens.
  EXPECT_EQ(must(e.manager.block_at(GroupId(0), block, GroupId(0), 8)).value(), e.table(s)[1]);
  EXPECT_EQ(must(e.manager.block_at(GroupId(0), block, GroupId(0), 12)), block);
  EXPECT_EQ(must(e.manager.block_at(GroupId(0), block, GroupId(1), 12)).value(), e.table(s, 1)[5]);
  Tokens piece(3);
  must(e.manager.prefix_of(GroupId(0), block, 7, piece));
  EXPECT_THAT(piece, ElementsAre(8, 50, 51));
  // What it is not asked for is an error.
  EXPECT_EQ(e.manager.prefix_of(GroupId(0), block, 10, piece).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.manager.prefix_of(GroupId(0), block, -1, {}).error().code(),
            ErrorCode::kInvalidArgument);
  for (const std::int32_t end : {0, 6, 16, -4}) {
    EXPECT_EQ(e.manager.block_at(GroupId(0), block, GroupId(0), end).error().code(),
              ErrorCode::kInvalidArgument);
  }
  e.manager.reset();
  EXPECT_EQ(e.manager.prefix_of(GroupId(0), block, 0, {}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.manager.block_at(GroupId(0), block, GroupId(0), 4).error().code(),
            ErrorCode::kNotFound);
  static_cast<void>(beside);
}

// ---- how far a load would come ----

// A tier that has these logical blocks, by group.
class Tier {
 public:
  Tier(std::initializer_list<Tokens> has, std::initializer_list<std::size_t> sizes) {
    auto size = sizes.begin();
    for (const Tokens& blocks : has) {
      std::vector<std::uint8_t>& of = bytes_.emplace_back(*size++);
      for (const std::int32_t b : blocks) of[static_cast<std::size_t>(b)] = 1;
    }
    for (auto& of : bytes_) spans_.emplace_back(of);
  }
  [[nodiscard]] std::span<const std::span<std::uint8_t>> spans() const { return spans_; }
  [[nodiscard]] Tokens to_load(std::size_t g) const {
    Tokens blocks;
    for (std::size_t i = 0; i < bytes_[g].size(); ++i) {
      if (bytes_[g][i] != 0) blocks.push_back(static_cast<std::int32_t>(i));
    }
    return blocks;
  }

 private:
  std::vector<std::vector<std::uint8_t>> bytes_;
  std::vector<std::span<std::uint8_t>> spans_;
};

TEST(Loadable, FullAndWindowGroupsAgreeOnWhatATierHas) {
  Engine e({full_group(4, 16), window_group(2, 16, 4)});
  const Tokens prompt = tokens(1, 21);
  const SequenceId s = e.open(prompt).sequence;
  // The window needs 15 to 17 at 18, 13 to 15 at 16, 9 to 11 at 12.
  Tier tier({{0, 1, 2, 3, 4}, {4, 5, 6, 7}}, {5, 10});
  const Loadable all = must(e.manager.loadable(s, prompt, 20, tier.spans()));
  EXPECT_EQ(all.begin, 0);
  EXPECT_EQ(all.end, 16);
  EXPECT_THAT(tier.to_load(0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(tier.to_load(1), ElementsAre(6, 7));
  EXPECT_EQ(all.blocks, 6);
  const Load load = must(e.manager.begin_load(s, prompt, all.end));
  std::vector<LoadBlock> blocks(16);
  EXPECT_EQ(must(e.manager.blocks_to_load(load.id, GroupId(1), blocks)), 2);
  EXPECT_EQ(blocks[0].logical, 6);
  EXPECT_EQ(must(e.manager.finish_load(load.id, 16)), 16);
}

TEST(Loadable, WhatTheCacheHasIsNotLoaded) {
  Engine e({full_group(4, 16), window_group(2, 16, 4)});
  const Tokens prompt = tokens(1, 21);
  const SequenceId s = e.open(prompt).sequence;
  e.cache(tokens(1, 20));
  e.evict(16, 1);
  e.cache(tokens(1, 8));  // both groups again, to 8
  Tier tier({{}, {8, 9}}, {5, 10});
  const Loadable rest = must(e.manager.loadable(s, prompt, 20, tier.spans()));
  EXPECT_EQ(rest.begin, 8);
  EXPECT_EQ(rest.end, 20);
  EXPECT_THAT(tier.to_load(0), IsEmpty());
  EXPECT_THAT(tier.to_load(1), ElementsAre(8, 9));
  Tier without({{}, {8}}, {5, 10});
  EXPECT_EQ(must(e.manager.loadable(s, prompt, 20, without.spans())).end, 8);
  EXPECT_THAT(without.to_load(1), IsEmpty());
  const Load load = must(e.manager.begin_load(s, prompt, 20));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 12)), 12);
  must(e.manager.check_invariants());
}

TEST(Loadable, EndsAtABlockOfTheTierOrAtTheLimit) {
  Engine e({full_group(4, 16)});
  const Tokens prompt = tokens(1, 21);
  const SequenceId s = e.open(prompt).sequence;
  Tier gap({{0, 1, 3, 4}}, {5});
  EXPECT_EQ(must(e.manager.loadable(s, prompt, 20, gap.spans())).end, 8);
  Tier cut({{0, 1, 2, 3}}, {4});
  EXPECT_EQ(must(e.manager.loadable(s, prompt, 14, cut.spans())).end, 14);
  Tier none({{}}, {5});
  EXPECT_EQ(must(e.manager.loadable(s, prompt, 20, none.spans())).end, 0);
}

TEST(Loadable, NeverEndsInsideASpanThatAttendsToItself) {
  Engine e({full_group(4, 16)});
  const std::vector<MediaSpan> media = {
      {.begin = 6, .end = 10, .content_id = {std::byte{1}}, .attends_to_itself = true}};
  const SequenceId s = e.open(tokens(1, 21), {.media = media}).sequence;
  Tier tier({{0, 1}}, {5});
  EXPECT_EQ(must(e.manager.loadable(s, tokens(1, 21), 20, tier.spans())).end, 6);
}

TEST(Loadable, AnswersInSpiteOfAPromiseWhichBeginLoadRefuses) {
  Engine e({full_group(4, 16)});
  const Tokens prompt = tokens(1, 21);
  const SequenceId s = e.open(prompt).sequence;
  must(e.manager.reserve(s, 4, {}));
  Tier tier({{0, 1, 2, 3, 4}}, {5});
  const Loadable can = must(e.manager.loadable(s, prompt, 20, tier.spans()));
  EXPECT_EQ(can.end, 20);
  EXPECT_THAT(
      e.manager.begin_load(s, prompt, can.end).error().message(),
      HasSubstr("begin_load: 4 tokens are reserved for " + to_string(s) + "; reserve() 0 first"));
  must(e.manager.reserve(s, 0, {}));
  EXPECT_TRUE(e.manager.begin_load(s, prompt, can.end));
}

TEST(Loadable, SaysWhatIsWrong) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open(tokens(1, 21)).sequence;
  Tier tier({{}}, {5});
  EXPECT_THAT(e.manager.loadable(s, tokens(1, 21), 16, tier.spans()).error().message(),
              HasSubstr("5 entries for group 0, needed: one for each of the 4 blocks"));
  EXPECT_EQ(e.manager.loadable(s, tokens(1, 21), 20, {}).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.manager.loadable(s, tokens(1, 21), 22, tier.spans()).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.manager.loadable(SequenceId(), tokens(1, 21), 20, tier.spans()).error().code(),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace kvfolio::testing_engine
