// SPDX-License-Identifier: Apache-2.0
// Prompts that come in chunks: admission, what never fits, and the verbs around them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<GroupSpec>& full_and_window() {
  static const std::vector<GroupSpec> groups = {full_group(16, 80), window_group(16, 12, 32)};
  return groups;
}

TEST(Chunks, APromptThatOneAppendCannotTakeIsAdmittedByChunks) {
  Engine e(full_and_window());
  const Tokens prompt = tokens(1, 1000);
  const Result<Admission> whole = e.manager.admit(prompt, {}, 0);
  ASSERT_FALSE(whole.has_value());
  EXPECT_EQ(whole.error().shortage()->needed, 63);
  const Admission chunks = must(e.manager.admit(prompt, {}, 0, {.most_per_step = 64}));
  EXPECT_EQ(chunks.blocks[0], 63);
  EXPECT_EQ(chunks.blocks[1], 7);
  const SequenceId s = e.open(prompt).sequence;
  EXPECT_EQ(must(e.manager.admit(s, 1000, {.most_per_step = 64})).blocks[1], 7);
  must(e.manager.reserve(s, 1000, {.most_per_step = 64}));
  EXPECT_EQ(e.usage(1).reserved, 7);
  for (int chunk = 0; chunk < 16; ++chunk) {
    const Ticket ticket = must(e.manager.begin_step());
    EXPECT_EQ(must(e.manager.append_prompt(s, prompt, 64)), chunk < 15 ? 64 : 40);
    must(e.manager.finish(ticket));
  }
  EXPECT_EQ(e.info(s).length, 1000);
}

TEST(Chunks, MoreThanThereAreCountsAsAll) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  must(e.manager.reserve(s, 5, {.most_per_step = 64}));
  EXPECT_EQ(e.usage().reserved, 2);
  EXPECT_EQ(must(e.manager.admit(tokens(1, 5), {}, 0, {.most_per_step = 64})).blocks[0], 2);
  const Status negative = e.manager.reserve(s, 5, {.most_per_step = -1});
  EXPECT_EQ(negative.code(), kInvalid);
  EXPECT_THAT(negative.numbers(), ElementsAre(-1, 0));
  EXPECT_EQ(e.manager.admit(s, 5, {.most_per_step = -1}).error().code(), kInvalid);
  EXPECT_EQ(e.manager.admit(tokens(1, 5), {}, 0, {.most_per_step = -1}).error().code(), kInvalid);
}

TEST(Chunks, AskingKeepsNoTableEntries) {
  Engine e({full_group(4, 64)}, {.max_table_entries = 32});
  const SequenceId s = e.open({}).sequence;
  const std::uint64_t before = must(e.manager.state_hash());
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(e.manager.admit(s, 60, {}).has_value());
  EXPECT_EQ(must(e.manager.state_hash()), before);
  const Result<Admission> too_long = e.manager.admit(s, 250, {});
  ASSERT_FALSE(too_long.has_value());
  EXPECT_EQ(too_long.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(must(e.manager.state_hash()), before);
}

// ---- never and not now ----

TEST(Never, IsSaidOfWhatNoOneCanMakeRoomFor) {
  Engine e({full_group(4, 8)});
  const SequenceId other = e.say(tokens(500, 16));
  const Result<Admission> now = e.manager.admit(tokens(1, 20), {}, 0);
  ASSERT_FALSE(now.has_value());
  EXPECT_EQ(now.error().shortage()->num_blocks, 8);
  EXPECT_FALSE(now.error().shortage()->never());
  EXPECT_THAT(now.error().message(), testing::Not(HasSubstr("never")));
  const Result<Admission> never = e.manager.admit(tokens(1, 33), {}, 0);
  ASSERT_FALSE(never.has_value());
  EXPECT_TRUE(never.error().shortage()->never());
  EXPECT_THAT(never.error().message(), HasSubstr("; never: the group has 8 blocks"));
  must(e.manager.close(other));
  EXPECT_FALSE(e.manager.admit(tokens(1, 33), {}, 0).has_value());
}

TEST(Never, CountsWhatTheSequenceKeeps) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 20));
  const Ticket ticket = must(e.manager.begin_step());
  const Status status = e.manager.append(s, tokens(100, 13));
  ASSERT_NE(status.shortage(), nullptr);
  EXPECT_EQ(status.shortage()->kept, 5);
  EXPECT_TRUE(status.shortage()->never());
  EXPECT_THAT(status.message(), HasSubstr("never: the group has 8 blocks and 5 are kept"));
  must(e.manager.drop(ticket));
  const SequenceId other = e.say(tokens(500, 12));
  EXPECT_FALSE(e.manager.admit(s, 12, {}).error().shortage()->never());
  EXPECT_TRUE(e.manager.reserve(s, 13, {}).shortage()->never());
  EXPECT_FALSE(e.manager.reserve(s, 12, {}).shortage()->never());
  must(e.manager.close(other));
  must(e.manager.reserve(s, 12, {}));
}

