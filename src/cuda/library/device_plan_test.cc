// SPDX-License-Identifier: Apache-2.0

// DevicePlan over a manager and a driver that is none: the life of resident tables, one rule after
// the other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/library/plan_rig.h"
#include "heap_calls/heap_calls.h"
#include "kvfolio/cuda_graph.h"

namespace kvfolio::cuda {
namespace {

using testing::HasSubstr;

TEST(DevicePlan, AStepIsOnTheDeviceAsTheManagerSaysIt) {
  RigOptions options;
  options.groups = {full_group(4, 64), window_group(2, 64, 4, 2)};
  options.plan = {.pad = 0, .positions = true, .int64_slots = true, .flashinfer = true};
  PlanRig rig(options);
  const SequenceId a = rig.open();
  const SequenceId b = rig.open();
  for (int i = 0; i < 12; ++i) {
    const Ticket ticket = must(rig.manager.begin_step());
    rig.append(a, 10 * i, 1 + i % 3);
    if (i % 2 == 0) rig.append(b, 500 + 10 * i, 2);
    const StepPlan& step = rig.planned(PlanRig::kWithTables);
    must(rig.upload(step));
    EXPECT_EQ(rig.plan->verify(step, rig.stream.handle()).message(), "ok");
    must(rig.manager.finish(ticket));
  }
  EXPECT_EQ(rig.finish(), "");
}

// A trim's sinks lie in a window, which goes on into them: dropped, live, dropped, live; with sinks
// of the window, too: live, dropped, live, dropped, live. The table has what others own by now.
TEST(DevicePlan, PagesOfTrimmedSinksThatAWindowGoesIntoAreThoseOfThePlan) {
  for (const std::int32_t sinks : {0, 2}) {
    RigOptions options;
    options.groups = {full_group(4, 128), window_group(2, 60, 24, sinks)};
    options.columns = 64;
    options.max_tokens = 128;
    options.plan.flashinfer = true;
    PlanRig rig(options);
    const SequenceId s = rig.open();
    must(rig.manager.complete(rig.launch(s, 40)));
    must(rig.manager.trim(s, {.num_sinks = 24, .window = 8}));
    must(rig.manager.evict(GroupId(1), 60));
    const SequenceId other = rig.open();
    must(rig.manager.complete(rig.launch(other, 30)));
    for (int i = 0; i < 24; ++i) {  // until the window has left the sinks of the trim
      const auto table = must(rig.manager.block_table(s, GroupId(1)));
      if (i == 0) {
        EXPECT_EQ(table[0] < 0, sinks == 0);
        EXPECT_TRUE(table[7] < 0 && table[8] >= 0 && table[12] < 0 && table[16] >= 0);
      }
      const Ticket ticket = must(rig.manager.begin_step());
      rig.append(s, 7 + i, 1);
      const StepPlan& step = rig.planned(PlanRig::kWithTables);
      must(rig.upload(step));
      EXPECT_EQ(rig.plan->verify(step, rig.stream.handle()).message(), "ok");
      must(rig.manager.finish(ticket));
    }
    EXPECT_EQ(rig.finish(), "") << sinks;
  }
}

// ---- the life of resident tables ----

TEST(DevicePlan, WhatADroppedStepUploadedIsWrittenOver) {
  PlanRig rig;
  const SequenceId s = rig.open();
  must(rig.manager.complete(rig.launch(s, 6)));
  const SequenceId fork = must(rig.manager.fork(s));
  // The fork writes to a copy of the tail; the drop puts the tail back.
  Ticket ticket = must(rig.manager.begin_step());
  rig.append(fork, 50, 3);
  must(rig.upload(rig.planned()));
  const std::int32_t dropped = rig.block(fork, 1);
  must(rig.manager.drop(ticket));
  EXPECT_NE(rig.block(fork, 1), dropped);
  // Another sequence takes the block of the copy.
  ticket = must(rig.manager.begin_step());
  rig.append(s, 70, 12);
  must(rig.upload(rig.planned()));
  must(rig.manager.commit(ticket));
  rig.launch(fork, 2);
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 0);
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, WhatWasUploadedBeforeAnUndoIsWrittenOver) {
  PlanRig rig;
  const SequenceId a = rig.open();
  const SequenceId b = rig.open();
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 8);
  rig.append(b, 50, 8);
  must(rig.upload(rig.planned()));
  must(rig.manager.undo(a));
  must(rig.upload(rig.planned()));
  must(rig.manager.commit(ticket));
  rig.launch(a, 9);
  rig.launch(b, 1);
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 0);
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, WhatAFailedStepUploadedIsSentAgain) {
  PlanRig rig;
  const SequenceId s = rig.open();
  must(rig.manager.complete(rig.launch(s, 8)));
  must(rig.manager.close(s));
  // It finds the prompt whole, so the failing step writes nothing and it stays open.
  const SequenceId again = rig.open({1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007});
  const Ticket failing = must(rig.manager.begin_step());
  rig.append(again, 1007, 1);
  must(rig.upload(rig.planned()));
  must(rig.manager.commit(failing));
  EXPECT_EQ(rig.finish(), "");
  must(rig.manager.fail(failing));
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(again, 7, 1);
  must(rig.upload(rig.planned()));
  EXPECT_EQ(rig.plan->last_upload().changed_entries, 3);
  must(rig.manager.commit(ticket));
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, AFailedStepThatWasNeverUploadedIsNoticed) {
  PlanRig rig;
  const SequenceId a = rig.open();
  const SequenceId b = rig.open();
  must(rig.manager.complete(rig.launch(a, 8)));
  const Ticket failing = rig.launch(b, 8, false);
  must(rig.manager.fail(failing));
  rig.launch(a, 4);
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 1);
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, ARowChangesHandsInOrderWhileItsStepIsInFlight) {
  RigOptions options;
  options.manager.max_sequences = 1;
  PlanRig rig(options);
  const SequenceId first = rig.open();
  rig.launch(first, 14);
  must(rig.manager.close(first));
  const SequenceId second = rig.open();
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(second, 77, 5);
  const StepPlan& step = rig.planned();
  EXPECT_EQ(step.rows[0], 0);
  must(rig.upload(step));
  EXPECT_EQ(rig.plan->last_upload().changed_entries, 2);
  must(rig.manager.commit(ticket));
  EXPECT_EQ(rig.finish(), "");  // the reader of the first step saw the first sequence
}

