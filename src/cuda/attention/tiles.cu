// SPDX-License-Identifier: Apache-2.0

// The kernels of one element type and head dim: compiled once for each, since that takes long.
// KVFOLIO_TILES_ELEMENT and KVFOLIO_TILES_DIM name them; with KVFOLIO_CUDA_SM80 those of
// KernelSet::kSm80.

#ifdef KVFOLIO_CUDA_SM80
#include "cuda/attention/sm80_instructions.cuh"
#endif
#include "cuda/attention/start.cuh"

namespace kvfolio::cuda {

template <>
bool start_tiles_on_device<Element::KVFOLIO_TILES_ELEMENT, KVFOLIO_TILES_DIM>(
    const DeviceStart& start) {
  return start_tiles<Element::KVFOLIO_TILES_ELEMENT, KVFOLIO_TILES_DIM, kCompiledSet>(start.launch,
                                                                                      start);
}

}  // namespace kvfolio::cuda
