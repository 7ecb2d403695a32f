// SPDX-License-Identifier: Apache-2.0
// What ManagerOptions and OpenOptions promise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <string>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

TEST(Options, WhatWasDerivedStandsInPlaceOfZero) {
  const Engine full({full_group(4, 16), window_group(2, 100, 6)});
  EXPECT_EQ(full.manager.options().max_sequence_tokens, 64);  // those of the largest full group
  EXPECT_GE(full.manager.options().max_index_tokens, 64);
  EXPECT_GE(full.manager.options().max_runs, 16);
  EXPECT_GE(full.manager.options().max_table_entries, 16 + 100);
  const Engine windows({window_group(2, 100, 6)}, {.max_sequences = 4});
  EXPECT_EQ(windows.manager.options().max_sequence_tokens, 32768);
  // No more than one may ask for: what options() says makes another manager of the same kind.
  Engine large({full_group(1024, (1 << 20) + 1)},
               {.max_sequences = 1, .prefix_cache = false, .max_table_entries = 1 << 16});
  EXPECT_EQ(large.manager.options().max_sequence_tokens, 1 << 30);
  Engine same({full_group(1024, (1 << 20) + 1)}, large.manager.options());
  const Engine given({full_group(4, 16)}, {.max_index_tokens = 99, .max_runs = 7});
  EXPECT_EQ(given.manager.options().max_index_tokens, 99);
  EXPECT_EQ(given.manager.options().max_runs, 7);
  EXPECT_EQ(given.manager.options().max_root_keys, 6);  // a run each, and one for tokens
}

TEST(Options, TheExpectedLengthOfASequenceIsNoLimit) {
  Engine e({window_group(2, 16, 4)}, {.max_sequences = 4, .max_sequence_tokens = 8});
  const SequenceId s = e.open({}).sequence;
  for (int i = 0; i < 200; ++i) e.feed(s, {i});
  EXPECT_EQ(e.info(s).length, 200);
}

// Whatever the prompts are like, a pool of findable blocks fits into the derived capacities.
TEST(Options, DerivedCapacitiesHoldAPoolWhoseEveryBlockIsFindable) {
  for (const std::int32_t block_size : {1, 4, 16}) {
    for (const int prompt_blocks : {1, 3, 64}) {
      for (const int cut : {0, 1}) {  // tokens that the last block lacks
        const int length = prompt_blocks * block_size - (block_size > 1 ? cut : 0);
        Engine e({full_group(block_size, 64), window_group(block_size, 64, 1 << 20)});
        for (int i = 0; i < 64 / prompt_blocks; ++i) e.cache(tokens(1000 * i, length));
        EXPECT_EQ(e.counters().publications_skipped, 0u);
        EXPECT_EQ(e.counters().blocks_evicted, 0u);
        for (int i = 0; i < 64 / prompt_blocks; ++i) {
          ASSERT_EQ(e.probe(joined(tokens(1000 * i, length), {7})), length)
              << block_size << " tokens a block, " << prompt_blocks << " blocks, prompt " << i;
        }
      }
    }
  }
}

TEST(Options, ASequenceOfARootKeyTooManyNeitherFindsNorPublishes) {
  Engine e({full_group(4, 16)}, {.max_root_keys = 1});
  const OpenOptions b{.root = {.model = "b"}};
  const SequenceId s = e.say(tokens(1, 8), {.root = {.model = "a"}});
  e.cache(tokens(1, 8), b);
  EXPECT_EQ(e.counters().publications_skipped, 1u);
  EXPECT_EQ(e.probe(tokens(1, 9), b), 0);
  EXPECT_EQ(e.probe(tokens(1, 9), {.root = {.model = "a"}}), 8);
  EXPECT_EQ(e.counters().blocks_evicted, 0u);  // nothing goes for a root key
  // Nothing of the first key is left: its place is free.
  must(e.manager.close(s));
  EXPECT_EQ(e.evict(16), 2);
  e.cache(tokens(1, 8), b);
  EXPECT_EQ(e.probe(tokens(1, 9), b), 8);
}

