// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/tier_metrics.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace kvfolio {

namespace {

std::vector<MetricLabel> with(MetricLabels labels, std::initializer_list<MetricLabel> more) {
  std::vector<MetricLabel> all(labels.begin(), labels.end());
  all.insert(all.end(), more);
  return all;
}

// Tables of texts, as in manager_metrics.cc.
struct CounterRow {
  char name[48];
  char help[72];
  std::uint64_t OffloadCounters::*value;
};
constexpr std::array kCounters = {
    CounterRow{"kvfolio_arena_stored_records_total", "Records that entered host memory.",
               &OffloadCounters::stores},
    CounterRow{"kvfolio_arena_dropped_records_total", "Records that found no room there.",
               &OffloadCounters::stores_dropped},
    CounterRow{"kvfolio_arena_corrupt_records_total", "Records of host memory that did not verify.",
               &OffloadCounters::arena_corrupt},
    CounterRow{"kvfolio_offload_loaded_blocks_total", "Blocks that were written to the cache.",
               &OffloadCounters::loads},
    CounterRow{"kvfolio_offload_loaded_tokens_total", "Tokens of them.",
               &OffloadCounters::tokens_loaded},
    CounterRow{"kvfolio_offload_requests_total", "Prompts that waited for a load.",
               &OffloadCounters::requests},
    CounterRow{"kvfolio_offload_requests_canceled_total", "Of these, those that did not wait.",
               &OffloadCounters::requests_canceled},
    CounterRow{"kvfolio_offload_requests_timed_out_total", "Of these, those that waited too long.",
               &OffloadCounters::requests_timed_out},
    CounterRow{"kvfolio_offload_unknown_completions_total",
               "Answers of tiers to nothing that they were asked.",
               &OffloadCounters::unknown_completions},
};

struct TierRow {
  char name[48];
  char help[72];
  std::uint64_t OffloadTierCounters::*value;
};
constexpr std::array kTierCounters = {
    TierRow{"kvfolio_tier_stored_records_total", "Records that the tier keeps, as it said.",
            &OffloadTierCounters::stores},
    TierRow{"kvfolio_tier_failed_stores_total", "Records that it could not keep.",
            &OffloadTierCounters::stores_failed},
    TierRow{"kvfolio_tier_hit_records_total", "Records that came back and verified.",
            &OffloadTierCounters::loads},
    TierRow{"kvfolio_tier_corrupt_records_total", "Records that came back and did not verify.",
            &OffloadTierCounters::loads_corrupt},
    TierRow{"kvfolio_tier_stored_bytes_total", "Bytes of what it keeps.",
            &OffloadTierCounters::bytes_stored},
    TierRow{"kvfolio_tier_loaded_bytes_total", "Bytes of what came back.",
            &OffloadTierCounters::bytes_loaded},
};

void add_arena(Metrics& metrics, const ArenaStats& arena, MetricLabels labels) {
  metrics.gauge("kvfolio_arena_capacity_bytes", "Host memory for records.", labels,
                static_cast<double>(arena.bytes));
  metrics.gauge("kvfolio_arena_used_bytes", "Host memory that holds records.", labels,
                static_cast<double>(arena.bytes_published));
  metrics.gauge("kvfolio_arena_records", "Records in host memory.", labels,
                static_cast<double>(arena.records));
}

void add_latency(Metrics& metrics, const char* name, const char* help, MetricLabels labels,
                 const OffloadTierCounters::Latencies& counts, std::uint64_t sum_us) {
  std::array<double, OffloadTierCounters::kLatencyUs.size()> bounds{};
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = static_cast<double>(OffloadTierCounters::kLatencyUs[i]) / 1e6;
  }
  metrics.histogram(name, help, labels, bounds, counts, static_cast<double>(sum_us) / 1e6);
}

void add_tier(Metrics& metrics, const Tier& tier, const OffloadTierCounters& counters,
              std::string_view name, MetricLabels labels) {
  const auto own = with(labels, {{"tier", name}});
  for (const TierRow& row : kTierCounters) {
    metrics.counter(row.name, row.help, own, counters.*row.value);
  }
  for (int i = 1; i < kNumTierResults; ++i) {
    const auto index = static_cast<std::size_t>(i);
    metrics.counter("kvfolio_tier_missed_records_total",
                    "Records that did not come back, by reason.",
                    with(own, {{"reason", to_string(static_cast<TierResult>(i))}}),
                    counters.loads_failed[index]);
  }
  add_latency(metrics, "kvfolio_tier_store_seconds", "From the store to the answer.", own,
              counters.store_latency, counters.store_us);
  add_latency(metrics, "kvfolio_tier_load_seconds", "From the load to the answer.", own,
              counters.load_latency, counters.load_us);
  const bool up = tier.health().usable && counters.stores_failed_in_a_row < kUnhealthyStores;
  metrics.gauge("kvfolio_tier_up", "1 if the tier is usable and its last stores succeeded.", own,
                up ? 1 : 0);
}

}  // namespace

void add_metrics(Metrics& metrics, const Offload& offload, MetricLabels labels) {
  for (const CounterRow& row : kCounters) {
    metrics.counter(row.name, row.help, labels, offload.counters().*row.value);
  }
  add_arena(metrics, offload.arena(), labels);
  std::vector<std::string> names;
  for (std::size_t t = 0; t < offload.num_tiers(); ++t) {
    std::string name(offload.tier(t).name());
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      name += " " + std::to_string(t);
    }
    names.push_back(name);
    add_tier(metrics, offload.tier(t), offload.tier_counters(t), name, labels);
  }
}

void write_metrics(std::string& out, const Offload& offload, MetricLabels labels) {
  Metrics metrics;
  add_metrics(metrics, offload, labels);
  out += metrics.text();
}

}  // namespace kvfolio
