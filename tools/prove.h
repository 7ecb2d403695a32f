// SPDX-License-Identifier: Apache-2.0
#pragma once

// The verb `kvfolio prove`.

#include "prove_options.h"

namespace kvfolio::tools {

// The rows go to standard output, progress and messages to standard error. The exit code: 0 all
// rows have the same hash and were what they say; 1 some differ or were not; 2 bad input.
int prove(const ProveOptions& options);

}  // namespace kvfolio::tools
