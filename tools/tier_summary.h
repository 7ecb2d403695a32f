// SPDX-License-Identifier: Apache-2.0
#pragma once

// What each tier did in a run, for the summaries of several verbs, and what is said at once when
// something goes wrong with one. Host memory is the first of them: all tiers go through it.

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine.h"
#include "tier_option.h"

namespace kvfolio::tools {

struct TierSummary {
  std::string name;                  // as --tier has it: "host", "disk", "redis"
  std::uint64_t stores = 0;          // records that it took
  std::uint64_t stores_dropped = 0;  // it was never given them; host memory: it had no room
  std::uint64_t stores_failed = 0;   // it was given them, and did not keep them
  // Records that came from it and verified; host memory: blocks that went to the cache.
  std::uint64_t loads = 0;
  std::array<std::uint64_t, kNumTierResults> misses{};  // records that it did not bring, by reason
  std::uint64_t corrupt = 0;                            // damaged records, wherever they were found
  std::uint64_t of_another_key = 0;  // loads that met a record of another key: misses
  bool up = true;
};

// Host memory first. Nothing where there is no tier.
[[nodiscard]] std::vector<TierSummary> summaries(const llama::RunStats& stats);
// Adds each of `more` to the one of its name; `up` is that of the later one.
void add(std::vector<TierSummary>& sums, std::span<const TierSummary> more);

// Records that some tier should have and has not.
[[nodiscard]] std::uint64_t stores_lost(std::span<const TierSummary> tiers);

// {"stores":...,"up":true}
[[nodiscard]] nlohmann::ordered_json tier_json(const TierSummary& tier);
// "  disk: 12 records stored, 3 loaded; 2 stores failed\n"
[[nodiscard]] std::string tier_text(const TierSummary& tier);

// Says on standard error what goes wrong with a tier: each kind of trouble once, when it is seen.
class TierWatch {
 public:
  explicit TierWatch(std::string_view verb) : verb_(verb) {}
  // `open` knows what the tiers say of themselves.
  void look(std::span<const TierSummary> tiers, const OpenTiers& open);

 private:
  void say(const TierSummary& tier, const std::string& what, const OpenTiers& open);

  std::string verb_;
  std::set<std::string> said_;
};

}  // namespace kvfolio::tools
