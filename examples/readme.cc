// SPDX-License-Identifier: Apache-2.0
// The example of README.md: the lines between the marks are the block there, and what this prints
// is the block behind it. tests/command/test_docs.py compares both.

#include <cstdio>
#include <iterator>
#include <vector>

#include "kvfolio/manager.h"

int main() {
  // readme: begin
  using namespace kvfolio;
  GroupSpec layers{.num_layers = 32, .num_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128};
  layers.num_blocks = 1024;
  KVCacheManager cache = *KVCacheManager::create(CacheSpec{{layers}});  // ids; bytes: a KVStorage

  const auto prefill = [&](const char* name, const std::vector<std::int32_t>& prompt) {
    const Opened opened = *cache.open(prompt);  // finds and holds, in one call
    const Ticket step = *cache.begin_step();
    const auto rest = cache.append_prompt(opened.sequence, prompt, std::ssize(prompt));
    if (!rest) {  // such as: short of blocks. Nothing was appended
      std::puts(rest.error().message().c_str());
      return cache.drop(step) && cache.close(opened.sequence) && false;
    }
    const GroupPlan plan = (*cache.plan())->groups[0];  // int32 arrays for your kernels
    const std::size_t copies = plan.copy_src.size();
    // Yours: run the copies, write K and V to plan.slot_mapping, attend over plan.block_table.
    if (!cache.finish(step)) return false;
    std::printf("%-5s %3d of %zu tokens found, %zu block(s) copied, %d blocks filled\n", name,
                opened.cached_tokens, prompt.size(), copies, 1024 - cache.usage(GroupId(0))->free);
    return cache.close(opened.sequence).ok();  // its blocks stay findable
  };

  std::vector<std::int32_t> alice(500, 7), bob(500, 7);  // the same system prompt, and then
  for (std::int32_t i = 0; i < 28; ++i) alice.push_back(100 + i), bob.push_back(200 + i);
  const bool done = prefill("alice", alice) && prefill("bob", bob) && prefill("alice", alice);
  // readme: end
  return done && cache.counters().tokens_reused == 500 + 527 ? 0 : 1;
}
