// SPDX-License-Identifier: Apache-2.0
#include "bench_tiers.h"

#include "families.h"

namespace kvfolio::bench {

std::vector<std::string> tiers_row_names() {
  return {"tiers.hit.checked",
          "tiers.hit.entry",
          "tiers.lookup",
          "tiers.hash",
          "tiers.save",
          "tiers.restore",
          "tiers.disk.store.threads",
          "tiers.disk.load.threads",
          "tiers.disk.store.ring",
          "tiers.disk.load.ring"};
}

void run_tiers(const Options& options, const std::function<void(const Row&)>& emit,
               const LeftOut& left_out) {
  Session session(options, emit, left_out);
  if (session.wants("tiers.hit.checked") || session.wants("tiers.hit.entry") ||
      session.wants("tiers.lookup") || session.wants("tiers.hash")) {
    measure_arena(session);
  }
  if (session.wants("tiers.save") || session.wants("tiers.restore")) measure_snapshot(session);
  measure_disk(session);
}

}  // namespace kvfolio::bench
