// SPDX-License-Identifier: Apache-2.0
#pragma once

// What attention is told beside rows and caches: the sequences of a batch, how scores are made and
// which share of the work is wanted. attend() of kernels.h takes them, and that of cuda_kernels.h.
// Thread safety: values. Spans are the caller's memory, which outlives the call.

#include <cstdint>
#include <span>

#include "kvfolio/group_rule.h"
#include "kvfolio/spec.h"

namespace kvfolio {

// A ragged batch of n sequences: decode (one query), chunked prefill (some) and whole prompts in
// any mixture. The arrays are those of a StepPlan; attention_batch() in plan_attention.h takes them
// from one.
struct AttentionBatch {
  // [n + 1]: rows [query_start[i], query_start[i+1]) of q belong to sequence i. Starts at 0.
  std::span<const std::int32_t> query_start = {};
  // [n]: tokens of sequence i in the cache, including those of its queries. The queries are its
  // last query_start[i+1] - query_start[i] positions. If not causal and of a full rule there may be
  // more queries than tokens: the positions of the first ones are below 0, which only ALiBi asks.
  std::span<const std::int32_t> kv_lens = {};
  // [n, block_table_stride]: the physical block of each logical block; -1 or 0 if it is not needed.
  std::span<const std::int32_t> block_table = {};
  std::int32_t block_table_stride = 0;
  // [n] or both empty: position p is visible iff p < trim_sinks[i] or p >= trim_first_kept[i];
  // trim_sinks[i] >= 0, trim_first_kept[i] 0 to kv_lens[i].
  std::span<const std::int32_t> trim_sinks = {};
  std::span<const std::int32_t> trim_first_kept = {};
};

// The score of the query at position p and the key at position j, in this order:
//   score = scale * (q . k)
//   score = soft_cap * tanh(score / soft_cap)     with a soft cap
//   score = score + slope * (j - p)               with ALiBi, the slope of the query head
//   score = -inf                                  where p does not read j
// A row is softmax(scores) v. With learned sinks the softmax has one more score, the logit of the
// query head, which has no value: it takes part in the sum that the row is divided by, and in lse.
struct AttentionParams {
  // scale is finite and > 0, usually 1/sqrt(head_dim_k). All targets except kReference keep these
  // in f32: scale, q, scale * q, scores, and sums of V over up to 1024 tokens with weights of up to
  // 2^8. If one of them overflows, the row may be infinite or NaN. If scale or scale * q
  // underflows, scores are 0. A score of 2^k is known to 2^(k-24): ALiBi makes large ones.
  double scale = 0.0;
  bool causal = true;  // position p reads positions <= p; false: all of its sequence
  // p reads positions from rule.first_read(p) on and, whatever the rule says, those below
  // rule.num_sinks(): GroupRule::of_window() and of_chunk(). The window or chunk is >= 1.
  GroupRule rule = {};
  double soft_cap = 0.0;                     // 0: none; or 1e-30 to 1e30
  std::span<const float> alibi_slopes = {};  // [q_heads] of q, finite; empty: none
  // [q_heads] of q, finite, or -inf for a head without one; empty: none. If a row is computed in
  // parts that merge_states() joins, only one part may have them.
  std::span<const float> sink_logits = {};
};

// The parameters of a causal group: scale, and the rule of the group. Params that are filled in by
// hand and lack the rule read more tokens than the group keeps: wrong numbers, or an error if a
// block was dropped and PlanOptions::pad is -1.
[[nodiscard]] inline AttentionParams attention_params(const GroupSpec& group,
                                                      double scale) noexcept {
  return {.scale = scale, .rule = GroupRule(group)};
}

// A share of the work, so that a caller's threads can split a call. No split changes a bit. Only
// the rows and heads of the slice are written, and only the table entries that they read are
// checked. A slice of no rows or no heads does nothing.
struct AttentionSlice {
  std::int32_t first_row = 0;  // of q
  std::int32_t num_rows = -1;  // -1: to the last row
  std::int32_t first_kv_head = 0;
  std::int32_t num_kv_heads = -1;  // -1: to the last head
};

}  // namespace kvfolio