// The copy of a tail that a fork holds is not needed once the fork is gone.
TEST(Never, DoesNotCountACopyThatALoneHolderSaves) {
  Engine e({full_group(4, 3)});
  const SequenceId s = e.say(tokens(1, 10));
  const SequenceId child = must(e.manager.fork(s));
  const AppendDemand both[] = {{s, 2}, {child, 2}};
  const Status together = e.manager.admit(both);
  ASSERT_NE(together.shortage(), nullptr);
  EXPECT_FALSE(together.shortage()->never());
  const Result<Admission> alone = e.manager.admit(child, 2, {});
  ASSERT_FALSE(alone.has_value());
  EXPECT_FALSE(alone.error().shortage()->never());
  must(e.manager.close(s));
  EXPECT_TRUE(e.manager.admit(child, 2, {}).has_value());
}

// What a window group cannot take in one append, a longer hit may make short enough.
TEST(Never, IsNotSaidWhereALongerHitWouldDo) {
  Engine e(full_and_window());
  const Tokens prompt = tokens(1, 1000);
  const Result<Admission> first = e.manager.admit(prompt, {}, 0);
  ASSERT_FALSE(first.has_value());
  EXPECT_FALSE(first.error().shortage()->never());
  OpenOptions alone;
  alone.look_up = false;
  EXPECT_TRUE(e.manager.admit(prompt, alone, 0).error().shortage()->never());
  const SequenceId s = e.open(prompt).sequence;
  for (int i = 0; i < 10; ++i) {
    e.feed(s, Tokens(prompt.begin() + i * 100, prompt.begin() + (i + 1) * 100));
  }
  must(e.manager.close(s));
  EXPECT_EQ(must(e.manager.admit(prompt, {}, 0)).cached_tokens, 999);
}

// ---- append_prompt, cancel, touch ----

TEST(AppendPrompt, GoesOnWhereTheSequenceEnds) {
  Engine e({full_group(4, 16)});
  const Tokens prompt = tokens(1, 21);
  e.cache(Tokens(prompt.begin(), prompt.begin() + 8));
  const Opened opened = e.open(prompt);
  EXPECT_EQ(opened.cached_tokens, 8);
  Tokens counts;
  for (;;) {
    const Ticket ticket = must(e.manager.begin_step());
    counts.push_back(must(e.manager.append_prompt(opened.sequence, prompt, 5)));
    must(e.manager.finish(ticket));
    if (counts.back() == 0) break;
  }
  EXPECT_THAT(counts, ElementsAre(5, 5, 3, 0));
  EXPECT_EQ(e.probe(tokens(1, 22)), 20);
}

TEST(AppendPrompt, RefusesAPromptThatIsNotTheSequences) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 6));
  const Ticket ticket = must(e.manager.begin_step());
  Tokens other = tokens(1, 12);
  other[5] = 99;
  const Result<std::int32_t> differs = e.manager.append_prompt(s, other, 8);
  ASSERT_FALSE(differs.has_value());
  EXPECT_EQ(differs.error().code(), kInvalid);
  EXPECT_THAT(differs.error().numbers(), ElementsAre(0, 1, 5, 99, 6));
  EXPECT_THAT(e.manager.append_prompt(s, tokens(1, 5), 8).error().numbers(),
              ElementsAre(0, 1, 5, 6));
  EXPECT_EQ(e.manager.append_prompt(s, tokens(1, 12), 0).error().code(), kInvalid);
  EXPECT_EQ(e.info(s).length, 6);
  EXPECT_EQ(must(e.manager.append_prompt(s, tokens(1, 12), 100)), 6);
  must(e.manager.finish(ticket));
}

