// SPDX-License-Identifier: Apache-2.0
#pragma once

// What `kvfolio generate` runs: the requests and the pools that its options ask for.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"
#include "generate_options.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "request.h"

namespace kvfolio::tools {

// Ids in decimal, apart by commas or white space.
Result<std::vector<std::int32_t>> parse_ids(std::string_view text,
                                            const llama::Vocabulary& vocabulary);

// The requests that the command line asks for; none with --perplexity alone.
Result<std::vector<llama::Request>> collect_requests(const GenerateOptions& options,
                                                     const llama::Vocabulary& vocabulary);

// The groups of the model with their pools: what the options say, else what the longest request
// needs times --max-seqs, at most 256 MiB.
Result<CacheSpec> plan_pools(const GenerateOptions& options, const llama::ModelConfig& config,
                             std::span<const llama::Request> requests);

// The same error, its sentence behind "prefix: ".
Status prefixed(const std::string& prefix, const Status& status);

}  // namespace kvfolio::tools
