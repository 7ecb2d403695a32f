// SPDX-License-Identifier: Apache-2.0

// DeviceMemory over a driver whose copies come late: the bytes are right when a call returns, and a
// failure of any call of the driver is reported, loses nothing that was there, and leaves nothing
// open.

#include "cuda/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/fake_driver.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::cuda {
namespace {

using staged::DeviceMemory;
using staged::DeviceMemoryOptions;
using testing::HasSubstr;

// As memory of the host says it.
TEST(CudaDeviceMemory, NoBytesAreRefusedFromEverySource) {
  FakeDriver fake;
  const auto device = open_device();
  auto lender = *DeviceMemory::create(device, {.later_bytes = 0});
  std::byte* const lent = *lender->allocate(4096);
  for (const DeviceSource source :
       {DeviceSource::kPlain, DeviceSource::kPool, DeviceSource::kLent}) {
    auto memory = *DeviceMemory::create(
        device, {.source = source, .lent = lent, .lent_bytes = 4096, .later_bytes = 0});
    const std::size_t open = fake.open();
    for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{-5}}) {
      const auto none = memory->allocate(bytes);
      ASSERT_FALSE(none);
      EXPECT_EQ(none.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(none.error().message(), "memory of a device: " + std::to_string(bytes) +
                                            " bytes asked, allowed: at least 1");
    }
    EXPECT_EQ(fake.open(), open);
  }
  lender->deallocate(lent, 4096);
  auto pinned = *PinnedHostMemory::create(device);
  EXPECT_EQ(pinned->allocate(0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(HostMemory().allocate(0).error().code(), ErrorCode::kInvalidArgument);
}

// In global mode, as torch captures.
TEST(CudaDeviceMemory, ACaptureOfAnotherThreadNeitherStopsCopiesNorIsBroken) {
  for (unsigned kernels = 0; kernels < 2; ++kernels) {
    FakeDriver fake(kernels);
    fake.touchable = true;
    fake.capture.others = true;
    static const int image = 0;
    const auto device = open_device();
    for (const DeviceSource source : {DeviceSource::kPlain, DeviceSource::kPool}) {
      DeviceMemoryOptions options{.staging_bytes = 512, .source = source, .later_bytes = 2048};
      if (kernels == 1) options.kernels = *MoveModule::load(device, &image);
      auto memory = *DeviceMemory::create(device, options);
      std::byte* const there = *memory->allocate(3000);
      std::vector<std::byte> in(3000, std::byte{7}), out(3000);
      const CopyRun write{there, in.data(), 3000}, read{out.data(), there, 3000};
      EXPECT_TRUE(memory->copy_in({&write, 1}).ok());
      EXPECT_TRUE(memory->copy(there + 1500, there, 1000).ok());
      EXPECT_TRUE(memory->copy_out({&read, 1}).ok());
      EXPECT_EQ(out, in);
      memory->deallocate(there, 3000);
      EXPECT_TRUE(memory->take_error().ok());
    }
    auto stream = *Stream::create(device);
    auto event = *Event::create(device);
    EXPECT_TRUE(event.record(stream.handle()).ok());
    EXPECT_TRUE(event.passed());
    EXPECT_TRUE(event.synchronize().ok());
    EXPECT_TRUE(stream.done());
    EXPECT_TRUE(stream.synchronize().ok());
    EXPECT_TRUE(device->synchronize().ok());
    EXPECT_TRUE(PinnedMemory::allocate(device, 64));
    EXPECT_EQ(fake.capture.broken, 0);
    fake.capture.others = false;
  }
}

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::byte& b : result) b = static_cast<std::byte>(random() & 0xffu);
  return result;
}

// With kernels for every second seed.
DeviceMemoryOptions options_for(const std::shared_ptr<Device>& device, unsigned seed,
                                std::int64_t staging_bytes) {
  static const int image = 0;
  DeviceMemoryOptions options{.staging_bytes = staging_bytes, .later_bytes = 2048};
  if (seed % 2 == 1) options.kernels = *MoveModule::load(device, &image);
  return options;
}

