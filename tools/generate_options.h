// SPDX-License-Identifier: Apache-2.0
#pragma once

// The options of `kvfolio generate`, as the command line gives them.

#include <cstdint>
#include <optional>
#include <string>

#include "compute_options.h"
#include "kvfolio/dtype.h"
#include "kvfolio/spec.h"
#include "request.h"
#include "tier_option.h"

namespace CLI {
class App;
}

namespace kvfolio::tools {

struct GenerateOptions {
  std::string model;
  // One of three, or none with --perplexity.
  std::optional<std::string> requests;  // "-" is standard input
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_ids;
  llama::Request defaults;

  std::optional<std::int32_t> num_blocks;
  std::optional<std::int64_t> memory_bytes;
  std::int32_t block_size = 16;
  DType dtype = DType::kF32;
  std::optional<Format> format;  // none is auto
  ComputeOptions compute;
  bool prefix_cache = true;
  bool contiguous = false;
  TierChoice tiers;
  bool tier_strict = false;
  std::optional<std::string> save_path;
  std::optional<std::string> metrics_path;
  std::optional<std::string> load_path;
  std::optional<std::string> oplog_path;

  std::int32_t max_batch_tokens = 512;
  std::int32_t max_seqs = 16;
  std::int32_t num_threads = 1;

  bool verify = false;
  bool json = false;
  bool report = false;
  std::optional<std::string> logits_path;
  std::optional<std::string> perplexity_path;
};

// Adds the options of the verb to `app`; parsing fills `options`, which outlives `app`.
void add_generate_options(CLI::App& app, GenerateOptions& options);

}  // namespace kvfolio::tools
