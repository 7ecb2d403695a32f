// SPDX-License-Identifier: Apache-2.0
// What the device does and what it catches, with plans made by hand.

#include "fake_device/fake_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace kvfolio::fake_device {
namespace {

using testing::HasSubstr;

GroupSpec full(std::int32_t block_size, std::int32_t num_blocks) {
  GroupSpec group;
  group.head_dim_k = 4;
  group.block_size = block_size;
  group.num_blocks = num_blocks;
  return group;
}

// The arrays of a plan of one sequence and one group, to be spoilt at will.
struct HandMade {
  std::vector<SequenceId> sequences = {SequenceId(1)};
  std::vector<std::int32_t> plan_rows = {0};
  std::vector<std::int32_t> query_start;
  std::vector<std::int32_t> kv_lens;
  std::vector<std::int32_t> trim_sinks = {0};
  std::vector<std::int32_t> trim_first_kept = {0};
  std::vector<std::int32_t> slots;
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> src;
  std::vector<std::int32_t> dst;
  std::vector<SharedPrefix> shared = {{0, 1, 1}};
  std::vector<std::int32_t> changed = {0, 0, 1};  // a row, its column, its block
  std::vector<GroupPlan> groups = std::vector<GroupPlan>(1);

  // Positions [begin, end) at blocks of two tokens; every token of the step is written.
  HandMade(std::int32_t begin, std::int32_t end, std::vector<std::int32_t> blocks)
      : query_start({0, end - begin}), kv_lens({end}), table(std::move(blocks)) {
    for (std::int32_t p = begin; p < end; ++p) {
      slots.push_back(table[static_cast<std::size_t>(p / 2)] * 2 + p % 2);
    }
  }
  StepPlan plan(std::uint64_t ticket) {
    groups[0].slot_mapping = slots;
    groups[0].block_table = table;
    groups[0].block_table_stride = static_cast<std::int32_t>(table.size());
    groups[0].copy_src = src;
    groups[0].copy_dst = dst;
    groups[0].shared_prefixes = shared;
    const std::span<const std::int32_t> entry = changed;
    groups[0].changed_rows = entry.subspan(0, 1);
    groups[0].changed_columns = entry.subspan(1, 1);
    groups[0].changed_blocks = entry.subspan(2, 1);
    StepPlan plan;
    plan.ticket = Ticket(ticket);
    plan.num_tokens = query_start[1];
    plan.sequences = sequences;
    plan.rows = plan_rows;
    plan.query_start = query_start;
    plan.kv_lens = kv_lens;
    plan.trim_sinks = trim_sinks;
    plan.trim_first_kept = trim_first_kept;
    plan.groups = groups;
    return plan;
  }
  // Token p is 100 + p, unless another text is given.
  [[nodiscard]] std::vector<Row> rows(Digest first = 100) const {
    Row row{7, {}};
    for (std::int32_t p = 0; p < kv_lens[0]; ++p) {
      row.digests.push_back(first + static_cast<Digest>(p));
    }
    return {row};
  }
};

class FakeDeviceTest : public testing::Test {
 protected:
  // A prompt of three tokens at blocks 4 and 2, done and forgotten.
  void prefill() {
    device.submit(prompt.plan(1), prompt.rows(), Upload::kAtSubmit);
    device.advance(Ticket(1), Phase::kDone);
    device.forget(Ticket(1));
    ASSERT_EQ(device.violation(), "");
  }
  std::string run(HandMade& step, std::uint64_t ticket, Upload upload = Upload::kAtSubmit) {
    device.submit(step.plan(ticket), step.rows(), upload);
    device.advance(Ticket(ticket), Phase::kDone);
    device.wait();
    return device.violation();
  }