CacheSpec small_spec() {
  GroupSpec group;
  group.num_layers = 2;
  group.num_kv_heads = 2;
  group.head_dim_k = group.head_dim_v = 8;
  group.num_blocks = 6;
  group.dtype = DType::kInt8;
  return {.groups = {group}};
}

// Runs over one piece of device memory: in some, the next follows the last one on both sides.
struct Runs {
  std::vector<CopyRun> in, out;
};
Runs draw_runs(std::mt19937& random, std::byte* device, std::byte* host, std::byte* back,
               std::int64_t bytes) {
  Runs runs;
  for (std::int64_t at = 0; at < bytes;) {
    const std::int64_t count =
        std::min<std::int64_t>(bytes - at, random() % 4 == 0 ? random() % 900 : random() % 9);
    if (random() % 3 != 0) {
      runs.in.push_back({device + at, host + at, count});
      runs.out.push_back({back + at, device + at, count});
    }
    at += count;
  }
  if (random() % 2 == 0) {
    std::shuffle(runs.in.begin(), runs.in.end(), random);
    std::shuffle(runs.out.begin(), runs.out.end(), random);
  }
  return runs;
}

TEST(CudaDeviceMemory, BytesAreRightWhenACallReturnsHoweverLateCopiesAre) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    FakeDriver fake(seed);
    std::mt19937 random(seed);
    constexpr std::int64_t kBytes = 6000;
    auto opened = open_device();
    auto memory =
        *DeviceMemory::create(opened, options_for(opened, seed, seed % 4 < 2 ? 256 : 4096));
    std::byte* const device = *memory->allocate(kBytes);
    std::vector<std::byte> host = random_bytes(random, kBytes), back(kBytes), want(kBytes);
    const std::vector<std::byte> original = host;
    const Runs runs = draw_runs(random, device, host.data(), back.data(), kBytes);
    ASSERT_TRUE(memory->copy_in(runs.in));
    for (const CopyRun& run : runs.out) {
      std::memcpy(want.data() + (run.src - device), original.data() + (run.src - device),
                  static_cast<std::size_t>(run.bytes));
    }
    // The caller's memory is its own again.
    std::fill(host.begin(), host.end(), std::byte{0});
    ASSERT_TRUE(memory->copy_out(runs.out));
    ASSERT_EQ(back, want) << seed;
    // Within the device.
    std::byte* const other = *memory->allocate(kBytes);
    const CopyRun within[] = {{other, device, 1000}, {other + 1000, device + 1000, kBytes - 1000}};
    ASSERT_TRUE(memory->copy_batch(within));
    std::vector<std::byte> again(kBytes), first(kBytes);
    const CopyRun out[] = {{again.data(), other, kBytes}, {first.data(), device, kBytes}};
    ASSERT_TRUE(memory->copy_out(out));
    ASSERT_EQ(again, first);
    EXPECT_TRUE(memory->take_error().ok());
    memory->deallocate(device, kBytes);
    memory->deallocate(other, kBytes);
    memory.reset();
    opened.reset();
    EXPECT_EQ(fake.open(), 0u);
    EXPECT_TRUE(fake.current.empty());
  }
}

// Images of blocks of a storage on the device are those of the same storage on the host.
TEST(CudaDeviceMemory, AStorageOnADeviceHasTheImagesOfOneOnTheHost) {
  FakeDriver fake;
  std::mt19937 random(3);
  auto memory = *DeviceMemory::create(open_device(), {.staging_bytes = 1024});
  {
    Result<KVStorage> device = KVStorage::create(small_spec(), memory.get());
    Result<KVStorage> host = KVStorage::create(small_spec());
    ASSERT_TRUE(device && host);
    const std::vector<std::int32_t> blocks{4, 1, 2};
    const auto bytes = static_cast<std::size_t>(host->block_image_bytes(GroupId(0))) * 3;
    const std::vector<std::byte> images = random_bytes(random, bytes);
    ASSERT_TRUE(device->write_blocks(GroupId(0), blocks, images).ok());
    const std::vector<std::int32_t> src{4}, dst{0};
    ASSERT_TRUE(device->copy_blocks(GroupId(0), src, dst).ok());
    std::vector<std::byte> got(bytes);
    const std::vector<std::int32_t> moved{0, 1, 2};
    ASSERT_TRUE(device->read_blocks(GroupId(0), moved, got).ok());
    EXPECT_EQ(got, images);
    EXPECT_EQ(device->view(GroupId(0))->memory_kind, MemoryKind::kDevice);
    EXPECT_EQ(device->fill(std::byte{1}).code(), ErrorCode::kUnsupported);
  }
  EXPECT_TRUE(memory->take_error().ok());
  memory.reset();
  EXPECT_EQ(fake.open(), 0u);
}

