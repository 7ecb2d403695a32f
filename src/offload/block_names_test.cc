// SPDX-License-Identifier: Apache-2.0
#include "offload/block_names.h"

#include <gtest/gtest.h>

#include <vector>

#include "offload/offload_test_cache.h"

namespace kvfolio {
namespace {

using test::prompt_of;

struct Named {
  KVCacheManager manager;
  Identity identity;

  Named(const CacheSpec& spec, bool list_findable)
      : manager(
            *KVCacheManager::create(spec, {.max_sequences = 4, .list_findable = list_findable})),
        identity(*Identity::create(test::toy_of(spec), manager.spec())) {}

  void compute(std::span<const std::int32_t> tokens, const OpenOptions& options = {}) {
    const SequenceId id = manager.open(tokens, options)->sequence;
    const Ticket ticket = *manager.begin_step();
    ASSERT_TRUE(manager.append(id, tokens).ok());
    ASSERT_TRUE(manager.plan());
    ASSERT_TRUE(manager.finish(ticket).ok());
    ASSERT_TRUE(manager.close(id).ok());
  }
  [[nodiscard]] BlockNames names() const {
    return {manager, identity, [this](const RootKey& root) { return identity.root(root, 0); }};
  }
  [[nodiscard]] std::vector<BlockId> findable(GroupId group) const {
    std::vector<BlockId> found;
    const std::int32_t count = manager.spec().groups[std::size_t(group.value())].num_blocks;
    for (std::int32_t b = 0; b < count; ++b) {
      if (*manager.is_findable(group, BlockId(b))) found.emplace_back(b);
    }
    return found;
  }
};

// Also where the group of the smallest blocks has dropped all but the last of them.
TEST(BlockNames, ABlockIsNamedFromTheOneBefore) {
  constexpr std::int32_t kTokens = 16'000;
  for (const bool list_findable : {false, true}) {
    for (const CacheSpec& spec : {test::full(2010), test::mixed(2010, 2010)}) {
      Named cache(spec, list_findable);
      cache.compute(prompt_of(1, kTokens));
      BlockNames names = cache.names();
      const std::vector<BlockId> blocks = cache.findable(GroupId(0));
      ASSERT_EQ(blocks.size(), std::size_t(kTokens / spec.groups[0].block_size));
      for (const BlockId block : blocks) ASSERT_TRUE(names.name(GroupId(0), block));
      EXPECT_LE(names.num_steps(), 4 * kTokens / 8);
      EXPECT_TRUE(names.check().ok()) << names.check();
    }
  }
}

TEST(BlockNames, AWayThatIsGoneInPiecesLeadsToTheSameName) {
  for (const CacheSpec& spec : {test::full(400), test::mixed(400, 400), test::window(400)}) {
    Named cache(spec, true);
    cache.compute(prompt_of(1, 2400));
    cache.compute(prompt_of(2, 800));
    for (std::int32_t g = 0; g < std::ssize(cache.manager.spec().groups); ++g) {
      const std::vector<BlockId> blocks = cache.findable(GroupId(g));
      ASSERT_FALSE(blocks.empty());
      for (const std::int64_t most : {1, 7, 100}) {
        BlockNames whole = cache.names();
        BlockNames pieces = cache.names();
        const BlockId last = blocks.back();
        const auto expected = whole.name(GroupId(g), last);
        ASSERT_TRUE(expected);
        std::int64_t before = 0;
        for (int calls = 0;; ++calls) {
          ASSERT_LT(calls, 1000);
          const auto name = pieces.name_within(most, GroupId(g), last);
          ASSERT_TRUE(name);
          EXPECT_LE(pieces.num_steps() - before, most);
          before = pieces.num_steps();
          if (!*name) continue;
          EXPECT_EQ((*name)->tokens, expected->tokens);
          EXPECT_EQ((*name)->end, expected->end);
          EXPECT_EQ((*name)->root, expected->root);
          break;
        }
      }
    }
  }
}

// 131,072 spans of one token and 8,192 blocks to name were a billion looks in one poll.
TEST(BlockNames, LooksAtTheMediaOfAPathAreSteps) {
  constexpr std::int32_t kTokens = 800;
  std::vector<MediaSpan> media;
  media.reserve(kTokens);
  for (std::int32_t i = 0; i < kTokens; ++i) {
    media.push_back({.begin = i, .end = i + 1, .content_id = {std::byte{1}}});
  }
  Named plain(test::full(400), true), cache(test::full(400), true);
  plain.compute(prompt_of(1, kTokens));
  cache.compute(prompt_of(1, kTokens), {.media = media});
  BlockNames without = plain.names(), names = cache.names();
  for (const BlockId block : plain.findable(GroupId(0))) {
    ASSERT_TRUE(without.name(GroupId(0), block));
  }
  std::int64_t spans = 0;
  for (const BlockId block : cache.findable(GroupId(0))) {
    const std::int64_t before = names.num_steps();
    const auto name = names.name(GroupId(0), block);
    ASSERT_TRUE(name);
    EXPECT_GT(names.num_steps() - before, name->end / BlockNames::kSpansOfStep);
    spans += name->end;
  }
  EXPECT_EQ(spans, kTokens / 8 * (kTokens + 8) / 2);
  EXPECT_LE(names.num_steps(), without.num_steps() + spans / BlockNames::kSpansOfStep);
}

TEST(BlockNames, AnotherBlockInBetweenOrAForgettingBeginsTheWayAnew) {
  Named cache(test::full(400), true);
  cache.compute(prompt_of(1, 1600));
  const std::vector<BlockId> blocks = cache.findable(GroupId(0));
  BlockNames plain = cache.names();
  const auto last = plain.name(GroupId(0), blocks.back());
  const auto first = plain.name(GroupId(0), blocks.front());
  BlockNames names = cache.names();
  EXPECT_FALSE(*names.name_within(100, GroupId(0), blocks.back()));
  EXPECT_EQ(names.name(GroupId(0), blocks.front())->tokens, first->tokens);
  EXPECT_FALSE(*names.name_within(150, GroupId(0), blocks.back()));
  names.clear();
  EXPECT_FALSE(*names.name_within(250, GroupId(0), blocks.back()));
  EXPECT_EQ(names.name(GroupId(0), blocks.back())->tokens, last->tokens);
}

}  // namespace
}  // namespace kvfolio
