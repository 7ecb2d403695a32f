// SPDX-License-Identifier: Apache-2.0
#pragma once

// The benchmarks of `kvfolio bench core`, as a library: a row per figure of docs/measuring.md.

#include <functional>
#include <string>
#include <vector>

#include "row.h"

namespace kvfolio::bench {

// The names of all rows, in the order in which they come.
[[nodiscard]] std::vector<std::string> core_row_names();

// Runs what the filter asks for and hands over each row as soon as it is known.
void run_core(const Options& options, const std::function<void(const Row&)>& emit,
              const LeftOut& left_out = {});

}  // namespace kvfolio::bench
