// SPDX-License-Identifier: Apache-2.0

// The host side over a driver that is no driver: what a machine without one says, which cards and
// versions are refused, and that a context which ended stays ended while others go on.

#include "cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "cuda/device_memory.h"
#include "cuda/fake_driver.h"

namespace kvfolio::cuda {
namespace {

using testing::HasSubstr;

TEST(CudaDriver, AMachineWithoutADriverGetsASentence) {
  const Result<DriverCalls> calls = load_driver("libno-such-driver.so.1");
  ASSERT_FALSE(calls);
  EXPECT_EQ(calls.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(calls.error().message(), HasSubstr("CUDA's driver cannot be loaded: libno-such"));
}

TEST(CudaDriver, ALibraryThatIsNoDriverIsRefusedByTheCallItLacks) {
  const Result<DriverCalls> calls = load_driver("libm.so.6");
  ASSERT_FALSE(calls);
  EXPECT_EQ(calls.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(calls.error().message(), HasSubstr("libm.so.6 has no cuInit"));
}

TEST(CudaDriver, AnOlderDriverIsRefusedWithBothVersions) {
  FakeDriver fake;
  fake.version = 12080;
  const auto device = Device::open(FakeDriver::calls(), 0);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(device.error().message(), "CUDA's driver is for CUDA 12.8, needed: CUDA 13.0 or newer");
}

TEST(CudaDriver, AnOlderCardIsRefusedByName) {
  FakeDriver fake;
  fake.major = 7;
  const auto device = Device::open(FakeDriver::calls(), 1);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(device.error().message(),
            "device 1 (Fake 1) has compute capability 7.5, needed: 8.0 or higher");
  EXPECT_EQ(fake.open(), 0u);
}

TEST(CudaDriver, ADeviceThatIsNotThereIsNamed) {
  FakeDriver fake;
  const auto device = Device::open(FakeDriver::calls(), 2);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(device.error().message(), "device 2: devices are 0 to 1");
  EXPECT_EQ(Device::open(FakeDriver::calls(), -1).error().code(), ErrorCode::kInvalidArgument);
  fake.devices = 0;
  EXPECT_EQ(Device::open(FakeDriver::calls(), 0).error().message(), "CUDA's driver has no device");
}

TEST(CudaDriver, EveryCallOfOpenMayFailAndNothingStaysOpen) {
  FakeDriver fake;
  int failed = 0;
  for (int at = 1;; ++at) {
    fake.count = 0;
    fake.fail_at = at;
    fake.fail_with = 100;
    const auto device = Device::open(FakeDriver::calls(), 0);
    if (device) break;
    EXPECT_EQ(device.error().code(), ErrorCode::kUnavailable) << at;
    EXPECT_THAT(device.error().message(), HasSubstr("error 100")) << at;
    EXPECT_EQ(fake.open(), 0u) << at;
    ++failed;
  }
  EXPECT_EQ(failed, 9);
  EXPECT_EQ(fake.open(), 0u);
}

TEST(CudaDriver, TheContextThatWasCurrentIsPutBack) {
  FakeDriver fake;
  int engine = 0;
  fake.current.push_back(&engine);
  const auto device = Device::open(FakeDriver::calls(), 0);
  ASSERT_TRUE(device);
  for (const DriverResult result : {0, 2, 700}) {
    static_cast<void>((*device)->run("to test", [&](const DriverCalls&) {
      EXPECT_EQ(fake.current.size(), 2u);
      EXPECT_NE(fake.current.back(), &engine);
      return result;
    }));
    EXPECT_THAT(fake.current, testing::ElementsAre(&engine));
  }
}

TEST(CudaDriver, AContextThatEndedStaysEndedWithoutAskingTheDriver) {
  for (const DriverResult fatal : {4, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719}) {
    FakeDriver fake;
    const auto first = *Device::open(FakeDriver::calls(), 0);
    const auto second = *Device::open(FakeDriver::calls(), 1);
    const Status died = first->run("to test", [&](const DriverCalls&) { return fatal; });
    EXPECT_EQ(died.code(), ErrorCode::kUnavailable) << fatal;
    EXPECT_THAT(died.message(), HasSubstr("device 0 (Fake 0) failed to test"));
    EXPECT_THAT(died.message(), HasSubstr("its context is lost"));
    fake.count = 0;
    bool called = false;
    const Status later = first->run("to go on", [&](const DriverCalls&) {
      called = true;
      return 0;
    });
    EXPECT_EQ(later.message(), died.message());
    EXPECT_EQ(first->status().message(), died.message());
    EXPECT_FALSE(called);
    EXPECT_EQ(fake.count, 0);
    EXPECT_TRUE(second->run("to go on", [](const DriverCalls&) { return 0; }).ok());
    EXPECT_TRUE(second->status().ok());
  }
}

TEST(CudaDriver, ANullDeviceIsNamed) {
  const auto said = [](const auto& made) { return made ? "made" : made.error().message(); };
  EXPECT_EQ(said(Event::create(nullptr)), "device is null");
  EXPECT_EQ(said(Stream::create(nullptr)), "device is null");
  EXPECT_EQ(said(PinnedMemory::allocate(nullptr, 64)), "device is null");
  EXPECT_EQ(said(staged::DeviceMemory::create(nullptr)), "device is null");
  EXPECT_EQ(Event::create(nullptr).error().code(), ErrorCode::kInvalidArgument);
}

TEST(CudaDriver, AnEventOrAStreamThatIsNoneSaysSo) {
  FakeDriver fake;
  Event event;
  Stream stream = *Stream::create(*Device::open(FakeDriver::calls(), 0));
  Stream moved = std::move(stream);
  // NOLINTNEXTLINE(bugprone-use-after-move): it has no handle
  EXPECT_EQ(stream.synchronize().message(), "the stream was not made by create()");
  EXPECT_EQ(stream.done().error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(event.record(moved.handle()).message(), "the event was not made by create()");
  EXPECT_EQ(event.hold_back(moved.handle()).code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(event.passed().error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(event.synchronize().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(moved.synchronize().ok());
}

TEST(CudaDriver, AnErrorThatEndsNothingIsSaidOnce) {
  FakeDriver fake;
  const auto device = *Device::open(FakeDriver::calls(), 0);
  const Status status = device->run([] { return std::string("to test 16 bytes"); },
                                    [](const DriverCalls&) { return 2; });
  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(status.message(),
            "device 0 (Fake 0) failed to test 16 bytes: CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_TRUE(device->run("to go on", [](const DriverCalls&) { return 0; }).ok());
}

}  // namespace
}  // namespace kvfolio::cuda
