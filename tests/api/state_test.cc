// SPDX-License-Identifier: Apache-2.0
// state_hash: equal where the same calls get the same answers, and only there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::HasSubstr;

const std::vector<GroupSpec>& small_groups() {
  static const std::vector<GroupSpec> kGroups = {full_group(4, 24), window_group(2, 30, 6)};
  return kGroups;
}
std::uint64_t hash_of(const Engine& engine) { return must(engine.manager.state_hash()); }

// Two sequences, one of them a fork, a cached prompt, a pin and a step in flight.
void begin_life(Engine& engine) {
  engine.cache(tokens(50, 9));
  const SequenceId parent = engine.say(tokens(1, 6));
  must(engine.manager.fork(parent));
  must(engine.manager.pin(tokens(50, 9)));
  engine.launch(parent, tokens(7, 3));
}

// Each of these, in place of nothing, makes some later answer another one.
const std::map<std::string, std::function<void(Engine&)>>& deeds() {
  static const std::map<std::string, std::function<void(Engine&)>> kDeeds = {
      {"nothing", [](Engine&) {}},
      {"a prompt", [](Engine& e) { e.cache(tokens(300, 9)); }},
      {"another prompt", [](Engine& e) { e.cache(tokens(301, 9)); }},
      {"a tenant's prompt",
       [](Engine& e) { e.cache(tokens(300, 9), {.root = {.tenant_salt = "a"}}); }},
      {"another tenant's",
       [](Engine& e) { e.cache(tokens(300, 9), {.root = {.tenant_salt = "b"}}); }},
      {"an image",
       [](Engine& e) {
         const std::vector<MediaSpan> media = {
             {.begin = 1, .end = 3, .content_id = {std::byte{1}}}};
         e.cache(tokens(300, 9), {.media = media});
       }},
      {"two images",
       [](Engine& e) {
         const std::vector<MediaSpan> media = {
             {.begin = 1, .end = 3, .content_id = {std::byte{1}}},
             {.begin = 4, .end = 5, .content_id = {std::byte{1}}}};
         e.cache(tokens(300, 9), {.media = media});
       }},
      {"an open sequence", [](Engine& e) { e.say(tokens(300, 9)); }},
      {"one that publishes full blocks",
       [](Engine& e) { e.say(tokens(300, 9), {.publish = Publish::kFullBlocks}); }},
      {"one that publishes nothing",
       [](Engine& e) { e.say(tokens(300, 9), {.publish = Publish::kNothing}); }},
      {"one with a name", [](Engine& e) { e.say(tokens(300, 9), {.caller_id = 7}); }},
      {"one with a priority", [](Engine& e) { e.say(tokens(300, 9), {.priority = 7}); }},
      {"one with a limit", [](Engine& e) { e.say(tokens(300, 9), {.max_tokens = 90}); }},
      {"a draft", [](Engine& e) { e.feed(e.say(tokens(300, 8)), tokens(308, 1), 1); }},
      {"a trim",
       [](Engine& e) {
         must(e.manager.trim(e.say(tokens(300, 9)), {.num_sinks = 2, .window = 4}));
       }},
      {"unnamed tokens", [](Engine& e) { e.launch_count(e.say(tokens(300, 8)), 1); }},
      {"a promise", [](Engine& e) { must(e.manager.reserve(e.say(tokens(300, 9)), 3)); }},
      {"a longer promise", [](Engine& e) { must(e.manager.reserve(e.say(tokens(300, 9)), 4)); }},
      {"a pin",
       [](Engine& e) {
         e.cache(tokens(300, 9));
         must(e.manager.pin(tokens(300, 9)));
       }},
      {"an open step", [](Engine& e) { must(e.manager.begin_step()); }},
      {"an append in it",
       [](Engine& e) {
         must(e.manager.begin_step());
         must(e.manager.append(must(e.manager.open({})).sequence, tokens(300, 1)));
       }},
      {"an eviction",
       [](Engine& e) {
         e.cache(tokens(300, 9));
         e.evict(1);
       }},
      {"the oldest prompt was used last",
       [](Engine& e) {
         e.cache(tokens(300, 9));
         e.cache(tokens(400, 9));
         e.cache(tokens(300, 9));
       }},
      {"the youngest prompt was used last",
       [](Engine& e) {
         e.cache(tokens(300, 9));
         e.cache(tokens(400, 9));
         e.cache(tokens(400, 9));
       }},
      {"the first of two decodes",
       [](Engine& e) {
         const SequenceId first = e.say(tokens(300, 8));
         e.say(tokens(400, 8));
         e.feed(first, tokens(308, 1));
       }},
      {"the second of two decodes",
       [](Engine& e) {
         e.say(tokens(300, 8));
         e.feed(e.say(tokens(400, 8)), tokens(308, 1));
       }},
  };
  return kDeeds;
}

