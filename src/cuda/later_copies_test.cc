// SPDX-License-Identifier: Apache-2.0

// Copies that are submitted: their order, their staging, their tickets. Worlds of odd seeds have
// kernels.

#include "cuda/later_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/later_world.h"

namespace kvfolio::cuda {
namespace {

using later::Bytes;
using later::drawn_bytes;
using later::World;
using staged::DeviceMemory;
using staged::DeviceMemoryOptions;
using testing::HasSubstr;

TEST(CudaLaterCopies, ComeBehindTheStreamAndNothingThatIsEnqueuedLaterWaits) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    World w(seed);
    w.write(Bytes(World::kBytes, std::byte{1}));
    Stream engine = *Stream::create(w.device);
    const auto set = [&](std::byte* at, unsigned char value) {
      return w.device->run("to set", [&](const DriverCalls& calls) {
        return calls.memory_set(address_of(at), value, World::kBytes, engine.handle());
      });
    };
    w.fake.standing = {engine.handle()};
    ASSERT_TRUE(set(w.there, 2).ok());
    Bytes host(World::kBytes);
    std::byte* const to = seed % 4 < 2 ? host.data() : w.pinned.data();
    const CopyTicket behind = *w.submit(w.out(to), CopyDirection::kOut, engine.handle());
    const CopyTicket free = *w.submit(w.in(w.pinned.data() + 3200), CopyDirection::kIn);
    ASSERT_TRUE(w.arrives(free)) << seed;  // it overtakes, in the other direction
    ASSERT_FALSE(w.end(behind, 300)) << seed;
    w.fake.standing.clear();
    // The engine's next work waits for no copy: no stream but the engine's moves.
    while (!*engine.done()) {
    }
    ASSERT_TRUE(w.arrives(behind));
    EXPECT_EQ(Bytes(to, to + 1600), Bytes(1600, std::byte{2})) << seed;
  }
}

TEST(CudaLaterCopies, LeaveTheStreamThatTheyComeBehindAlone) {
  World w(1);
  Stream engine = *Stream::create(w.device);
  w.fake.moves_percent = 0;
  const CopyTicket ticket = *w.submit(w.out(w.pinned.data()), CopyDirection::kOut, engine.handle());
  EXPECT_TRUE(*engine.done());  // it was given an event, and no wait
  EXPECT_FALSE(w.end(ticket, 20));
  w.fake.moves_percent = 30;
  EXPECT_TRUE(w.arrives(ticket));
}

TEST(CudaLaterCopies, BytesArriveByEachWayInBothDirectionsAndWithin) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    World w(seed);
    const Bytes before = drawn_bytes(w.random, World::kBytes);
    w.write(before);
    Bytes source = drawn_bytes(w.random, World::kBytes), host(World::kBytes);
    const bool is_pinned = seed % 4 < 2;
    if (is_pinned) std::memcpy(w.pinned.data(), source.data(), source.size());
    const std::byte* const from = is_pinned ? w.pinned.data() : source.data();
    ASSERT_TRUE(w.arrives(*w.submit(w.in(from), CopyDirection::kIn)));
    Bytes want = before;
    for (std::size_t i = 0; i < 16; ++i) std::memcpy(&want[400 * i], &source[100 * i], 100);
    ASSERT_EQ(w.read(), want) << seed;
    std::byte* const to = is_pinned ? w.pinned.data() : host.data();
    const CopyRun all{to, w.there, World::kBytes};
    ASSERT_TRUE(w.arrives(*w.submit({&all, 1}, CopyDirection::kOut)));
    ASSERT_EQ(Bytes(to, to + World::kBytes), want) << seed;
    const CopyRun within[] = {{w.there, w.there + 3200, 1000}, {w.there + 1000, w.there + 5000, 9}};
    ASSERT_TRUE(w.arrives(*w.submit(within, CopyDirection::kWithin)));
    std::memcpy(&want[0], &want[3200], 1000);
    std::memcpy(&want[1000], &want[5000], 9);
    ASSERT_EQ(w.read(), want) << seed;
    EXPECT_TRUE(w.memory->take_error().ok());
  }
}

