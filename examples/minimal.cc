// SPDX-License-Identifier: Apache-2.0
// The control plane alone: no memory, no kernels, only which block holds which tokens. An engine
// that owns its tensors calls exactly this and hands the arrays of each plan to its own kernels.

#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "kvfolio/manager.h"

using namespace kvfolio;

namespace {

// An engine would handle errors; an example stops and says what was wrong.
void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
template <typename T>
T check(Result<T> result) {
  if (!result) check(result.error());
  return std::move(*result);
}

void print(const char* name, std::span<const std::int32_t> values) {
  std::printf("  %-14s", name);
  for (const std::int32_t value : values) std::printf(" %d", value);
  std::printf("\n");
}

// One engine step that feeds `tokens` to `sequence`: reserve slots, take the arrays, run, finish.
void feed(KVCacheManager& manager, SequenceId sequence, std::span<const std::int32_t> tokens) {
  const Ticket ticket = check(manager.begin_step());
  check(manager.append(sequence, tokens));
  const StepPlan& plan = *check(manager.plan());
  const GroupPlan& group = plan.groups[0];
  print("slots", group.slot_mapping);
  print("block table", group.block_table);
  print("length", plan.kv_lens);
  if (!group.copy_src.empty()) print("copy from", group.copy_src);
  if (!group.copy_dst.empty()) print("copy to", group.copy_dst);
  // Here the device copies those blocks, writes K and V to the slots and attends over the table.
  check(manager.finish(ticket));
}

}  // namespace

int main() {
  // 32 layers of 8 KV heads x 128 share one table: they form one group of 64 blocks of 4 tokens.
  const CacheSpec spec{.groups = {{.num_layers = 32,
                                   .num_kv_heads = 8,
                                   .head_dim_k = 128,
                                   .head_dim_v = 128,
                                   .block_size = 4,
                                   .num_blocks = 64}}};
  KVCacheManager manager = check(KVCacheManager::create(spec, {.max_sequences = 16}));

  const std::vector<std::int32_t> prompt = {11, 12, 13, 14, 21, 22, 23, 24, 31, 32};
  Opened first = check(manager.open(prompt));
  std::printf("first prompt: %d of %zu tokens cached\n", first.cached_tokens, prompt.size());
  // Only what is not cached: here all of it.
  feed(manager, first.sequence,
       std::span(prompt).subspan(static_cast<std::size_t>(first.cached_tokens)));

  // A second answer to the same prompt: every block is shared; the fork copies one block when it
  // writes, the parent none.
  const SequenceId fork = check(manager.fork(first.sequence));
  std::printf("the parent goes on in place\n");
  feed(manager, first.sequence, std::vector<std::int32_t>{41});
  std::printf("its fork says something else: the shared tail is copied first\n");
  feed(manager, fork, std::vector<std::int32_t>{51});
  check(manager.close(first.sequence));
  check(manager.close(fork));

  // The same prompt again: all of it is there but the token that gives the logits.
  Opened again = check(manager.open(prompt));
  std::printf("the same prompt: %d of %zu tokens cached\n", again.cached_tokens, prompt.size());
  feed(manager, again.sequence,
       std::span(prompt).subspan(static_cast<std::size_t>(again.cached_tokens)));
  check(manager.close(again.sequence));

  const GroupUsage usage = check(manager.usage(GroupId(0)));
  const Counters& counters = manager.counters();
  std::printf("%d blocks: %d free, %d held, %d cached; %llu copies, %llu tokens reused\n",
              usage.num_blocks, usage.free, usage.held, usage.cached,
              static_cast<unsigned long long>(counters.block_copies),
              static_cast<unsigned long long>(counters.tokens_reused));
  check(manager.check_invariants());
}