TEST(CudaDeviceMemory, OutOfMemoryAtAnyCallOfCreationLeavesNothingOpen) {
  FakeDriver fake;
  const auto device = open_device();
  const DeviceMemoryOptions options = options_for(device, 1, 4096);
  const std::size_t before = fake.open();
  int failed = 0;
  for (int at = 1;; ++at) {
    fake.count = 0;
    fake.fail_at = at;
    fake.fail_with = 2;
    Result<std::unique_ptr<DeviceMemory>> memory = DeviceMemory::create(device, options);
    fake.fail_at = 0;
    if (memory) break;
    EXPECT_EQ(memory.error().code(), ErrorCode::kOutOfMemory) << at;
    EXPECT_THAT(memory.error().message(), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")) << at;
    EXPECT_EQ(fake.open(), before) << at << " " << fake.last;
    ++failed;
  }
  EXPECT_GE(failed, 10);  // a push of the context and a call, five times
  EXPECT_EQ(fake.open(), before);
}

TEST(CudaDeviceMemory, AStorageThatADeviceHasNoRoomForGivesAllBack) {
  FakeDriver fake;
  auto memory = *DeviceMemory::create(open_device());
  CacheSpec spec = small_spec();
  spec.groups.push_back(spec.groups.front());
  fake.count = 0;
  fake.fail_at = 4;  // the second group's allocation: each is a push and a call
  const Result<KVStorage> storage = KVStorage::create(spec, memory.get());
  fake.fail_at = 0;
  ASSERT_FALSE(storage);
  EXPECT_EQ(storage.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(storage.error().message(), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_EQ(fake.device_bytes(), 0u);
}

// Each call of the driver within copies fails once: the call says so, the next one is right.
void fail_each_call(unsigned kernels, DriverResult error) {
  constexpr std::int64_t kBytes = 1500;
  int failures = 0;
  for (int at = 1;; ++at) {
    FakeDriver fake(static_cast<unsigned>(at));
    std::mt19937 random(static_cast<unsigned>(at));
    const auto opened = open_device();
    auto memory = *DeviceMemory::create(opened, options_for(opened, kernels, 512));
    std::byte* const device = *memory->allocate(kBytes);
    std::vector<std::byte> host = random_bytes(random, kBytes), back(kBytes);
    std::vector<CopyRun> in, out;
    for (const auto& [first, count] : {std::pair{0, 700}, {700, 13}, {713, 87}, {800, 700}}) {
      in.push_back({device + first, host.data() + first, count});
      out.push_back({back.data() + first, device + first, count});
    }
    fake.count = 0;
    fake.fail_at = at;
    fake.fail_with = error;
    const bool ok_in = memory->copy_in(in).ok(), ok_out = memory->copy_out(out).ok();
    fake.fail_at = 0;
    const Status said = memory->take_error();
    EXPECT_EQ(said.ok(), ok_in && ok_out) << at;
    if (!said.ok()) {
      ++failures;
      EXPECT_THAT(said.message(), HasSubstr("device 0 (Fake 0) failed to "));
      EXPECT_TRUE(memory->take_error().ok());  // it was taken
      ASSERT_TRUE(memory->copy_in(in));
      ASSERT_TRUE(memory->copy_out(out));
    }
    ASSERT_EQ(back, host) << at;
    EXPECT_TRUE(fake.current.empty()) << at;
    if (said.ok()) break;
  }
  EXPECT_GE(failures, 20);
}

TEST(CudaDeviceMemory, AFailingCopyIsReportedAndTheNextOneIsRight) {
  for (const DriverResult error : {2, 999}) {
    fail_each_call(0, error);
    fail_each_call(1, error);
  }
}

// Sixty runs are one kernel and one copy, not sixty copies.
TEST(CudaDeviceMemory, WithKernelsABatchIsOneCopyOfTheDriver) {
  FakeDriver fake;
  const auto opened = open_device();
  auto memory = *DeviceMemory::create(opened, options_for(opened, 1, 1 << 16));
  std::byte* const device = *memory->allocate(6000);
  std::vector<std::byte> host(6000, std::byte{3}), back(6000);
  fake.launches.clear();
  std::vector<CopyRun> in, out;
  for (int i = 0; i < 60; ++i) {
    in.push_back({device + 100 * i, host.data() + 100 * i, 99});
    out.push_back({back.data() + 100 * i, device + 100 * i, 99});
  }
  fake.count = 0;
  ASSERT_TRUE(memory->copy_in(in));
  EXPECT_EQ(fake.count, 8);  // copy, kernel, record and wait, a push of the context before each
  ASSERT_EQ(fake.launches.size(), 1u);
  EXPECT_EQ(fake.launches[0].kernel, "kvfolio_runs_in");
  EXPECT_EQ(fake.launches[0].y, 60u);
  fake.count = 0;
  ASSERT_TRUE(memory->copy_out(out));
  EXPECT_EQ(fake.count, 8);
  EXPECT_EQ(fake.launches[1].kernel, "kvfolio_runs_out");
  for (int i = 0; i < 60; ++i)
    EXPECT_EQ(back[static_cast<std::size_t>(100 * i + 98)], std::byte{3});
}

TEST(CudaDeviceMemory, AContextThatDiesFailsEveryLaterCallAndNoOtherDevice) {
  FakeDriver fake;
  auto first = *DeviceMemory::create(open_device(0), {.staging_bytes = 256});
  auto second = *DeviceMemory::create(open_device(1), {.staging_bytes = 256});
  std::byte* const lost = *first->allocate(512);
  std::byte* const kept = *second->allocate(512);
  std::vector<std::byte> host(512, std::byte{7}), back(512);
  const CopyRun in{lost, host.data(), 512}, out{back.data(), lost, 512};
  fake.count = 0;
  fake.fail_at = 6;
  fake.fail_with = 700;
  EXPECT_FALSE(first->copy_in({&in, 1}));
  fake.fail_at = 0;
  fake.count = 0;
  EXPECT_FALSE(first->copy_out({&out, 1}));
  EXPECT_EQ(first->allocate(16).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(first->copy(lost, lost + 256, 256).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(fake.count, 0);  // the driver is not asked any more
  EXPECT_EQ(back, std::vector<std::byte>(512));
  const Status said = first->take_error();
  EXPECT_EQ(said.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(said.message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS (700); its context is lost"));
  const CopyRun in2{kept, host.data(), 512}, out2{back.data(), kept, 512};
  EXPECT_TRUE(second->copy_in({&in2, 1}));
  EXPECT_TRUE(second->copy_out({&out2, 1}));
  EXPECT_EQ(back, host);
}

// A kernel finds a run in its half of the staging by 32 bits.
TEST(CudaDeviceMemory, StagingTooSmallOrTooLargeIsRefused) {
  FakeDriver fake;
  for (const std::int64_t bytes : {std::int64_t{127}, (std::int64_t{1} << 32) + 1}) {
    const auto memory = DeviceMemory::create(open_device(), {.staging_bytes = bytes});
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(memory.error().message(),
              "staging_bytes is " + std::to_string(bytes) + ", allowed: 128 to 4294967296");
  }
}

}  // namespace
}  // namespace kvfolio::cuda
