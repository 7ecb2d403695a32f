// SPDX-License-Identifier: Apache-2.0
// Links libkvfolio_cuda and starts, with a driver or without: then it prints why there is no
// device.

#include <cstdio>
#include <vector>

#include "kvfolio/cuda.hpp"
#include "kvfolio/manager.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace {

using namespace kvfolio;

// What an engine has in device memory for one step of one layer, and a stream.
struct Step {
  ConstRowsView k, v;
  std::span<const std::int32_t> slots;
  cuda::DeviceAttention call;
  std::span<std::byte> pinned;
  std::byte *image, *workspace;
  void* stream;
};

Status run_step(cuda::Kernels& kernels, const Step& step) {
  Result<cuda::AttendPlan> plan = cuda::plan_attend(kernels, step.call);  // once for all layers
  if (!plan) return plan.error();
  void* const stream = step.stream;
  KVFOLIO_RETURN_IF_ERROR(
      cuda::upload(kernels, *plan, step.pinned, step.image, step.workspace, stream));
  const KVView& cache = step.call.cache;
  KVFOLIO_RETURN_IF_ERROR(
      cuda::append(kernels, cache, step.call.layer, step.k, step.v, step.slots, stream));
  return cuda::attend(kernels, step.call, *plan, step.image, step.workspace, stream);
}

// The arrays of the open step, where a graph reads them.
Status send_plan(KVCacheManager& manager, cuda::DevicePlan& device_plan, void* stream) {
  Result<const StepPlan*> plan = manager.plan({.block_tables = false, .changed_entries = true});
  if (plan && device_plan.needs_block_tables(**plan))
    plan = manager.plan({.changed_entries = true});
  if (!plan) return plan.error();
  return device_plan.upload(**plan, stream);  // one copy and two kernels
}

// What an engine has for FlashInfer's wrappers: tensors of a layer, and arrays of the host.
struct Tensors {
  std::byte *k, *v;
  std::vector<std::int32_t> indptr, indices, last_page_len;
  ConstRowsView q;
  RowsView out;
  float* lse;
};

Status run_in_place_of_flashinfer(const std::shared_ptr<cuda::Kernels>& kernels, const Tensors& t,
                                  void* stream) {
  auto attention =
      cuda::BatchAttention::create(kernels, {.max_sequences = 256, .max_pages_of_sequence = 512});
  if (!attention) return attention.error();
  auto cache = cuda::paged_kv_view({.k = t.k,
                                    .v = t.v,
                                    .layout = Format::kNhd,
                                    .num_pages = 4096,
                                    .page_size = 16,
                                    .num_kv_heads = 8,
                                    .head_dim = 128});
  if (!cache) return cache.error();
  KVFOLIO_RETURN_IF_ERROR((*attention)
                              ->plan({.kv_indptr = t.indptr,
                                      .kv_indices = t.indices,
                                      .kv_last_page_len = t.last_page_len,
                                      .num_qo_heads = 32,
                                      .paged_kv = *cache},
                                     stream));
  return (*attention)->run(t.q, *cache, t.out, t.lse, stream);  // for each layer
}

// Launches of a stream, started again as one.
Status replay(const std::shared_ptr<cuda::Device>& device, cuda::BatchAttention& attention,
              const Tensors& t, const KVView& cache, void* stream) {
  auto graph = cuda::Graph::capture(
      device, stream, [&] { return attention.run(t.q, cache, t.out, t.lse, stream); });
  if (!graph) return graph.error();
  return graph->launch(stream);
}

// One graph for every batch within a capacity, which plans itself.
Status replay_any(const std::shared_ptr<cuda::Device>& device, cuda::Kernels& kernels,
                  const cuda::DeviceAttention& call, std::byte* image, std::byte* workspace,
                  const std::int32_t* num_sequences, void* stream) {
  auto plan = cuda::plan_attend(kernels, call, {.max_sequences = 64, .max_sequence_tokens = 8192});
  if (!plan) return plan.error();
  // Memory of image().size() and workspace_bytes(), then:
  auto graph = cuda::Graph::capture(device, stream, plan->shape(), [&]() -> Status {
    KVFOLIO_RETURN_IF_ERROR(
        cuda::plan_on_device(kernels, call, *plan, image, workspace, stream, num_sequences));
    return cuda::attend(kernels, call, *plan, image, workspace, stream);
  });
  if (!graph) return graph.error();
  KVFOLIO_RETURN_IF_ERROR(plan->check(call.batch));  // of each step: within the capacity
  return graph->launch(stream, plan->shape());
}

// A cache on the device, and one empty step over it.
Status run(const CacheSpec& spec) {
  Result<std::shared_ptr<cuda::Device>> device = cuda::Device::open(0);
  if (!device) return device.error();
  Result<std::shared_ptr<cuda::Kernels>> kernels = cuda::Kernels::load(*device);
  if (!kernels) return kernels.error();
  auto memory = cuda::DeviceMemory::create(*device, {.kernels = *kernels});
  if (!memory) return memory.error();
  auto storage = KVStorage::create(spec, memory->get());
  if (!storage) return storage.error();
  const std::vector<std::int32_t> numbers{0, 1, 2, 3};
  auto slots = cuda::DeviceBuffer::allocate(**memory, 64);  // for rows, slots, tables
  if (!slots) return slots.error();
  KVFOLIO_RETURN_IF_ERROR(slots->copy_in(std::span(numbers)));
  Result<KVCacheManager> manager = KVCacheManager::create(spec);
  if (!manager) return manager.error();
  const cuda::DevicePlanGroup group{.block_size = 16, .table_stride = 4};
  auto device_plan = cuda::DevicePlan::create(*kernels, {.max_sequences = 1,
                                                         .max_tokens = 1,
                                                         .num_rows = manager->num_rows(),
                                                         .groups = {&group, 1}});
  if (!device_plan) return device_plan.error();
  Result<Ticket> ticket = manager->begin_step();
  if (!ticket) return ticket.error();
  KVFOLIO_RETURN_IF_ERROR(send_plan(*manager, **device_plan, nullptr));
  KVFOLIO_RETURN_IF_ERROR((*device_plan)->wait());
  KVFOLIO_RETURN_IF_ERROR(manager->drop(*ticket));
  Step step{};
  step.call.cache = *storage->view(GroupId(0));
  step.slots = slots->span<const std::int32_t>().first(numbers.size());
  if (run_in_place_of_flashinfer(*kernels, {}, nullptr).ok()) return {};  // no tensors
  auto attention = cuda::BatchAttention::create(
      *kernels, {.max_sequences = 1, .max_pages_of_sequence = 1, .workspace_bytes = 16});
  if (!attention) return attention.error();
  if (replay(*device, **attention, {}, step.call.cache, nullptr).ok()) return {};  // no plan
  std::byte* const nowhere = nullptr;
  const Status planned =
      replay_any(*device, **kernels, step.call, nowhere, nowhere, nullptr, nullptr);
  if (planned.ok()) return {};  // no rows
  return run_step(**kernels, step);
}

}  // namespace

int main() {
  const Status status = cuda::available();
  std::printf("%s\n", status.message().c_str());
  const Status ran = run({.groups = {{.head_dim_k = 64, .head_dim_v = 64, .num_blocks = 4}}});
  std::printf("%s\n", ran.message().c_str());
  if (status.ok()) return ran.ok() ? 1 : 0;  // an empty call is refused
  return status.code() == ErrorCode::kUnavailable && ran.message() == status.message() ? 0 : 1;
}
