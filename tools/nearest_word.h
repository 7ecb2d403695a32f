// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a user may have meant who wrote a name that there is not.

#include <string>
#include <string_view>
#include <vector>

namespace kvfolio::tools {

// " (did you mean NAME?)" for the one of `names` that the fewest changes of a letter (put in, taken
// out, replaced, or swapped with its neighbour) make of `word`: at most 2, and at most a third of
// its letters; of several the first. Empty if there is none.
[[nodiscard]] std::string did_you_mean(std::string_view word,
                                       const std::vector<std::string>& names);

}  // namespace kvfolio::tools
