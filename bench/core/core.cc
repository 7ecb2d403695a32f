// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench_core.h"
#include "family.h"

namespace kvfolio::bench {
namespace {

std::vector<Family> families() {
  return {machine_family(),     pool_family(),     tree_family(),      open_family(),
          step_family(),        room_family(),     lifecycle_family(), storage_family(),
          token_store_family(), metadata_family(), growth_family()};
}

}  // namespace

std::vector<std::string> core_row_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.insert(names.end(), family.names.begin(), family.names.end());
  }
  return names;
}

void run_core(const Options& options, const std::function<void(const Row&)>& emit,
              const LeftOut& left_out) {
  Session session(options, emit, left_out);
  for (const Family& family : families()) {
    const bool wanted = std::any_of(family.names.begin(), family.names.end(),
                                    [&](const std::string& name) { return session.wants(name); });
    if (wanted) family.run(session);
  }
}

}  // namespace kvfolio::bench