// Staging of 2,048 bytes has eight pieces; nothing of it moves while all of this is submitted.
TEST(CudaLaterCopies, StagingIsNotFilledAgainBeforeItsCopyHasPassed) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    World w(seed);
    const Bytes source = drawn_bytes(w.random, World::kBytes);
    w.fake.moves_percent = 0;
    std::vector<CopyTicket> tickets;
    for (std::int64_t at = 0; at < World::kBytes; at += 640) {
      const CopyRun run{w.there + at, source.data() + at, 640};
      tickets.push_back(*w.submit({&run, 1}, CopyDirection::kIn));
    }
    for (const CopyTicket ticket : tickets) ASSERT_FALSE(w.end(ticket, 5));
    w.fake.moves_percent = 30;
    for (const CopyTicket ticket : tickets) ASSERT_TRUE(w.arrives(ticket));
    ASSERT_EQ(w.read(), source) << seed;
  }
}

TEST(CudaLaterCopies, TicketsEndInAnyOrderAndAreAnsweredOnce) {
  bool later_first = false, in_order = false;
  for (unsigned seed = 0; seed < 60; ++seed) {
    World w(seed);
    Bytes host(World::kBytes);
    const CopyTicket first = *w.submit(w.in(w.pinned.data()), CopyDirection::kIn);
    const CopyTicket second = *w.submit(w.out(w.pinned.data() + 3200), CopyDirection::kOut);
    bool first_over = false, second_over = false;
    while (!first_over || !second_over) {
      if (!second_over) second_over = *w.poll(second);
      if (!first_over) first_over = *w.poll(first);
      later_first |= second_over && !first_over;
      in_order |= first_over && !second_over;
    }
    for (const CopyTicket ticket : {first, second, CopyTicket{}, CopyTicket{99}}) {
      EXPECT_EQ(w.poll(ticket).error().code(), ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_TRUE(later_first && in_order);
}

// A record of an arena: no staging of the host, and no copy for each run.
TEST(CudaLaterCopies, SixteenRunsToPinnedMemoryAreOneKernelAndOneCopy) {
  World w(1, {.staging_bytes = 512, .later_bytes = 1 << 14});
  w.fake.count = 0;
  const CopyTicket out = *w.submit(w.out(w.pinned.data()), CopyDirection::kOut);
  // Two questions whether both ends are pinned; whether the stream is captured, an event made and
  // recorded there (which the fake does not count), and waited for; kernel, copy, an event made and
  // recorded; a push of the context before each but the second question.
  EXPECT_EQ(w.fake.count, 18);
  ASSERT_EQ(w.fake.launches.size(), 1u);
  EXPECT_EQ(w.fake.launches[0].kernel, "kvfolio_runs_out");
  EXPECT_TRUE(w.arrives(out));
  const CopyTicket in = *w.submit(w.in(w.pinned.data()), CopyDirection::kIn);
  EXPECT_EQ(w.fake.launches.size(), 2u);
  EXPECT_TRUE(w.arrives(in));
}

TEST(CudaLaterCopies, AFullTableIsRefusedWithItsNumberAndNothingIsBegun) {
  World w(0, {.staging_bytes = 512, .later_bytes = 2048, .max_tickets = 3});
  w.fake.moves_percent = 0;
  std::vector<CopyTicket> tickets;
  tickets.reserve(3);
  for (int i = 0; i < 3; ++i) {
    tickets.push_back(*w.submit(w.out(w.pinned.data() + 1600 * i), CopyDirection::kOut));
  }
  w.fake.count = 0;
  const auto refused = w.submit(w.out(w.pinned.data() + 4800), CopyDirection::kOut);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("of max_tickets = 3 tickets 3 are not over"));
  EXPECT_EQ(w.fake.count, 0);
  w.fake.moves_percent = 30;
  ASSERT_TRUE(w.arrives(tickets[1]));
  tickets[1] = *w.submit(w.out(w.pinned.data() + 4800), CopyDirection::kOut);
  for (const CopyTicket ticket : tickets) EXPECT_TRUE(w.arrives(ticket));
}

// What is captured does not run now, and runs with each launch of its graph.
TEST(CudaLaterCopies, AStreamThatIsBeingCapturedIsRefusedAndDrawsNoStreamIntoItsCapture) {
  for (const unsigned seed : {0u, 1u}) {
    World w(seed);
    Stream engine = *Stream::create(w.device);
    w.fake.capture.streams = {engine.handle()};
    for (const CopyDirection direction : {CopyDirection::kIn, CopyDirection::kOut}) {
      const auto refused =
          w.submit(direction == CopyDirection::kIn ? w.in(w.pinned.data()) : w.out(w.pinned.data()),
                   direction, engine.handle());
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
      EXPECT_THAT(refused.error().message(), HasSubstr("is being captured"));
    }
    EXPECT_EQ(w.fake.capture.streams, std::set<void*>{engine.handle()});
    EXPECT_EQ(w.fake.capture.broken, 0);
    w.fake.always["cuStreamIsCapturing"] = 906;
    EXPECT_EQ(w.submit(w.in(w.pinned.data()), CopyDirection::kIn, engine.handle()).error().code(),
              ErrorCode::kFailedPrecondition);
    w.fake.always.clear();
    EXPECT_TRUE(w.arrives(*w.submit(w.in(w.pinned.data()), CopyDirection::kIn)));
    w.fake.capture.streams.clear();
    w.fake.always["cuEventRecord"] = 906;  // a capture that began since the question
    const auto refused = w.submit(w.in(w.pinned.data()), CopyDirection::kIn, engine.handle());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
    w.fake.always.clear();
    EXPECT_TRUE(w.arrives(*w.submit(w.in(w.pinned.data()), CopyDirection::kIn, engine.handle())));
  }
}

// A driver makes its caller wait where a stream has too much: what is beyond stays in line.
TEST(CudaLaterCopies, AStreamIsNotFilledHoweverMuchIsSubmitted) {
  World w(0);
  const Bytes source = drawn_bytes(w.random, World::kBytes);
  std::memcpy(w.pinned.data(), source.data(), source.size());
  w.fake.moves_percent = 0;
  std::vector<CopyTicket> tickets;
  tickets.reserve(World::kBytes / 10);
  for (std::int64_t at = 0; at < World::kBytes; at += 10) {
    const CopyRun run{w.there + at, w.pinned.data() + at, 10};
    tickets.push_back(*w.submit({&run, 1}, CopyDirection::kIn));
  }
  EXPECT_LT(w.fake.most_enqueued(), 300u);
  w.fake.moves_percent = 60;
  for (const CopyTicket ticket : tickets) ASSERT_TRUE(w.arrives(ticket));
  EXPECT_EQ(w.read(), source);
}

TEST(CudaLaterCopies, DeallocateWaitsForWhatTouchesTheMemoryAlsoForWhatIsInLine) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    World w(seed);
    const Bytes source = drawn_bytes(w.random, World::kBytes);
    w.write(source);
    Stream engine = *Stream::create(w.device);
    w.fake.moves_percent = 0;
    Bytes host(World::kBytes);
    std::byte* const to = seed % 4 < 2 ? host.data() : w.pinned.data();
    std::vector<CopyTicket> tickets;
    for (std::int64_t at = 0; at < World::kBytes; at += 1600) {
      const CopyRun run{to + at, w.there + at, 1600};
      tickets.push_back(*w.submit({&run, 1}, CopyDirection::kOut, engine.handle()));
    }
    const CopyRun none{};
    const CopyTicket empty = *w.submit({&none, 1}, CopyDirection::kOut);
    w.memory->deallocate(std::exchange(w.there, nullptr), World::kBytes);
    EXPECT_EQ(Bytes(to, to + World::kBytes), source) << seed;
    // Polled once, or never.
    EXPECT_TRUE(*w.poll(tickets[2]));
    EXPECT_FALSE(w.poll(tickets[2]));
    EXPECT_TRUE(*w.poll(empty));
    EXPECT_TRUE(w.memory->take_error().ok());  // that the second poll was refused is none
  }
}