TEST(StateHash, WhatMakesALaterAnswerAnotherOneChangesIt) {
  std::map<std::uint64_t, std::string> seen;
  for (const auto& [name, deed] : deeds()) {
    Engine engine(small_groups(), {.max_steps_in_flight = 4});
    begin_life(engine);
    deed(engine);
    const auto [other, fresh] = seen.emplace(hash_of(engine), name);
    EXPECT_TRUE(fresh) << name << " looks like " << other->second;
  }
  for (const ManagerOptions& options :
       {ManagerOptions{.max_steps_in_flight = 4, .list_findable = true},
        ManagerOptions{.max_sequences = 1023, .max_steps_in_flight = 4},
        ManagerOptions{.max_steps_in_flight = 4, .order = Order::kUnordered}}) {
    Engine engine(small_groups(), options);
    begin_life(engine);
    EXPECT_TRUE(seen.emplace(hash_of(engine), "options").second);
  }
}

TEST(StateHash, TheSameCallsGiveTheSameOne) {
  for (const auto& [name, deed] : deeds()) {
    Engine one(small_groups(), {.max_steps_in_flight = 4});
    Engine other(small_groups(), {.max_steps_in_flight = 4, .id_tag = 9});
    for (Engine* engine : {&one, &other}) {
      begin_life(*engine);
      deed(*engine);
    }
    EXPECT_EQ(hash_of(one), hash_of(other)) << name;
  }
}

// Other blocks, rows, ids and tickets, and other counts, stand for the same.
TEST(StateHash, NamesAndHistoryDoNotCount) {
  Engine plain(small_groups());
  Engine used(small_groups());
  const SequenceId first = used.say(tokens(900, 5), {.publish = Publish::kNothing});
  const SequenceId second = used.say(tokens(800, 11), {.publish = Publish::kNothing});
  const PinId pin = must(used.manager.pin(tokens(1, 4))).pin;
  must(used.manager.close(first));
  must(used.manager.close(second));
  must(used.manager.unpin(pin));
  EXPECT_EQ(hash_of(used), hash_of(plain));
  begin_life(plain);
  begin_life(used);
  EXPECT_NE(used.counters().blocks_allocated, plain.counters().blocks_allocated);
  EXPECT_EQ(hash_of(used), hash_of(plain));
}

// A promise of 9 tokens of which 3 are spent and decided, and one of 6 that begins behind them.
TEST(StateHash, WhereAPromiseBeganCountsFromWhatIsAcceptedOn) {
  const ReserveOptions most{.most_per_step = 6};
  const auto engine_at = [&](bool early, std::int32_t guesses) {
    Engine e({full_group(16, 16)}, {.max_steps_in_flight = 3});
    const SequenceId s = e.say(tokens(1, 4));
    if (early) must(e.manager.reserve(s, 9, most));
    e.feed(s, tokens(5, 3));
    if (!early) must(e.manager.reserve(s, 6, most));
    e.feed(s, tokens(8, 2), guesses);
    return e;
  };
  EXPECT_EQ(hash_of(engine_at(true, 0)), hash_of(engine_at(false, 0)));
  EXPECT_EQ(hash_of(engine_at(true, 2)), hash_of(engine_at(false, 2)));
  EXPECT_NE(hash_of(engine_at(true, 2)), hash_of(engine_at(true, 1)));
}

