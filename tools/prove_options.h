// SPDX-License-Identifier: Apache-2.0
#pragma once

// The options of `kvfolio prove`, as the command line gives them.

#include <string>

#include "compute_options.h"
#include "kvfolio/dtype.h"
#include "tier_option.h"

namespace CLI {
class App;
}

namespace kvfolio::tools {

struct ProveOptions {
  std::string model;
  DType dtype = DType::kF32;
  ComputeOptions compute;
  TierChoice tiers;  // with a disk there are rows from it
  bool json = false;
};

// Adds the options of the verb to `app`; parsing fills `options`, which outlives `app`.
void add_prove_options(CLI::App& app, ProveOptions& options);

}  // namespace kvfolio::tools
