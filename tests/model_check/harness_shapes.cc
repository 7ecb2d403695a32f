// SPDX-License-Identifier: Apache-2.0
// Plans of fixed shapes: the numbers of the plain plan of the same step, and padding behind them. A
// step that does not fit is refused, and the plan before stays as it was.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model_check/ops.h"

namespace kvfolio::model_check {

namespace {

using Array = std::vector<std::int64_t>;

// An array of a plan with what pads it.
struct NamedArray {
  std::string name;
  Array numbers;
  bool operator==(const NamedArray&) const = default;
};

std::string text_of(const Array& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += " " + std::to_string(number);
  return text;
}

// Up to which sizes the arrays of a plan are padded, and with what.
struct Padding {
  std::size_t sequences = 0;
  std::size_t tokens = 0;
  std::vector<std::size_t> strides;
  std::int32_t pad = -1;
};

template <typename T>
Array padded(std::span<const T> array, std::size_t size, std::int64_t with) {
  Array all(array.begin(), array.end());
  if (all.size() < size) all.resize(size, with);
  return all;
}

Array padded_table(const GroupPlan& group, std::size_t rows, std::size_t stride, std::int32_t pad) {
  Array all;
  const auto given = static_cast<std::size_t>(group.block_table_stride);
  for (std::size_t row = 0; row * given < group.block_table.size() && given > 0; ++row) {
    const Array one = padded(group.block_table.subspan(row * given, given), stride, pad);
    all.insert(all.end(), one.begin(), one.end());
  }
  if (all.size() < rows * stride) all.resize(rows * stride, pad);
  return all;
}

void add_group(std::vector<NamedArray>& all, const GroupPlan& group, const PlanOptions& options,
               const Padding& to, std::size_t stride) {
  const std::int64_t pages = options.flashinfer ? group.kv_indptr.back() : 0;
  const std::size_t rows = options.flashinfer ? to.sequences : 0;
  all.push_back({"slots", group.slot_mapping.empty() ? padded(group.slot_mapping_64, to.tokens, -1)
                                                     : padded(group.slot_mapping, to.tokens, -1)});
  if (options.block_tables) {
    all.push_back({"table", padded_table(group, to.sequences, stride, to.pad)});
  }
  all.push_back({"indptr", padded(group.kv_indptr, rows > 0 ? rows + 1 : 0, pages)});
  all.push_back({"indices", padded(group.kv_indices, 0, 0)});
  all.push_back({"last pages", padded(group.kv_last_page_len, rows, 1)});
  all.push_back({"first live", padded(group.kv_first_live, rows, 0)});
  for (const auto array : {group.copy_src, group.copy_dst, group.changed_rows,
                           group.changed_columns, group.changed_blocks}) {
    all.push_back({"copies and changes", padded(array, 0, 0)});
  }
  for (const SharedPrefix& shared : group.shared_prefixes) {
    all.push_back({"shared", {shared.first_sequence, shared.num_sequences, shared.num_blocks}});
  }
}

// All of a plan, padded by hand.
std::vector<NamedArray> arrays_of(const StepPlan& plan, const PlanOptions& options,
                                  const Padding& to) {
  std::vector<NamedArray> all;
  Array ids;
  for (const SequenceId id : plan.sequences) ids.push_back(static_cast<std::int64_t>(id.value()));
  all.push_back({"sequences", std::move(ids)});
  all.push_back({"query_start", padded(plan.query_start, to.sequences + 1, plan.num_tokens)});
  all.push_back({"rows", padded(plan.rows, to.sequences, -1)});
  all.push_back({"kv_lens", padded(plan.kv_lens, to.sequences, 0)});
  all.push_back({"trim_sinks", padded(plan.trim_sinks, to.sequences, 0)});
  all.push_back({"trim_first_kept", padded(plan.trim_first_kept, to.sequences, 0)});
  all.push_back({"rewinds", padded(plan.rewinds, to.sequences, 0)});
  all.push_back({"positions", padded(plan.positions, options.positions ? to.tokens : 0, 0)});
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    add_group(all, plan.groups[g], options, to, to.strides[g]);
  }
  return all;
}

}  // namespace

