// SPDX-License-Identifier: Apache-2.0
#include "parallel_attend.h"

#include <algorithm>

namespace kvfolio::llama {

Status ParallelAttend::run(AttentionArgs args) {
  args.executor = &executor_;
  std::int32_t longest = 1;
  for (const std::int32_t length : args.batch.kv_lens) longest = std::max(longest, length);
  if (longest > sized_for_) {
    // Twice what is needed now: a sequence that grows by a token a step seldom comes here.
    const std::int32_t tokens = std::min(longest, kMaxSequenceTokens / 2) * 2;
    const Result<std::int64_t> bytes = attention_workspace_bytes(
        args.cache, args.q.num_heads, tokens, args.target, executor_.num_threads);
    if (!bytes) return bytes.error();
    // One group of a model may need more than another.
    workspace_.resize(std::max(workspace_.size(), static_cast<std::size_t>(*bytes)));
    sized_for_ = tokens;
  }
  args.workspace = workspace_;
  return attend(args);
}

}  // namespace kvfolio::llama
