// SPDX-License-Identifier: Apache-2.0

// Graph over a driver that is none: what was captured runs at each launch and not before, reads
// what lies there then, and nothing stays open however a capture ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cuda/fake_driver.h"
#include "kvfolio/cuda_graph.h"
#include "kvfolio/cuda_memory.h"

namespace kvfolio::cuda {
namespace {

using testing::HasSubstr;

// A copy from pinned memory to a device, which a stream is given.
class CudaGraph : public testing::Test {
 protected:
  CudaGraph() {
    fake_.touchable = true;
    pinned_ = *PinnedMemory::allocate(device_, 64);
    std::memset(pinned_.data(), 0, 64);
    KVFOLIO_CHECK(
        device_
            ->run("to test",
                  [&](const DriverCalls& calls) { return calls.memory_allocate(&memory_, 64); })
            .ok());
  }
  ~CudaGraph() override {
    static_cast<void>(device_->run(
        "to test", [&](const DriverCalls& calls) { return calls.memory_free(memory_); }));
  }
  Status copy() {
    return device_->run("to copy", [&](const DriverCalls& calls) {
      return calls.copy_in(memory_, pinned_.data(), 64, stream_.handle());
    });
  }
  Result<Graph> capture() {
    return Graph::capture(device_, stream_.handle(), [&] { return copy(); });
  }
  void put(int value) { pinned_.data()[5] = static_cast<std::byte>(value); }
  int found() {
    EXPECT_TRUE(stream_.synchronize().ok());
    return static_cast<int>(pointer_to(memory_)[5]);
  }

