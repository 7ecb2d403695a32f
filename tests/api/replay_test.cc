// SPDX-License-Identifier: Apache-2.0
// A prompt that was found whole holds its last token's block until that is appended or given up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Replay, ClearAfterAPromptOfOneTokenLetsItsBlockGo) {
  Engine e({full_group(4, 8)});
  e.cache({7});
  const Opened opened = e.open({7});
  EXPECT_EQ(opened.cached_tokens, 0);
  ASSERT_EQ(e.table(opened.sequence).size(), 1u);
  must(e.manager.clear(opened.sequence));
  EXPECT_THAT(e.table(opened.sequence), IsEmpty());
  EXPECT_EQ(e.usage().held, 0);
  EXPECT_EQ(e.usage().cached, 1);
  must(e.manager.check_invariants());
  EXPECT_THAT(e.feed(opened.sequence, {7}).slots, ElementsAre(testing::Ge(0)));
  must(e.manager.check_invariants());
}

TEST(Replay, TruncateToTheLengthLetsTheReplayedTokensBlockGo) {
  Engine e({full_group(4, 8), window_group(2, 8, 6)});
  e.cache(tokens(1, 5));
  const Opened opened = e.open(tokens(1, 5));
  EXPECT_EQ(opened.cached_tokens, 4);
  ASSERT_EQ(e.table(opened.sequence).size(), 2u);
  ASSERT_EQ(e.table(opened.sequence, 1).size(), 3u);
  must(e.manager.truncate(opened.sequence, 4));
  EXPECT_EQ(e.info(opened.sequence).length, 4);
  EXPECT_EQ(e.table(opened.sequence).size(), 1u);
  EXPECT_EQ(e.table(opened.sequence, 1).size(), 2u);
  EXPECT_EQ(e.usage().held, 1);
  must(e.manager.check_invariants());
  // The token is computed now like any other, into a block of the sequence's own.
  EXPECT_THAT(e.feed(opened.sequence, {5}).slots, ElementsAre(testing::Ge(0)));
  must(e.manager.check_invariants());
}

TEST(Replay, TruncateToTheLengthInsideTheBlockKeepsIt) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 7));
  const Opened opened = e.open(tokens(1, 7));
  EXPECT_EQ(opened.cached_tokens, 6);
  const Tokens before = e.table(opened.sequence);
  must(e.manager.truncate(opened.sequence, 6));
  EXPECT_EQ(e.table(opened.sequence), before);
  const Planned planned = e.feed(opened.sequence, {7});
  EXPECT_THAT(planned.slots, ElementsAre(testing::Ge(0)));
  EXPECT_EQ(planned.copy_src.size(), 1u);  // findable with the token: not overwritten
  must(e.manager.check_invariants());
}

}  // namespace
}  // namespace kvfolio::testing_engine
