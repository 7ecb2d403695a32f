// SPDX-License-Identifier: Apache-2.0
//
// A manager that was moved from: each call of manager.h answers so, or stops with its name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;

Status status_of(const Status& status) { return status; }
template <typename T>
Status status_of(const Result<T>& result) {
  return result ? Status() : result.error();
}

KVCacheManager a_manager() { return must(KVCacheManager::create(CacheSpec{{full_group(4, 8)}})); }

// A manager that was moved from.
KVCacheManager gone() {
  KVCacheManager from = a_manager();
  const KVCacheManager to = std::move(from);
  return from;  // NOLINT(bugprone-use-after-move): that is what it is for
}

// M4.
TEST(Moved, ACallThatCanSaysThatTheManagerWasMovedFrom) {
  KVCacheManager m = gone();
  KVCacheManager there = a_manager();
  const Tokens one = {1};
  const auto says = [](const char* call, const Status& status) {
    EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition) << call;
    EXPECT_EQ(status.message(), std::string(call) + ": the manager was moved from");
  };
  says("open", status_of(m.open({})));
  says("probe", status_of(m.probe({})));
  says("soon", status_of(m.soon({})));
  says("fork", status_of(m.fork({})));
  says("adopt", status_of(m.adopt({}, {}, 0)));
  says("truncate", status_of(m.truncate({}, 0)));
  says("clear", status_of(m.clear({})));
  says("trim", status_of(m.trim({}, {})));
  says("close", status_of(m.close({})));
  says("preempt", status_of(m.preempt({})));
  says("set_priority", status_of(m.set_priority({}, 1)));
  says("begin_step", status_of(m.begin_step()));
  says("append", status_of(m.append({}, one)));
  says("append_unnamed", status_of(m.append_unnamed({}, 1)));
  says("append_each", status_of(m.append_each({}, {}, nullptr)));
  says("append_unnamed_each", status_of(m.append_unnamed_each({}, nullptr)));
  says("open_unnamed", status_of(m.open_unnamed(1)));
  says("set_tokens", status_of(m.set_tokens({}, one)));
  says("set_tokens_each", status_of(m.set_tokens_each({}, {}, nullptr)));
  says("undo", status_of(m.undo({})));
  says("plan", status_of(m.plan()));
  says("run_copies", status_of(m.run_copies()));
  says("commit", status_of(m.commit({})));
  says("complete", status_of(m.complete({})));
  says("finish", status_of(m.finish({})));
  says("drop", status_of(m.drop({})));
  says("fail", status_of(m.fail({})));
  says("accept", status_of(m.accept({}, 0)));
  says("admit", status_of(m.admit(std::span<const AppendDemand>())));
  says("admit", status_of(m.admit(SequenceId(), 1)));
  says("admit", status_of(m.admit(one, OpenOptions(), 0)));
  says("reserve", status_of(m.reserve({}, 1)));
  says("evict", status_of(m.evict(GroupId(0), 1)));
  says("forget", status_of(m.forget(one)));
  says("pin", status_of(m.pin(one)));
  says("unpin", status_of(m.unpin({})));
  says("preempt_to", status_of(m.preempt_to(0.5)));
  says("begin_load", status_of(m.begin_load({}, one, 1)));
  says("blocks_to_load", status_of(m.blocks_to_load({}, GroupId(0), {})));
  says("finish_load", status_of(m.finish_load({}, 0)));
  says("loadable", status_of(m.loadable({}, one, 1, {})));
  says("hold_blocks", status_of(m.hold_blocks(GroupId(0), one)));
  says("release_hold", status_of(m.release_hold({})));
  says("entry_serial", status_of(m.entry_serial(GroupId(0), BlockId(0))));
  says("prefix_of", status_of(m.prefix_of(GroupId(0), BlockId(0), 0, {})));
  says("block_at", status_of(m.block_at(GroupId(0), BlockId(0), GroupId(0), 1)));
  says("info", status_of(m.info({})));
  says("block_table", status_of(m.block_table({}, GroupId(0))));
  says("slot_mapping", status_of(m.slot_mapping({}, GroupId(0), 0, {})));
  says("find", status_of(m.find(1)));
  says("usage", status_of(m.usage(GroupId(0))));
  says("ref_count", status_of(m.ref_count(GroupId(0), BlockId(0))));
  says("is_findable", status_of(m.is_findable(GroupId(0), BlockId(0))));
  says("findable_end", status_of(m.findable_end(GroupId(0), BlockId(0))));
  says("block_state", status_of(m.block_state(GroupId(0), BlockId(0))));
  says("plan_bytes", status_of(m.plan_bytes({})));
  says("widest", status_of(m.widest(GroupId(0))));
  says("copy_to", status_of(m.copy_to(there)));
  says("state_hash", status_of(m.state_hash()));
  says("check_invariants", status_of(m.check_invariants()));
  EXPECT_THAT(there.copy_to(m).message(), HasSubstr("the target: the manager was moved from"));
  // It may become a manager again, and the one that it was goes on elsewhere.
  m = std::move(there);
  EXPECT_TRUE(m.open(one).has_value());
  must(m.check_invariants());
}

// M4. What cannot say it in its answer.
TEST(MovedDeathTest, TheOthersStopWithTheNameOfTheCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  KVCacheManager m = gone();
  EXPECT_DEATH(static_cast<void>(m.reset()), "reset: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.forget(RootKey())), "forget: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.forget_count()), "forget_count: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.utilization()), "utilization: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.needs_eviction()), "needs_eviction: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.select_victim()), "select_victim: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.take_findable({})), "take_findable: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.num_sequences()), "num_sequences: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.num_steps()), "num_steps: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.sequences({})), "sequences: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.bytes_total()), "bytes_total: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.bytes_used()), "bytes_used: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.metadata()), "metadata: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.num_rows()), "num_rows: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.describe()), "describe: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.counters()), "counters: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.spec()), "spec: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.options()), "options: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.storage()), "storage: the manager was moved from");
  EXPECT_DEATH(static_cast<void>(m.record(nullptr)), "record: the manager was moved from");
}

// Whatever it was in the midst of goes on where it is now.
TEST(Moved, AManagerGoesOnWhereItIsMoved) {
  KVCacheManager first = a_manager();
  const SequenceId s = must(first.open({})).sequence;
  const Ticket ticket = must(first.begin_step());
  must(first.append(s, tokens(1, 5)));
  KVCacheManager second = std::move(first);
  must(second.plan());
  must(second.finish(ticket));
  must(second.close(s));
  first = std::move(second);
  EXPECT_EQ(must(first.probe(tokens(1, 6))), 5);
  must(first.check_invariants());
}

}  // namespace
}  // namespace kvfolio::testing_engine