TEST(CudaLaterCopies, TicketsThatNoPollComesForLeaveRoomOnceTheirMemoryIsGone) {
  World w(0, {.staging_bytes = 512, .later_bytes = 2048, .max_tickets = 2});
  for (int i = 0; i < 10; ++i) {
    std::byte* const some = *w.memory->allocate(256);
    const CopyRun run{w.pinned.data(), some, 256};
    ASSERT_TRUE(w.submit({&run, 1}, CopyDirection::kOut)) << i;
    ASSERT_TRUE(w.submit({&run, 1}, CopyDirection::kOut)) << i;
    w.memory->deallocate(some, 256);
  }
}

// A service that makes cache after cache over one DeviceMemory keeps no more than that.
TEST(CudaLaterCopies, OfTicketsWhoseMemoryIsGoneOnlyTheLastAreKept) {
  World w(0, {.staging_bytes = 512, .later_bytes = 2048, .max_tickets = 64});
  w.fake.moves_percent = 100;
  std::vector<CopyTicket> tickets;
  while (tickets.size() < staged::LaterCopies::kMostGone + 64) {
    std::byte* const some = *w.memory->allocate(256);
    const CopyRun run{w.pinned.data(), some, 256};
    for (int i = 0; i < 64; ++i) tickets.push_back(*w.submit({&run, 1}, CopyDirection::kOut));
    w.memory->deallocate(some, 256);
  }
  const Result<bool> forgotten = w.poll(tickets[63]);
  ASSERT_FALSE(forgotten);
  EXPECT_EQ(forgotten.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(*w.poll(tickets[64]));
  EXPECT_FALSE(w.poll(tickets[64]));
  EXPECT_TRUE(*w.poll(tickets.back()));
}

TEST(CudaLaterCopies, WhatIsRefusedHidesNoFailureThatComesAfterIt) {
  World w(0, {.staging_bytes = 512, .later_bytes = 2048, .max_tickets = 1});
  w.fake.moves_percent = 0;
  ASSERT_TRUE(w.submit(w.out(w.pinned.data()), CopyDirection::kOut));
  EXPECT_FALSE(w.submit(w.out(w.pinned.data()), CopyDirection::kOut));
  EXPECT_FALSE(w.poll({12345}));
  w.fake.always["cuMemFree"] = 999;
  std::byte* const some = *w.memory->allocate(256);
  w.memory->deallocate(some, 256);
  w.fake.always.clear();
  EXPECT_THAT(w.memory->take_error().message(), HasSubstr("to free 256 bytes"));
  w.memory->deallocate(some, 256);
}

// Lent memory and a pool's: freeing them waits for no stream by itself.
TEST(CudaLaterCopies, DeallocateWaitsWhereverTheMemoryIsFrom) {
  for (const DeviceSource source : {DeviceSource::kPool, DeviceSource::kLent}) {
    FakeDriver fake;
    const auto device = open_device();
    auto lender = *DeviceMemory::create(device, {.later_bytes = 0});
    std::byte* const lent = *lender->allocate(4096);
    auto memory = *DeviceMemory::create(
        device, {.source = source, .lent = lent, .lent_bytes = 4096, .later_bytes = 2048});
    std::byte* const there = *memory->allocate(1000);
    Bytes in(1000, std::byte{5}), out(1000);
    const CopyRun write{there, in.data(), 1000}, read{out.data(), there, 1000};
    ASSERT_TRUE(memory->copy_in({&write, 1}).ok());
    fake.moves_percent = 0;
    ASSERT_TRUE(memory->submit({&read, 1}, CopyDirection::kOut, nullptr));
    memory->deallocate(there, 1000);
    EXPECT_EQ(out, in);
    lender->deallocate(lent, 4096);
  }
}

TEST(CudaLaterCopies, WithoutStagingForThemCopiesAreMadeWithinSubmit) {
  World w(1, {.staging_bytes = 512, .later_bytes = 0});
  EXPECT_FALSE(w.memory->copies_later());
  Bytes host(World::kBytes, std::byte{9});
  const CopyRun run{w.there, host.data(), World::kBytes};
  const auto ticket = w.memory->submit({&run, 1}, CopyDirection::kIn, nullptr);
  ASSERT_TRUE(ticket);
  EXPECT_EQ(w.read(), host);
  EXPECT_TRUE(*w.memory->poll(*ticket));
}

// A null stream is the legacy one, as in every other call.
TEST(CudaLaterCopies, ACopyBehindNullComesBehindTheLegacyStream) {
  World w(1);
  ASSERT_TRUE(w.arrives(*w.submit(w.out(w.pinned.data()), CopyDirection::kOut, nullptr)));
  EXPECT_EQ(w.fake.legacy_records, 1);
  Stream engine = *Stream::create(w.device);
  ASSERT_TRUE(w.arrives(*w.submit(w.out(w.pinned.data()), CopyDirection::kOut, engine.handle())));
  EXPECT_EQ(w.fake.legacy_records, 1);
  w.fake.capture.streams = {nullptr};
  const auto refused = w.submit(w.out(w.pinned.data()), CopyDirection::kOut, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  w.fake.capture.streams.clear();
}

// What an Offload leaves behind at its end is polled by no call.
TEST(CudaLaterCopies, TicketsThatAreLeftTakeNoRoomOnceTheyAreOver) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    World w(seed, {.staging_bytes = 512, .later_bytes = 2048, .max_tickets = 3});
    w.fake.moves_percent = 0;
    const auto submit = [&](int i, CopyDirection direction) {
      std::byte* const host = w.pinned.data() + 1600 * i;
      return w.submit(direction == CopyDirection::kIn ? w.in(host) : w.out(host), direction);
    };
    for (int i = 0; i < 3; ++i) {
      w.memory->leave(*submit(i, i == 1 ? CopyDirection::kIn : CopyDirection::kOut));
    }
    const auto refused = submit(3, CopyDirection::kIn);
    ASSERT_FALSE(refused) << "they are on their way";
    EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
    w.fake.moves_percent = 90;
    int given = 0;
    for (int round = 0; round < 200 && given < 3; ++round) {
      if (submit(3, CopyDirection::kIn)) ++given;
    }
    EXPECT_EQ(given, 3) << "the left ones are gone";
  }
  // One that is over when it is left.
  World w(1);
  const CopyTicket over = *w.submit({}, CopyDirection::kIn);
  w.memory->leave(over);
  EXPECT_EQ(w.poll(over).error().code(), ErrorCode::kInvalidArgument);
}

