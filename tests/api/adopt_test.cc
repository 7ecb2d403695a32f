// SPDX-License-Identifier: Apache-2.0
// adopt() where its arguments are odd: found by the random model check.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::HasSubstr;

Status adopt(Engine& e, SequenceId sequence, const Tokens& blocks, std::int32_t num_tokens) {
  const std::span<const std::int32_t> tables[] = {blocks};
  return e.manager.adopt(sequence, tables, num_tokens);
}

TEST(Adopt, OfNothingIsNothing) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  must(adopt(e, s, {}, 0));
  e.feed(s, tokens(1, 8));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 8)), 7);
  // A prompt that was found whole keeps the block that it was found in.
  e.cache({1});
  const SequenceId found = e.open({1}).sequence;
  must(e.manager.admit(found, 20));  // and the room that it was promised, in its own table
  const GroupUsage before = e.usage();
  must(adopt(e, found, {}, 0));
  EXPECT_EQ(e.usage().held, before.held);
  must(e.manager.check_invariants());
}

TEST(Adopt, RefusesABlockThatStandsTwice) {
  Engine e({full_group(4, 8)});
  const SequenceId first = e.say(tokens(1, 8));
  const SequenceId second = e.open({}).sequence;
  const Tokens blocks = e.table(first);
  const Status twice = adopt(e, second, {blocks[0], blocks[1], blocks[0]}, 12);
  EXPECT_EQ(twice.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(twice.message(), HasSubstr("a block stands twice in the table of 3"));
  EXPECT_EQ(e.refs(blocks[0]), 1);
  EXPECT_EQ(e.refs(blocks[1]), 1);
  EXPECT_EQ(e.info(second).length, 0);
  must(adopt(e, second, {blocks[1], blocks[0]}, 8));
  EXPECT_EQ(e.refs(blocks[0]), 2);
  must(e.manager.check_invariants());
}

TEST(Adopt, OnlyMinusOneIsNoBlock) {
  Engine e({window_group(2, 16, 3)});
  const SequenceId first = e.say(tokens(1, 10));
  const SequenceId second = e.open({}).sequence;
  Tokens blocks = e.table(first);
  EXPECT_EQ(blocks[0], -1);
  blocks[0] = -7;
  EXPECT_THAT(adopt(e, second, blocks, 10).message(), HasSubstr("block -7"));
  blocks[0] = -1;
  must(adopt(e, second, blocks, 10));
}

// A block that ends a prompt may stand elsewhere in the table of who adopted it.
TEST(Adopt, AFindableBlockAtAnotherPlaceIsNotOverwritten) {
  Engine e({full_group(4, 8)});
  const SequenceId whole = e.say(tokens(100, 4));
  const SequenceId tail = e.say(tokens(1, 3));
  const SequenceId second = e.open({}).sequence;
  const Tokens blocks = {e.table(whole)[0], e.table(tail)[0]};
  must(adopt(e, second, blocks, 5));
  must(e.manager.close(tail));
  EXPECT_TRUE(e.findable(blocks[1]));
  EXPECT_EQ(e.refs(blocks[1]), 1);
  const Planned planned = e.feed(second, {50});
  EXPECT_EQ(planned.copy_src, Tokens{blocks[1]});
  EXPECT_EQ(e.probe(tokens(1, 4)), 3);
  must(e.manager.check_invariants());
}

// Two groups whose free blocks have other ids, and a sequence that holds one block of each.
struct TwoGroups {
  Engine e{{full_group(1, 16), full_group(1, 16)}};
  SequenceId found;

  TwoGroups() {
    const SequenceId first = e.open({}, {.prefix_cache = false}).sequence;
    e.feed(first, tokens(1, 4));
    const SequenceId some = e.open({}).sequence;
    const Tokens of_group_0 = {0, 1};
    const Tokens of_group_1 = {2, 3};
    const std::span<const std::int32_t> tables[] = {of_group_0, of_group_1};
    must(e.manager.adopt(some, tables, 2));
    must(e.manager.close(first));
    e.say({50});
    e.say(tokens(100, 6));  // so that every block is held
    found = e.open({50}).sequence;
  }
  std::span<const std::int32_t> shown(SequenceId sequence, std::int32_t group) const {
    return must(e.manager.block_table(sequence, GroupId(group)));
  }
};

TEST(Adopt, ASequencesOwnTablesMayChangePlaces) {
  TwoGroups t;
  const Tokens own_0 = t.e.table(t.found, 0);
  const Tokens own_1 = t.e.table(t.found, 1);
  ASSERT_NE(own_0, own_1);
  const std::span<const std::int32_t> swapped[] = {t.shown(t.found, 1), t.shown(t.found, 0)};
  must(t.e.manager.adopt(t.found, swapped, 1));
  EXPECT_EQ(t.e.table(t.found, 0), own_1);
  EXPECT_EQ(t.e.table(t.found, 1), own_0);
  must(t.e.manager.check_invariants());
  must(t.e.manager.close(t.found));
  must(t.e.manager.check_invariants());
}

// A table that was shown before clear() is stale; that of another group would be overwritten.
TEST(Adopt, RefusesATableThatLiesWhereAnotherIsWritten) {
  Engine e({full_group(1, 16), full_group(1, 16)});
  const SequenceId parent = e.say(tokens(1, 4));
  const SequenceId child = must(e.manager.fork(parent));
  const std::span<const std::int32_t> stale[] = {must(e.manager.block_table(child, GroupId(1))),
                                                 must(e.manager.block_table(child, GroupId(0)))};
  must(e.manager.clear(child));
  const Status refused = e.manager.adopt(child, stale, 4);
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("copy it"));
  EXPECT_EQ(e.info(child).length, 0);
  must(e.manager.check_invariants());
}

TEST(Adopt, TakesTablesAsTheManagerShowsThem) {
  TwoGroups t;
  const Tokens own_0 = t.e.table(t.found, 0);
  const Tokens own_1 = t.e.table(t.found, 1);
  const std::span<const std::int32_t> own[] = {t.shown(t.found, 0), t.shown(t.found, 1)};
  must(t.e.manager.adopt(t.found, own, 1));
  EXPECT_EQ(t.e.table(t.found, 0), own_0);
  EXPECT_EQ(t.e.table(t.found, 1), own_1);
  must(t.e.manager.check_invariants());
  const SequenceId other = t.e.open({}).sequence;
  const std::span<const std::int32_t> theirs[] = {t.shown(t.found, 0), t.shown(t.found, 1)};
  must(t.e.manager.adopt(other, theirs, 1));
  EXPECT_EQ(t.e.table(other, 1), own_1);
  EXPECT_EQ(t.e.refs(own_1[0], 1), 3);
  must(t.e.manager.check_invariants());
}

// The table of one group grows and moves; the other group is given where it was.
TEST(Adopt, ReadsEachTableBeforeItMovesAnother) {
  Engine e({full_group(1, 64), full_group(16, 8)});
  e.say(tokens(50, 16));
  const SequenceId longer = e.say(tokens(500, 16));
  const SequenceId found = e.open({50}).sequence;
  const std::span<const std::int32_t> tables[] = {must(e.manager.block_table(longer, GroupId(0))),
                                                  must(e.manager.block_table(found, GroupId(0)))};
  must(e.manager.adopt(found, tables, 16));
  EXPECT_EQ(e.table(found, 1), Tokens{0});
  must(e.manager.check_invariants());
}

}  // namespace
}  // namespace kvfolio::testing_engine
