// SPDX-License-Identifier: Apache-2.0

// The kernels over memory of one's own: no pool, no manager. Two sequences share a block.

#include <algorithm>
#include <cstdio>
#include <vector>

#include "kvfolio/kernels.h"

int main() {
  using namespace kvfolio;
  constexpr int kBlocks = 3, kBlockSize = 4, kHeads = 2, kDim = 8, kToken = kHeads * kDim;
  // [block][token][head][dim], K and V in arrays of their own; any other strides would do.
  std::vector<float> k_cache(kBlocks * kBlockSize * kToken), v_cache(k_cache.size());
  KVView cache;
  cache.k = reinterpret_cast<std::byte*>(k_cache.data());
  cache.v = reinterpret_cast<std::byte*>(v_cache.data());
  cache.k_strides = {.block = kBlockSize * kToken * 4, .head = kDim * 4, .token = kToken * 4};
  cache.v_strides = cache.k_strides;
  cache.num_layers = 1;
  cache.num_blocks = kBlocks;
  cache.block_size = kBlockSize;
  cache.num_kv_heads = kHeads;
  cache.head_dim_k = cache.head_dim_v = kDim;
  const auto rows = [](std::vector<float>& data, int tokens) {
    return contiguous_rows(data.data(), tokens, kHeads, kDim);
  };

  // Six tokens of the first sequence, in blocks 2 and 0; the values of token t are all t.
  std::vector<float> k(6 * kToken), v(k.size());
  for (int t = 0; t < 6; ++t) std::fill_n(v.begin() + t * kToken, kToken, static_cast<float>(t));
  const std::int32_t slots[] = {8, 9, 10, 11, 0, 1};  // block * block_size + offset
  Status status = append(cache, 0, rows(k, 6), rows(v, 6), slots);

  // One query of each sequence, all zeros, so that every token weighs the same. The second sequence
  // reads the shared block 2 only.
  const std::int32_t query_start[] = {0, 1, 2}, kv_lens[] = {6, 4}, table[] = {2, 0, 2, -1};
  std::vector<float> q(2 * kToken), out(q.size());
  // For as many query heads as KV heads, and sequences of up to 64 tokens.
  const Result<std::int64_t> bytes = attention_workspace_bytes(cache, cache.num_kv_heads, 64);
  if (!bytes) return 1;
  std::vector<std::byte> workspace(static_cast<std::size_t>(*bytes));
  AttentionArgs args{.cache = cache, .params = {.scale = 1.0}, .workspace = workspace};
  args.batch = {query_start, kv_lens, table, /*block_table_stride=*/2};
  args.q = rows(q, 2);
  args.out = rows(out, 2);
  if (status) status = attend(args);

  std::printf("%s; means of tokens 0 to 5 and 0 to 3: %g and %g\n", status.message().c_str(),
              static_cast<double>(out.front()), static_cast<double>(out.back()));
  return out.front() == 2.5F && out.back() == 1.5F ? 0 : 1;
}
