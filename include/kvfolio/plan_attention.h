// SPDX-License-Identifier: Apache-2.0
#pragma once

// From the plan of a step to the arguments of attend(), so that no array is forgotten:
//
//   const StepPlan& plan = **manager.plan();
//   attend({.cache = view,
//           .batch = attention_batch(plan, GroupId(0)),
//           .params = attention_params(manager.spec().groups[0], scale),   // kernels.h
//           .q = q, .out = out, .workspace = workspace});
//
// It copies spans only: the arrays stay those of the plan and live as long. Thread safety: values.

#include <cstddef>

#include "kvfolio/ids.h"
#include "kvfolio/kernels.h"
#include "kvfolio/step_plan.h"

namespace kvfolio {

// The arrays of one group of a plan that was made with PlanOptions::block_tables. A group that the
// plan does not have gives an empty batch, which attend() refuses.
[[nodiscard]] inline AttentionBatch attention_batch(const StepPlan& plan, GroupId group) noexcept {
  if (group.value() < 0 || static_cast<std::size_t>(group.value()) >= plan.groups.size()) return {};
  const GroupPlan& arrays = plan.groups[static_cast<std::size_t>(group.value())];
  return {.query_start = plan.query_start,
          .kv_lens = plan.kv_lens,
          .block_table = arrays.block_table,
          .block_table_stride = arrays.block_table_stride,
          .trim_sinks = plan.trim_sinks,
          .trim_first_kept = plan.trim_first_kept};
}

}  // namespace kvfolio
