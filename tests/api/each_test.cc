// SPDX-License-Identifier: Apache-2.0
//
// A decode step in one call: what append_each() and its kin do is what the single calls do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Each, AppendsOneTokenToEachSequence) {
  Engine e({full_group(4, 16)});
  const std::vector<SequenceId> all = {e.say(tokens(1, 3)), e.say(tokens(50, 4))};
  const Ticket step = must(e.manager.begin_step());
  std::int32_t done = -1;
  must(e.manager.append_each(all, Tokens{7, 8}, &done));
  EXPECT_EQ(done, 2);
  EXPECT_EQ(e.plan().slots.size(), 2u);
  must(e.manager.finish(step));
  EXPECT_EQ(e.info(all[0]).length, 4);
  EXPECT_EQ(e.probe(Tokens{50, 51, 52, 53, 8, 9}), 4);
  must(e.manager.close(all[1]));
  EXPECT_EQ(e.probe(Tokens{50, 51, 52, 53, 8, 9}), 5);
}

TEST(Each, EndsAtTheFirstThatFailsAndGoesOnFromThere) {
  Engine e({full_group(4, 3)});
  const std::vector<SequenceId> all = {e.say(tokens(1, 4)), e.say(tokens(50, 4)),
                                       e.say(tokens(90, 3))};
  const Ticket step = must(e.manager.begin_step());
  std::int32_t done = -1;
  const Status status = e.manager.append_each(all, Tokens{5, 6, 7}, &done);
  EXPECT_EQ(status.code(), ErrorCode::kNoBlocks) << status.message();
  EXPECT_EQ(done, 0);
  must(e.manager.preempt(all[1]));
  must(e.manager.evict(GroupId(0), 1));
  const std::vector<SequenceId> rest = {all[0], all[2]};
  must(e.manager.append_each(rest, Tokens{5, 7}, &done));
  EXPECT_EQ(done, 2);
  must(e.manager.finish(step));
  must(e.manager.check_invariants());
}

TEST(Each, ASequenceThatIsNamedTwiceFailsAtTheSecondPlace) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.say(tokens(1, 3));
  const SequenceId b = e.say(tokens(50, 3));
  const std::vector<SequenceId> all = {a, b, a};
  const Ticket step = must(e.manager.begin_step());
  std::int32_t done = -1;
  const Status status = e.manager.append_each(all, Tokens{1, 2, 3}, &done);
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("twice, at 0 and at 2"));
  EXPECT_EQ(done, 2);
  EXPECT_EQ(e.plan().slots.size(), 2u);
  must(e.manager.finish(step));
  EXPECT_EQ(e.info(a).length, 4);
}

TEST(Each, BadInputSaysWhereItIs) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.say(tokens(1, 3));
  const SequenceId b = e.say(tokens(50, 3));
  std::vector<SequenceId> all = {a, b};
  std::int32_t done = -1;
  EXPECT_THAT(e.manager.append_each(all, Tokens{1, 2}, &done).message(),
              HasSubstr("no step is open"));
  EXPECT_EQ(done, 0);
  const Ticket step = must(e.manager.begin_step());
  const Status sizes = e.manager.append_each(all, Tokens{1}, &done);
  EXPECT_EQ(sizes.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sizes.message(), "append_each of 1 tokens to 2 sequences, allowed: one for each");
  EXPECT_EQ(done, 0);
  EXPECT_EQ(e.manager.append_each(all, Tokens{1, -7}, &done).message(),
            "append_each: token 1 is -7, allowed: 0 and above");
  EXPECT_EQ(done, 1);
  all = {b, SequenceId(12345678901234u)};
  const Status unknown = e.manager.append_each(all, Tokens{1, 2}, nullptr);
  EXPECT_EQ(unknown.code(), ErrorCode::kNotFound);
  EXPECT_THAT(unknown.message(), StartsWith("append_each: at 1: "));
  EXPECT_THAT(
      e.manager.append_unnamed_each(std::vector<SequenceId>{SequenceId(0)}, nullptr).message(),
      StartsWith("append_unnamed_each: at 0: "));
  EXPECT_THAT(e.manager.set_tokens_each(all, Tokens{1, 2}, &done).message(),
              StartsWith("set_tokens_each: at 0, "));
  EXPECT_THAT(
      e.manager.set_tokens_each(std::vector<SequenceId>{all[1]}, Tokens{1}, &done).message(),
      StartsWith("set_tokens_each: at 0: "));
  EXPECT_EQ(e.info(b).length, 4);
  must(e.manager.append_each({}, {}, &done));
  EXPECT_EQ(done, 0);
  must(e.manager.finish(step));
}

TEST(Each, TokensThatAreNotKnownYetAreNamedInOneCall) {
  Engine e({full_group(4, 16)});
  const std::vector<SequenceId> all = {e.say(tokens(1, 3)), e.say(tokens(50, 3))};
  const Ticket step = must(e.manager.begin_step());
  std::int32_t done = -1;
  must(e.manager.append_unnamed_each(all, &done));
  EXPECT_EQ(done, 2);
  must(e.manager.commit(step));
  const Status twice =
      e.manager.set_tokens_each(std::vector<SequenceId>{all[0], all[0]}, Tokens{4, 5}, &done);
  EXPECT_EQ(twice.code(), ErrorCode::kInvalidArgument) << twice.message();
  EXPECT_EQ(done, 1);
  must(e.manager.set_tokens_each(std::vector<SequenceId>{all[1]}, Tokens{53}, &done));
  must(e.manager.complete(step));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
  EXPECT_EQ(e.probe(tokens(50, 5)), 4);
}

}  // namespace
}  // namespace kvfolio::testing_engine