TEST(DevicePlan, WithoutOrderARowChangesHandsBehindItsStep) {
  RigOptions options;
  options.manager.max_sequences = 1;
  options.manager.order = Order::kUnordered;
  PlanRig rig(options);
  const SequenceId first = rig.open();
  const Ticket before = rig.launch(first, 14);
  must(rig.manager.close(first));
  const SequenceId second = rig.open();
  Ticket ticket = must(rig.manager.begin_step());
  rig.append(second, 77, 5);
  const std::int32_t other = rig.planned().rows[0];
  must(rig.upload(rig.planned()));
  must(rig.manager.commit(ticket));
  EXPECT_NE(other, 0);
  EXPECT_EQ(rig.finish(), "");
  must(rig.manager.complete(ticket));
  must(rig.manager.complete(before));
  must(rig.manager.close(second));
  const SequenceId third = rig.open();
  ticket = must(rig.manager.begin_step());
  rig.append(third, 90, 3);
  must(rig.upload(rig.planned()));
  must(rig.manager.finish(ticket));
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 0);
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, TheSecondPlanOfAStepTakesThePlaceOfTheFirst) {
  PlanRig rig;
  const SequenceId a = rig.open();
  const SequenceId b = rig.open();
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 6);
  must(rig.upload(rig.planned()));
  rig.append(b, 50, 6);
  must(rig.upload(rig.planned()));
  must(rig.manager.commit(ticket));
  rig.launch(a, 1);
  EXPECT_EQ(rig.plan->last_upload().changed_entries, 0);
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 0);
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, TheSecondPlanOfAStepIsMissedIfOnlyTheFirstWasUploaded) {
  PlanRig rig;
  const SequenceId a = rig.open();
  const SequenceId b = rig.open();
  Ticket ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 6);
  must(rig.upload(rig.planned()));
  rig.append(b, 50, 6);
  rig.planned();
  must(rig.manager.commit(ticket));
  ticket = must(rig.manager.begin_step());
  rig.append(b, 60, 1);
  const StepPlan& bare = rig.planned();
  EXPECT_TRUE(rig.plan->needs_block_tables(bare));
  const Status refused = rig.upload(bare);
  EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "1 row has to be sent whole and the plan has no block tables; plan() with "
            "block_tables");
  const StepPlan& whole = rig.planned(PlanRig::kWithTables);
  EXPECT_FALSE(rig.plan->needs_block_tables(whole));
  must(rig.upload(whole));
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 1);
  EXPECT_EQ(rig.plan->last_upload().whole_entries, 2);
  must(rig.manager.commit(ticket));
  // The other row was not in it, and is sent whole later.
  ticket = must(rig.manager.begin_step());
  rig.append(a, 70, 1);
  rig.append(b, 70, 1);
  must(rig.upload(rig.planned(PlanRig::kWithTables)));
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 1);
  must(rig.manager.commit(ticket));
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, APlanThatWasCommittedElsewhereIsNoticed) {
  PlanRig rig;
  const SequenceId a = rig.open();
  rig.launch(a, 6);
  rig.launch(a, 6, false);
  rig.launch(a, 1);
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 1);
  rig.launch(a, 1);
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 0);
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, OneThatBeginsBesideARunningManagerSendsRowsWhole) {
  PlanRig rig;
  const SequenceId a = rig.open();
  must(rig.manager.complete(rig.launch(a, 30)));
  EXPECT_EQ(rig.finish(), "");
  rig.renew();
  rig.launch(a, 1);
  EXPECT_EQ(rig.plan->last_upload().whole_entries, 8);
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, APlanWithoutChangedEntriesSendsRowsWhole) {
  PlanRig rig;
  const SequenceId a = rig.open();
  must(rig.manager.complete(rig.launch(a, 6)));
  Ticket ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 9);
  must(rig.upload(rig.planned({})));
  EXPECT_EQ(rig.plan->last_upload().whole_entries, 4);
  must(rig.manager.finish(ticket));
  // The lists name what that plan did not count as shown.
  ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 1);
  must(rig.upload(rig.planned()));
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 0);
  EXPECT_EQ(rig.plan->last_upload().changed_entries, 2);
  must(rig.manager.finish(ticket));
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, AfterResendAnotherManagerMayHaveIt) {
  PlanRig rig;
  const SequenceId a = rig.open();
  rig.launch(a, 6);
  rig.launch(a, 6);
  EXPECT_EQ(rig.finish(), "");
  KVCacheManager other = must(KVCacheManager::create(
      CacheSpec{{full_group(4, 64)}}, {.max_sequences = 4, .max_steps_in_flight = 4}));
  std::swap(rig.manager, other);
  const SequenceId b = rig.open();
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(b, 1, 13);
  const Status old = rig.upload(rig.planned());
  EXPECT_EQ(old.code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(old.message(), "plan 1 is older than plan 2, which was uploaded");
  rig.plan->resend();
  must(rig.upload(rig.planned()));
  must(rig.manager.commit(ticket));
  EXPECT_EQ(rig.finish(), "");
}

// ---- graphs ----

TEST(DevicePlan, AGraphThatReplaysTheStepBeforeChangesNothing) {
  PlanRig rig;
  const SequenceId a = rig.open();
  rig.launch(a, 9);
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 9);
  const StepPlan& step = rig.planned(PlanRig::kWithTables);
  must(rig.upload(step));
  must(rig.plan->apply(rig.stream.handle()));
  must(rig.plan->apply(rig.stream.handle()));
  rig.read(step);
  EXPECT_EQ(rig.plan->verify(step, rig.stream.handle()).message(), "ok");
  must(rig.manager.finish(ticket));
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, APlanBehindOneThatWasNotAppliedIsRefused) {
  PlanRig rig;
  const SequenceId s = rig.open();
  must(rig.manager.complete(rig.launch(s, 6)));
  void* const stream = rig.stream.handle();
  // What a step appends; the plan is sent and, as far as the object knows, not applied.
  const auto send = [&] {
    const Ticket ticket = must(rig.manager.begin_step());
    rig.append(s, 7, 4);
    must(rig.plan->send(rig.planned(), stream));
    must(rig.manager.finish(ticket));
  };
  const auto next = [&](bool with_tables) {
    const Ticket ticket = must(rig.manager.begin_step());
    rig.append(s, 9, 4);
    const StepPlan& step = rig.planned({.block_tables = with_tables, .changed_entries = true});
    for (const bool halves : {true, false}) {
      const Status refused = halves ? rig.plan->send(step, stream) : rig.upload(step);
      EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
      EXPECT_THAT(refused.message(),
                  testing::AllOf(HasSubstr("plan " + std::to_string(step.number) + " cannot"),
                                 HasSubstr("plan " + std::to_string(step.number - 1) + " was sent"),
                                 HasSubstr("call apply(), or applied()")));
    }
    return std::pair(ticket, &step);
  };
  const auto ends = [&](const std::pair<Ticket, const StepPlan*>& open) {
    must(rig.upload(*open.second));
    must(rig.manager.finish(open.first));
    EXPECT_EQ(rig.finish(), "");
  };
  send();
  auto open = next(false);
  must(rig.plan->apply(stream));
  ends(open);
  // A capture runs nothing, and a launch is seen by none.
  send();
  Result<Graph> graph = Graph::capture(rig.device, stream, [&] { return rig.plan->apply(stream); });
  ASSERT_TRUE(graph) << graph.error().message();
  open = next(false);
  must(graph->launch(stream));
  rig.plan->applied();
  ends(open);
  // Then every row goes up whole, and what was not applied is missed by none.
  send();
  open = next(true);
  rig.plan->resend();
  ends(open);
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 1);
}

