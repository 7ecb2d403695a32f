// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/cuda_graph.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/driver.h"

namespace kvfolio::cuda {

namespace {

// The first number by which the shapes differ.
Status check_same(const AttendShape& captured, const AttendShape& planned) {
  struct Number {
    std::string_view name;
    std::int32_t captured, planned;
  };
  const AttendShape &a = captured, &b = planned;
  const Number numbers[] = {
      {"sequences", a.num_sequences, b.num_sequences},
      {"rows", a.num_rows, b.num_rows},
      {"items", a.items, b.items},
      {"groups", a.groups, b.groups},
      {"items of a prefill", a.prefill_items, b.prefill_items},
      {"segments", a.segments, b.segments},
      {"segments for each block", a.segments_per_block, b.segments_per_block},
      {"states", a.states, b.states},
      {"instances for many nodes", a.many_nodes ? 1 : 0, b.many_nodes ? 1 : 0},
      {"merges", a.merges ? 1 : 0, b.merges ? 1 : 0},
  };
  for (const Number& number : numbers) {
    if (number.captured == number.planned) continue;
    return invalid(text::concat("the plan has ", number.planned, " ", number.name,
                                ", the graph was captured with ", number.captured,
                                ": capture one for this shape, or pad plans (AttendCapacity)"));
  }
  return {};
}

}  // namespace

Status Graph::begin_capture(const std::shared_ptr<Device>& device, void* stream) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  if (stream == nullptr) return invalid("the legacy stream cannot be captured");
  Status begun = device->run("to begin a capture", [&](const DriverCalls& calls) {
    return calls.stream_begin_capture(stream, kCaptureOfThread);
  });
  if (begun.ok()) ++open_captures();
  return begun;
}

Result<Graph> Graph::end_capture(const std::shared_ptr<Device>& device, void* stream,
                                 const Status& recorded) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  if (stream == nullptr) return invalid("the legacy stream cannot be captured");
  void* captured = nullptr;
  // Also behind an error of the recording, which is what is said then: the stream is given back.
  const Status ended = device->run("to end a capture", [&](const DriverCalls& calls) {
    return calls.stream_end_capture(stream, &captured);
  });
  // An end without a beginning takes none away.
  if (int& open = open_captures(); open > 0) --open;
  Graph graph;
  Status made = recorded.ok() ? ended : recorded;
  if (made.ok()) {
    graph.device_ = device;
    made = device->run("to make a graph", [&](const DriverCalls& calls) {
      return calls.graph_instantiate(&graph.handle_, captured, 0);
    });
  }
  if (captured != nullptr) {
    static_cast<void>(device->run(
        "to end a graph", [&](const DriverCalls& calls) { return calls.graph_destroy(captured); }));
  }
  if (!made.ok()) return made;
  return graph;
}

Graph& Graph::operator=(Graph&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, nullptr);
  shape_ = std::exchange(other.shape_, {});
  return *this;
}

void Graph::release() noexcept {
  if (device_ == nullptr || handle_ == nullptr) return;
  static_cast<void>(device_->run("to end a graph", [&](const DriverCalls& calls) {
    return calls.graph_exec_destroy(handle_);
  }));
}

Status Graph::launch(void* stream) {
  if (handle_ == nullptr) {
    return {ErrorCode::kFailedPrecondition, "the graph was not made by capture()"};
  }
  return device_->run("to start a graph", [&](const DriverCalls& calls) {
    return calls.graph_launch(handle_, stream);
  });
}

Status Graph::launch(void* stream, const AttendShape& shape) {
  if (handle_ != nullptr && shape_ == AttendShape{}) {
    return {ErrorCode::kFailedPrecondition, "the graph was captured without a shape"};
  }
  if (handle_ != nullptr) KVFOLIO_RETURN_IF_ERROR(check_same(shape_, shape));
  return launch(stream);
}

}  // namespace kvfolio::cuda
