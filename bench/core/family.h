// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files of `kvfolio bench core`.

#include <string>
#include <vector>

#include "harness.h"

namespace kvfolio::bench {

// One file of benchmarks: the names of the rows that it can give, and what gives them.
struct Family {
  std::vector<std::string> names;
  void (*run)(Session&);
};
Family machine_family();
Family pool_family();
Family tree_family();
Family open_family();
Family step_family();
void measure_step_through_c(Session& session);  // of the same family
Family room_family();
Family lifecycle_family();
Family storage_family();
Family token_store_family();
Family metadata_family();
Family growth_family();

}  // namespace kvfolio::bench