  const std::vector<GroupSpec> groups = {full(2, 6)};
  FakeDevice device{groups, Order::kInOrder};
  HandMade prompt{0, 3, {4, 2}};
};

TEST_F(FakeDeviceTest, ATokenStandsAtItsSlotWhenItsStepHasWritten) {
  prefill();
  EXPECT_EQ(device.at(0, 8), 100u);
  EXPECT_EQ(device.at(0, 9), 101u);
  EXPECT_EQ(device.at(0, 4), 102u);
  EXPECT_EQ(device.at(0, 5), kPoison);
  EXPECT_EQ(device.num_reads(), 3u);
}

TEST_F(FakeDeviceTest, NothingRunsBeforeItIsToldTo) {
  device.submit(prompt.plan(1), prompt.rows(), Upload::kInPlace);
  device.advance(Ticket(1), Phase::kCopied);
  device.wait();
  EXPECT_EQ(device.at(0, 8), kPoison);
  EXPECT_EQ(device.phase(Ticket(1)), Phase::kCopied);
}

TEST_F(FakeDeviceTest, DecodeReadsEverythingBefore) {
  prefill();
  HandMade decode(3, 4, {4, 2});
  EXPECT_EQ(run(decode, 2), "");
  EXPECT_EQ(device.num_reads(), 3u + 3u + 4u);
}

TEST_F(FakeDeviceTest, AFreedBlockIsPoisonAndItsNextReaderSaysSo) {
  prefill();
  device.poison(0, 4);
  HandMade decode(3, 4, {4, 2});
  EXPECT_EQ(run(decode, 2),
            "step t2 reads position 0 of row 0 (s7) group 0 at block 4 offset 0, which was freed "
            "or never written");
}

TEST_F(FakeDeviceTest, AFreeBetweenWritingAndTheEndOfAStepIsSeen) {
  prefill();
  HandMade decode(3, 4, {4, 2});
  device.submit(decode.plan(2), decode.rows(), Upload::kAtSubmit);
  device.advance(Ticket(2), Phase::kWritten);
  device.poison(0, 2);
  device.advance(Ticket(2), Phase::kDone);
  device.wait();
  EXPECT_THAT(device.violation(), HasSubstr("reads position 2"));
}

TEST_F(FakeDeviceTest, AWriteIntoSomebodyElsesBlockIsSeen) {
  prefill();
  HandMade other(2, 3, {4, 2});
  Row row = other.rows()[0];
  row.digests[2] = 999;
  device.submit(other.plan(2), {row}, Upload::kAtSubmit);
  HandMade decode(3, 4, {4, 2});
  device.submit(decode.plan(3), decode.rows(), Upload::kAtSubmit);
  device.advance(Ticket(2), Phase::kDone);
  device.advance(Ticket(3), Phase::kDone);
  device.wait();
  EXPECT_EQ(device.violation(),
            "step t3 reads position 2 of row 0 (s7) group 0 at block 2 offset 0, which holds "
            "something else than the sequence said");
}

TEST_F(FakeDeviceTest, CopiesReadTheirSourceWhenTheyRun) {
  prefill();
  HandMade child(3, 4, {4, 5});
  child.src = {2};
  child.dst = {5};
  device.submit(child.plan(2), child.rows(), Upload::kAtSubmit);
  device.advance(Ticket(2), Phase::kUploaded);
  device.poison(0, 2);
  device.advance(Ticket(2), Phase::kDone);
  device.wait();
  EXPECT_THAT(device.violation(), HasSubstr("reads position 2"));
}

TEST_F(FakeDeviceTest, AMissingCopyIsSeen) {
  prefill();
  HandMade child(3, 4, {4, 5});
  EXPECT_THAT(run(child, 2), HasSubstr("reads position 2"));
}

TEST_F(FakeDeviceTest, ASlotOfMinusOneMustHoldItsTokenAlready) {
  prefill();
  HandMade again(2, 3, {4, 2});
  again.slots = {-1};
  EXPECT_EQ(run(again, 2), "");
  HandMade never(3, 4, {4, 2});
  never.slots = {-1};
  EXPECT_THAT(run(never, 3), HasSubstr("need not write (slot -1) position 3"));
}

TEST_F(FakeDeviceTest, EachGroupHasItsOwnTablesAndMemory) {
  const std::vector<GroupSpec> two = {full(2, 6), full(2, 6)};
  FakeDevice pair(two, Order::kInOrder);
  HandMade step(0, 2, {1});
  HandMade other(0, 2, {3});
  StepPlan plan = step.plan(1);
  const std::vector<GroupPlan> both = {step.groups[0], other.plan(1).groups[0]};
  plan.groups = both;
  pair.submit(plan, step.rows(), Upload::kAtSubmit);
  pair.advance(Ticket(1), Phase::kDone);
  pair.wait();
  EXPECT_EQ(pair.violation(), "");
  EXPECT_EQ(pair.at(0, 2), 100u);
  EXPECT_EQ(pair.at(0, 6), kPoison);
  EXPECT_EQ(pair.at(1, 2), kPoison);
  EXPECT_EQ(pair.at(1, 6), 100u);
}

TEST_F(FakeDeviceTest, DroppedPositionsAreNotRead) {
  prefill();
  HandMade decode(3, 4, {-1, 2});
  decode.trim_first_kept = {2};
  EXPECT_EQ(run(decode, 2), "");
}

TEST_F(FakeDeviceTest, AWindowReadsItselfAndTheTokensBefore) {
  std::vector<GroupSpec> windows = {full(2, 6)};
  windows[0].kind = AttentionKind::kSlidingWindow;
  windows[0].window = 2;
  FakeDevice small(windows, Order::kInOrder);
  small.submit(prompt.plan(1), prompt.rows(), Upload::kAtSubmit);
  small.advance(Ticket(1), Phase::kDone);
  small.forget(Ticket(1));
  small.poison(0, 4);  // positions 0 and 1
  HandMade decode(3, 4, {-1, 2});
  small.submit(decode.plan(2), decode.rows(), Upload::kAtSubmit);
  small.advance(Ticket(2), Phase::kDone);
  small.wait();
  EXPECT_EQ(small.violation(), "");
}

TEST_F(FakeDeviceTest, PlanArraysThatChangeBeforeTheEndAreSeen) {
  for (const Upload upload : {Upload::kAtSubmit, Upload::kLate, Upload::kInPlace}) {
    FakeDevice fresh(groups, Order::kInOrder);
    HandMade step(0, 2, {1});
    fresh.submit(step.plan(1), step.rows(), upload);
    fresh.advance(Ticket(1), Phase::kUploaded);
    fresh.wait();
    step.trim_first_kept[0] = 1;
    fresh.advance(Ticket(1), Phase::kDone);
    fresh.wait();
    EXPECT_THAT(fresh.violation(), HasSubstr("its plan's trim_first_kept changed"));
  }
}

TEST_F(FakeDeviceTest, NoArrayOfAPlanMayChange) {
  const auto changed = [&](const auto& change) {
    FakeDevice fresh(groups, Order::kInOrder);
    HandMade step(0, 2, {1});
    fresh.submit(step.plan(1), step.rows(), Upload::kLate);
    fresh.advance(Ticket(1), Phase::kUploaded);
    fresh.wait();
    change(step);
    fresh.advance(Ticket(1), Phase::kDone);
    fresh.wait();
    return fresh.violation();
  };
  EXPECT_EQ(changed([](HandMade&) {}), "");
  EXPECT_THAT(changed([](HandMade& step) { step.plan_rows[0] = 3; }),
              HasSubstr("its plan's rows changed"));
  EXPECT_THAT(changed([](HandMade& step) { step.sequences[0] = SequenceId(2); }),
              HasSubstr("its plan's sequences changed"));
  EXPECT_THAT(changed([](HandMade& step) { step.shared[0].num_blocks = 2; }),
              HasSubstr("its plan's shared_prefixes changed"));
  EXPECT_THAT(changed([](HandMade& step) { step.changed[0] = 3; }),
              HasSubstr("its plan's changed_rows changed"));
  EXPECT_THAT(changed([](HandMade& step) { step.changed[1] = 3; }),
              HasSubstr("its plan's changed_columns changed"));
  EXPECT_THAT(changed([](HandMade& step) { step.changed[2] = 3; }),
              HasSubstr("its plan's changed_blocks changed"));
}

TEST_F(FakeDeviceTest, IdsOutsideOfTheMemoryAreSeen) {
  HandMade slot(0, 1, {1});
  slot.slots = {12};
  EXPECT_EQ(run(slot, 1), "step t1 is told slot 12 of group 0, which has 12");
  FakeDevice fresh(groups, Order::kInOrder);
  HandMade copy(0, 1, {1});
  copy.src = {6};
  copy.dst = {1};
  fresh.submit(copy.plan(1), copy.rows(), Upload::kLate);
  fresh.advance(Ticket(1), Phase::kDone);
  fresh.wait();
  EXPECT_EQ(fresh.violation(), "step t1 is told copy source 6 of group 0, which has 6");
}

TEST_F(FakeDeviceTest, OneStreamRunsAStepWhenTheOneBeforeIsDone) {
  device.submit(prompt.plan(1), prompt.rows(), Upload::kAtSubmit);
  HandMade decode(3, 4, {4, 2});
  device.submit(decode.plan(2), decode.rows(), Upload::kAtSubmit);
  device.advance(Ticket(2), Phase::kUploaded);
  EXPECT_THROW(device.advance(Ticket(2), Phase::kCopied), std::logic_error);
  EXPECT_THROW(device.submit(decode.plan(2), decode.rows(), Upload::kAtSubmit), std::logic_error);
}

TEST_F(FakeDeviceTest, WithoutOrderPhasesOfStepsInFlightInterleave) {
  FakeDevice free_running(groups, Order::kUnordered);
  HandMade a(0, 2, {0});
  HandMade b(0, 2, {1});
  free_running.submit(a.plan(1), a.rows(), Upload::kLate);
  free_running.submit(b.plan(2), b.rows(500), Upload::kLate);
  free_running.advance(Ticket(2), Phase::kWritten);
  free_running.advance(Ticket(1), Phase::kDone);
  free_running.advance(Ticket(2), Phase::kDone);
  free_running.wait();
  EXPECT_EQ(free_running.violation(), "");
  EXPECT_EQ(free_running.at(0, 2), 500u);
}

TEST_F(FakeDeviceTest, TheFirstViolationStaysTheFirst) {
  HandMade never(1, 2, {3});
  const std::string first = run(never, 1);
  EXPECT_THAT(first, HasSubstr("reads position 0"));
  HandMade prompt_again(0, 2, {3});
  EXPECT_EQ(run(prompt_again, 2), first);
  EXPECT_EQ(device.at(0, 6), kPoison);
}

}  // namespace
}  // namespace kvfolio::fake_device
