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

}  // namespace
}  // namespace kvfolio::testing_engine
