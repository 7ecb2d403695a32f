// SPDX-License-Identifier: Apache-2.0
#pragma once

// A stream of CUDA's run-time as a Queue, for the program that checks and times the moves on a
// device. The library starts its kernels through the driver instead.

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/queue.h"

namespace kvfolio::cuda {

// Other numbers of units for each thread, to choose from by measurement. 0: what the library takes.
struct Tuning {
  int batch = 0;   // of the plain kernels: 1, 2, 4
  int units = 0;   // of a lane of append_quantized: 1, 2, 4
  int blocks = 0;  // of move_blocks: 2, 4, 8
};

class DeviceQueue final : public Queue {
 public:
  explicit DeviceQueue(cudaStream_t stream = nullptr, const Tuning& tuning = {})
      : stream_(stream), tuning_(tuning) {}
  Status launch(const MoveKernel& kernel, const Grid& grid, const void* args,
                std::size_t args_bytes) override;

 private:
  cudaStream_t stream_;
  Tuning tuning_;
};

// Compares the conversions of kernels with dtype.h's, on the device, for all 2^32 bit patterns of
// f32 and all of the 16-bit types: how many differ, for f16, bf16, e4m3 and from f16.
struct ConversionFaults {
  unsigned long long f16 = 0, bf16 = 0, e4m3 = 0, from_f16 = 0;
};
cudaError_t compare_conversions(ConversionFaults& faults);

}  // namespace kvfolio::cuda