TEST(Cancel, EndsASequenceAtAnyMomentAndCountsAsClosed) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 6));
  const SequenceId idle = e.say(tokens(50, 3));
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(7, 9)));
  must(e.manager.cancel(s));
  must(e.manager.cancel(idle));
  EXPECT_EQ(must(e.manager.plan())->sequences.size(), 0u);
  must(e.manager.finish(ticket));
  EXPECT_EQ(e.counters().sequences_closed, 2u);
  EXPECT_EQ(e.usage().held, 0);
  EXPECT_EQ(e.probe(tokens(1, 6)), 5);
  EXPECT_EQ(e.manager.cancel(s).code(), ErrorCode::kNotFound);
}

TEST(Touch, IsAUseForThePoliciesByUse) {
  Engine e({full_group(4, 8)});
  const SequenceId a = e.say(tokens(1, 3));
  const SequenceId b = e.say(tokens(50, 3));
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), a);
  must(e.manager.touch(a));
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), b);
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLfu), b);
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(b, Tokens{9}));
  const SequenceInfo used = e.info(b);
  must(e.manager.touch(b));  // its append is the use
  EXPECT_EQ(e.info(b).last_use, used.last_use);
  must(e.manager.drop(ticket));
  EXPECT_EQ(e.manager.touch(SequenceId()).code(), ErrorCode::kNotFound);
}

// ---- plans and prints ----

TEST(Plan, NamesCallersAndTables) {
  Engine e({full_group(4, 8), window_group(4, 16, 5, 2)});
  OpenOptions named;
  named.caller_id = 71;
  const SequenceId a = e.say(tokens(1, 18), named);
  const SequenceId b = e.say(tokens(50, 3));
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(a, Tokens{9}));
  must(e.manager.append(b, Tokens{9}));
  const StepPlan& plan = *must(e.manager.plan({.flashinfer = true, .caller_ids = true}));
  EXPECT_THAT(plan.caller_ids, ElementsAre(71u, 0u));
  for (std::int32_t g = 0; g < 2; ++g) {
    Tokens table = e.table(b, g);
    table.resize(5, -1);
    EXPECT_THAT(plan.table_of(GroupId(g), 1), testing::ElementsAreArray(table));
  }
  // The window of 5 reads blocks 3 and 4, the sinks block 0: pages 0, 3, 4.
  EXPECT_THAT(plan.groups[0].kv_first_live, ElementsAre(0, 0));
  EXPECT_THAT(plan.groups[1].kv_first_live, ElementsAre(12, 0));
  EXPECT_THAT(plan.groups[1].kv_indptr, ElementsAre(0, 3, 4));
  must(e.manager.finish(ticket));
}

TEST(Numbers, AreThoseOfTheSentence) {
  EXPECT_THAT(Status().numbers(), ElementsAre());
  EXPECT_THAT(Status(kInvalid, "n is -3, allowed: 0 to 2-5; block7 99999999999999999999").numbers(),
              ElementsAre(-3, 0, 2, 5, 7, std::numeric_limits<std::int64_t>::max()));
}

TEST(Print, NamesEachField) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 6));
  std::ostringstream out;
  out << e.info(s) << "\n" << e.usage() << "\n" << e.counters() << "\n" << e.manager.spec() << "\n";
  out << ManagerOptions{} << "\n"
      << OpenOptions{} << "\n"
      << must(e.manager.admit(s, 3, {})) << "\n";
  out << e.open({});
  EXPECT_THAT(out.str(), HasSubstr("length 6, accepted_length 6, published_length 4"));
  EXPECT_THAT(out.str(), HasSubstr("num_blocks 8, free 6, held 2"));
  EXPECT_THAT(out.str(), HasSubstr("tokens_committed 6"));
  EXPECT_THAT(out.str(), HasSubstr("group 0: num_layers 1"));
  EXPECT_THAT(out.str(), HasSubstr("order in order"));
  EXPECT_THAT(out.str(), HasSubstr("publish all, caller_id none"));
  EXPECT_THAT(out.str(), HasSubstr("cached_tokens 0, blocks 1"));
  EXPECT_THAT(out.str(), HasSubstr("\nsequence 1.1, cached_tokens 0"));
}

}  // namespace
}  // namespace kvfolio::testing_engine
