// SPDX-License-Identifier: Apache-2.0

// A cascade: a prefix that three sequences share is attended once, by the queries of all of them;
// each sequence's own tokens apart; merge_states() joins the two.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "kvfolio/kernels.h"

namespace {

using namespace kvfolio;
constexpr int kBlocks = 5, kBlockSize = 4, kHeads = 2, kDim = 8, kSequences = 3;
constexpr int kToken = kHeads * kDim;

// out [sequences, heads, dim] and lse [sequences, heads]
struct State {
  std::vector<float> out = std::vector<float>(kSequences * kToken);
  std::vector<double> lse = std::vector<double>(kSequences * kHeads);

  RowsView out_rows() { return contiguous_rows(out.data(), kSequences, kHeads, kDim); }
  RowsView lse_rows() { return contiguous_rows(lse.data(), kSequences, kHeads, 1); }
  AttentionState view() { return {out_rows(), lse_rows()}; }
};

}  // namespace

int main() {
  std::vector<float> memory(2 * kBlocks * kBlockSize * kToken), queries(kSequences * kToken);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < queries.size(); ++i) queries[i] = std::cos(static_cast<float>(i));
  KVView cache;  // [block][token][head][dim], K and then V
  cache.k = reinterpret_cast<std::byte*>(memory.data());
  cache.v = reinterpret_cast<std::byte*>(memory.data() + memory.size() / 2);
  cache.k_strides = {.block = kBlockSize * kToken * 4, .head = kDim * 4, .token = kToken * 4};
  cache.v_strides = cache.k_strides;
  cache.num_layers = 1;
  cache.num_blocks = kBlocks;
  cache.block_size = kBlockSize;
  cache.num_kv_heads = kHeads;
  cache.head_dim_k = cache.head_dim_v = kDim;

  // For as many query heads as KV heads, and sequences of up to 64 tokens.
  const Result<std::int64_t> bytes = attention_workspace_bytes(cache, cache.num_kv_heads, 64);
  if (!bytes) return 1;
  std::vector<std::byte> workspace(static_cast<std::size_t>(*bytes));
  AttentionArgs args{.cache = cache, .params = {.scale = 0.35}, .workspace = workspace};
  args.q = contiguous_rows(queries.data(), kSequences, kHeads, kDim);
  const auto run = [&args](State& state) {
    args.out = state.out_rows();
    args.lse = state.lse_rows();
    return attend(args);
  };

  // Blocks 0 and 1 are everybody's, then each has one of its own.
  const std::int32_t each[] = {0, 1, 2, 3};
  const std::int32_t lengths[] = {8 + 1, 8 + 4, 8 + 2}, tables[] = {0, 1, 2, 0, 1, 3, 0, 1, 4};
  State whole;
  args.batch = {each, lengths, tables, 3};
  Status status = run(whole);

  // One "sequence" with the queries of all. They are no positions of the prefix: not causal.
  const std::int32_t all[] = {0, kSequences}, prefix_length[] = {8}, prefix_table[] = {0, 1};
  State prefix;
  args.batch = {all, prefix_length, prefix_table, 2};
  args.params.causal = false;
  if (status) status = run(prefix);

  const std::int32_t own_lengths[] = {1, 4, 2}, own_tables[] = {2, 3, 4};
  State own;
  args.batch = {each, own_lengths, own_tables, 1};
  args.params.causal = true;
  if (status) status = run(own);
  if (status) status = merge_states(prefix.view(), own.view(), own.out_rows(), own.lse_rows());

  float worst = 0;
  for (std::size_t i = 0; i < whole.out.size(); ++i) {
    worst = std::max(worst, std::abs(whole.out[i] - own.out[i]));
  }
  std::printf("%s; read %d keys instead of %d, largest difference %g\n", status.message().c_str(),
              8 + 1 + 4 + 2, 9 + 12 + 10, static_cast<double>(worst));
  return status.ok() && worst < 1e-6F ? 0 : 1;
}
