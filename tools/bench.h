// SPDX-License-Identifier: Apache-2.0
#pragma once

// The verb `kvfolio bench`.

#include <cstdint>
#include <optional>
#include <string>

#include "kvfolio/dtype.h"
#include "kvfolio/spec.h"

namespace CLI {
class App;
}

namespace kvfolio::tools {

struct BenchOptions {
  std::string family = "core";
  bool is_family_given = false;
  std::string filter;
  int rounds = 9;
  bool quick = false;
  bool json = false;
  // Options of attention.
  std::string kernel = "auto";
  std::int32_t threads = 2;
  std::optional<DType> dtype;
  std::optional<Format> format;
};

// Adds the options of the verb to `app`; parsing fills `options`, which outlives `app`.
void add_bench_options(CLI::App& app, BenchOptions& options);

// A row per figure to standard output as soon as it is known, messages to standard error. The exit
// code: 0 done, floors reached or not; 1 a result was wrong; 2 bad usage.
int bench(const BenchOptions& options);

}  // namespace kvfolio::tools
