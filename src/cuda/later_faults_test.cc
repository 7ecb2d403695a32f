// SPDX-License-Identifier: Apache-2.0

// Submitted copies over a driver that fails: a ticket ends all the same, and says so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/later_world.h"

namespace kvfolio::cuda {
namespace {

using later::Bytes;
using later::drawn_bytes;
using later::World;
using staged::LaterCopies;
using testing::HasSubstr;

// In, out and within, of pageable and of pinned memory, behind a stream, under a call that fails:
// which of them it is, nothing is lost and no more than the tickets that met it fails.
bool fails_at(unsigned seed, int at, DriverResult error) {
  World w(seed);
  const Bytes before = drawn_bytes(w.random, World::kBytes);
  const Bytes source = drawn_bytes(w.random, World::kBytes);
  w.write(before);
  std::memcpy(w.pinned.data(), source.data(), source.size());
  Stream engine = *Stream::create(w.device);
  Bytes back(1600);
  w.fake.count = 0;
  w.fake.fail_at = at;
  w.fake.fail_with = error;
  std::vector<Status> ended;
  const auto run = [&](std::span<const CopyRun> runs, CopyDirection direction) {
    const auto ticket = w.submit(runs, direction, engine.handle());
    if (!ticket) return ended.push_back(ticket.error());
    const auto status = w.end(*ticket);
    EXPECT_TRUE(status) << "never over: " << at << " " << w.fake.failed;
    ended.push_back(status ? *status : Status());
  };
  run(w.out(back.data()), CopyDirection::kOut);
  if (ended.back().ok()) {
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(std::memcmp(&back[100 * i], &before[400 * i], 100), 0) << at;
    }
  }
  run(w.out(w.pinned.data() + World::kBytes), CopyDirection::kOut);
  run(w.in(w.pinned.data()), CopyDirection::kIn);
  run(w.in(source.data()), CopyDirection::kIn);
  const CopyRun within{w.there, w.there + 3200, 1600};
  run({&within, 1}, CopyDirection::kWithin);
  w.fake.fail_at = 0;
  const bool has_failed = !w.fake.failed.empty();
  int failures = 0;
  for (const Status& status : ended) {
    failures += status.ok() ? 0 : 1;
    EXPECT_TRUE(status.ok() || status.message().find("device 0 (Fake 0) failed to ") == 0);
  }
  EXPECT_LE(failures, has_failed ? 1 : 0) << at << " " << w.fake.failed;
  // Everything is as ever.
  EXPECT_TRUE(w.arrives(*w.submit(w.in(source.data()), CopyDirection::kIn)));
  EXPECT_TRUE(w.arrives(*w.submit(w.out(w.pinned.data()), CopyDirection::kOut)));
  EXPECT_EQ(Bytes(w.pinned.data(), w.pinned.data() + 1600), Bytes(&source[0], &source[0] + 1600));
  return has_failed;
}

TEST(CudaLaterFaults, EachCallOfTheDriverFailsOnceAndOneTicketSaysSo) {
  for (const DriverResult error : {2, 999}) {
    for (const unsigned seed : {10u, 11u}) {
      int at = 1;
      while (fails_at(seed, at, error)) ++at;
      EXPECT_GT(at, 60);
    }
  }
}

TEST(CudaLaterFaults, ATicketWhoseEventIsLostEndsWhenItsStreamHasPassedAndNotBefore) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    World w(seed);
    w.fake.moves_percent = 0;
    w.fake.always["cuEventRecord"] = 999;
    const CopyTicket ticket = *w.submit(w.in(w.pinned.data()), CopyDirection::kIn);
    w.fake.always.clear();
    EXPECT_FALSE(w.end(ticket, 100));
    w.fake.moves_percent = 30;
    const auto ended = w.end(ticket);
    ASSERT_TRUE(ended);
    EXPECT_THAT(ended->message(), HasSubstr("to record an event behind later copies"));
    EXPECT_TRUE(w.arrives(*w.submit(w.in(w.pinned.data()), CopyDirection::kIn)));
  }
}

TEST(CudaLaterFaults, ADriverThatAnswersNoQuestionIsGivenUpInThatDirectionAlone) {
  World w(1);
  w.fake.moves_percent = 0;
  Bytes host(World::kBytes);
  const CopyRun large{w.there, host.data(), World::kBytes};  // part of it stays in line
  const CopyTicket ticket = *w.submit({&large, 1}, CopyDirection::kIn);
  const CopyTicket second = *w.submit(w.in(w.pinned.data()), CopyDirection::kIn);
  w.fake.always["cuEventQuery"] = w.fake.always["cuStreamQuery"] = 999;
  const auto ended = w.end(ticket, LaterCopies::kFailuresToGiveUp + 1);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->code(), ErrorCode::kUnavailable);
  EXPECT_THAT(ended->message(), HasSubstr("to ask whether later copies are done"));
  EXPECT_FALSE(w.end(second, 1)->ok());
  w.fake.always.clear();
  w.fake.moves_percent = 30;
  EXPECT_EQ(w.submit({&large, 1}, CopyDirection::kIn).error().message(), ended->message());
  EXPECT_TRUE(w.arrives(*w.submit(w.out(w.pinned.data()), CopyDirection::kOut)));
}

TEST(CudaLaterFaults, AContextThatDiesEndsEveryTicketWithItsErrorAndNoOtherDevice) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    World w(seed);
    w.fake.moves_percent = 0;
    w.fake.ends_at = 0;
    Bytes host(World::kBytes);
    const CopyRun large{w.there, host.data(), World::kBytes};
    std::vector<CopyTicket> tickets = {*w.submit({&large, 1}, CopyDirection::kIn),
                                       *w.submit(w.out(w.pinned.data()), CopyDirection::kOut),
                                       *w.submit(w.in(w.pinned.data()), CopyDirection::kIn)};
    w.fake.ends_in(1 + seed % 7);
    w.fake.moves_percent = 20;
    int failed = 0;
    for (const CopyTicket ticket : tickets) {
      const auto ended = w.end(ticket);
      ASSERT_TRUE(ended) << seed;
      failed += ended->ok() ? 0 : 1;
      if (!ended->ok()) {
        EXPECT_THAT(ended->message(), HasSubstr("its context is lost"));
      }
    }
    EXPECT_GE(failed, 1);
    w.fake.count = 0;
    EXPECT_EQ(w.submit({&large, 1}, CopyDirection::kIn).error().code(), ErrorCode::kUnavailable);
    EXPECT_EQ(w.fake.count, 0);  // the driver is not asked any more
    EXPECT_THAT(w.memory->take_error().message(), HasSubstr("its context is lost"));
    w.memory->deallocate(std::exchange(w.there, nullptr), World::kBytes);
  }
}

TEST(CudaLaterFaults, AWaitOfDeallocateThatFailsIsKeptAndEndsItsTickets) {
  World w(1);
  w.fake.moves_percent = 0;
  const CopyTicket ticket = *w.submit(w.in(w.pinned.data()), CopyDirection::kIn);
  w.fake.always["cuStreamSynchronize"] = 999;
  w.memory->deallocate(std::exchange(w.there, nullptr), World::kBytes);
  w.fake.always.clear();
  EXPECT_THAT(w.memory->take_error().message(), HasSubstr("to wait for later copies"));
  EXPECT_FALSE(w.end(ticket, 1)->ok());
}

}  // namespace
}  // namespace kvfolio::cuda
