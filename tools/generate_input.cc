// SPDX-License-Identifier: Apache-2.0
#include "generate_input.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <utility>

#include "json.h"
#include "pool_size.h"

namespace kvfolio::tools {

using llama::Request;
using llama::Vocabulary;

namespace {

constexpr std::int64_t kDefaultPoolBytes = std::int64_t{256} << 20;

}  // namespace

namespace {

Status add_id(std::string_view word, const Vocabulary& vocabulary, std::vector<std::int32_t>& ids) {
  std::int32_t id = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, id);
  if (error != std::errc() || stop != end || id < 0 || id >= vocabulary.size) {
    return {ErrorCode::kInvalidArgument, "token " + std::to_string(ids.size()) + " is " +
                                             llama::in_quotes(word) + ", allowed: ids from 0 to " +
                                             std::to_string(vocabulary.size - 1)};
  }
  ids.push_back(id);
  return {};
}

// Of --prompt-ids: "1,2,3" and nothing else, so that a slip is not another prompt.
Result<std::vector<std::int32_t>> parse_list(std::string_view text, const Vocabulary& vocabulary) {
  std::vector<std::int32_t> ids;
  while (!text.empty() || !ids.empty()) {
    const std::size_t comma = text.find(',');
    if (Status status = add_id(text.substr(0, comma), vocabulary, ids); !status.ok()) return status;
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return ids;
}

}  // namespace

Result<std::vector<std::int32_t>> parse_ids(std::string_view text, const Vocabulary& vocabulary) {
  std::vector<std::int32_t> ids;
  while (true) {
    const std::size_t begin = text.find_first_not_of(", \t\r\n");
    if (begin == std::string_view::npos) return ids;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(", \t\r\n"));
    if (Status status = add_id(word, vocabulary, ids); !status.ok()) return status;
    text.remove_prefix(word.size());
  }
}

Status prefixed(const std::string& prefix, const Status& status) {
  return Status(status.code(), prefix + ": " + status.message());
}

Result<std::vector<Request>> collect_requests(const GenerateOptions& options,
                                              const Vocabulary& vocabulary) {
  if (options.requests == "-") {
    Result<std::vector<Request>> requests =
        llama::read_requests(std::cin, "standard input", options.defaults, vocabulary);
    // The stream takes an error of reading for the end.
    if (std::ferror(stdin) != 0) {
      return Status(ErrorCode::kInvalidArgument,
                    std::string("standard input cannot be read: ") + std::strerror(errno));
    }
    return requests;
  }
  if (options.requests) {
    std::error_code ignored;
    if (std::filesystem::is_directory(*options.requests, ignored)) {
      return Status(ErrorCode::kInvalidArgument,
                    "--requests " + *options.requests + ": is a folder, allowed: a file or -");
    }
    errno = 0;
    std::ifstream file(*options.requests, std::ios::binary);
    if (!file) {
      return Status(ErrorCode::kInvalidArgument, "--requests " + *options.requests +
                                                     ": cannot be read: " + std::strerror(errno));
    }
    return llama::read_requests(file, *options.requests, options.defaults, vocabulary);
  }
  if (!options.prompt && !options.prompt_ids) {
    if (options.perplexity_path) return std::vector<Request>();
    return Status(ErrorCode::kInvalidArgument,
                  "nothing to do, allowed: --requests, --prompt, --prompt-ids or --perplexity");
  }
  Result<std::vector<std::int32_t>> prompt = options.prompt
                                                 ? llama::encode(*options.prompt, vocabulary)
                                                 : parse_list(*options.prompt_ids, vocabulary);
  const char* const option = options.prompt ? "--prompt" : "--prompt-ids";
  if (!prompt) return prefixed(option, prompt.error());
  Request request = options.defaults;
  request.id = "r0";
  request.prompt = *std::move(prompt);
  if (Status status = validate(request, vocabulary); !status.ok()) return prefixed(option, status);
  return std::vector<Request>{std::move(request)};
}

Result<CacheSpec> plan_pools(const GenerateOptions& options, const llama::ModelConfig& config,
                             std::span<const Request> requests) {
  CacheSpec spec = llama::cache_spec(
      config,
      {.block_size = options.block_size, .dtype = options.dtype, .format = *options.format});
  std::int64_t bytes_of_one_each = 0;  // a block of every group
  for (GroupSpec& group : spec.groups) group.num_blocks = 1;
  const Result<std::vector<GroupLayout>> layouts = plan_layouts(spec);
  if (!layouts) return layouts.error();
  for (const GroupLayout& layout : *layouts) bytes_of_one_each += layout.bytes_per_block;

  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (GroupSpec& group : spec.groups) {
    std::int64_t blocks = 0;
    if (options.num_blocks) {
      blocks = *options.num_blocks;
    } else if (options.memory_bytes) {
      blocks = *options.memory_bytes / bytes_of_one_each;
      if (const std::int64_t most = kMost / group.block_size; blocks > most) {
        return Status(ErrorCode::kInvalidArgument,
                      "--memory " + std::to_string(*options.memory_bytes) + " bytes hold " +
                          std::to_string(blocks) + " blocks, allowed: at most " +
                          std::to_string(most) + " of " + std::to_string(group.block_size) +
                          " tokens");
      }
      if (blocks == 0) {
        return Status(ErrorCode::kInvalidArgument, "--memory " +
                                                       std::to_string(*options.memory_bytes) +
                                                       " bytes hold no block, allowed: at least " +
                                                       std::to_string(bytes_of_one_each));
      }
    } else {
      for (const Request& request : requests) {
        const auto prompt = static_cast<std::int32_t>(request.prompt.size());
        const std::int32_t tokens = std::min(prompt + request.max_new_tokens, config.max_positions);
        blocks = std::max(blocks,
                          llama::blocks_needed(group, {.num_shared = std::min(prompt, tokens),
                                                       .num_tokens = tokens,
                                                       .num_branches = request.beams,
                                                       .step_tokens = options.max_batch_tokens}));
      }
      blocks = std::clamp<std::int64_t>(
          blocks * options.max_seqs, 1,
          std::max<std::int64_t>(kDefaultPoolBytes / bytes_of_one_each, 1));
    }
    group.num_blocks = static_cast<std::int32_t>(blocks);
  }
  return spec;
}

}  // namespace kvfolio::tools
