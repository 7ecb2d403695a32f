// SPDX-License-Identifier: Apache-2.0
//
// Questions to a manager: calls that change nothing.

#include "capi/capi.h"

namespace kvfolio::capi {

static_assert(static_cast<int>(BlockState::kFree) == KVFOLIO_BLOCK_FREE &&
              static_cast<int>(BlockState::kHeld) == KVFOLIO_BLOCK_HELD &&
              static_cast<int>(BlockState::kCached) == KVFOLIO_BLOCK_CACHED &&
              static_cast<int>(BlockState::kRetiring) == KVFOLIO_BLOCK_RETIRING);

namespace {

template <typename T>
std::int32_t give(const Result<T>& from, std::int32_t* out, kvfolio_error* error) {
  if (!from) return answer(error, from.error());
  *out = static_cast<std::int32_t>(*from);
  return KVFOLIO_OK;
}

}  // namespace
}  // namespace kvfolio::capi

namespace kvfolio::capi {

std::int64_t give_text(std::string_view text, char* out, std::int64_t capacity) noexcept {
  if (out != nullptr && capacity > 0) {
    const std::size_t length = std::min(text.size(), static_cast<std::size_t>(capacity - 1));
    std::memcpy(out, text.data(), length);
    out[length] = '\0';
  }
  return static_cast<std::int64_t>(text.size());
}

}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_info(const kvfolio_manager* manager, kvfolio_sequence sequence,
                     kvfolio_sequence_info* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const Result<SequenceInfo> info = manager->manager.info(SequenceId(sequence));
  if (!info) return answer(error, info.error());
  write_struct(out, {.struct_size = 0,
                     .length = info->length,
                     .accepted_length = info->accepted_length,
                     .published_length = info->published_length,
                     .trim_sinks = info->trim_sinks,
                     .trim_first_kept = info->trim_first_kept,
                     .in_open_step = info->in_open_step ? 1 : 0,
                     .num_unnamed = info->num_unnamed,
                     .reserved_tokens = info->reserved_tokens,
                     .caller_id = info->caller_id.value_or(0),
                     .has_caller_id = info->caller_id ? 1 : 0,
                     .max_tokens = info->max_tokens,
                     .last_use = info->last_use,
                     .use_count = info->use_count,
                     .priority = info->priority,
                     .reserved = 0,
                     .load = info->load.value(),
                     .rewinds = info->rewinds,
                     .rewind_from = info->rewind_from});
  return KVFOLIO_OK;
}

int32_t kvfolio_block_table(const kvfolio_manager* manager, kvfolio_sequence sequence,
                            int32_t group, kvfolio_i32s* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  const Result<std::span<const std::int32_t>> table =
      manager->manager.block_table(SequenceId(sequence), GroupId(group));
  if (!table) return answer(error, table.error());
  *out = array_of(*table);
  return KVFOLIO_OK;
}

int32_t kvfolio_slot_mapping(const kvfolio_manager* manager, kvfolio_sequence sequence,
                             int32_t group, int32_t begin, int32_t* out, int64_t count,
                             kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "out", out, count));
  return answer(error, manager->manager.slot_mapping(SequenceId(sequence), GroupId(group), begin,
                                                     span_of(out, count)));
}

int32_t kvfolio_find(const kvfolio_manager* manager, uint64_t caller_id, kvfolio_sequence* out,
                     kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  const Result<SequenceId> found = manager->manager.find(caller_id);
  if (!found) return answer(error, found.error());
  *out = found->value();
  return KVFOLIO_OK;
}

int32_t kvfolio_num_sequences(const kvfolio_manager* manager) {
  return manager == nullptr ? 0 : manager->manager.num_sequences();
}

int32_t kvfolio_sequences(const kvfolio_manager* manager, kvfolio_sequence* out, int64_t capacity) {
  if (manager == nullptr || !check_array(__func__, "out", out, capacity).ok()) return 0;
  return manager->manager.sequences(
      {reinterpret_cast<SequenceId*>(out), static_cast<std::size_t>(capacity)});
}

int32_t kvfolio_usage(const kvfolio_manager* manager, int32_t group, kvfolio_group_usage* out,
                      kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const Result<GroupUsage> usage = manager->manager.usage(GroupId(group));
  if (!usage) return answer(error, usage.error());
  write_struct(out, {.struct_size = 0,
                     .num_blocks = usage->num_blocks,
                     .free = usage->free,
                     .held = usage->held,
                     .cached = usage->cached,
                     .retiring = usage->retiring,
                     .evictable = usage->evictable,
                     .reserved = usage->reserved,
                     .loading = usage->loading,
                     .on_hold = usage->on_hold});
  return KVFOLIO_OK;
}

