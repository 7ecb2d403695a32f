// SPDX-License-Identifier: Apache-2.0

// gpu_checks PART [--quick]: one part of scripts/gpu, on the device at hand. Exit: 3 if there is
// none for these kernels. gpu_checks_sm80 is the same with the kernels of all cards but sm_90.

#include <cstring>
#include <string>

#include "cuda/attention/launch.h"
#include "problem.h"

int main(int argc, char** argv) {
  using namespace kvfolio::cuda;
  const bool quick = argc > 2 && std::strcmp(argv[2], "--quick") == 0;
  const struct {
    const char* name;
    void (*run)(bool);
  } parts[] = {{"bits", run_bits}, {"right", run_right},   {"nan", run_nan},
               {"tiny", run_tiny}, {"decode", run_decode}, {"prefill", run_prefill}};
  for (const auto& part : parts) {
    if (argc < 2 || std::strcmp(part.name, argv[1]) != 0) continue;
    cudaDeviceProp device;
    if (const cudaError_t none = cudaGetDeviceProperties(&device, 0); none != cudaSuccess) {
      std::printf("no device: %s\n", cudaGetErrorString(none));
      return 3;
    }
    // Those for all others run on 9.0, too, from their PTX.
    const bool fits = launched_set() == KernelSet::kSm80 ? device.major >= 8
                                                         : device.major == 9 && device.minor == 0;
    if (!fits) {
      std::printf("the device is sm_%d%d, these kernels are built for %s\n", device.major,
                  device.minor, launched_set() == KernelSet::kSm80 ? "sm_80 on" : "sm_90a");
      return 3;
    }
    part.run(quick);
    return 0;
  }
  std::printf("gpu_checks bits|right|nan|tiny|decode|prefill [--quick]\n");
  return 2;
}
