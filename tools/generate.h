// SPDX-License-Identifier: Apache-2.0
#pragma once

// The verb `kvfolio generate`.

#include "generate_options.h"

namespace kvfolio::tools {

// Results go to standard output, messages to standard error. The exit code: 0 done, 1 a request did
// not fit or a comparison failed, 2 bad input.
int generate(const GenerateOptions& options);

}  // namespace kvfolio::tools
