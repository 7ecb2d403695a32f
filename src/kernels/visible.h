// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which positions of a sequence a query reads. Position j is visible to the query at position p iff
//   j <= p                                 when causal,
//   j >= rule.first_read(p)  or  j < rule.num_sinks(),
//   j < trim_sinks  or  j >= first_kept    when the sequence was trimmed.
// Each line keeps a head and a tail, so what all of them keep is at most three ranges.

#include <algorithm>
#include <array>
#include <cstdint>

#include "kvfolio/attention_params.h"
#include "kvfolio/group_rule.h"
#include "kvfolio/spec.h"

namespace kvfolio::kernels {

struct Range {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

struct Visible {
  std::array<Range, 3> ranges;  // increasing, disjoint, not empty
  int num_ranges = 0;

  void add(std::int64_t begin, std::int64_t end) noexcept {
    if (begin >= end) return;
    ranges[static_cast<std::size_t>(num_ranges++)] = {static_cast<std::int32_t>(begin),
                                                      static_cast<std::int32_t>(end)};
  }
};

struct Trim {
  std::int32_t sinks = 0;
  std::int32_t first_kept = 0;
};

[[nodiscard]] inline Trim trim_of(const AttentionBatch& batch, std::size_t sequence) noexcept {
  if (batch.trim_sinks.empty()) return {};
  return {batch.trim_sinks[sequence], batch.trim_first_kept[sequence]};
}

// Whether what a query reads depends on where it stands.
[[nodiscard]] inline bool positions_matter(const AttentionParams& params) noexcept {
  return params.causal || params.rule.kind() != AttentionKind::kFull;
}

// What the queries at positions first .. last read together; one query when they are equal.
// Requires: first <= last < kv_len; first >= 0 where positions matter; no negative number else.
[[nodiscard]] inline Visible visible(std::int64_t first, std::int64_t last, std::int64_t kv_len,
                                     const AttentionParams& params, const Trim& trim) noexcept {
  KVFOLIO_DCHECK(first <= last && last < kv_len);
  KVFOLIO_DCHECK(first >= 0 || !positions_matter(params));
  KVFOLIO_DCHECK(params.rule.kind() == AttentionKind::kFull || params.rule.window() >= 1);
  KVFOLIO_DCHECK(params.rule.num_sinks() >= 0 && trim.sinks >= 0 && trim.first_kept >= 0);
  const std::int64_t end = params.causal ? last + 1 : kv_len;
  // [0, sinks) and [tail, end) of the rule, [0, trim_sinks) and [trim_tail, end) of the trim.
  std::int64_t tail = params.rule.first_read(first);
  const std::int64_t sinks = std::min<std::int64_t>(params.rule.num_sinks(), end);
  tail = std::max(tail, sinks);
  const std::int64_t trim_sinks = std::min<std::int64_t>(trim.sinks, end);
  const std::int64_t trim_tail = std::max<std::int64_t>(trim.first_kept, trim_sinks);

  Visible result;
  result.add(0, std::min(sinks, trim_sinks));
  // At most one of the two is not empty: head of one, tail of the other.
  result.add(trim_tail, sinks);
  result.add(tail, trim_sinks);
  result.add(std::max(tail, trim_tail), end);
  return result;
}

}  // namespace kvfolio::kernels
