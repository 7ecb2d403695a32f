// SPDX-License-Identifier: Apache-2.0
//
// Capacities from a spec: enough for a pool whose every block is in use and findable. What is never
// used costs addresses only, so the bounds are generous.

#include "manager/options.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/packed_id.h"
#include "base/text.h"
#include "kvfolio/group_rule.h"
#include "kvfolio/span_arena.h"

namespace kvfolio {
namespace {

using text::concat;

Status check_option(std::string_view name, std::int64_t value, std::int64_t low,
                    std::int64_t high) {
  if (value >= low && value <= high) return {};
  return {ErrorCode::kInvalidArgument,
          concat("option ", name, " is ", value, ", allowed: ", low, " to ", high)};
}

Status check_options(const ManagerOptions& o) {
  KVFOLIO_RETURN_IF_ERROR(
      check_option("max_sequences", o.max_sequences, 1, PackedId::kMaxRows / 2));
  KVFOLIO_RETURN_IF_ERROR(check_option("max_pins", o.max_pins, 0, PackedId::kMaxRows));
  KVFOLIO_RETURN_IF_ERROR(check_option("max_transfers", o.max_transfers, 0, PackedId::kMaxRows));
  KVFOLIO_RETURN_IF_ERROR(check_option("max_steps_in_flight", o.max_steps_in_flight, 1, 64));
  KVFOLIO_RETURN_IF_ERROR(
      check_option("max_sequence_tokens", o.max_sequence_tokens, 0, kMaxSequenceTokens));
  KVFOLIO_RETURN_IF_ERROR(
      check_option("max_index_tokens", o.max_index_tokens, 0, std::int64_t{1} << 32));
  if (o.max_runs != 0 && (o.max_runs < 2 || o.max_runs > 1 << 29)) {
    return {ErrorCode::kInvalidArgument,
            concat("option max_runs is ", o.max_runs, ", allowed: 0, and 2 to ", 1 << 29)};
  }
  constexpr std::int32_t kAny = std::numeric_limits<std::int32_t>::max();
  KVFOLIO_RETURN_IF_ERROR(check_option("max_root_keys", o.max_root_keys, 1, kAny));
  KVFOLIO_RETURN_IF_ERROR(check_option("max_media_extents", o.max_media_extents, 0, 1 << 28));
  KVFOLIO_RETURN_IF_ERROR(
      check_option("max_root_key_bytes", o.max_root_key_bytes, 0, std::int64_t{1} << 34));
  KVFOLIO_RETURN_IF_ERROR(
      check_option("max_table_entries", o.max_table_entries, 0, std::int64_t{1} << 33));
  KVFOLIO_RETURN_IF_ERROR(
      check_option("max_announced_tokens", o.max_announced_tokens, 0, kMaxSequenceTokens));
  if (!(o.high_watermark >= 0.0 && o.high_watermark <= 1.0)) {
    return {
        ErrorCode::kInvalidArgument,
        concat("option high_watermark is ", std::to_string(o.high_watermark), ", allowed: 0 to 1")};
  }
  if (o.order != Order::kInOrder && o.order != Order::kUnordered) {
    return check_option("order", static_cast<std::int64_t>(o.order), 0, 1);
  }
  return check_option("victim_policy", static_cast<std::int64_t>(o.victim_policy), 0, 3);
}

Status check_null_block(const CacheSpec& spec, const ManagerOptions& o) {
  for (std::size_t g = 0; g < spec.groups.size() && o.null_block; ++g) {
    if (spec.groups[g].num_blocks > 1) continue;
    return {ErrorCode::kInvalidArgument,
            concat("option null_block needs 2 blocks in each group, group ", g, " has ",
                   spec.groups[g].num_blocks)};
  }
  return {};
}

// What the groups of a spec hold together.
struct Totals {
  std::int64_t blocks = 0;       // of all groups
  std::int64_t tokens = 0;       // of the largest group
  std::int64_t tokens_kept = 0;  // of the largest group that keeps all; 0: there is none
};

Totals totals_of(const CacheSpec& spec, bool null_block) {
  Totals totals;
  for (const GroupSpec& group : spec.groups) {
    const std::int64_t blocks = std::int64_t{group.num_blocks} - (null_block ? 1 : 0);
    const std::int64_t tokens = blocks * group.block_size;
    totals.blocks += blocks;
    totals.tokens = std::max(totals.tokens, tokens);
    if (GroupRule(group).keeps_all()) totals.tokens_kept = std::max(totals.tokens_kept, tokens);
  }
  return totals;
}

// Entries for a table of max_sequence_tokens for each sequence, as when all share one prompt. A
// bound, since an arena of too many words is refused even if they are never used.
std::int64_t shared_entries(const CacheSpec& spec, const ManagerOptions& o) {
  std::int64_t entries = 0;
  for (const GroupSpec& group : spec.groups) {
    const std::int32_t blocks = o.max_sequence_tokens / group.block_size + 1;
    const std::uint32_t rounded = std::bit_ceil(static_cast<std::uint32_t>(blocks));
    entries += std::int64_t{o.max_sequences} * rounded;
  }
  return std::min(entries, std::int64_t{1} << 26);
}

}  // namespace

Result<ManagerOptions> derive_options(const CacheSpec& spec, const ManagerOptions& given) {
  KVFOLIO_RETURN_IF_ERROR(validate(spec));
  KVFOLIO_RETURN_IF_ERROR(check_options(given));
  KVFOLIO_RETURN_IF_ERROR(check_null_block(spec, given));
  ManagerOptions o = given;
  const Totals totals = totals_of(spec, o.null_block);

  // A group that keeps all bounds a sequence. Windows alone let it outlive the pool.
  const bool outlives = totals.tokens_kept == 0;
  if (o.max_sequence_tokens == 0) {
    o.max_sequence_tokens = static_cast<std::int32_t>(
        std::min<std::int64_t>(outlives ? 32768 : totals.tokens_kept, kMaxSequenceTokens));
  }
  const std::int64_t outliving_tokens =
      outlives ? std::int64_t{o.max_sequences} * o.max_sequence_tokens : 0;
  std::int64_t outliving_entries = 0;
  for (const GroupSpec& group : spec.groups) {
    outliving_entries += 2 * outliving_tokens / group.block_size;
  }

  if (!o.prefix_cache) {
    o.max_runs = o.max_runs == 0 ? 2 : o.max_runs;
    o.max_index_tokens = o.max_index_tokens == 0 ? 1 : o.max_index_tokens;
    o.max_root_keys = 1;
    o.max_media_extents = 0;
  }
  // Spans are powers of two, so a tree whose every block is findable takes up to twice its tokens,
  // and every run at least a granule.
  const std::int64_t runs = std::clamp<std::int64_t>(
      totals.blocks + o.max_sequences + given.max_root_keys + 64, 64, std::int64_t{1} << 29);
  if (o.max_runs == 0) o.max_runs = static_cast<std::int32_t>(runs);
  o.max_root_keys = std::min(o.max_root_keys, std::max(o.max_runs - 1, 1));
  if (o.max_index_tokens == 0) {
    o.max_index_tokens = std::min(
        2 * (totals.tokens + outliving_tokens) + SpanArena::kGranule * runs, std::int64_t{1} << 32);
  }
  if (o.max_announced_tokens == 0) {
    o.max_announced_tokens = std::min<std::int64_t>(totals.tokens, kMaxSequenceTokens);
  }
  if (o.max_table_entries == 0) {
    const auto spans_of_one = static_cast<std::int64_t>(spec.groups.size()) + 2;
    o.max_table_entries = std::min(
        8 * totals.blocks + 4 * totals.tokens + outliving_entries + shared_entries(spec, o) +
            std::int64_t{o.max_sequences} * spans_of_one * 4 * SpanArena::kGranule + 4096,
        std::int64_t{1} << 33);
  }
  return o;
}

}  // namespace kvfolio
