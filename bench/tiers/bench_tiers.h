// SPDX-License-Identifier: Apache-2.0
#pragma once

// The benchmarks of `kvfolio bench tiers`, as a library: what leaves a cache and comes back.

#include <functional>
#include <string>
#include <vector>

#include "row.h"

namespace kvfolio::bench {

// The names of all rows, in the order in which they come.
[[nodiscard]] std::vector<std::string> tiers_row_names();

// Runs what the filter asks for and hands over each row as soon as it is known.
void run_tiers(const Options& options, const std::function<void(const Row&)>& emit,
               const LeftOut& left_out = {});

}  // namespace kvfolio::bench