TEST(DevicePlan, APlanIsNotSentWithinACapture) {
  PlanRig rig;
  const SequenceId s = rig.open();
  must(rig.manager.complete(rig.launch(s, 6)));
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(s, 7, 4);
  const StepPlan& step = rig.planned();
  void* const stream = rig.stream.handle();
  const Result<Graph> graph =
      Graph::capture(rig.device, stream, [&] { return rig.plan->send(step, stream); });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(graph.error().message(), HasSubstr("a plan is sent in front of a graph"));
  must(rig.upload(step));
  must(rig.manager.commit(ticket));
  EXPECT_EQ(rig.finish(), "");
}

// A launch in the legacy stream breaks the capture of a stream that waits for it.
TEST(DevicePlan, IsNotAppliedOnANullStreamWhileABlockingStreamIsCaptured) {
  PlanRig rig;
  const SequenceId s = rig.open();
  must(rig.manager.complete(rig.launch(s, 6)));
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(s, 7, 4);
  const StepPlan& step = rig.planned(PlanRig::kWithTables);
  must(rig.plan->send(step, rig.stream.handle()));
  void* const legacy = reinterpret_cast<void*>(1);  // NOLINT(performance-no-int-to-ptr)
  for (void* const stream : {static_cast<void*>(nullptr), legacy}) {
    rig.fake.always["cuStreamIsCapturing"] = 906;
    const std::size_t launches = rig.fake.launches.size();
    const Status refused = rig.plan->apply(stream);
    EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("a blocking stream is being captured"));
    EXPECT_EQ(rig.fake.launches.size(), launches);
    rig.fake.always.clear();
    EXPECT_EQ(rig.plan->send(step, rig.stream.handle()).code(), ErrorCode::kFailedPrecondition)
        << "what was sent is still to be applied";
  }
  must(rig.plan->apply(rig.stream.handle()));
  must(rig.plan->verify(step, rig.stream.handle()));
  must(rig.manager.commit(ticket));
  // Rows that it has are not sent again.
  must(rig.manager.complete(rig.launch(s, 3)));
  EXPECT_EQ(rig.plan->last_upload().whole_rows, 0);
  EXPECT_EQ(rig.finish(), "");
}

