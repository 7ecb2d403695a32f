// SPDX-License-Identifier: Apache-2.0
#include "tier_summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "console.h"
#include "kvfolio/tier_metrics.h"

namespace kvfolio::tools {
namespace {

std::string number_of(std::uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::uint64_t misses(const TierSummary& tier, TierResult reason) {
  return tier.misses[static_cast<std::size_t>(reason)];
}

// Loads that failed for no fault of the record: "2 timeout, 1 unavailable".
std::string failed_loads(const TierSummary& tier) {
  std::string text;
  for (int i = 0; i < kNumTierResults; ++i) {
    const auto reason = static_cast<TierResult>(i);
    const std::uint64_t count = misses(tier, reason);
    if (count == 0 || reason == TierResult::kMiss || reason == TierResult::kCorrupt) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + to_string(reason);
  }
  return text;
}

}  // namespace

std::vector<TierSummary> summaries(const llama::RunStats& stats) {
  if (stats.host_memory.bytes == 0) return {};
  std::vector<TierSummary> all = {{.name = "host",
                                   .stores = stats.tiers.stores,
                                   .stores_dropped = stats.tiers.stores_dropped,
                                   .loads = stats.tiers.loads,
                                   .corrupt = stats.tiers.arena_corrupt}};
  for (const llama::TierStats& tier : stats.each_tier) {
    const OffloadTierCounters& counters = tier.counters;
    TierSummary one = {.name = tier.name,
                       .stores = counters.stores,
                       .stores_dropped = counters.stores_dropped,
                       .stores_failed = counters.stores_failed,
                       .loads = counters.loads,
                       .misses = counters.loads_failed,
                       .corrupt = corrupt_records(counters, tier.health),
                       .of_another_key = tier.health.of_another_key,
                       .up = is_up(counters, tier.health)};
    one.misses[static_cast<std::size_t>(TierResult::kCorrupt)] += counters.loads_corrupt;
    all.push_back(std::move(one));
  }
  return all;
}

void add(std::vector<TierSummary>& sums, std::span<const TierSummary> more) {
  for (const TierSummary& one : more) {
    const auto same = std::find_if(sums.begin(), sums.end(),
                                   [&](const TierSummary& sum) { return sum.name == one.name; });
    if (same == sums.end()) {
      sums.push_back(one);
      continue;
    }
    same->stores += one.stores;
    same->stores_dropped += one.stores_dropped;
    same->stores_failed += one.stores_failed;
    same->loads += one.loads;
    for (std::size_t i = 0; i < one.misses.size(); ++i) same->misses[i] += one.misses[i];
    same->corrupt += one.corrupt;
    same->of_another_key += one.of_another_key;
    same->up = one.up;
  }
}

std::uint64_t stores_lost(std::span<const TierSummary> tiers) {
  std::uint64_t lost = 0;
  for (const TierSummary& tier : tiers) lost += tier.stores_failed + tier.stores_dropped;
  return lost;
}

nlohmann::ordered_json tier_json(const TierSummary& tier) {
  nlohmann::ordered_json reasons = nlohmann::ordered_json::object();
  for (int i = 0; i < kNumTierResults; ++i) {
    const auto reason = static_cast<TierResult>(i);
    if (misses(tier, reason) > 0) reasons[to_string(reason)] = misses(tier, reason);
  }
  return {{"stores", tier.stores},
          {"stores_dropped", tier.stores_dropped},
          {"stores_failed", tier.stores_failed},
          {"loads", tier.loads},
          {"misses", std::move(reasons)},
          {"timeouts", misses(tier, TierResult::kTimeout)},
          {"corrupt", tier.corrupt},
          {"of_another_key", tier.of_another_key},
          {"up", tier.up}};
}

std::string tier_text(const TierSummary& tier) {
  const bool is_host = tier.name == "host";
  std::string text = "  " + (is_host ? std::string("host memory") : tier.name) + ": " +
                     number_of(tier.stores, "record") + " stored, " +
                     (is_host ? number_of(tier.loads, "block") : std::to_string(tier.loads)) +
                     " loaded";
  if (tier.stores_failed > 0) text += "; " + number_of(tier.stores_failed, "store") + " FAILED";
  if (tier.stores_dropped > 0) text += "; " + number_of(tier.stores_dropped, "store") + " DROPPED";
  if (const std::string failed = failed_loads(tier); !failed.empty()) {
    text += "; loads FAILED: " + failed;
  }
  if (tier.corrupt > 0) text += "; " + number_of(tier.corrupt, "CORRUPT record");
  if (tier.of_another_key > 0) {
    text += "; " + number_of(tier.of_another_key, "load") + " met a record of ANOTHER KEY";
  }
  if (!tier.up) text += "; it is DOWN";
  return text + "\n";
}

void TierWatch::look(std::span<const TierSummary> tiers, const OpenTiers& open) {
  for (const TierSummary& tier : tiers) {
    if (!tier.up) say(tier, "it is down: it stores nothing now, and the run goes on without", open);
    if (tier.stores_failed > 0) say(tier, "a store failed, so a later run computes it again", open);
    if (tier.stores_dropped > 0) {
      say(tier, "a store was dropped, so it has to be computed again", open);
    }
    if (!failed_loads(tier).empty()) say(tier, "a load failed, and is computed again", open);
    if (tier.corrupt > 0) {
      say(tier, "a record is corrupt: it is not used, and is computed again", open);
    }
    if (tier.of_another_key > 0) {
      say(tier,
          "a record is of another key, or of none: it stays there, is not used, and is computed "
          "again in each run",
          open);
    }
  }
}

void TierWatch::say(const TierSummary& tier, const std::string& what, const OpenTiers& open) {
  if (!said_.insert(tier.name + what).second) return;
  const std::string why = open.trouble(tier.name);
  report("kvfolio " + verb_ + ": --tier " + tier.name + ": " + what +
         (why.empty() ? "" : " (" + why + ")"));
}

}  // namespace kvfolio::tools
