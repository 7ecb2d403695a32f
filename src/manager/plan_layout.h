// SPDX-License-Identifier: Apache-2.0
#pragma once

// PlanLayout says where the arrays of a plan lie whose shapes the options fix, or that is written
// into memory of the caller (PlanOptions). What the options fix comes first. So with equal options
// that fix all shapes each array has the same place in every plan, with room for the largest that
// fits; where they leave one open, it has the room that its step needs.
//
// All numbers count int32 words from the begin of the memory; a slot of 64 bits is two. Each array
// begins at a multiple of 4 words. Thread safety: values.

#include <array>
#include <cstdint>
#include <span>

#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"
#include "manager/group.h"

namespace kvfolio {

// The options ask for more than the plan of a step as it is.
[[nodiscard]] inline bool has_shape(const PlanOptions& options) noexcept {
  return !options.table_stride.empty() || !options.memory.empty() || options.int64_slots ||
         (options.padded_sequences | options.padded_tokens) != 0;
}

// How long the arrays are, with padding.
struct PlanSizes {
  struct Group {
    std::int64_t stride = 0;   // of a table
    std::int64_t indices = 0;  // FlashInfer's
    std::int64_t changed = 0;
    std::int64_t copies = 0;
    bool is_fixed = false;  // the two in the middle
  };
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  std::array<Group, kMaxGroups> groups{};
};

struct PlanLayout {
  struct Group {
    std::int64_t slots = 0;
    std::int64_t table = 0;
    std::int64_t pages = 0;  // three arrays of row_words each: kv_indptr and two more
    std::int64_t indices = 0;
    std::int64_t changed = 0;  // three arrays of changed_words each
    std::int64_t changed_words = 0;
    std::int64_t copies = 0;  // two arrays of copy_words each
    std::int64_t copy_words = 0;
  };
  PlanSizes sizes;
  std::int64_t row_words = 0;  // of an array that has an entry for each sequence and one more
  std::int64_t rows = 0;       // six of these: query_start and five more
  std::int64_t positions = 0;
  std::array<Group, kMaxGroups> groups{};
  std::int64_t words = 0;

  [[nodiscard]] static PlanLayout of(const PlanOptions& options, const PlanSizes& sizes,
                                     std::int32_t num_groups) noexcept;
  [[nodiscard]] std::int64_t bytes() const noexcept { return 4 * words; }
};

// The options are within their limits. `call`: whose options they are.
[[nodiscard]] Status check_shape(std::string_view call, const PlanOptions& options,
                                 std::span<const Group> groups, const ManagerOptions& limits);
// Sizes that the options alone say. kInvalidArgument: they leave one open; names the option.
// Requires: check_shape().
[[nodiscard]] Result<PlanSizes> fixed_sizes(const PlanOptions& options, std::int32_t num_groups);
// The table stride that the options fix for a group, or 0.
[[nodiscard]] inline std::int32_t fixed_stride(const PlanOptions& options,
                                               std::int32_t g) noexcept {
  return options.table_stride.empty() ? 0 : options.table_stride[static_cast<std::size_t>(g)];
}

}  // namespace kvfolio