// In global mode, as torch captures: what the driver forbids to other threads then.
TEST(DevicePlan, ACaptureOfAnotherThreadNeitherStopsAPlanNorIsBroken) {
  PlanRig rig;
  rig.fake.capture.others = true;
  const SequenceId s = rig.open();
  for (int i = 0; i < 6; ++i) {
    must(rig.manager.complete(rig.launch(s, 3)));
    must(rig.plan->wait());
  }
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(s, 7, 4);
  const StepPlan& step = rig.planned(PlanRig::kWithTables);
  must(rig.upload(step));
  must(rig.plan->verify(step, rig.stream.handle()));
  must(rig.manager.commit(ticket));
  EXPECT_EQ(rig.finish(), "");
  const DevicePlanGroup group{.block_size = 4, .table_stride = 20};
  must(DevicePlan::create(rig.kernels, {.max_sequences = 2,
                                        .max_tokens = 8,
                                        .num_rows = rig.manager.num_rows(),
                                        .groups = {&group, 1}}));
  EXPECT_EQ(rig.fake.capture.broken, 0);
  rig.fake.capture.others = false;
}

TEST(DevicePlan, WhatApplyStartsIsTheSameInEveryStep) {
  RigOptions options;
  options.plan.flashinfer = true;
  PlanRig rig(options);
  const DevicePlanArrays arrays = rig.plan->arrays();
  const SequenceId a = rig.open();
  std::vector<FakeDriver::Launch> first;
  for (int i = 0; i < 20; ++i) {
    const Ticket ticket = must(rig.manager.begin_step());
    rig.append(a, i, 1 + i % 4);
    const StepPlan& step = rig.planned();
    must(rig.plan->send(step, rig.stream.handle()));
    rig.fake.launches.clear();
    must(rig.plan->apply(rig.stream.handle()));
    ASSERT_EQ(rig.fake.launches.size(), 2u);
    for (std::size_t k = 0; k < 2; ++k) {
      const FakeDriver::Launch& now = rig.fake.launches[k];
      if (first.size() < 2) first.push_back(now);
      EXPECT_EQ(now.kernel, first[k].kernel);
      EXPECT_EQ(now.args, first[k].args);
      EXPECT_EQ(std::vector({now.x, now.y, now.z, now.threads}),
                std::vector({first[k].x, first[k].y, first[k].z, first[k].threads}));
    }
    rig.read(step);
    must(rig.manager.commit(ticket));
    must(rig.manager.complete(ticket));
    EXPECT_EQ(std::memcmp(&arrays, &rig.plan->arrays(), sizeof arrays), 0);
    EXPECT_EQ(rig.finish(), "");
  }
}

