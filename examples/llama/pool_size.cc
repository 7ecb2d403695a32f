// SPDX-License-Identifier: Apache-2.0
#include "pool_size.h"

#include <algorithm>

#include "kvfolio/group_rule.h"

namespace kvfolio::llama {

CacheSpec cache_spec(const ModelConfig& config, const CacheShape& shape) {
  GroupSpec group{.num_layers = config.num_layers,
                  .num_kv_heads = config.num_kv_heads,
                  .head_dim_k = config.head_dim,
                  .head_dim_v = config.head_dim,
                  .block_size = shape.block_size,
                  .dtype = shape.dtype,
                  .format = shape.format};
  if (config.sliding_window > 0) {
    group.kind = AttentionKind::kSlidingWindow;
    group.window = config.sliding_window;
  }
  return CacheSpec{.groups = {group}};
}

CacheShape shape_of(const CacheSpec& spec) {
  CacheShape shape;
  for (const GroupSpec& group : spec.groups) {
    shape = {.block_size = group.block_size, .dtype = group.dtype, .format = group.format};
  }
  return shape;
}

std::int64_t blocks_needed(const GroupSpec& group, const Load& load) {
  const std::int64_t block = group.block_size;
  const std::int64_t of_one = (load.num_tokens + block - 1) / block;
  const std::int64_t shared = std::min(load.num_shared / block, of_one);
  const std::int64_t all = shared + load.num_branches * (of_one - shared);
  const GroupRule rule(group);
  if (rule.keeps_all()) return all;
  // The tokens that a step reads and its own may begin and end inside a block.
  const std::int64_t live = rule.most_read<std::int64_t>(load.num_tokens) + load.step_tokens;
  const std::int64_t window = (std::max<std::int64_t>(live, 2) - 2) / block + 2;
  const std::int64_t sinks = (group.num_sinks + block - 1) / block;
  return std::min(all, load.num_branches * std::min(of_one, window + sinks));
}

}  // namespace kvfolio::llama
