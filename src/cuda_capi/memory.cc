// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory, memory of a device, and the resource that a storage takes.

#include <span>

#include "cuda_capi/cuda_capi.h"

namespace kvfolio::capi {
namespace {

static_assert(static_cast<int>(cuda::DeviceSource::kLent) == KVFOLIO_CUDA_LENT);

Status read_memory_options(std::string_view call, const kvfolio_cuda_memory_options* theirs,
                           cuda::DeviceMemoryOptions& out) {
  kvfolio_cuda_memory_options options;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", theirs, options));
  KVFOLIO_RETURN_IF_ERROR(
      read_enum(call, "options->source", options.source, KVFOLIO_CUDA_LENT, out.source));
  if (options.staging_bytes != 0) out.staging_bytes = options.staging_bytes;
  out.lent = static_cast<std::byte*>(options.lent);
  out.lent_bytes = options.lent_bytes;
  // Nothing in C submits copies: a kvfolio_memory_resource has no such function.
  out.later_bytes = 0;
  return {};
}

Status check_copy(std::string_view call, const void* dst, const void* src, std::int64_t bytes) {
  if (bytes < 0) return {ErrorCode::kInvalidArgument, concat(call, ": bytes is ", bytes)};
  if (dst == nullptr && bytes > 0) return null_argument(call, "dst");
  return src == nullptr && bytes > 0 ? null_argument(call, "src") : Status();
}

CopyRun run_of(void* dst, const void* src, std::int64_t bytes) noexcept {
  return {static_cast<std::byte*>(dst), static_cast<const std::byte*>(src), bytes};
}

// ---- the functions of a kvfolio_memory_resource ------------------------------------------------

cuda::DeviceMemory& memory_of(void* context) noexcept {
  return *static_cast<cuda::DeviceMemory*>(context);
}

std::span<const CopyRun> runs_of(const kvfolio_copy_run* runs, std::int64_t num_runs) noexcept {
  static_assert(sizeof(CopyRun) == sizeof(kvfolio_copy_run) &&
                offsetof(CopyRun, src) == offsetof(kvfolio_copy_run, src) &&
                offsetof(CopyRun, bytes) == offsetof(kvfolio_copy_run, bytes));
  return span_of(reinterpret_cast<const CopyRun*>(runs), num_runs);
}

// A failure is kept by the memory until take_error() asks for its sentence.
std::int32_t code_of(const Status& status) noexcept {
  return static_cast<std::int32_t>(status.code());
}

void* resource_allocate(void* context, std::int64_t bytes) {
  const NothingThrown nothing;
  const Result<std::byte*> memory = memory_of(context).allocate(bytes);
  return memory ? *memory : nullptr;
}
void resource_deallocate(void* context, void* memory, std::int64_t bytes) {
  const NothingThrown nothing;
  memory_of(context).deallocate(static_cast<std::byte*>(memory), bytes);
}
std::int32_t resource_copy(void* context, void* dst, const void* src, std::int64_t bytes) {
  const NothingThrown nothing;
  return code_of(memory_of(context).copy(static_cast<std::byte*>(dst),
                                         static_cast<const std::byte*>(src), bytes));
}
std::int32_t resource_copy_batch(void* context, const kvfolio_copy_run* runs,
                                 std::int64_t num_runs) {
  const NothingThrown nothing;
  return code_of(memory_of(context).copy_batch(runs_of(runs, num_runs)));
}
std::int32_t resource_copy_in(void* context, const kvfolio_copy_run* runs, std::int64_t num_runs) {
  const NothingThrown nothing;
  return code_of(memory_of(context).copy_in(runs_of(runs, num_runs)));
}
std::int32_t resource_copy_out(void* context, const kvfolio_copy_run* runs, std::int64_t num_runs) {
  const NothingThrown nothing;
  return code_of(memory_of(context).copy_out(runs_of(runs, num_runs)));
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_cuda_pinned_allocate(const kvfolio_cuda_device* device, int64_t bytes,
                                     kvfolio_cuda_pinned** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  KVFOLIO_C_NEEDS(out);
  return give(error, cuda::PinnedMemory::allocate(device->device, bytes), out, __func__);
}

void kvfolio_cuda_pinned_destroy(kvfolio_cuda_pinned* pinned) {
  const NothingThrown nothing;
  delete pinned;
}

void* kvfolio_cuda_pinned_data(const kvfolio_cuda_pinned* pinned) {
  return pinned == nullptr ? nullptr : pinned->memory.data();
}

int64_t kvfolio_cuda_pinned_bytes(const kvfolio_cuda_pinned* pinned) {
  return pinned == nullptr ? 0 : pinned->memory.bytes();
}

int32_t kvfolio_cuda_memory_create(const kvfolio_cuda_device* device,
                                   const kvfolio_cuda_kernels* kernels,
                                   const kvfolio_cuda_memory_options* options,
                                   kvfolio_cuda_memory** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  KVFOLIO_C_NEEDS(out);
  cuda::DeviceMemoryOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_memory_options(__func__, options, ours));
  if (kernels != nullptr) ours.kernels = kernels->kernels;
  return give(error, cuda::DeviceMemory::create(device->device, ours), out, __func__);
}

void kvfolio_cuda_memory_destroy(kvfolio_cuda_memory* memory) {
  const NothingThrown nothing;
  delete memory;
}

int32_t kvfolio_cuda_memory_resource(kvfolio_cuda_memory* memory, kvfolio_memory_resource* out,
                                     kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(memory);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  write_struct(out, {.struct_size = 0,
                     .kind = KVFOLIO_DEVICE,
                     .context = memory->memory.get(),
                     .allocate = resource_allocate,
                     .deallocate = resource_deallocate,
                     .copy = resource_copy,
                     .copy_batch = resource_copy_batch,
                     .copy_in = resource_copy_in,
                     .copy_out = resource_copy_out});
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_memory_take_error(kvfolio_cuda_memory* memory, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(memory);
  return answer(error, memory->memory->take_error());
}

int32_t kvfolio_cuda_memory_allocate(kvfolio_cuda_memory* memory, int64_t bytes, void** out,
                                     kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(memory);
  KVFOLIO_C_NEEDS(out);
  if (bytes < 1) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": bytes is ", bytes, ", allowed: at least 1")});
  }
  const Result<std::byte*> piece = memory->memory->allocate(bytes);
  if (!piece) return answer(error, piece.error());
  *out = *piece;
  return KVFOLIO_OK;
}

