// SPDX-License-Identifier: Apache-2.0
//
// record_calls OPERATIONS: makes that many random operations of the model check through C and
// prints each call and its answer (record.h). bindings/rust repeats them through the crate. Runs
// begin with the line of create() or create_with_storage().

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "model_check/harness.h"

int main(int argc, char** argv) {
  using namespace kvfolio::model_check;
  constexpr int kOpsPerRun = 500;
  const int operations = argc > 1 ? std::atoi(argv[1]) : 10000;
  for (int run = 0; run * kOpsPerRun < operations; ++run) {
    const auto seed = static_cast<std::uint64_t>(run);
    Config config = make_config(static_cast<Family>(run % kNumFamilies), 7000 + seed);
    config.copies = false;                  // the first manager stays the one that is called
    config.host_copies = config.transfers;  // else ids only
    std::string calls;
    CManager::record_next(&calls);
    Harness harness(config);
    for (int op = 0; op < std::min(kOpsPerRun, operations - run * kOpsPerRun); ++op) {
      harness.run((seed << 32) + static_cast<std::uint64_t>(op));
    }
    std::fputs(calls.c_str(), stdout);
  }
  return 0;
}
