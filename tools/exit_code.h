// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a verb ends.

#include <string_view>

#include "kvfolio/status.h"

namespace kvfolio::tools {

// The verb's own exit code; 2, with "kvfolio VERB: what was wrong" on standard error, when it could
// not run.
[[nodiscard]] int exit_code(std::string_view verb, const Result<int>& code);

// Where --device names a device that is not there (kUnavailable): says so, and gives exit code 3.
// Any other error stays one.
[[nodiscard]] Result<int> exit_without_device(std::string_view verb, const Status& error);

}  // namespace kvfolio::tools
