// SPDX-License-Identifier: Apache-2.0
#pragma once

// Graph is what a stream was given once, started again as one: a CUDA graph. An engine that has
// graphs of its own needs none of it; calls of this library may be captured there as well.
//
//   auto graph = cuda::Graph::capture(device, stream, [&] { return start_step(stream); });
//   upload(kernels, plan, pinned, image, workspace, stream);  // what changes, where it lay before
//   graph->launch(stream);
//   device_plan->applied();  // if start_step() has DevicePlan::apply() in it
//
// May be captured: append(), gather(), plan_on_device(), attend(), DevicePlan::apply(),
// BatchAttention::run(), copies of the caller's own. May not: what waits, allocates or records an
// event, and what the host writes anew for each step: upload(), DevicePlan::send(),
// BatchAttention::plan(), copy_blocks() and convert_blocks(), whose lists travel with the launch.
// plan_attend() loads kernels the first time, so plan once before. Addresses, numbers and grids
// stay those of the capture. attend() serves as long as AttendPlan::shape() is the same: that of a
// padded plan (AttendCapacity) always is. A graph that was told the shape refuses to start for
// another. Only the calling thread is watched while it captures: others go on using the device.
// Thread safety: one thread at a time.

#include <memory>
#include <utility>

#include "kvfolio/cuda_device.h"
#include "kvfolio/cuda_kernels.h"
#include "kvfolio/export.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

class KVFOLIO_API Graph {
 public:
  // record() gives `stream` its work and answers a Status; none of the work runs. An error of it is
  // the answer, and nothing is kept. kInvalidArgument: a null device, a null stream: the legacy one
  // cannot be captured.
  // kUnavailable: what was given cannot be captured, or the driver fails; the stream is usable.
  template <typename Record>
  static Result<Graph> capture(const std::shared_ptr<Device>& device, void* stream,
                               Record&& record) {
    KVFOLIO_RETURN_IF_ERROR(begin_capture(device, stream));
    return end_capture(device, stream, record());
  }
  // The same, of a record() that starts attend() of plans of this shape.
  template <typename Record>
  static Result<Graph> capture(const std::shared_ptr<Device>& device, void* stream,
                               const AttendShape& shape, Record&& record) {
    Result<Graph> graph = capture(device, stream, std::forward<Record>(record));
    if (graph) graph->shape_ = shape;
    return graph;
  }
  // The two ends of a capture, for callers that cannot pass a function: one thread makes both
  // calls, and what it gives the stream between them is recorded. Behind each begin_capture() that
  // is ok comes an end_capture(); `recorded`, if it is an error, is the answer.
  static Status begin_capture(const std::shared_ptr<Device>& device, void* stream);
  static Result<Graph> end_capture(const std::shared_ptr<Device>& device, void* stream,
                                   const Status& recorded = {});
  Graph() = default;
  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  // The launches of it have ended before.
  ~Graph() { release(); }

  // Starts it on a stream of the same device, behind what that was given. Waits for nothing.
  // kFailedPrecondition: it was not made by capture().
  Status launch(void* stream);
  // The same for a step whose plan has this shape. kInvalidArgument, with what differs and both
  // numbers: another shape than that of the capture, such as that of a larger batch; nothing was
  // started. kFailedPrecondition: capture() was told none.
  Status launch(void* stream, const AttendShape& shape);
  // All 0 where capture() was told none.
  [[nodiscard]] const AttendShape& shape() const noexcept { return shape_; }
  // CUgraphExec.
  [[nodiscard]] void* handle() const noexcept { return handle_; }

 private:
  void release() noexcept;
  std::shared_ptr<Device> device_;
  void* handle_ = nullptr;
  AttendShape shape_ = {};
};

}  // namespace kvfolio::cuda
