// SPDX-License-Identifier: Apache-2.0
#pragma once

// A DeviceMemory that copies later, over the driver of fake_driver.h, beside an engine: a stream
// and a context of its own, which each call has to leave current. For tests.

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/fake_driver.h"

namespace kvfolio::cuda::later {

using Bytes = std::vector<std::byte>;

inline Bytes drawn_bytes(std::mt19937& random, std::size_t count) {
  Bytes result(count);
  for (std::byte& b : result) b = static_cast<std::byte>(random() & 0x7fu);
  return result;
}

struct World {
  static constexpr std::int64_t kBytes = 6400;

  explicit World(unsigned seed,
                 staged::DeviceMemoryOptions options = {.staging_bytes = 512, .later_bytes = 2048})
      : fake(seed), random(seed) {
    static const int image = 0;
    if (seed % 2 == 1) options.kernels = *MoveModule::load(device, &image);
    memory = *staged::DeviceMemory::create(device, options);
    pinned = *PinnedMemory::allocate(device, 2 * kBytes);
    there = *memory->allocate(kBytes);
    fake.launches.clear();
    fake.current.push_back(&mine);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    if (memory != nullptr && there != nullptr) memory->deallocate(there, kBytes);
    memory.reset();
    EXPECT_EQ(fake.current, std::vector<void*>{&mine});
  }

  // Submits, or polls, and checks that the call does not wait and leaves the context as it was.
  Result<CopyTicket> submit(std::span<const CopyRun> runs, CopyDirection direction,
                            void* stream = nullptr) {
    const int before = fake.waits;
    Result<CopyTicket> ticket = memory->submit(runs, direction, stream);
    EXPECT_EQ(fake.waits, before) << "submit() waits";
    EXPECT_EQ(fake.current, std::vector<void*>{&mine});
    return ticket;
  }
  Result<bool> poll(CopyTicket ticket) {
    const int before = fake.waits;
    Result<bool> over = memory->poll(ticket);
    EXPECT_EQ(fake.waits, before) << "poll() waits";
    EXPECT_EQ(fake.current, std::vector<void*>{&mine});
    return over;
  }
  // How it ended; nullopt: not within so many polls.
  std::optional<Status> end(CopyTicket ticket, int polls = 5000) {
    for (; polls > 0; --polls) {
      const Result<bool> over = poll(ticket);
      if (!over) return over.error();
      if (*over) return Status();
    }
    return std::nullopt;
  }
  bool arrives(CopyTicket ticket) {
    const std::optional<Status> ended = end(ticket);
    return ended && ended->ok();
  }
  // Sixteen runs of 100 bytes, 400 apart on the device and without gaps on the host.
  std::vector<CopyRun> in(const std::byte* host) const {
    std::vector<CopyRun> runs;
    runs.reserve(16);
    for (int i = 0; i < 16; ++i) runs.push_back({there + 400 * i, host + 100 * i, 100});
    return runs;
  }
  std::vector<CopyRun> out(std::byte* host) const {
    std::vector<CopyRun> runs;
    runs.reserve(16);
    for (int i = 0; i < 16; ++i) runs.push_back({host + 100 * i, there + 400 * i, 100});
    return runs;
  }
  // What the device has, by copies within the call.
  void write(const Bytes& bytes) {
    const CopyRun run{there, bytes.data(), static_cast<std::int64_t>(bytes.size())};
    EXPECT_TRUE(memory->copy_in({&run, 1}).ok());
  }
  Bytes read() {
    Bytes bytes(kBytes);
    const CopyRun run{bytes.data(), there, kBytes};
    EXPECT_TRUE(memory->copy_out({&run, 1}).ok());
    return bytes;
  }

  FakeDriver fake;
  std::mt19937 random;
  std::shared_ptr<Device> device = open_device();
  std::unique_ptr<staged::DeviceMemory> memory;
  PinnedMemory pinned;
  std::byte* there = nullptr;
  int mine = 0;  // the engine's context
};

}  // namespace kvfolio::cuda::later
