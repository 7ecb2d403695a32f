// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the families of the C interface of libkvfolio_cuda share: the handles. Translation only. A
// handle owns the C++ object behind it, and that one keeps its device. Thread safety: that of the
// object.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/c_structs.h"
#include "capi/nothing_thrown.h"
#include "kvfolio/c_handles.h"
#include "kvfolio/cuda_device.h"
#include "kvfolio/cuda_graph.h"
#include "kvfolio/cuda_kernels.h"
#include "kvfolio/cuda_memory.h"
#include "kvfolio/cuda_plan.h"
#include "kvfolio/cuda_wrapper.h"
#include "kvfolio/kvfolio_cuda.h"

// ---- handles -----------------------------------------------------------------------------------

struct kvfolio_cuda_device {
  std::shared_ptr<kvfolio::cuda::Device> device;
  std::string target;
};

struct kvfolio_cuda_stream {
  kvfolio::cuda::Stream stream;
};

struct kvfolio_cuda_event {
  kvfolio::cuda::Event event;
};

struct kvfolio_cuda_kernels {
  std::shared_ptr<kvfolio::cuda::Kernels> kernels;
};

struct kvfolio_cuda_pinned {
  kvfolio::cuda::PinnedMemory memory;
};

struct kvfolio_cuda_memory {
  std::unique_ptr<kvfolio::cuda::DeviceMemory> memory;
};

struct kvfolio_cuda_plan {
  std::unique_ptr<kvfolio::cuda::DevicePlan> plan;
  // So that no upload takes heap memory.
  std::vector<kvfolio::GroupPlan> groups;
};

struct kvfolio_cuda_attend_plan {
  kvfolio::cuda::AttendPlan plan;
  std::string target;
  std::string explained;
};

struct kvfolio_cuda_batch_attention {
  std::unique_ptr<kvfolio::cuda::BatchAttention> attention;
  std::string target;  // of the last plan
};

struct kvfolio_cuda_graph {
  kvfolio::cuda::Graph graph;
};

namespace kvfolio::capi {

// Makes a handle of what a call of C++ gave.
template <typename Handle, typename T, typename... More>
std::int32_t give(kvfolio_error* error, Result<T> made, Handle** out, std::string_view call,
                  More&&... more) {
  if (!made) return answer(error, made.error());
  auto* const handle = new (std::nothrow) Handle{*std::move(made), std::forward<More>(more)...};
  if (handle == nullptr) return answer(error, no_memory(call));
  *out = handle;
  return KVFOLIO_OK;
}

// The same 64 bits, by the name that atomics of a device have for them.
inline cuda::Fault fault_of(std::uint64_t* fault) noexcept {
  static_assert(sizeof(std::uint64_t) == sizeof(unsigned long long));
  return reinterpret_cast<cuda::Fault>(fault);
}
static_assert(KVFOLIO_CUDA_NO_ENTRY == cuda::kNoEntry);

// Requires: check_out() of out was ok.
inline void write_shape(kvfolio_cuda_attend_shape* out, const cuda::AttendShape& shape) {
  write_struct(out, {.struct_size = 0,
                     .num_sequences = shape.num_sequences,
                     .num_rows = shape.num_rows,
                     .items = shape.items,
                     .groups = shape.groups,
                     .prefill_items = shape.prefill_items,
                     .segments = shape.segments,
                     .segments_per_block = shape.segments_per_block,
                     .states = shape.states,
                     .many_nodes = shape.many_nodes ? 1 : 0,
                     .merges = shape.merges ? 1 : 0});
}

}  // namespace kvfolio::capi
