// SPDX-License-Identifier: Apache-2.0
#pragma once

// --kernel and --device: what shall compute for a verb. compute_choice.h says what does.
//
// Thread safety: values.

#include <cstdint>
#include <optional>

#include "kvfolio/kernel_target.h"

namespace CLI {
class App;
}

namespace kvfolio::tools {

struct ComputeOptions {
  KernelTarget kernel = KernelTarget::kAuto;
  std::optional<std::int32_t> device;  // its number; none is the CPU
};

// --kernel and --device; parsing fills `options`, which outlives `app`.
void add_compute_options(CLI::App& app, ComputeOptions& options);

}  // namespace kvfolio::tools
