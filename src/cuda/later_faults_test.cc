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

// Whatever it answers, the bytes may be on their way: who was told that a ticket is over gives the
// block to another sequence.
TEST(CudaLaterFaults, ADriverThatAnswersNoQuestionEndsNoTicketThatIsOnItsWay) {
  World w(1);
  w.fake.moves_percent = 0;
  Bytes host(World::kBytes);
  const CopyRun large{w.there, host.data(), World::kBytes};  // part of it stays in line
  const CopyTicket ticket = *w.submit({&large, 1}, CopyDirection::kIn);
  const CopyTicket second = *w.submit(w.in(host.data()), CopyDirection::kIn);  // not begun
  w.fake.always["cuEventQuery"] = w.fake.always["cuStreamQuery"] = 999;
  EXPECT_FALSE(w.end(ticket, 10 * LaterCopies::kFailuresToRefuse));
  const auto refused = w.submit({&large, 1}, CopyDirection::kIn);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("to ask whether later copies are done"));
  EXPECT_FALSE(w.end(second, 1)->ok());
  w.fake.moves_percent = 100;
  EXPECT_FALSE(w.end(ticket, 10));
  w.fake.always.clear();
  const auto ended = w.end(ticket);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->message(), refused.error().message());
  w.write(Bytes(World::kBytes, std::byte{0x77}));  // of the next owner
  EXPECT_EQ(w.read(), Bytes(World::kBytes, std::byte{0x77}));
  // It answers again.
  EXPECT_TRUE(w.arrives(*w.submit({&large, 1}, CopyDirection::kIn)));
}

TEST(CudaLaterFaults, QuestionsThatACaptureRefusesAreAskedAgainAndFailNothing) {
  for (const DriverResult error : {900, 901, 906, 908}) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      World w(seed);
      w.fake.moves_percent = 0;
      std::memset(w.pinned.data(), 0x22, World::kBytes);
      const CopyTicket ticket = *w.submit(w.in(w.pinned.data()), CopyDirection::kIn);
      w.fake.always["cuEventQuery"] = w.fake.always["cuStreamQuery"] = error;
      EXPECT_FALSE(w.end(ticket, 100)) << error;
      EXPECT_TRUE(w.submit(w.in(w.pinned.data()), CopyDirection::kIn));
      w.fake.always.clear();
      w.fake.moves_percent = 30;
      EXPECT_TRUE(w.arrives(ticket));
      EXPECT_EQ(w.read()[400], std::byte{0x22});
      EXPECT_TRUE(w.memory->take_error().ok());
    }
  }
}

TEST(CudaLaterFaults, ACaptureOfAnotherThreadIsNeitherBrokenByLaterCopiesNorHoldsThemUp) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    World w(seed);
    w.fake.capture.others = true;
    EXPECT_TRUE(w.arrives(*w.submit(w.in(w.pinned.data()), CopyDirection::kIn)));
    EXPECT_TRUE(w.arrives(*w.submit(w.out(w.pinned.data()), CopyDirection::kOut)));
    const CopyRun lost{w.there, w.pinned.data(), 1600};
    ASSERT_TRUE(w.submit({&lost, 1}, CopyDirection::kIn));
    EXPECT_EQ(w.fake.capture.broken, 0);
    int mode = 1;  // what a thread has, it keeps
    static_cast<void>(FakeCalls::exchange_capture_mode(&mode));
    EXPECT_EQ(mode, 0);
    EXPECT_TRUE(w.submit({&lost, 1}, CopyDirection::kIn));
    static_cast<void>(FakeCalls::exchange_capture_mode(&mode));
    EXPECT_EQ(mode, 1);
    w.fake.capture.others = false;
  }
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

// Then it waits again: lent memory goes to another allocation at once.
TEST(CudaLaterFaults, AWaitOfDeallocateThatFailsIsKeptAndDoesNotEndIt) {
  for (const DriverResult error : {900, 999}) {
    for (const bool asks : {true, false}) {
      FakeDriver fake;
      const auto device = open_device();
      auto lender = *staged::DeviceMemory::create(device, {.later_bytes = 0});
      std::byte* const lent = *lender->allocate(4096);
      auto memory = *staged::DeviceMemory::create(
          device,
          {.source = DeviceSource::kLent, .lent = lent, .lent_bytes = 4096, .later_bytes = 2048});
      std::byte* const there = *memory->allocate(1000);
      auto pinned = *PinnedMemory::allocate(device, 1000);
      fake.moves_percent = 0;
      const CopyRun write{there, pinned.data(), 1000};
      const CopyTicket ticket = *memory->submit({&write, 1}, CopyDirection::kIn, nullptr);
      fake.always["cuStreamSynchronize"] = error;
      fake.times["cuStreamSynchronize"] = 30;
      if (!asks) fake.always["cuEventQuery"] = fake.always["cuStreamQuery"] = error;
      memory->deallocate(there, 1000);
      EXPECT_EQ(fake.most_enqueued(), 0u) << error;
      fake.always.clear();
      const Status kept = memory->take_error();
      const Result<bool> over = memory->poll(ticket);
      if (error == 900) {
        EXPECT_TRUE(kept.ok());
        EXPECT_TRUE(over && *over);
      } else {
        EXPECT_THAT(kept.message(), HasSubstr("to wait for later copies"));
        EXPECT_THAT(over.error().message(), HasSubstr("later copies"));
      }
      memory.reset();
      lender->deallocate(lent, 4096);
    }
  }
}

}  // namespace
}  // namespace kvfolio::cuda
