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

// Tables of texts, as in manager_metrics.cc. Each help stands alone: who reads one on a dashboard
// does not see the others.
struct CounterRow {
  char name[48];
  char help[112];
  std::uint64_t OffloadCounters::*value;
};
constexpr std::array kCounters = {
    CounterRow{"kvfolio_arena_stored_records_total",
               "Records that entered host memory from the cache.", &OffloadCounters::stores},
    CounterRow{"kvfolio_arena_dropped_records_total",
               "Records that host memory had no room for, so that no tier got them.",
               &OffloadCounters::stores_dropped},
    CounterRow{"kvfolio_offload_loaded_blocks_total",
               "Blocks that were written to the cache from host memory or a tier.",
               &OffloadCounters::loads},
    CounterRow{"kvfolio_offload_loaded_tokens_total",
               "Tokens that came back to the cache from host memory or a tier.",
               &OffloadCounters::tokens_loaded},
    CounterRow{"kvfolio_offload_requests_total",
               "Prompts that asked host memory and tiers for what the cache lacked.",
               &OffloadCounters::requests},
    CounterRow{"kvfolio_offload_requests_canceled_total",
               "Prompts that went on before host memory and tiers had brought what they asked for.",
               &OffloadCounters::requests_canceled},
    CounterRow{"kvfolio_offload_requests_timed_out_total",
               "Prompts that waited for host memory and tiers up to their deadline.",
               &OffloadCounters::requests_timed_out},
    CounterRow{"kvfolio_offload_unknown_completions_total",
               "Answers of tiers to what they were not asked: a tier is faulty.",
               &OffloadCounters::unknown_completions},
};

struct TierRow {
  char name[48];
  char help[112];
  std::uint64_t OffloadTierCounters::*value;
};
constexpr std::array kTierCounters = {
    TierRow{"kvfolio_tier_stored_records_total",
            "Records that the tier was given and said that it keeps.",
            &OffloadTierCounters::stores},
    TierRow{"kvfolio_tier_failed_stores_total",
            "Records that the tier was given and did not keep: an error, no room, or too late.",
            &OffloadTierCounters::stores_failed},
    TierRow{"kvfolio_tier_dropped_stores_total",
            "Records that the tier was never given: it was not usable, or host memory lost them.",
            &OffloadTierCounters::stores_dropped},
    TierRow{"kvfolio_tier_retried_stores_total",
            "Stores that the tier ended late or busy, and that were given to it again.",
            &OffloadTierCounters::stores_again},
    TierRow{"kvfolio_tier_pauses_total",
            "Pauses of the tier that began, since its answers only timed out.",
            &OffloadTierCounters::pauses},
    TierRow{"kvfolio_tier_hit_records_total", "Records that came from the tier and verified.",
            &OffloadTierCounters::loads},
    TierRow{"kvfolio_tier_stored_bytes_total",
            "Bytes of the records that the tier was given and said that it keeps.",
            &OffloadTierCounters::bytes_stored},
    TierRow{"kvfolio_tier_loaded_bytes_total",
            "Bytes of the records that came from the tier and verified.",
            &OffloadTierCounters::bytes_loaded},
};

// Not the name of a tier: what the command calls the arena.
constexpr std::string_view kHost = "host";

void add_corrupt(Metrics& metrics, std::string_view tier, MetricLabels labels,
                 std::uint64_t count) {
  metrics.counter("kvfolio_corrupt_records_total",
                  "Damaged records that were found, whoever found them; tier=\"host\" is host "
                  "memory. None is served.",
                  with(labels, {{"tier", tier}}), count);
}

void add_arena(Metrics& metrics, const ArenaStats& arena, MetricLabels labels) {
  metrics.gauge("kvfolio_arena_capacity_bytes", "Host memory that may hold records.", labels,
                static_cast<double>(arena.bytes));
  metrics.gauge("kvfolio_arena_used_bytes", "Host memory that holds records now.", labels,
                static_cast<double>(arena.bytes_published));
  metrics.gauge("kvfolio_arena_records", "Records that are in host memory now.", labels,
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
    // One that came and did not verify did not bring the record either.
    const std::uint64_t unverified =
        static_cast<TierResult>(i) == TierResult::kCorrupt ? counters.loads_corrupt : 0;
    metrics.counter("kvfolio_tier_missed_records_total",
                    "Records that the tier was asked for and did not bring whole, by reason.",
                    with(own, {{"reason", to_string(static_cast<TierResult>(i))}}),
                    counters.loads_failed[index] + unverified);
  }
  add_latency(metrics, "kvfolio_tier_store_seconds",
              "Time from the store of a record to the tier's answer.", own, counters.store_latency,
              counters.store_us);
  add_latency(metrics, "kvfolio_tier_load_seconds",
              "Time from the load of a record to the tier's answer.", own, counters.load_latency,
              counters.load_us);
  const TierHealth health = tier.health();
  add_corrupt(metrics, name, labels, corrupt_records(counters, health));
  metrics.counter("kvfolio_tier_other_key_records_total",
                  "Records that the tier was asked for and that another key sealed, or none: "
                  "each is a miss.",
                  own, health.of_another_key);
  metrics.gauge("kvfolio_tier_held_bytes",
                "Host memory that the tier holds: in flight, waiting, or not answered for.", own,
                static_cast<double>(counters.bytes_held));
  metrics.gauge("kvfolio_tier_up",
                "1 if the tier is usable, answers, and its last 8 stores did not all fail, else 0.",
                own, is_up(counters, health) ? 1 : 0);
}

static_assert(kUnhealthyStores == 8);  // as a help says

}  // namespace

std::uint64_t corrupt_records(const OffloadTierCounters& counters,
                              const TierHealth& health) noexcept {
  return counters.loads_corrupt +
         counters.loads_failed[static_cast<std::size_t>(TierResult::kCorrupt)] +
         health.corrupt_unasked;
}

bool is_up(const OffloadTierCounters& counters, const TierHealth& health) noexcept {
  return health.usable && !counters.passed_over &&
         counters.stores_failed_in_a_row < kUnhealthyStores;
}

void add_metrics(Metrics& metrics, const Offload& offload, MetricLabels labels) {
  for (const CounterRow& row : kCounters) {
    metrics.counter(row.name, row.help, labels, offload.counters().*row.value);
  }
  add_arena(metrics, offload.arena(), labels);
  add_corrupt(metrics, kHost, labels, offload.counters().arena_corrupt);
  std::vector<std::string> names = {std::string(kHost)};
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
