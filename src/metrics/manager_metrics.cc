// SPDX-License-Identifier: Apache-2.0
//
// What a manager has to say, and the names that users of vLLM and SGLang chart already. A total and
// the state of each group are all in blocks; hits are in tokens, as theirs are.

#include "kvfolio/ids.h"
#include "kvfolio/manager.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/metrics.h"
#include "kvfolio/status.h"

namespace kvfolio {

namespace {

bool has(MetricNames names, MetricNames one) {
  return (static_cast<std::int32_t>(names) & static_cast<std::int32_t>(one)) != 0;
}

std::vector<MetricLabel> with(MetricLabels labels, std::initializer_list<MetricLabel> more) {
  std::vector<MetricLabel> all(labels.begin(), labels.end());
  all.insert(all.end(), more);
  return all;
}

// No table: one with pointers to texts would be data that the loader writes.
void add_counters(Metrics& metrics, const Counters& c, MetricLabels labels) {
  const auto add = [&](const char* name, const char* help, std::uint64_t value) {
    metrics.counter(name, help, labels, value);
  };
  add("kvfolio_allocated_blocks_total", "Blocks that left the free list.", c.blocks_allocated);
  add("kvfolio_freed_blocks_total", "Blocks that became free.", c.blocks_freed);
  add("kvfolio_evicted_blocks_total", "Cached blocks that were given up to make room.",
      c.blocks_evicted);
  add("kvfolio_unhung_blocks_total", "Held blocks that stopped being findable to make room.",
      c.blocks_unhung);
  add("kvfolio_copied_blocks_total", "Blocks that were copied on write.", c.block_copies);
  add("kvfolio_published_blocks_total", "Blocks that became findable.", c.blocks_published);
  add("kvfolio_publications_skipped_total",
      "Times that a sequence could not publish for lack of room.", c.publications_skipped);
  add("kvfolio_announcements_skipped_total", "Prompts that were not announced for lack of room.",
      c.announcements_skipped);
  add("kvfolio_sequences_opened_total", "Sequences that were opened, without forks.",
      c.sequences_opened);
  add("kvfolio_sequences_closed_total", "Sequences that ended by close().", c.sequences_closed);
  add("kvfolio_sequences_preempted_total", "Sequences that were preempted.", c.sequences_preempted);
  add("kvfolio_sequences_aborted_total", "Sequences that a failed step ended.",
      c.sequences_aborted);
  add("kvfolio_forks_total", "Sequences that were forked.", c.forks);
  add("kvfolio_prefix_looked_up_tokens_total",
      "Tokens of all prompts that were looked up in the prefix cache.", c.tokens_looked_up);
  add("kvfolio_prefix_hit_tokens_total", "Tokens of prompts that were found in the prefix cache.",
      c.tokens_reused);
  add("kvfolio_loaded_tokens_total", "Tokens that loads brought back to the cache.",
      c.tokens_loaded);
  add("kvfolio_committed_tokens_total", "Tokens that steps appended.", c.tokens_committed);
}

struct Blocks {
  double total = 0, held = 0, free = 0, evictable = 0;
  double tokens_held = 0, tokens_free = 0, tokens_evictable = 0;
};

void add_group(Metrics& metrics, const GroupUsage& usage, std::string_view group,
               MetricLabels labels) {
  const auto add = [&](const char* state, std::int32_t blocks) {
    metrics.gauge("kvfolio_blocks", "Blocks of a group, by state.",
                  with(labels, {{"group", group}, {"state", state}}), blocks);
  };
  add("free", usage.free);
  add("held", usage.held);
  add("cached", usage.cached);
  add("retiring", usage.retiring);
  const auto own = with(labels, {{"group", group}});
  metrics.gauge("kvfolio_capacity_blocks", "Blocks that a group has.", own, usage.num_blocks);
  metrics.gauge("kvfolio_reserved_blocks", "Held blocks that no sequence uses yet.", own,
                usage.reserved);
  metrics.gauge("kvfolio_loading_blocks", "Held blocks that wait for a load.", own, usage.loading);
  metrics.gauge("kvfolio_on_hold_references", "References of open holds.", own, usage.on_hold);
}

void add_vllm(Metrics& metrics, const Blocks& blocks, const Counters& counters,
              MetricLabels labels) {
  metrics.gauge("vllm:kv_cache_usage_perc", "Share of all blocks that sequences hold, 0 to 1.",
                labels, blocks.total > 0 ? blocks.held / blocks.total : 0);
  metrics.counter("vllm:prefix_cache_queries_total",
                  "Tokens of all prompts that were looked up in the prefix cache.", labels,
                  counters.tokens_looked_up);
  metrics.counter("vllm:prefix_cache_hits_total",
                  "Tokens of prompts that were found in the prefix cache.", labels,
                  counters.tokens_reused);
  metrics.counter("vllm:external_prefix_cache_hits_total", "Tokens that came back from a tier.",
                  labels, counters.tokens_loaded);
  metrics.counter("vllm:num_preemptions_total", "Sequences that were preempted.", labels,
                  counters.sequences_preempted);
}

void add_sglang(Metrics& metrics, const Blocks& blocks, const Counters& counters,
                MetricLabels labels) {
  const double all = blocks.total > 0 ? blocks.held / blocks.total : 0;
  metrics.gauge("sglang:token_usage", "Share of all blocks that sequences hold, 0 to 1.", labels,
                all);
  metrics.gauge("sglang:num_used_tokens",
                "Tokens that the blocks that sequences hold have room for.", labels,
                blocks.tokens_held);
  metrics.gauge("sglang:kv_available_tokens", "Tokens that the free blocks have room for.", labels,
                blocks.tokens_free);
  metrics.gauge("sglang:kv_evictable_tokens",
                "Tokens that the blocks that can be evicted have room for.", labels,
                blocks.tokens_evictable);
  const double looked_up = static_cast<double>(counters.tokens_looked_up);
  metrics.gauge("sglang:cache_hit_rate",
                "Share of the tokens of all prompts that were found in the prefix cache.", labels,
                looked_up > 0 ? static_cast<double>(counters.tokens_reused) / looked_up : 0);
  metrics.counter("sglang:load_back_tokens_total", "Tokens that came back from a tier.", labels,
                  counters.tokens_loaded);
}

}  // namespace

void Metrics::add(const KVCacheManager& manager, MetricLabels labels, MetricNames names) {
  const Counters& counters = manager.counters();
  add_counters(*this, counters, labels);
  gauge("kvfolio_held_blocks_peak", "Most blocks that were held at once, of all groups.", labels,
        static_cast<double>(counters.blocks_used_peak));
  gauge("kvfolio_sequences", "Open sequences.", labels, manager.num_sequences());
  gauge("kvfolio_steps_in_flight", "Steps that are not complete.", labels, manager.num_steps());
  Blocks blocks;
  const std::vector<GroupSpec>& groups = manager.spec().groups;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Result<GroupUsage> usage = manager.usage(GroupId(static_cast<std::int32_t>(g)));
    if (!usage) continue;
    add_group(*this, *usage, std::to_string(g), labels);
    const double size = groups[g].block_size;
    blocks.total += usage->num_blocks;
    blocks.held += usage->held;
    blocks.tokens_held += usage->held * size;
    blocks.tokens_free += usage->free * size;
    blocks.tokens_evictable += usage->evictable * size;
  }
  if (has(names, MetricNames::kVllm)) add_vllm(*this, blocks, counters, labels);
  if (has(names, MetricNames::kSglang)) add_sglang(*this, blocks, counters, labels);
}

}  // namespace kvfolio
