// SPDX-License-Identifier: Apache-2.0
#include "bench_tiers.h"

#include "families.h"

namespace kvfolio::bench {

std::vector<std::string> tiers_row_names() {
  std::vector<std::string> names = {"tiers.hit.checked",
                                    "tiers.hit.entry",
                                    "tiers.lookup",
                                    "tiers.hash",
                                    "tiers.check",
                                    "tiers.check.keyed",
                                    "tiers.decode_beside_stores",
                                    "tiers.save",
                                    "tiers.restore",
                                    "tiers.disk.store.threads",
                                    "tiers.disk.load.threads",
                                    "tiers.disk.store.ring",
                                    "tiers.disk.load.ring"};
#if KVFOLIO_WITH_REDIS
  for (const char* name : {"set.256k", "get.256k", "set.1m", "get.1m", "call", "recovery"}) {
    names.push_back(std::string("tiers.redis.") + name);
  }
#endif
  return names;
}

void run_tiers(const Options& options, const std::function<void(const Row&)>& emit,
               const LeftOut& left_out) {
  Session session(options, emit, left_out);
  if (session.wants("tiers.hit.checked") || session.wants("tiers.hit.entry") ||
      session.wants("tiers.lookup") || session.wants("tiers.hash") ||
      session.wants("tiers.check") || session.wants("tiers.check.keyed")) {
    measure_arena(session);
  }
  if (session.wants("tiers.decode_beside_stores")) measure_beside(session);
  if (session.wants("tiers.save") || session.wants("tiers.restore")) measure_snapshot(session);
  measure_disk(session);
#if KVFOLIO_WITH_REDIS
  measure_redis(session);
#endif
}

}  // namespace kvfolio::bench