TEST(DevicePlan, ADecodeStepOf1024SequencesUploadsKilobytes) {
  RigOptions options;
  options.groups = {full_group(16, 1024 * 514)};
  options.manager.max_sequences = 1024;
  options.manager.max_sequence_tokens = 8224;
  options.columns = 514;
  options.max_tokens = 1024;
  options.plan.batch_tables = false;
  PlanRig rig(options);
  std::vector<SequenceId> sequences(1024);
  Ticket ticket = must(rig.manager.begin_step());
  for (SequenceId& sequence : sequences) sequence = must(rig.manager.open_unnamed(8192));
  must(rig.manager.finish(ticket));  // a prefill elsewhere
  std::int64_t most = 0;
  for (int i = 0; i < 3; ++i) {
    ticket = must(rig.manager.begin_step());
    must(rig.manager.append_unnamed_each(sequences, nullptr));
    must(rig.plan->upload(rig.planned(), rig.stream.handle()));
    if (i > 0) most = std::max(most, rig.plan->last_upload().bytes);
    must(rig.manager.finish(ticket));
    must(rig.stream.synchronize());
  }
  EXPECT_LT(most, 32 << 10);
  EXPECT_EQ(rig.plan->last_upload().changed_entries, 0);  // 8,193 of 8,208 tokens
}

// ---- pinned memory ----

TEST(DevicePlan, APieceIsNotWrittenBeforeItsCopyHasPassed) {
  PlanRig rig;
  const SequenceId a = rig.open();
  const Ticket ticket = must(rig.manager.begin_step());
  int refused = 0;
  rig.fake.moves_percent = 3;
  for (int i = 0; i < 40; ++i) {
    rig.append(a, i, 1 + i % 3);
    const StepPlan& step = rig.planned();
    Status sent = rig.upload(step);
    if (sent.code() == ErrorCode::kResourceExhausted) {
      EXPECT_EQ(sent.message(),
                "the plan cannot be sent: 2 of 2 pieces of pinned memory are on their way; wait(), "
                "or allow more steps_in_flight");
      ++refused;
      must(rig.plan->wait());
      sent = rig.upload(step);
    }
    must(sent);
    must(rig.manager.undo(a));
  }
  EXPECT_GT(refused, 0);
  must(rig.manager.drop(ticket));
  EXPECT_EQ(rig.finish(), "");
}

// The fake driver's own calls allocate: those of an upload do nothing here.
bool g_quiet = false;
DriverCalls calls_of_an_upload_that_do_nothing() {
  DriverCalls calls = FakeDriver::calls();
  calls.context_push = [](void* context) { return g_quiet ? 0 : FakeCalls::context_push(context); };
  calls.context_pop = [](void** context) { return g_quiet ? 0 : FakeCalls::context_pop(context); };
  calls.stream_context = [](void*, void** context) {
    *context = FakeCalls::context_of(0);
    return 0;
  };
  calls.copy_in = [](DeviceAddress, const void*, std::size_t, void*) { return 0; };
  calls.event_record = [](void*, void*) { return 0; };
  calls.event_query = [](void*) { return 0; };
  calls.stream_is_capturing = [](void*, int*) { return 0; };
  calls.launch = [](void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    void*, void**, void**) { return 0; };
  return calls;
}

TEST(DevicePlan, AnUploadAllocatesNothing) {
  FakeDriver fake;
  const auto device = *Device::open(calls_of_an_upload_that_do_nothing(), 0);
  const auto kernels = *load_kernels(device, {}, kPlanImages);
  KVCacheManager manager = must(KVCacheManager::create(CacheSpec{{full_group(4, 64)}}));
  const DevicePlanGroup group{.block_size = 4, .table_stride = 20};
  const auto plan = must(DevicePlan::create(kernels, {.max_sequences = 2,
                                                      .max_tokens = 8,
                                                      .num_rows = manager.num_rows(),
                                                      .groups = {&group, 1},
                                                      .flashinfer = true}));
  const SequenceId s = must(manager.open({})).sequence;
  for (int i = 0; i < 40; ++i) {
    const Ticket ticket = must(manager.begin_step());
    must(manager.append_unnamed(s, 1));
    const StepPlan& step = *must(
        manager.plan({.block_tables = i % 7 == 0, .changed_entries = true, .flashinfer = true}));
    g_quiet = true;
    const std::uint64_t before = testing_heap::num_heap_calls();
    const bool sent = plan->upload(step, &fake).ok();
    const std::uint64_t after = testing_heap::num_heap_calls();
    g_quiet = false;
    EXPECT_TRUE(sent) << i;
    EXPECT_EQ(after, before) << i;
    if (i % 7 == 6) plan->resend();  // the next one has block tables, and goes up whole
    must(manager.finish(ticket));
  }
}

// ---- verify() ----

