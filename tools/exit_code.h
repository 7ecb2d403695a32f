// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a verb ends.

#include <string_view>

#include "kvfolio/status.h"

namespace kvfolio::tools {

// The verb's own exit code; 2, with "kvfolio VERB: what was wrong" on standard error, when it could
// not run.
[[nodiscard]] int exit_code(std::string_view verb, const Result<int>& code);

}  // namespace kvfolio::tools