int32_t kvfolio_block_state(const kvfolio_manager* manager, int32_t group, int32_t block,
                            int32_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  return give(manager->manager.block_state(GroupId(group), BlockId(block)), out, error);
}

int32_t kvfolio_ref_count(const kvfolio_manager* manager, int32_t group, int32_t block,
                          int32_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  return give(manager->manager.ref_count(GroupId(group), BlockId(block)), out, error);
}

int32_t kvfolio_is_findable(const kvfolio_manager* manager, int32_t group, int32_t block,
                            int32_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  return give(manager->manager.is_findable(GroupId(group), BlockId(block)), out, error);
}

int32_t kvfolio_findable_end(const kvfolio_manager* manager, int32_t group, int32_t block,
                             int32_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  return give(manager->manager.findable_end(GroupId(group), BlockId(block)), out, error);
}

int64_t kvfolio_bytes_total(const kvfolio_manager* manager) {
  return manager == nullptr ? 0 : manager->manager.bytes_total();
}

int64_t kvfolio_bytes_used(const kvfolio_manager* manager) {
  return manager == nullptr ? 0 : manager->manager.bytes_used();
}

void kvfolio_metadata(const kvfolio_manager* manager, int64_t* reserved, int64_t* used) {
  const MemoryUse use = manager == nullptr ? MemoryUse() : manager->manager.metadata();
  if (reserved != nullptr) *reserved = use.reserved;
  if (used != nullptr) *used = use.used;
}

int32_t kvfolio_num_rows(const kvfolio_manager* manager) {
  return manager == nullptr ? 0 : manager->manager.num_rows();
}

int32_t kvfolio_widest(const kvfolio_manager* manager, int32_t group, int32_t* out,
                       kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  return give(manager->manager.widest(GroupId(group)), out, error);
}

int64_t kvfolio_describe(const kvfolio_manager* manager, char* out, int64_t capacity) {
  if (manager == nullptr) return 0;
  return give_text(manager->manager.describe(), out, capacity);
}

int32_t kvfolio_get_counters(const kvfolio_manager* manager, kvfolio_counters* out,
                             kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const Counters& counters = manager->manager.counters();
  write_struct(out, {.struct_size = 0,
                     .reserved = 0,
                     .blocks_allocated = counters.blocks_allocated,
                     .blocks_freed = counters.blocks_freed,
                     .blocks_evicted = counters.blocks_evicted,
                     .blocks_unhung = counters.blocks_unhung,
                     .block_copies = counters.block_copies,
                     .sequences_opened = counters.sequences_opened,
                     .sequences_closed = counters.sequences_closed,
                     .sequences_preempted = counters.sequences_preempted,
                     .sequences_aborted = counters.sequences_aborted,
                     .forks = counters.forks,
                     .tokens_looked_up = counters.tokens_looked_up,
                     .tokens_reused = counters.tokens_reused,
                     .tokens_committed = counters.tokens_committed,
                     .blocks_published = counters.blocks_published,
                     .publications_skipped = counters.publications_skipped,
                     .blocks_used_peak = counters.blocks_used_peak,
                     .tokens_loaded = counters.tokens_loaded,
                     .announcements_skipped = counters.announcements_skipped});
  return KVFOLIO_OK;
}

int32_t kvfolio_num_groups(const kvfolio_manager* manager) {
  return manager == nullptr ? 0 : static_cast<int32_t>(manager->manager.spec().groups.size());
}

int32_t kvfolio_get_group(const kvfolio_manager* manager, int32_t group, kvfolio_group_spec* out,
                          kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const std::vector<GroupSpec>& groups = manager->manager.spec().groups;
  if (group < 0 || static_cast<std::size_t>(group) >= groups.size()) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": there is no group ", group, " of ", groups.size())});
  }
  write_struct(out, group_of(groups[static_cast<std::size_t>(group)]));
  return KVFOLIO_OK;
}

int32_t kvfolio_state_hash(const kvfolio_manager* manager, uint64_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  const Result<std::uint64_t> hash = manager->manager.state_hash();
  if (!hash) return answer(error, hash.error());
  *out = *hash;
  return KVFOLIO_OK;
}

int32_t kvfolio_check_invariants(const kvfolio_manager* manager, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.check_invariants());
}

}  // extern "C"
