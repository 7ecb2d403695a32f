// SPDX-License-Identifier: Apache-2.0

#include "manager/plan_layout.h"

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace kvfolio {
namespace {

using text::concat;

constexpr std::int64_t kWordsOfUnit = 4;

std::int64_t whole_units(std::int64_t words) noexcept {
  return (words + kWordsOfUnit - 1) / kWordsOfUnit * kWordsOfUnit;
}

// The places of arrays, one behind the other.
class PlanPlaces {
 public:
  std::int64_t take(std::int64_t words) noexcept {
    const std::int64_t begin = end_;
    end_ += whole_units(words);
    return begin;
  }
  [[nodiscard]] std::int64_t end() const noexcept { return end_; }

 private:
  std::int64_t end_ = 0;
};

Status check_shape_option(std::string_view call, std::string_view name, std::int64_t value,
                          std::int64_t most) {
  if (value >= 0 && value <= most) return {};
  return {ErrorCode::kInvalidArgument,
          concat(call, ": ", name, " is ", value, ", allowed: 0 to ", most)};
}

// max_sequence_tokens is what is expected, and no limit: a sequence ends at kMaxSequenceTokens, or
// where there is no room for its table. But widest() is allowed always, for hosts that lay out
// their tables by it, also where max_table_entries has no room for such a table.
Status check_stride(std::string_view call, std::size_t g, std::int64_t stride, const Group& group,
                    const ManagerOptions& limits) {
  const std::int64_t longest =
      std::min<std::int64_t>(group.blocks_for(kMaxSequenceTokens), limits.max_table_entries);
  const std::int64_t most =
      std::max<std::int64_t>(longest, group.blocks_for(limits.max_sequence_tokens));
  if (stride >= 0 && stride <= most) return {};
  return {ErrorCode::kInvalidArgument,
          concat(call, ": table_stride[", g, "] is ", stride, ", allowed: 0 to ", most,
                 ", the most entries that a table of the group can have, or widest()")};
}

Status shape_left_open(std::string_view name) {
  return {ErrorCode::kInvalidArgument,
          concat("plan_bytes: ", name, " is 0, so the size depends on the step")};
}

}  // namespace

Status check_shape(std::string_view call, const PlanOptions& options, std::span<const Group> groups,
                   const ManagerOptions& limits) {
  KVFOLIO_RETURN_IF_ERROR(
      check_shape_option(call, "padded_sequences", options.padded_sequences, limits.max_sequences));
  KVFOLIO_RETURN_IF_ERROR(
      check_shape_option(call, "padded_tokens", options.padded_tokens, kMaxSequenceTokens));
  if (!options.table_stride.empty() && options.table_stride.size() != groups.size()) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": table_stride has ", options.table_stride.size(), " entries for ",
                   groups.size(), " groups")};
  }
  for (std::size_t g = 0; g < options.table_stride.size(); ++g) {
    KVFOLIO_RETURN_IF_ERROR(check_stride(call, g, options.table_stride[g], groups[g], limits));
  }
  const auto behind = reinterpret_cast<std::uintptr_t>(options.memory.data()) % 8;
  if (behind == 0) return {};
  return {ErrorCode::kInvalidArgument,
          concat(call, ": memory begins ", behind, " bytes behind a multiple of 8")};
}

Result<PlanSizes> fixed_sizes(const PlanOptions& options, std::int32_t num_groups) {
  if (options.padded_sequences == 0) return shape_left_open("padded_sequences");
  if (options.padded_tokens == 0) return shape_left_open("padded_tokens");
  PlanSizes sizes;
  sizes.sequences = options.padded_sequences;
  sizes.tokens = options.padded_tokens;
  const bool has_tables = options.block_tables || options.flashinfer || options.changed_entries;
  for (std::int32_t g = 0; g < num_groups; ++g) {
    const std::int64_t stride = fixed_stride(options, g);
    if (has_tables && stride == 0) return shape_left_open(concat("table_stride[", g, "]"));
    const std::int64_t entries = sizes.sequences * stride;
    sizes.groups[static_cast<std::size_t>(g)] = {stride, entries, entries, sizes.sequences, true};
  }
  return sizes;
}

PlanLayout PlanLayout::of(const PlanOptions& options, const PlanSizes& sizes,
                          std::int32_t num_groups) noexcept {
  PlanLayout layout;
  layout.sizes = sizes;
  layout.row_words = whole_units(sizes.sequences + 1);
  PlanPlaces places;
  layout.rows = places.take(6 * layout.row_words);
  if (options.positions) layout.positions = places.take(sizes.tokens);
  const auto place_entries = [&](std::int32_t g, bool fixed) {
    const PlanSizes::Group& size = sizes.groups[static_cast<std::size_t>(g)];
    Group& group = layout.groups[static_cast<std::size_t>(g)];
    if (size.is_fixed != fixed) return;
    if (options.flashinfer) group.indices = places.take(size.indices);
    if (!options.changed_entries) return;
    group.changed_words = whole_units(size.changed);
    group.changed = places.take(3 * group.changed_words);
  };
  for (std::int32_t g = 0; g < num_groups; ++g) {
    const PlanSizes::Group& size = sizes.groups[static_cast<std::size_t>(g)];
    Group& group = layout.groups[static_cast<std::size_t>(g)];
    group.slots = places.take(options.int64_slots ? 2 * sizes.tokens : sizes.tokens);
    if (options.block_tables) group.table = places.take(sizes.sequences * size.stride);
    if (options.flashinfer) group.pages = places.take(3 * layout.row_words);
    place_entries(g, true);
  }
  for (std::int32_t g = 0; g < num_groups; ++g) {
    Group& group = layout.groups[static_cast<std::size_t>(g)];
    group.copy_words = whole_units(sizes.groups[static_cast<std::size_t>(g)].copies);
    group.copies = places.take(2 * group.copy_words);
    place_entries(g, false);
  }
  layout.words = places.end();
  return layout;
}

}  // namespace kvfolio
