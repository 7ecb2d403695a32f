// SPDX-License-Identifier: Apache-2.0
// A consumer of the installed package, under strict warnings, without exceptions and RTTI: opens a
// prompt twice and expects to find it the second time.
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "kvfolio/manager.h"

int main() {
  using namespace kvfolio;
  const CacheSpec spec{.groups = {{.num_layers = 4,
                                   .num_kv_heads = 2,
                                   .head_dim_k = 64,
                                   .head_dim_v = 64,
                                   .block_size = 16,
                                   .num_blocks = 128}}};
  Result<KVCacheManager> created = KVCacheManager::create(spec, {.max_sequences = 4});
  if (!created) {
    std::fprintf(stderr, "%s\n", created.error().message().c_str());
    return 1;
  }
  KVCacheManager& manager = *created;
  const std::vector<std::int32_t> prompt(40, 7);
  std::int32_t cached = -1;
  for (int round = 0; round < 2; ++round) {
    const Result<Opened> opened = manager.open(prompt);
    const Result<Ticket> ticket = manager.begin_step();
    if (!opened || !ticket) return 1;
    cached = opened->cached_tokens;
    const auto rest = std::span(prompt).subspan(static_cast<std::size_t>(cached));
    const Status appended = manager.append(opened->sequence, rest);
    const Result<const StepPlan*> plan = manager.plan();
    if (!appended || !plan || (*plan)->groups[0].slot_mapping.size() != rest.size()) return 1;
    if (!manager.finish(*ticket) || !manager.close(opened->sequence)) return 1;
  }
  std::printf("%d of %zu tokens found\n", cached, prompt.size());
  return cached == 39 ? 0 : 1;
}
