// SPDX-License-Identifier: Apache-2.0
#include "host_compute.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kvfolio/kernels.h"
#include "layer_call.h"

namespace kvfolio::llama {

Status HostCompute::layer(const LayerCall& call) {
  KVFOLIO_RETURN_IF_ERROR(append(call.cache, call.layer, call.k, call.v, call.slots));
  AttentionArgs args;
  args.cache = call.cache;
  args.layer = call.layer;
  args.batch = call.batch;
  args.params = call.params;
  args.q = call.q;
  args.out = call.out;
  args.target = kernel_;
  args.executor = &executor_;
  std::int32_t longest = 1;
  for (const std::int32_t length : call.batch.kv_lens) longest = std::max(longest, length);
  // A power of two, so that a sequence which grows by a token a step seldom asks for more.
  const auto tokens =
      static_cast<std::int32_t>(std::min(std::bit_ceil(static_cast<std::uint32_t>(longest)),
                                         static_cast<std::uint32_t>(kMaxSequenceTokens)));
  const Result<std::int64_t> bytes = attention_workspace_bytes(args.cache, args.q.num_heads, tokens,
                                                               args.target, executor_.num_threads);
  if (!bytes) return bytes.error();
  if (std::ssize(workspace_) < *bytes) workspace_.resize(static_cast<std::size_t>(*bytes));
  args.workspace = workspace_;
  attended_ = true;
  return attend(args);
}

std::vector<std::string> HostCompute::take_kernels() {
  if (!std::exchange(attended_, false)) return {};
  return {name()};
}

}  // namespace kvfolio::llama