TEST(Options, APublicationEvictsAtMostSixtyFourTimes) {
  Engine e({full_group(4, 1024)}, {.max_index_tokens = 2048});
  for (int i = 0; i < 256; ++i) e.cache(tokens(100 * i, 8));  // the tree is full of them
  EXPECT_EQ(e.counters().blocks_evicted, 0u);
  EXPECT_EQ(e.counters().publications_skipped, 0u);
  // Half of the tree, so 128 of them would have to go.
  e.cache(tokens(100'000, 1024));
  EXPECT_EQ(e.counters().blocks_evicted, 64u);
  EXPECT_EQ(e.counters().publications_skipped, 1u);
  // A quarter of what is left of them.
  e.cache(tokens(200'000, 128));
  EXPECT_EQ(e.counters().publications_skipped, 1u);
  EXPECT_EQ(e.probe(tokens(200'000, 129)), 128);
}

// It may change which of several neighbours serves a hit inside a block, and so ids and what is
// evicted; while nothing is evicted it never changes how much is found.
TEST(Options, TheHashSeedDoesNotChangeWhatIsFoundWhileNothingIsEvicted) {
  const auto found = [](std::uint64_t seed) {
    std::mt19937 random(5);
    Engine e({full_group(4, 2048)}, {.hash_seed = seed});
    Tokens cached;
    for (int i = 0; i < 300; ++i) {
      Tokens prompt;
      for (auto n = 1 + random() % 20; n > 0; --n) {
        prompt.push_back(static_cast<std::int32_t>(random() % 3));
      }
      cached.push_back(e.open(prompt, {.caller_id = random()}).cached_tokens);
      e.cache(prompt);
    }
    EXPECT_EQ(e.counters().blocks_evicted, 0u);
    EXPECT_EQ(e.counters().publications_skipped, 0u);
    return cached;
  };
  const Tokens first = found(0);
  EXPECT_EQ(found(1), first);
  EXPECT_EQ(found(~std::uint64_t{0}), first);
}

TEST(Options, ACallerIdIsAnySixtyFourBits) {
  Engine e({full_group(4, 16)});
  for (const std::uint64_t id : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    EXPECT_FALSE(e.manager.find(id).has_value());
    const SequenceId s = e.open({}, {.caller_id = id}).sequence;
    EXPECT_EQ(must(e.manager.find(id)), s);
  }
  EXPECT_EQ(e.manager.num_sequences(), 3);
}

TEST(Options, MediaMayLieBeyondThePromptAndAreReadDuringTheCallOnly) {
  const auto with = [](int content) {
    MediaSpan span{.begin = 4, .end = 6};
    span.content_id.fill(static_cast<std::byte>(content));
    return std::vector<MediaSpan>{span};
  };
  Engine e({full_group(4, 16)});
  std::vector<MediaSpan> given = with(1);
  const SequenceId s = e.open(tokens(10, 4), {.media = given}).sequence;
  given = with(9);
  e.feed(s, tokens(10, 4));
  e.feed(s, {7, 7, 14});
  must(e.manager.close(s));
  const Tokens prompt = joined(tokens(10, 4), {7, 7, 14, 15});
  const std::vector<MediaSpan> same = with(1);
  const std::vector<MediaSpan> other = with(9);
  EXPECT_EQ(e.probe(prompt, {.media = same}), 7);
  EXPECT_EQ(e.probe(prompt, {.media = other}), 4);
}

TEST(Options, RootKeysAreReadDuringTheCallOnly) {
  Engine e({full_group(4, 16)});
  std::string model = "abcd";
  const SequenceId s = e.open(tokens(1, 8), {.root = {.model = model}}).sequence;
  model.assign("wxyz");
  e.feed(s, tokens(1, 8));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 9), {.root = {.model = "abcd"}}), 8);
  EXPECT_EQ(e.probe(tokens(1, 9), {.root = {.model = "wxyz"}}), 0);
}

// Every table has an entry for each block of the prompt.
TEST(Options, DerivedCapacitiesHoldTheTablesOfAllSequencesWithOnePrompt) {
  Engine e({full_group(16, 4096)});
  Tokens prompt = tokens(1, 16384);
  const SequenceId first = e.say(prompt);
  const int each = e.manager.options().max_sequences / 2;
  for (int i = 0; i < each; ++i) {
    prompt.push_back(1000000 + i);
    e.say(prompt);  // a block of its own
    prompt.pop_back();
  }
  for (int i = 0; i < each - 1; ++i) must(e.manager.fork(first));
  EXPECT_EQ(e.manager.num_sequences(), e.manager.options().max_sequences);
}

TEST(Options, WhatIsOutOfRangeIsNamedWhateverElseIsGiven) {
  const auto refusal = [](const ManagerOptions& options) {
    return KVCacheManager::create(CacheSpec{{full_group(4, 16)}}, options).error().message();
  };
  EXPECT_EQ(refusal({.max_runs = 1}), "option max_runs is 1, allowed: 0, and 2 to 536870912");
  EXPECT_EQ(refusal({.max_runs = -1}), "option max_runs is -1, allowed: 0, and 2 to 536870912");
  EXPECT_THAT(refusal({.prefix_cache = false, .max_root_keys = -5}),
              testing::HasSubstr("max_root_keys is -5"));
  EXPECT_THAT(refusal({.prefix_cache = false, .max_media_extents = -7}),
              testing::HasSubstr("max_media_extents is -7"));
  EXPECT_THAT(refusal({.max_root_key_bytes = -1}),
              testing::HasSubstr("option max_root_key_bytes is -1"));
}

}  // namespace
}  // namespace kvfolio::testing_engine
