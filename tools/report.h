// SPDX-License-Identifier: Apache-2.0
#pragma once

// What `kvfolio generate` says: JSON lines for programs, and the summary for people. Text in JSON
// is UTF-8: U+FFFD for each run of bytes that fits nowhere.

#include <optional>
#include <string>
#include <vector>

#include "block_map.h"
#include "compute_choice.h"
#include "engine.h"
#include "generate_options.h"
#include "kvfolio/disk_tier.h"
#include "kvfolio/redis_tier.h"
#include "model.h"
#include "request.h"
#include "results.h"
#include "scheduler.h"
#include "tier_summary.h"

namespace kvfolio::tools {

// What a disk tier was, and did.
struct DiskSummary {
  std::string description;
  DiskTierStats stats;
};

struct Summary {
  const llama::Model* model = nullptr;
  const CacheSpec* spec = nullptr;
  const GenerateOptions* options = nullptr;
  const ComputeChoice* compute = nullptr;
  llama::RunStats stats;
  std::optional<llama::Perplexity> perplexity;
  std::optional<Comparison> comparison;  // --verify
  llama::RunStats twin_stats;            // as above
  std::optional<SaveStats> saved;        // --save
  std::optional<RestoreStats> restored;  // --load
  std::vector<TierSummary> tiers;        // --tier; see summaries()
  std::optional<DiskSummary> disk;       // --tier disk:
  std::optional<RedisCounters> redis;    // --tier redis:
};

// A finished sample. "text" is null when the tokens are not bytes.
[[nodiscard]] std::string sample_json(const llama::FinishedSample& finished,
                                      const llama::Vocabulary& vocabulary);
// {"id":...,"error":...}.
[[nodiscard]] std::string rejected_json(const llama::Request& request, const std::string& error);
// {"summary":{...}}; with a block map its field "report" is summary_text().
[[nodiscard]] std::string summary_json(const Summary& summary, const llama::BlockMap* block_map);
// A few lines; with a block map also what the cache did, and its picture.
[[nodiscard]] std::string summary_text(const Summary& summary, const llama::BlockMap* block_map);

}  // namespace kvfolio::tools
