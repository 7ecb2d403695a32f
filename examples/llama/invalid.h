// SPDX-License-Identifier: Apache-2.0
#pragma once

// return invalid("..."): what was given is wrong in every state.

#include <string>
#include <utility>

#include "kvfolio/status.h"

namespace kvfolio::llama {

[[nodiscard]] inline Status invalid(std::string message) {
  return Status(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace kvfolio::llama