TEST(DevicePlan, VerifySaysWhatDiffersFirst) {
  RigOptions options;
  options.plan.flashinfer = true;
  PlanRig rig(options);
  const SequenceId a = rig.open();
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 9);
  const StepPlan& step = rig.planned(PlanRig::kWithTables);
  must(rig.upload(step));
  void* const stream = rig.stream.handle();
  EXPECT_EQ(rig.plan->verify(step, stream).message(), "ok");
  const auto spoil = [&](const std::int32_t* word) {
    auto* const to = const_cast<std::int32_t*>(word);
    const std::int32_t was = std::exchange(*to, 4711);
    const Status status = rig.plan->verify(step, stream);
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    *to = was;
    return status.message();
  };
  const DeviceGroupPlan& group = rig.plan->group(GroupId(0));
  EXPECT_EQ(spoil(group.table + 2), "group 0, row 0, column 2: the device has 4711, the plan 2");
  EXPECT_EQ(spoil(group.batch_table + 3),
            "group 0, sequence 0, column 3: the device has 4711, the plan -1");
  EXPECT_EQ(spoil(group.kv_indices + 1), "group 0, kv_indices[1]: the device has 4711, the plan 1");
  EXPECT_EQ(spoil(rig.plan->arrays().kv_lens), "kv_lens, word 0: the device has 4711, the plan 9");
  EXPECT_EQ(spoil(group.kv_last_page_len + 1),
            "group 0, kv_last_page_len, word 1: the device has 4711, the plan 1");
  // Arrays that are not those of this plan, under its number.
  const std::vector<std::int32_t> zeros(1 << 16, 0);
  const auto bent = [&](const auto& change) {
    StepPlan plan = step;
    std::vector<GroupPlan> groups{step.groups[0]};
    change(plan, groups[0]);
    if (plan.groups.size() == 1) plan.groups = groups;
    const Status status = rig.plan->verify(plan, stream);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(bent([](StepPlan& p, GroupPlan&) { p.groups = {}; }),
            "the plan has 0 groups, the tables 1");
  EXPECT_THAT(bent([&](StepPlan& p, GroupPlan&) { p.rows = p.kv_lens = zeros; }),
              HasSubstr("65536 sequences, room is for 4"));
  EXPECT_THAT(bent([&](StepPlan&, GroupPlan& g) { g.slot_mapping = zeros; }),
              HasSubstr("65536 slots"));
  EXPECT_EQ(bent([&](StepPlan&, GroupPlan& g) { g.kv_indices = zeros; }),
            "the plan has 65536 kv_indices, needed: 3");
  EXPECT_EQ(bent([&](StepPlan&, GroupPlan& g) { g.kv_indices = g.kv_indices.first(2); }),
            "the plan has 2 kv_indices, needed: 3");
  EXPECT_EQ(bent([&](StepPlan&, GroupPlan& g) {
              g.block_table = g.block_table.first(2);
              g.block_table_stride = 2;
            }),
            "group 0, sequence 0: 9 tokens in a block table of 2 columns");
  EXPECT_THAT(rig.plan->verify(rig.planned(), stream).message(), HasSubstr("is not the one"));
  must(rig.upload(rig.planned()));
  EXPECT_EQ(rig.plan->verify(rig.planned(), stream).code(), ErrorCode::kFailedPrecondition);
  must(rig.manager.drop(ticket));
}

// ---- what is refused, and what fails ----

TEST(DevicePlan, WhatDoesNotFitIsRefusedWithBothNumbers) {
  RigOptions options;
  options.columns = 4;
  options.max_tokens = 20;
  options.plan.max_changed_entries = 4;
  options.plan.positions = true;
  PlanRig rig(options);
  const SequenceId a = rig.open();
  const SequenceId b = rig.open();
  Ticket ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 9);
  rig.append(b, 50, 9);
  EXPECT_EQ(rig.upload(rig.planned()).message(),
            "the plan sets 6 entries of tables, room is for 4 (max_changed_entries)");
  must(rig.manager.undo(b));
  rig.append(b, 50, 12);
  EXPECT_EQ(rig.upload(rig.planned()).message(),
            "the plan has 21 positions of 21 tokens, room is for 20");
  must(rig.manager.undo(a));
  must(rig.manager.undo(b));
  rig.append(b, 50, 17);
  EXPECT_EQ(rig.upload(rig.planned()).message(),
            "group 0, sequence 0: 17 tokens have 5 blocks, a row of the table has room for 4");
  must(rig.manager.undo(b));
  rig.append(b, 50, 3);
  const StepPlan& step = rig.planned();
  StepPlan wrong = step;
  wrong.groups = {};
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).message(),
            "the plan has 0 groups, the tables 1");
  wrong = step;
  wrong.number = 0;
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).code(), ErrorCode::kInvalidArgument);
  const std::vector<std::int32_t> rows{4}, many(5, 0), minus{-1};
  wrong = step;
  wrong.rows = rows;
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).message(),
            "rows[0] is 4, the tables have rows 0 to 3");
  wrong.rows = many;
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).message(),
            "the plan has 5 sequences, room is for 4");
  wrong = step;
  wrong.kv_lens = {};
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).message(),
            "the plan has 0 kv_lens, needed: 1");
  wrong.kv_lens = minus;
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).message(), "kv_lens[0] is -1");
  const std::vector<GroupPlan> groups{step.groups[0]};
  std::vector<GroupPlan> bent = groups;
  wrong = step;
  wrong.groups = bent;
  bent[0].changed_columns = rows;
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).message(),
            "group 0, changed entry 0 is in row 1, column 4; the table has rows 0 to 3, columns 0 "
            "to 3");
  bent = groups;
  bent[0].changed_rows = {};
  wrong.groups = bent;
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).code(), ErrorCode::kInvalidArgument);
  bent = groups;
  bent[0].slot_mapping = {};
  wrong.groups = bent;
  EXPECT_EQ(rig.plan->upload(wrong, rig.stream.handle()).message(),
            "group 0 has 0 slots, the step 3 tokens, room is for 20");
  must(rig.upload(step));  // none of them changed anything
  EXPECT_EQ(rig.finish(), "");
  must(rig.manager.drop(ticket));
}