// Behind guesses that the promise was spent on, or that came before it: rejected, they come back or
// do not. So they count while the sequence is in the open step, too.
TEST(StateHash, WhatRejectedDraftsBringBackCountsInTheOpenStep) {
  const auto engine_at = [](bool promised, bool open) {
    Engine e({full_group(16, 16)}, {.max_steps_in_flight = 3});
    const SequenceId s = e.say(tokens(1, 4));
    const ReserveOptions most{.most_per_step = 5};
    if (promised) must(e.manager.reserve(s, 5, most));
    e.feed(s, tokens(5, 2), 2);
    if (!promised) must(e.manager.reserve(s, 3, most));
    if (open) must(e.manager.begin_step());
    if (open) must(e.manager.append(s, tokens(7, 1)));
    EXPECT_EQ(e.info(s).reserved_tokens, open ? 2 : 3);
    return e;
  };
  EXPECT_NE(hash_of(engine_at(true, false)), hash_of(engine_at(false, false)));
  EXPECT_NE(hash_of(engine_at(true, true)), hash_of(engine_at(false, true)));
}

TEST(StateHash, QuestionsAndRefusedCallsLeaveItAsItIs) {
  Engine engine(small_groups());
  begin_life(engine);
  const std::uint64_t before = hash_of(engine);
  EXPECT_EQ(engine.probe(tokens(50, 9)), 8);
  EXPECT_TRUE(engine.manager.select_victim().has_value());
  EXPECT_FALSE(engine.manager.open(tokens(-1, 2)));
  EXPECT_FALSE(engine.manager.close(SequenceId(77)).ok());
  EXPECT_FALSE(engine.manager.evict(GroupId(2), 1));
  EXPECT_FALSE(engine.manager.plan());
  EXPECT_EQ(hash_of(engine), before);
  EXPECT_EQ(must(engine.manager.begin_step()).value(), 4U);
  const std::uint64_t open = hash_of(engine);
  EXPECT_FALSE(engine.manager.plan({.pad = 3}));
  EXPECT_EQ(hash_of(engine), open);
  // A plan decides what commit() takes, once; another says the same.
  EXPECT_TRUE(engine.manager.plan());
  const std::uint64_t planned = hash_of(engine);
  EXPECT_NE(planned, open);
  EXPECT_TRUE(engine.manager.plan());
  EXPECT_EQ(hash_of(engine), planned);
  must(engine.manager.drop(Ticket(4)));
  EXPECT_EQ(hash_of(engine), before);
}

TEST(StateHash, ACopyHasThatOfTheOriginal) {
  Engine engine(small_groups());
  begin_life(engine);
  Engine copy(small_groups());
  copy.cache(tokens(700, 20));
  EXPECT_NE(hash_of(copy), hash_of(engine));
  must(engine.manager.copy_to(copy.manager));
  EXPECT_EQ(hash_of(copy), hash_of(engine));
}

TEST(StateHash, ALoadOrAHoldThatIsOpenIsRefusedWithTheirNumbers) {
  Engine engine(small_groups());
  begin_life(engine);
  const std::uint64_t before = hash_of(engine);
  const Opened opened = engine.open({}, {.publish = Publish::kNothing});
  const Load load = must(engine.manager.begin_load(opened.sequence, tokens(600, 8), 8));
  const Result<std::uint64_t> refused = engine.manager.state_hash();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(), HasSubstr("state_hash: 1 load and 0 holds"));
  must(engine.manager.finish_load(load.id, 0));
  must(engine.manager.preempt(opened.sequence));
  EXPECT_EQ(hash_of(engine), before);
  const std::vector<std::int32_t> block = {0};
  const HoldId hold = must(engine.manager.hold_blocks(GroupId(0), block));
  EXPECT_THAT(engine.manager.state_hash().error().message(), HasSubstr("0 loads and 1 hold of"));
  must(engine.manager.release_hold(hold));
  EXPECT_EQ(hash_of(engine), before);
}

}  // namespace
}  // namespace kvfolio::testing_engine
