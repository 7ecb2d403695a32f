// SPDX-License-Identifier: Apache-2.0
#pragma once

// The verb inspect: what is in a snapshot or in an operation log.

#include <string>

namespace CLI {
class App;
}

namespace kvfolio::tools {

struct InspectOptions {
  std::string path;
  bool replay = false;
  bool state_hash = false;
  bool index = false;
  bool dump = false;
};

void add_inspect_options(CLI::App& app, InspectOptions& options);
// 0; 1: a call answers otherwise, or the file is damaged; 2: no such file, or not one of ours.
int inspect(const InspectOptions& options);

}  // namespace kvfolio::tools
