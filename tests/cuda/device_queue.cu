// SPDX-License-Identifier: Apache-2.0

#include "device_queue.h"

#include "cuda/move_kernels.cuh"
#include "kvfolio/dtype.h"

namespace kvfolio::cuda {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(kThreads)
    run_kernel(const __grid_constant__ typename Kernel::Args args) {
  Kernel::run(args);
}

template <typename Kernel>
bool start(Kernel, std::uint32_t x, const Grid& grid, const typename Kernel::Args& args,
           cudaStream_t stream) {
  run_kernel<Kernel><<<dim3(x, grid.y, grid.z), kThreads, 0, stream>>>(args);
  return true;
}

// bf16 rows, the ones that are timed.
bool start_tuned(const MoveKernel& kernel, const Grid& grid, const void* raw, const Tuning& t,
                 cudaStream_t stream) {
  constexpr Element kBf = Element::kBF16, kQ = Element::kInt8;
  if (!kernel.wide || (kernel.from != kBf && t.blocks == 0)) return false;
  const std::uint32_t units = grid.x * kBatch;
  if (kernel.family == MoveFamily::kAppendPlain && kernel.to == kBf && t.batch != 0) {
    const auto& a = *static_cast<const AppendArgs*>(raw);
    if (t.batch == 1) return start(AppendPlain<kBf, kBf, 1, true>(), units, grid, a, stream);
    if (t.batch == 4)
      return start(AppendPlain<kBf, kBf, 4, true>(), (units + 3) / 4, grid, a, stream);
  }
  if (kernel.family == MoveFamily::kGather && kernel.to == kBf && t.batch != 0) {
    const auto& a = *static_cast<const GatherArgs*>(raw);
    if (t.batch == 1) return start(Gather<kBf, kBf, 1, true>(), units, grid, a, stream);
    if (t.batch == 4) return start(Gather<kBf, kBf, 4, true>(), (units + 3) / 4, grid, a, stream);
  }
  if (kernel.family == MoveFamily::kAppendQuantized && kernel.to == kQ && t.units != 0) {
    AppendArgs a = *static_cast<const AppendArgs*>(raw);
    const std::uint32_t row_units = a.k.units > a.v.units ? a.k.units : a.v.units;
    a.lanes =
        (row_units + static_cast<std::uint32_t>(t.units) - 1) / static_cast<std::uint32_t>(t.units);
    a.lanes = std::bit_ceil(a.lanes);
    const std::uint32_t x = (a.num_rows * a.lanes + kThreads - 1) / kThreads;
    if (t.units == 1) return start(AppendQuantized<kBf, kQ, 1, true>(), x, grid, a, stream);
    if (t.units == 2) return start(AppendQuantized<kBf, kQ, 2, true>(), x, grid, a, stream);
    if (t.units == 4) return start(AppendQuantized<kBf, kQ, 4, true>(), x, grid, a, stream);
  }
  if (kernel.family == MoveFamily::kCopyBlocks && t.blocks != 0) {
    const auto& a = *static_cast<const BlocksArgs*>(raw);
    const auto x = [&](std::uint32_t n) { return (a.units + n * kThreads - 1) / (n * kThreads); };
    if (t.blocks == 2) return start(Blocks<BlocksOp::kCopy, true, 2>(), x(2), grid, a, stream);
    if (t.blocks == 8) return start(Blocks<BlocksOp::kCopy, true, 8>(), x(8), grid, a, stream);
  }
  return false;
}

__global__ void compare_singles(ConversionFaults* faults) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned f16 = 0, bf16 = 0, e4m3 = 0;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < 1ull << 32; i += step) {
    const float x = __uint_as_float(static_cast<unsigned>(i));
    f16 += (f16_bits(x, 1.0f) & 0xffffu) != f16_from_f32(x);
    f16 += f16_bits(1.0f, x) >> 16 != f16_from_f32(x);
    bf16 += (bf16_bits(x, 1.0f) & 0xffffu) != bf16_from_f32(x);
    bf16 += bf16_bits(1.0f, x) >> 16 != bf16_from_f32(x);
    e4m3 += (e4m3x2_of(x, 0.0f) & 0xffu) != e4m3_rounded(x);
  }
  atomicAdd(&faults->f16, f16);
  atomicAdd(&faults->bf16, bf16);
  atomicAdd(&faults->e4m3, e4m3);
}

__global__ void compare_halves(ConversionFaults* faults) {
  const unsigned half = blockIdx.x * blockDim.x + threadIdx.x;
  const float want = f32_from_f16(static_cast<std::uint16_t>(half));
  if (__float_as_uint(f16_value(half)) != __float_as_uint(want)) atomicAdd(&faults->from_f16, 1ull);
}

}  // namespace

Status DeviceQueue::launch(const MoveKernel& kernel, const Grid& grid, const void* args,
                           std::size_t) {
  const bool found = start_tuned(kernel, grid, args, tuning_, stream_) ||
                     with_kernel(kernel, args, [&](auto type, const auto& typed) {
                       return start(type, grid.x, grid, typed, stream_);
                     });
  if (!found) return {ErrorCode::kUnsupported, "there is no such kernel"};
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return {ErrorCode::kUnavailable, cudaGetErrorString(error)};
}

cudaError_t compare_conversions(ConversionFaults& faults) {
  ConversionFaults* there = nullptr;
  cudaError_t error = cudaMalloc(&there, sizeof faults);
  if (error == cudaSuccess) error = cudaMemset(there, 0, sizeof faults);
  if (error != cudaSuccess) return error;
  compare_singles<<<1024, 256>>>(there);
  compare_halves<<<256, 256>>>(there);
  error = cudaMemcpy(&faults, there, sizeof faults, cudaMemcpyDeviceToHost);
  cudaFree(there);
  return error;
}

}  // namespace kvfolio::cuda