void kvfolio_cuda_memory_deallocate(kvfolio_cuda_memory* memory, void* piece, int64_t bytes) {
  const NothingThrown nothing;
  if (memory == nullptr || piece == nullptr) return;
  memory->memory->deallocate(static_cast<std::byte*>(piece), bytes);
}

int32_t kvfolio_cuda_memory_copy_in(kvfolio_cuda_memory* memory, void* dst, const void* src,
                                    int64_t bytes, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(memory);
  KVFOLIO_C_RETURN_IF_ERROR(check_copy(__func__, dst, src, bytes));
  const CopyRun run = run_of(dst, src, bytes);
  return answer(error, bytes == 0 ? Status() : memory->memory->copy_in({&run, 1}));
}

int32_t kvfolio_cuda_memory_copy_out(kvfolio_cuda_memory* memory, void* dst, const void* src,
                                     int64_t bytes, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(memory);
  KVFOLIO_C_RETURN_IF_ERROR(check_copy(__func__, dst, src, bytes));
  const CopyRun run = run_of(dst, src, bytes);
  return answer(error, bytes == 0 ? Status() : memory->memory->copy_out({&run, 1}));
}

int32_t kvfolio_cuda_memory_copy(kvfolio_cuda_memory* memory, void* dst, const void* src,
                                 int64_t bytes, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(memory);
  KVFOLIO_C_RETURN_IF_ERROR(check_copy(__func__, dst, src, bytes));
  const CopyRun run = run_of(dst, src, bytes);
  return answer(error, bytes == 0 ? Status() : memory->memory->copy(run.dst, run.src, bytes));
}

}  // extern "C"
