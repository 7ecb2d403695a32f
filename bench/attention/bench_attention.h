// SPDX-License-Identifier: Apache-2.0
#pragma once

// The benchmarks of `kvfolio bench attention`, as a library: how near the kernels come to what this
// machine can read and compute, in the same run. docs/measuring.md says how to read the rows.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kvfolio/dtype.h"
#include "kvfolio/spec.h"
#include "row.h"

namespace kvfolio::bench {

struct AttentionOptions {
  Options common;
  std::string target = "auto";  // a name of attention_targets(), or auto: the last of them
  std::int32_t threads = 2;     // rows for one thread and for so many
  // Only caches of this type and this format; none: all of them.
  std::optional<DType> dtype = {};
  std::optional<Format> format = {};
};

// The names of all rows, in the order in which they come.
[[nodiscard]] std::vector<std::string> attention_row_names();
// The kernel targets that this build has and this CPU runs, the fastest last.
[[nodiscard]] std::vector<std::string> attention_targets();

// Runs what the filter asks for and hands over each row as soon as it is known.
// Requires: options.target is auto or one of attention_targets().
void run_attention(const AttentionOptions& options, const std::function<void(const Row&)>& emit,
                   const LeftOut& left_out = {});

}  // namespace kvfolio::bench
