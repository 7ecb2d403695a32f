// SPDX-License-Identifier: Apache-2.0
#pragma once

// A launcher for the current CUDA device: scripts/gpu links it with the CUDA run-time. Nothing that
// is installed does.

#include "cuda/attention/attend.h"
#include "cuda/attention/kernel_set.h"

namespace kvfolio::cuda {

// `stream`: a cudaStream_t. kUnavailable with CUDA's words where a launch is refused. Launches may
// be captured in a graph.
[[nodiscard]] Launcher device_launcher(void* stream);
// What it was compiled for.
[[nodiscard]] KernelSet launched_set();

}  // namespace kvfolio::cuda