// Rows that have to be whole count against the limit, and a refusal brings none of them up: smaller
// steps do, down to one sequence.
TEST(DevicePlan, AStepOfOneSequenceAlwaysFitsTheLimitOfEntries) {
  for (const bool flashinfer : {false, true}) {
    RigOptions options;
    options.groups = {full_group(4, 64), window_group(2, 80, 40, 24)};
    options.columns = 26;
    options.plan.flashinfer = flashinfer;
    options.plan.max_changed_entries = flashinfer ? 65 : 52;
    PlanRig rig(options);
    const SequenceId a = rig.open();
    const SequenceId b = rig.open();
    for (const SequenceId s : {a, b}) {
      must(rig.manager.complete(rig.launch(s, 49, false)));
      // Sinks in front of a gap, in both groups.
      must(rig.manager.trim(s, {.num_sinks = 40, .window = 5}));
    }
    for (int i = 0; i < 3; ++i) {
      const Ticket ticket = must(rig.manager.begin_step());
      rig.append(a, 1, 1);
      rig.append(b, 2, 1);
      const Status refused = rig.upload(rig.planned(PlanRig::kWithTables));
      EXPECT_EQ(refused.code(), i == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kOk);
      if (!refused.ok()) {
        EXPECT_THAT(refused.message(), HasSubstr("(max_changed_entries)"));
        must(rig.manager.undo(b));
        must(rig.upload(rig.planned(PlanRig::kWithTables)));
        must(rig.manager.finish(ticket));
        const Ticket next = must(rig.manager.begin_step());
        rig.append(b, 2, 1);
        must(rig.upload(rig.planned(PlanRig::kWithTables)));
        must(rig.manager.finish(next));
        continue;
      }
      EXPECT_EQ(rig.plan->last_upload().whole_rows, 0);
      must(rig.manager.finish(ticket));
    }
    EXPECT_EQ(rig.finish(), "");
    DevicePlanOptions less = rig.plan_options();
    --less.max_changed_entries;
    const auto made = DevicePlan::create(rig.kernels, less);
    ASSERT_FALSE(made.has_value());
    EXPECT_THAT(made.error().message(),
                HasSubstr(flashinfer ? "is 64, allowed: 65 to" : "is 51, allowed: 52 to"));
  }
}

TEST(DevicePlan, OptionsAndStreamsOfOthersAreRefused) {
  PlanRig rig;
  EXPECT_EQ(DevicePlan::create(nullptr, rig.plan_options()).error().message(), "kernels is null");
  const auto refused = [&](const auto& change) {
    DevicePlanOptions options = rig.plan_options();
    change(options);
    const auto made = DevicePlan::create(rig.kernels, options);
    EXPECT_EQ(made.has_value() ? ErrorCode::kOk : made.error().code(), ErrorCode::kInvalidArgument);
    return made.has_value() ? std::string() : made.error().message();
  };
  using Options = DevicePlanOptions;
  EXPECT_EQ(refused([](Options& o) { o.max_sequences = 0; }),
            "max_sequences is 0, allowed: 1 to 1048576");
  EXPECT_THAT(refused([](Options& o) { o.max_tokens = 0; }), HasSubstr("max_tokens is 0"));
  EXPECT_THAT(refused([](Options& o) { o.num_rows = -1; }), HasSubstr("num_rows is -1"));
  EXPECT_THAT(refused([](Options& o) { o.steps_in_flight = 65; }), HasSubstr("1 to 64"));
  EXPECT_EQ(refused([](Options& o) { o.pad = 7; }), "pad is 7, allowed: -1 and 0");
  EXPECT_THAT(refused([](Options& o) { o.groups = {}; }), HasSubstr("groups is 0"));
  EXPECT_THAT(refused([](Options& o) { o.max_changed_entries = -1; }), HasSubstr("is -1"));
  DevicePlanGroup group{.block_size = 0, .table_stride = 4};
  EXPECT_THAT(refused([&](Options& o) {
                o.groups = {&group, 1};
              }),
              HasSubstr("groups[0].block_size is 0"));
  group = {.block_size = 4, .table_stride = 1 << 29};
  EXPECT_THAT(refused([&](Options& o) {
                o.groups = {&group, 1};
              }),
              HasSubstr("groups[0].table_stride is"));

  const auto other = open_device(1);
  const Stream stream = *Stream::create(other);
  const SequenceId a = rig.open();
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(a, 1, 1);
  EXPECT_THAT(rig.plan->upload(rig.planned(), stream.handle()).message(),
              HasSubstr("the stream is of another device"));
  EXPECT_THAT(rig.plan->apply(stream.handle()).message(), HasSubstr("of another device"));
  must(rig.manager.drop(ticket));
}

