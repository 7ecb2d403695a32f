// SPDX-License-Identifier: Apache-2.0
#pragma once

// return invalid(concat("block ", 7, ", allowed: 0 to ", 4)): the caller's argument is wrong.

#include <string>
#include <utility>

#include "kvfolio/status.h"

namespace kvfolio {

[[nodiscard, gnu::cold]] inline Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace kvfolio