  FakeDriver fake_;
  std::shared_ptr<Device> device_ = open_device();
  Stream stream_ = *Stream::create(device_);
  PinnedMemory pinned_;
  DeviceAddress memory_ = 0;
};

TEST_F(CudaGraph, RunsAtEachLaunchWithWhatLiesThereThen) {
  put(1);
  ASSERT_TRUE(copy().ok());
  ASSERT_EQ(found(), 1);
  put(2);
  Result<Graph> graph = capture();
  ASSERT_TRUE(graph) << graph.error().message();
  EXPECT_EQ(found(), 1) << "a capture runs nothing";
  for (const int value : {2, 3, 4}) {
    put(value);
    ASSERT_TRUE(graph->launch(stream_.handle()).ok());
    EXPECT_EQ(found(), value);
  }
  Stream other = *Stream::create(device_);
  put(5);
  ASSERT_TRUE(graph->launch(other.handle()).ok());
  ASSERT_TRUE(other.synchronize().ok());
  EXPECT_EQ(found(), 5);
}

TEST_F(CudaGraph, AnErrorOfTheRecordingIsTheAnswerAndTheStreamGoesOn) {
  const std::size_t open = fake_.open();
  const Result<Graph> graph = Graph::capture(device_, stream_.handle(), [&]() -> Status {
    KVFOLIO_RETURN_IF_ERROR(copy());
    return {ErrorCode::kInvalidArgument, "the step is wrong"};
  });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message(), "the step is wrong");
  EXPECT_EQ(fake_.open(), open);
  put(7);
  ASSERT_TRUE(copy().ok());
  EXPECT_EQ(found(), 7);
}

TEST_F(CudaGraph, WhatWaitsIsRefusedAndTheStreamGoesOn) {
  const std::size_t open = fake_.open();
  const Result<Graph> graph = Graph::capture(device_, stream_.handle(), [&] {
    KVFOLIO_CHECK(copy().ok());
    return stream_.synchronize();
  });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(graph.error().message(), HasSubstr("failed to wait for a stream: error 900"));
  EXPECT_TRUE(device_->status().ok()) << "the context lives";
  EXPECT_EQ(fake_.open(), open);
  put(8);
  ASSERT_TRUE(copy().ok());
  EXPECT_EQ(found(), 8);
}

TEST_F(CudaGraph, WhatAllocatesIsRefusedAndTheStreamGoesOn) {
  const std::size_t open = fake_.open();
  const Result<Graph> graph = Graph::capture(device_, stream_.handle(), [&]() -> Status {
    KVFOLIO_CHECK(copy().ok());
    const Result<PinnedMemory> taken = PinnedMemory::allocate(device_, 4096);
    return taken ? Status() : taken.error();
  });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(graph.error().message(), HasSubstr("error 900"));
  EXPECT_EQ(fake_.open(), open);
  put(9);
  ASSERT_TRUE(copy().ok());
  EXPECT_EQ(found(), 9);
  EXPECT_TRUE(capture());
  EXPECT_TRUE(PinnedMemory::allocate(device_, 4096)) << "no capture is open";
}

// In global mode, as torch captures: what the driver forbids to other threads then.
TEST_F(CudaGraph, ACaptureIsNeitherRefusedForThatOfAnotherThreadNorBrokenByCallsOfOne) {
  fake_.capture.others = true;
  const Result<Graph> graph = Graph::capture(device_, stream_.handle(), [&]() -> Status {
    KVFOLIO_RETURN_IF_ERROR(copy());
    Status other;
    std::thread([&] {
      const Result<PinnedMemory> taken = PinnedMemory::allocate(device_, 64);
      other = taken ? device_->synchronize() : taken.error();
    }).join();
    return other;
  });
  EXPECT_TRUE(graph) << graph.error().message();
  EXPECT_EQ(fake_.capture.broken, 0);
  fake_.capture.others = false;
}

TEST_F(CudaGraph, TheTwoEndsOfACaptureAreTheOneCall) {
  ASSERT_TRUE(Graph::begin_capture(device_, stream_.handle()).ok());
  ASSERT_TRUE(copy().ok());
  Result<Graph> graph = Graph::end_capture(device_, stream_.handle());
  ASSERT_TRUE(graph) << graph.error().message();
  put(6);
  ASSERT_TRUE(graph->launch(stream_.handle()).ok());
  EXPECT_EQ(found(), 6);
  EXPECT_EQ(Graph::begin_capture(device_, nullptr).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Graph::end_capture(device_, nullptr).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Graph::end_capture(nullptr, stream_.handle()).error().message(), "device is null");
  EXPECT_EQ(Graph::end_capture(device_, stream_.handle()).error().code(), ErrorCode::kUnavailable);
}

TEST_F(CudaGraph, ArgumentsAreChecked) {
  const auto nothing = [] { return Status(); };
  EXPECT_EQ(Graph::capture(nullptr, stream_.handle(), nothing).error().message(), "device is null");
  EXPECT_EQ(Graph::capture(device_, nullptr, nothing).error().message(),
            "the legacy stream cannot be captured");
  Graph none;
  EXPECT_EQ(none.launch(stream_.handle()).message(), "the graph was not made by capture()");
  Graph graph = *capture();
  Graph moved = std::move(graph);
  // NOLINTNEXTLINE(bugprone-use-after-move): it has no handle
  EXPECT_EQ(graph.launch(stream_.handle()).code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(moved.launch(stream_.handle()).ok());
  EXPECT_TRUE(stream_.synchronize().ok());
}

TEST_F(CudaGraph, IsRefusedForAPlanOfAnotherShapeThanTheOneThatWasCaptured) {
  const AttendShape shape = {.num_sequences = 4, .num_rows = 4, .items = 12, .groups = 4};
  Result<Graph> graph = Graph::capture(device_, stream_.handle(), shape, [&] { return copy(); });
  ASSERT_TRUE(graph) << graph.error().message();
  EXPECT_EQ(graph->shape(), shape);
  put(1);
  ASSERT_TRUE(graph->launch(stream_.handle(), shape).ok());
  ASSERT_EQ(found(), 1);
  put(2);
  AttendShape larger = shape;
  larger.num_sequences = 5;
  EXPECT_EQ(graph->launch(stream_.handle(), larger).message(),
            "the plan has 5 sequences, the graph was captured with 4: capture one for this shape, "
            "or pad plans (AttendCapacity)");
  larger = shape;
  larger.items = 13;
  EXPECT_THAT(graph->launch(stream_.handle(), larger).message(),
              HasSubstr("the plan has 13 items, the graph was captured with 12"));
  larger = shape;
  larger.merges = true;
  EXPECT_EQ(graph->launch(stream_.handle(), larger).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(found(), 1) << "nothing was started";
  Graph moved = *std::move(graph);
  EXPECT_EQ(moved.shape(), shape);
  ASSERT_TRUE(moved.launch(stream_.handle(), shape).ok());
  EXPECT_EQ(found(), 2);
  Graph plain = *capture();
  EXPECT_EQ(plain.launch(stream_.handle(), shape).code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(Graph().launch(stream_.handle(), shape).message(),
            "the graph was not made by capture()");
}

TEST_F(CudaGraph, EveryCallOfTheDriverMayFailAndNothingStaysOpen) {
  const std::size_t open = fake_.open();
  std::string failed;
  for (int at = 1;; ++at) {
    fake_.count = 0;
    fake_.fail_at = at;
    fake_.failed.clear();
    {
      Result<Graph> graph = capture();
      const Status status = graph ? graph->launch(stream_.handle()) : graph.error();
      fake_.fail_at = 0;
      ASSERT_TRUE(fake_.current.empty()) << at;
      if (status.ok() && fake_.failed.empty()) break;
      failed += fake_.failed + " ";
      if (!status.ok()) {
        EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory) << status.message();
      }
    }
    // Where the context could not be made current, the driver was not told that a capture ended.
    static_cast<void>(device_->run("to test", [&](const DriverCalls& calls) {
      void* graph = nullptr;
      if (calls.stream_end_capture(stream_.handle(), &graph) == 0) calls.graph_destroy(graph);
      return 0;
    }));
    EXPECT_TRUE(stream_.synchronize().ok());
    if (failed.find("cuGraphDestroy") == std::string::npos &&
        !failed.ends_with("cuCtxPushCurrent ")) {
      EXPECT_EQ(fake_.open(), open) << failed;
    }
  }
  for (const char* call : {"cuStreamBeginCapture", "cuStreamEndCapture",
                           "cuGraphInstantiateWithFlags", "cuGraphDestroy", "cuGraphLaunch"}) {
    EXPECT_THAT(failed, HasSubstr(call));
  }
}

}  // namespace
}  // namespace kvfolio::cuda
