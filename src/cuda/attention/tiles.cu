// SPDX-License-Identifier: Apache-2.0

// The kernels of one element type and head dim: compiled once for each, since that takes long.
// KVFOLIO_TILES_ELEMENT and KVFOLIO_TILES_DIM name them.

#include "cuda/attention/start.cuh"

namespace kvfolio::cuda {

template <>
bool start_tiles_on_device<Element::KVFOLIO_TILES_ELEMENT, KVFOLIO_TILES_DIM>(
    const DeviceStart& start) {
  return start_tiles<Element::KVFOLIO_TILES_ELEMENT, KVFOLIO_TILES_DIM>(start.launch, start);
}

}  // namespace kvfolio::cuda
