// SPDX-License-Identifier: Apache-2.0
// Room for table entries and unpublished tokens: what admit() promises, and what no other call may
// take. docs/decisions/0009-admit-reserves.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"
#include "kvfolio/storage.h"

namespace kvfolio::testing_engine {
namespace {

using testing::HasSubstr;

constexpr auto kExhausted = ErrorCode::kResourceExhausted;

TEST(Admit, KeepsRoomForAPromptThatComesInChunks) {
  Engine e({full_group(4, 4096)}, {.max_sequences = 64, .max_table_entries = 4096});
  const Tokens prompt = tokens(1, 1500);
  const SequenceId s = e.open({}).sequence;
  must(e.manager.admit(s, 1500));
  e.feed(s, Tokens(prompt.begin(), prompt.begin() + 4));
  int others = 0;
  for (; others < 60; ++others) {
    if (!e.manager.admit(e.open({}).sequence, 128).ok()) break;
  }
  EXPECT_LT(others, 60);
  must(e.manager.check_invariants());
  for (int at = 4; at < 1500; at += 88) {
    e.feed(s, Tokens(prompt.begin() + at, prompt.begin() + at + 88));
  }
  EXPECT_EQ(e.info(s).published_length, 1500);
  must(e.manager.check_invariants());
}

TEST(Admit, RoomGoesWithTheSequence) {
  Engine e({full_group(4, 4096)}, {.max_sequences = 4, .max_table_entries = 4096});
  for (int i = 0; i < 20; ++i) {
    const SequenceId s = e.open({}).sequence;
    must(e.manager.admit(s, 1500));
    must(e.manager.close(s));
  }
}

TEST(Admit, OfSeveralKeepsNoRoomWhenOneFindsNone) {
  Engine e({full_group(1, 64)}, {.max_sequences = 4, .max_table_entries = 48});
  const SequenceId a = e.open({}, {.prefix_cache = false}).sequence;
  const SequenceId b = e.open({}, {.prefix_cache = false}).sequence;
  const AppendDemand both[] = {{a, 32}, {b, 32}};
  EXPECT_EQ(e.manager.admit(both).code(), kExhausted);
  must(e.manager.check_invariants());
  must(e.manager.admit(b, 32));
}

TEST(Admit, AFailingAppendTakesNoRoomFromOthers) {
  Engine e({full_group(1, 64)}, {.max_sequences = 4, .max_table_entries = 48});
  const SequenceId a = e.open({}, {.prefix_cache = false}).sequence;
  const SequenceId b = e.open({}, {.prefix_cache = false}).sequence;
  const Ticket t = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(a, tokens(1, 64)).code(), kExhausted);
  must(e.manager.append(b, tokens(1, 32)));
  must(e.manager.finish(t));
  must(e.manager.check_invariants());
}

TEST(Admit, AFailingAdoptTakesNoRoomFromOthers) {
  Engine e({full_group(1, 64), full_group(1, 64)}, {.max_sequences = 4, .max_table_entries = 112});
  const SequenceId a = e.open({}, {.prefix_cache = false}).sequence;
  e.feed(a, tokens(1, 32));
  const SequenceId b = e.open({}, {.prefix_cache = false}).sequence;
  const Tokens first = e.table(a, 0);
  const Tokens second = e.table(a, 1);
  const std::span<const std::int32_t> tables[] = {first, second};
  // One table fits, two do not.
  EXPECT_EQ(e.manager.adopt(b, tables, 32).code(), kExhausted);
  must(e.manager.check_invariants());
  e.feed(e.open({}, {.prefix_cache = false}).sequence, tokens(1, 16));
}

TEST(Admit, RefusesWhatAppendRefuses) {
  const auto same = [](Engine& e, SequenceId s, const char* why) {
    const Status admitted = e.manager.admit(s, 1);
    const Status appended = e.manager.append(s, tokens(1, 1));
    EXPECT_EQ(admitted.code(), kMoment);
    EXPECT_EQ(appended.code(), kMoment);
    EXPECT_THAT(admitted.message(), HasSubstr(why));
    EXPECT_THAT(appended.message(), HasSubstr(why));
  };
  Engine drafting({full_group(4, 16)}, {.max_steps_in_flight = 1});
  const SequenceId guesses = drafting.open({}).sequence;
  drafting.feed(guesses, tokens(1, 3), /*draft=*/1);
  must(drafting.manager.begin_step());
  same(drafting, guesses, "has 1 draft tokens");

  Engine unordered({full_group(4, 16)}, {.order = Order::kUnordered});
  const SequenceId waits = unordered.open({}).sequence;
  unordered.launch(waits, tokens(1, 3));
  must(unordered.manager.begin_step());
  same(unordered, waits, "in step 1, which is not complete");

  KVCacheManager stored =
      must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{full_group(4, 16)}}))));
  const SequenceId late = must(stored.open({})).sequence;
  must(stored.begin_step());
  must(stored.run_copies());
  EXPECT_THAT(stored.admit(late, 1).message(), HasSubstr("run_copies() of step 1 has run"));
  EXPECT_THAT(stored.append(late, tokens(1, 1)).message(), HasSubstr("run_copies() of step 1"));
}