TEST(DevicePlan, EachCallOfTheDriverFailsOnceAndNothingStaleIsServed) {
  int failures = 0;
  for (int at = 1;; ++at) {
    PlanRig rig;
    const SequenceId a = rig.open();
    rig.launch(a, 9);
    must(rig.stream.synchronize());
    const Ticket ticket = must(rig.manager.begin_step());
    rig.append(a, 1, 9);
    rig.fake.count = 0;
    rig.fake.fail_at = at;
    rig.fake.fail_with = 2;
    const Status failed = rig.plan->upload(rig.planned(PlanRig::kWithTables), rig.stream.handle());
    rig.fake.fail_at = 0;
    if (failed.ok()) break;
    ++failures;
    must(rig.plan->wait());
    must(rig.manager.commit(ticket));
    rig.launch(a, 1);
    EXPECT_EQ(rig.plan->last_upload().whole_rows, 1) << at << " " << rig.fake.failed;
    EXPECT_EQ(rig.finish(), "") << at;
  }
  EXPECT_GE(failures, 6);
}

TEST(DevicePlan, WhatAFailedApplyDidNotSetIsSentWhole) {
  PlanRig rig;
  const SequenceId s = rig.open();
  must(rig.manager.complete(rig.launch(s, 6)));
  const auto other = open_device(1);
  const Stream elsewhere = *Stream::create(other);
  for (const bool refused : {false, true}) {
    const Ticket ticket = must(rig.manager.begin_step());
    rig.append(s, 7, 4);
    must(rig.plan->send(rig.planned(), rig.stream.handle()));
    if (!refused) rig.fake.always["cuLaunchKernel"] = 701;
    EXPECT_EQ(rig.plan->apply(refused ? elsewhere.handle() : rig.stream.handle()).code(),
              refused ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable);
    rig.fake.always.clear();
    must(rig.manager.commit(ticket));
    must(rig.manager.complete(rig.launch(s, 1)));
    EXPECT_EQ(rig.plan->last_upload().whole_rows, 1);
  }
  EXPECT_EQ(rig.finish(), "");
}

// A driver may answer a copy with an error that it has begun.
bool g_late_error = false;
TEST(DevicePlan, APieceWhoseCopyFailedIsNotWrittenBeforeWait) {
  DriverCalls calls = FakeDriver::calls();
  calls.copy_in = [](DeviceAddress to, const void* from, std::size_t bytes, void* stream) {
    const DriverResult error = FakeCalls::copy_in(to, from, bytes, stream);
    return g_late_error ? 701 : error;
  };
  PlanRig rig({}, calls);
  const SequenceId s = rig.open();
  must(rig.manager.complete(rig.launch(s, 6)));
  EXPECT_EQ(rig.finish(), "");
  must(rig.plan->wait());
  const Ticket ticket = must(rig.manager.begin_step());
  rig.append(s, 7, 4);
  const StepPlan& step = rig.planned(PlanRig::kWithTables);
  rig.fake.moves_percent = 0;
  g_late_error = true;
  EXPECT_EQ(rig.upload(step).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(rig.upload(step).code(), ErrorCode::kUnavailable);
  g_late_error = false;
  EXPECT_EQ(rig.upload(step).code(), ErrorCode::kResourceExhausted);
  must(rig.plan->wait());
  must(rig.upload(step));
  must(rig.manager.finish(ticket));
  EXPECT_EQ(rig.finish(), "");
}

TEST(DevicePlan, MemoryComesBackWhereCreationFails) {
  int failures = 0;
  for (int at = 1;; ++at) {
    PlanRig rig;
    rig.plan = nullptr;
    const std::size_t open = rig.fake.open();
    rig.fake.count = 0;
    rig.fake.fail_at = at;
    auto made = DevicePlan::create(rig.kernels, rig.plan_options());
    rig.fake.fail_at = 0;
    if (made.has_value()) break;
    ++failures;
    EXPECT_EQ(rig.fake.open(), open) << at << " " << rig.fake.failed;
  }
  EXPECT_GE(failures, 8);
}

}  // namespace
}  // namespace kvfolio::cuda
