// SPDX-License-Identifier: Apache-2.0
#pragma once

// ModelIdentity::layers: which layers of the model each group has. Numbers and ranges "from-to" and
// "from-to/step" with commas between them, groups with semicolons between them: "0-30/2;1-31/2".
// It becomes part of every name. So what does not fit the spec is refused: a slip would be carried
// into all names that a store has, and the same layers under two spellings are not found again.

#include <span>
#include <string_view>

#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

// kInvalidArgument: what stands there and what is allowed. Requires: not empty.
[[nodiscard]] Status check_layers(std::string_view layers, std::span<const GroupSpec> groups);

}  // namespace kvfolio