// Requires: FlashInfer arrays can say what the step is, if the options want them.
void Harness::compare_shapes(const PlanOptions& plain) {
  const Result<const StepPlan*> made = manager_->plan(plain);
  KVFOLIO_REQUIRE(made.has_value(), "the open step has a plan");
  const StepPlan& plan = **made;
  PlanOptions shaped = plain;
  const auto sequences = static_cast<std::int32_t>(plan.sequences.size());
  const std::int32_t room = config_.options.max_sequences - sequences;
  if (shape_rng_.chance(70)) {
    shaped.padded_sequences = sequences + shape_rng_.below(std::min(room, 3) + 1);
  }
  if (shape_rng_.chance(70)) shaped.padded_tokens = plan.num_tokens + shape_rng_.below(5);
  shaped.int64_slots = shape_rng_.chance(50);
  Padding to{.sequences = static_cast<std::size_t>(std::max(shaped.padded_sequences, sequences)),
             .tokens = static_cast<std::size_t>(std::max(shaped.padded_tokens, plan.num_tokens)),
             .strides = {},
             .pad = config_.options.null_block ? 0 : plain.pad};
  const bool has_strides = shape_rng_.chance(70);
  std::vector<std::int32_t> strides;
  std::vector<std::int32_t> narrow;
  bool is_too_long = false;
  for (int g = 0; g < num_groups(); ++g) {
    std::int32_t widest = 0;
    for (const SequenceId id : plan.sequences) {
      const auto table = manager_->block_table(id, GroupId(g));
      KVFOLIO_REQUIRE(table.has_value(), "a sequence of the step has a table");
      widest = std::max(widest, static_cast<std::int32_t>(table->size()));
    }
    strides.push_back(has_strides && shape_rng_.chance(80) ? widest + shape_rng_.below(4) : 0);
    narrow.push_back(std::max(widest - 1, 0));
    is_too_long = is_too_long || widest > 1;
    to.strides.push_back(static_cast<std::size_t>(strides.back() > 0 ? strides.back() : widest));
  }
  if (has_strides) shaped.table_stride = strides;
  const std::vector<NamedArray> expected = arrays_of(plan, plain, to);

  // What does not fit is refused, and nothing changes.
  const std::vector<NamedArray> before = arrays_of(plan, plain, {0, 0, to.strides, to.pad});
  PlanOptions refused = shaped;
  const int kind = shape_rng_.below(3);
  if (kind == 0) refused.table_stride = narrow;
  if (kind == 1) refused.padded_sequences = sequences - 1;
  if (kind == 2) refused.padded_tokens = plan.num_tokens - 1;
  if (kind == 0 ? is_too_long : (kind == 1 ? sequences : plan.num_tokens) > 1) {
    const Result<const StepPlan*> answer = manager_->plan(refused);
    KVFOLIO_REQUIRE(!answer.has_value() && answer.error().code() == ErrorCode::kInvalidArgument,
                    "a step that does not fit the fixed shapes is refused");
    KVFOLIO_REQUIRE(arrays_of(plan, plain, {0, 0, to.strides, to.pad}) == before,
                    "a plan that was refused leaves the one before as it was");
  }

  std::vector<std::uint64_t> memory;
  if (shape_rng_.chance(50)) {
    const Result<std::int64_t> bytes = manager_->plan_bytes(shaped);
    memory.resize(bytes ? static_cast<std::size_t>(*bytes) / 8 : 8192);
    shaped.memory = std::as_writable_bytes(std::span(memory));
  }
  const Result<const StepPlan*> answer = manager_->plan(shaped);
  KVFOLIO_REQUIRE(answer.has_value(), "a step that fits the fixed shapes has a plan: " +
                                          (answer ? "" : answer.error().message()));
  const std::vector<NamedArray> got = arrays_of(**answer, plain, {0, 0, to.strides, to.pad});
  KVFOLIO_REQUIRE(got.size() == expected.size(), "a plan of fixed shapes has the same arrays");
  for (std::size_t i = 0; i < got.size(); ++i) {
    KVFOLIO_REQUIRE(got[i] == expected[i],
                    "array " + expected[i].name + " of a plan of fixed shapes is" +
                        text_of(got[i].numbers) + ", and not" + text_of(expected[i].numbers));
  }
  ++coverage_.shapes_compared;
}

}  // namespace kvfolio::model_check
