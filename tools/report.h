// SPDX-License-Identifier: Apache-2.0
#pragma once

// What `kvfolio generate` says at its end: the summary for programs and the one for people.

#include <optional>
#include <string>

#include "block_map.h"
#include "engine.h"
#include "generate_options.h"
#include "model.h"
#include "results.h"

namespace kvfolio::tools {

struct Summary {
  const llama::Model* model = nullptr;
  const CacheSpec* spec = nullptr;
  const GenerateOptions* options = nullptr;
  llama::RunStats stats;
  std::optional<llama::Perplexity> perplexity;
  std::optional<Comparison> comparison;  // --verify
  llama::RunStats twin_stats;            // likewise
};

// {"summary":{...}}; with a block map its field "report" is summary_text().
[[nodiscard]] std::string summary_json(const Summary& summary, const llama::BlockMap* block_map);
// A few lines; with a block map also what the cache did, and its picture.
[[nodiscard]] std::string summary_text(const Summary& summary, const llama::BlockMap* block_map);

}  // namespace kvfolio::tools