// A hit that ends where a unit does needs no words for tokens; a truncate into it does.
TEST(Admit, ATruncateIntoAHitFindsRoomForTheTokensThatComeBack) {
  Engine e({full_group(16, 64)}, {.max_sequences = 8, .max_table_entries = 64});
  e.cache(tokens(1, 32));
  Tokens prompt = tokens(1, 40);
  prompt[32] = 999;
  const Opened opened = e.open(prompt);
  ASSERT_EQ(opened.cached_tokens, 32);
  for (int i = 0; i < 7; ++i) {
    const Result<Opened> other = e.manager.open({}, {.prefix_cache = false});
    if (!other || !e.manager.admit(other->sequence, 1).ok()) break;
  }
  must(e.manager.truncate(opened.sequence, 20));
  EXPECT_EQ(e.info(opened.sequence).published_length, 16);
  must(e.manager.check_invariants());
}

TEST(Admit, ARefusalSaysHowMuchRoomIsWanted) {
  Engine e({full_group(4, 4096)}, {.max_sequences = 4, .max_table_entries = 64});
  const SequenceId s = e.open({}).sequence;
  const Status refused = e.manager.admit(s, 1000);
  EXPECT_EQ(
      refused.message(),
      "admit: no room for 1250 table entries and unpublished tokens: 64 of 64 words are free, "
      "given out in powers of two; raise max_table_entries");
}

// A block of one full group whose tokens another has let go of can be evicted, and goes along.
TEST(Admit, CountsEveryCachedBlockOfEachGroup) {
  Engine e({full_group(4, 4), full_group(2, 7)});
  const SequenceId trimmed = e.say(tokens(1, 6));
  must(e.manager.trim(trimmed, {.num_sinks = 0, .window = 2}));
  const SequenceId last = e.say(tokens(50, 2));
  const SequenceId first = e.open({}).sequence;
  EXPECT_EQ(e.usage(1).cached, 2);
  EXPECT_EQ(e.usage(1).evictable, 2);
  const AppendDemand both[] = {{first, 7}, {last, 1}};
  must(e.manager.admit(both));
  const AppendDemand too_much[] = {{first, 9}, {last, 1}};
  const Status refused = e.manager.admit(too_much);
  ASSERT_NE(refused.shortage(), nullptr);
  EXPECT_EQ(refused.shortage()->group, 0);
  must(e.manager.begin_step());
  must(e.manager.append(first, tokens(80, 7)));
  must(e.manager.append(last, tokens(52, 1)));
  must(e.manager.check_invariants());
}

}  // namespace
}  // namespace kvfolio::testing_engine
