// SPDX-License-Identifier: Apache-2.0
//
// record_calls OPERATIONS: makes that many random operations of the model check, then their calls
// through C, and prints each of these and its answer (c_replay.h). bindings/rust repeats them
// through the crate. Runs begin with the line of create() or create_with_storage().

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "model_check/c_replay.h"
#include "model_check/recorded.h"

int main(int argc, char** argv) {
  using namespace kvfolio::model_check;
  constexpr int kOpsPerRun = 500;
  const int operations = argc > 1 ? std::atoi(argv[1]) : 10000;
  for (int run = 0; run * kOpsPerRun < operations; ++run) {
    const auto seed = static_cast<std::uint64_t>(run);
    Config config = make_config(static_cast<Family>(run % kNumFamilies), 7000 + seed);
    config.host_copies = config.transfers;  // else ids only
    LogBytes log;
    record(config, seed, std::min(kOpsPerRun, operations - run * kOpsPerRun), log);
    std::string calls;
    replay_in_c(log, seed, &calls);
    std::fputs(calls.c_str(), stdout);
  }
  return 0;
}
