// SPDX-License-Identifier: Apache-2.0

#ifdef KVFOLIO_CUDA_SM80  // as in tiles.cu
#include "cuda/attention/sm80_instructions.cuh"
#endif
#include "cuda/attention/launch.h"

#include "base/text.h"
#include "cuda/attention/start.cuh"

namespace kvfolio::cuda {

#define KVFOLIO_TILES(element, dim) \
  template <>                       \
  bool start_tiles_on_device<Element::element, dim>(const DeviceStart& start);
KVFOLIO_TILES(kF16, 64)
KVFOLIO_TILES(kF16, 128)
KVFOLIO_TILES(kF16, 256)
KVFOLIO_TILES(kBF16, 64)
KVFOLIO_TILES(kBF16, 128)
KVFOLIO_TILES(kBF16, 256)
KVFOLIO_TILES(kInt8, 64)
KVFOLIO_TILES(kInt8, 128)
KVFOLIO_TILES(kInt8, 256)
KVFOLIO_TILES(kE4M3, 64)
KVFOLIO_TILES(kE4M3, 128)
KVFOLIO_TILES(kE4M3, 256)
#undef KVFOLIO_TILES

// Started by the library alone, through its module.
template __global__ void plan_kernel<kPlanThreads>(const __grid_constant__ PaddedArgs a);

namespace {

template <Element E>
bool start_tiles_of(const DeviceStart& start) {
  if (start.launch.head_dim == 64) return start_tiles_on_device<E, 64>(start);
  if (start.launch.head_dim == 128) return start_tiles_on_device<E, 128>(start);
  if (start.launch.head_dim == 256) return start_tiles_on_device<E, 256>(start);
  return false;
}

bool start_any(const DeviceStart& start) {
  if (start_others(start.launch, start)) return true;
  switch (start.launch.element) {
    case Element::kF16:
      return start_tiles_of<Element::kF16>(start);
    case Element::kBF16:
      return start_tiles_of<Element::kBF16>(start);
    case Element::kInt8:
      return start_tiles_of<Element::kInt8>(start);
    case Element::kE4M3:
      return start_tiles_of<Element::kE4M3>(start);
    case Element::kF32:
      return false;
  }
  return false;
}

Status launch_on_device(void* stream, const KernelLaunch& launch) {
  cudaError_t error = cudaSuccess;
  if (!start_any({launch, static_cast<cudaStream_t>(stream), error})) {
    return {ErrorCode::kUnsupported,
            text::concat("no kernel ", to_string(launch.kernel), " for ", to_string(launch.element),
                         ", head_dim ", launch.head_dim)};
  }
  if (error == cudaSuccess) error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return {ErrorCode::kUnavailable,
          text::concat("launching ", to_string(launch.kernel), " over ", launch.grid,
                       " blocks failed: ", cudaGetErrorString(error))};
}

}  // namespace

Launcher device_launcher(void* stream) { return {launch_on_device, stream}; }
KernelSet launched_set() { return kCompiledSet; }

}  // namespace kvfolio::cuda
