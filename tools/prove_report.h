// SPDX-License-Identifier: Apache-2.0
#pragma once

// What `kvfolio prove` says: a table for people, row by row, one JSON object for programs.

#include <cstdint>
#include <string>
#include <vector>

#include "compute_choice.h"
#include "model.h"
#include "prove_conditions.h"
#include "prove_options.h"
#include "tier_summary.h"

namespace kvfolio::tools {

struct ProvedRow {
  Condition condition;
  Happened happened;
  std::string sha256;       // empty: it did not end
  std::string long_sha256;  // of the long prompt; empty too where the row has none
  std::string difference;   // to the twin, the first one in words; empty: none
  std::string failure;      // it was not what it says, or did not end; empty: it was and did
};

struct Proof {
  const ProveOptions* options = nullptr;
  const ComputeChoice* compute = nullptr;
  const llama::Model* model = nullptr;
  std::int64_t logit_rows = 0;       // of each row of the proof
  std::int32_t long_prompt = 0;      // its tokens
  std::vector<ProvedRow> rows{};     // the twin first
  std::vector<TierSummary> tiers{};  // of all rows together
  double seconds = 0.0;

  // All hashes are there and the same, of either prompts, and all tokens.
  [[nodiscard]] bool equal() const;
  [[nodiscard]] bool good() const;  // that, and every row was what it says
};

[[nodiscard]] std::string proof_json(const Proof& proof);
// For people, in this order: lines of at most 100 columns, but for messages.
[[nodiscard]] std::string table_head();
// One line, and one that names its kernels where they are others than `target`, what computes.
[[nodiscard]] std::string table_row(const ProvedRow& row, const std::string& target);
[[nodiscard]] std::string proof_text(const Proof& proof);  // what stands below the table

}  // namespace kvfolio::tools