TEST(CudaLaterCopies, OptionsOutOfRangeAreRefused) {
  FakeDriver fake;
  const auto message = [](const DeviceMemoryOptions& options) {
    const auto memory = DeviceMemory::create(open_device(), options);
    return memory ? std::string("none") : std::string(memory.error().message());
  };
  for (const std::int64_t bytes :
       {std::int64_t{-1}, std::int64_t{1023}, (std::int64_t{1} << 32) + 1}) {
    EXPECT_EQ(message({.later_bytes = bytes}),
              "later_bytes is " + std::to_string(bytes) + ", allowed: 0, and 1024 to 4294967296");
  }
  for (const std::int32_t tickets : {0, (1 << 20) + 1}) {
    EXPECT_EQ(message({.max_tickets = tickets}),
              "max_tickets is " + std::to_string(tickets) + ", allowed: 1 to 1048576");
  }
}

TEST(CudaPinnedHostMemory, IsAlignedMemoryOfTheHostThatTheDriverKnows) {
  FakeDriver fake;
  {
    const auto device = open_device();
    EXPECT_EQ(PinnedHostMemory::create(nullptr).error().message(), "device is null");
    auto pinned = *PinnedHostMemory::create(device);
    EXPECT_EQ(pinned->kind(), MemoryKind::kHost);
    std::byte* const memory = *pinned->allocate(1000);
    EXPECT_EQ(address_of(memory) % kMemoryAlignment, 0u);
    std::memset(memory, 3, 500);
    EXPECT_TRUE(pinned->copy(memory + 500, memory, 500).ok());
    EXPECT_EQ(memory[999], std::byte{3});
    pinned->deallocate(memory, 1000);
    fake.count = 0;
    fake.fail_at = 2;
    EXPECT_EQ(pinned->allocate(1000).error().code(), ErrorCode::kOutOfMemory);
    fake.fail_at = 0;
  }
  EXPECT_EQ(fake.open(), 0u);
}

}  // namespace
}  // namespace kvfolio::cuda
