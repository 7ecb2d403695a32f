// SPDX-License-Identifier: Apache-2.0
//
// copy_to: another manager becomes a deep and independent equal of this one. All checks come first;
// then plain copies into arrays that the target has already, so nothing fails half-way. Its own
// are its storage and the arrays of plans: a plan belongs to the manager that made it.
//
// Each function names every member of what it copies in a structured binding: with a new member it
// does not compile until it is said here what becomes of it.

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <type_traits>

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

namespace {

template <typename T>
std::string shown(T value) {
  if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<std::underlying_type_t<T>>(value));
  } else {
    return std::to_string(value);
  }
}

template <typename T>
Status same(std::string_view name, T here, T there) {
  if (here == there) return {};
  return {ErrorCode::kInvalidArgument,
          concat("copy_to: ", name, " is ", shown(here), ", the target's is ", shown(there))};
}

Status same_group(std::size_t g, const GroupSpec& here, const GroupSpec& there) {
  const auto& [num_layers, num_kv_heads, head_dim_k, head_dim_v, v_is_prefix_of_k, block_size,
               dtype, format, kind, window, num_sinks, num_blocks, rewind] = here;
  if (here == there) return {};
  const std::string group = concat("group ", g, ": ");
  KVFOLIO_RETURN_IF_ERROR(same(group + "num_layers", num_layers, there.num_layers));
  KVFOLIO_RETURN_IF_ERROR(same(group + "num_kv_heads", num_kv_heads, there.num_kv_heads));
  KVFOLIO_RETURN_IF_ERROR(same(group + "head_dim_k", head_dim_k, there.head_dim_k));
  KVFOLIO_RETURN_IF_ERROR(same(group + "head_dim_v", head_dim_v, there.head_dim_v));
  KVFOLIO_RETURN_IF_ERROR(
      same(group + "v_is_prefix_of_k", v_is_prefix_of_k, there.v_is_prefix_of_k));
  KVFOLIO_RETURN_IF_ERROR(same(group + "block_size", block_size, there.block_size));
  KVFOLIO_RETURN_IF_ERROR(same(group + "dtype", dtype, there.dtype));
  KVFOLIO_RETURN_IF_ERROR(same(group + "format", format, there.format));
  KVFOLIO_RETURN_IF_ERROR(same(group + "kind", kind, there.kind));
  KVFOLIO_RETURN_IF_ERROR(same(group + "window", window, there.window));
  KVFOLIO_RETURN_IF_ERROR(same(group + "num_sinks", num_sinks, there.num_sinks));
  KVFOLIO_RETURN_IF_ERROR(same(group + "rewind", rewind, there.rewind));
  return same(group + "num_blocks", num_blocks, there.num_blocks);
}

Status same_spec(const CacheSpec& here, const CacheSpec& there) {
  const auto& [groups] = here;
  KVFOLIO_RETURN_IF_ERROR(same("the number of groups", groups.size(), there.groups.size()));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    KVFOLIO_RETURN_IF_ERROR(same_group(g, groups[g], there.groups[g]));
  }
  return {};
}

Status same_options(const ManagerOptions& here, const ManagerOptions& there) {
  const auto& [max_sequences, max_pins, max_transfers, max_steps_in_flight, order, prefix_cache,
               max_sequence_tokens, max_index_tokens, max_runs, max_root_keys, max_root_key_bytes,
               max_media_extents, max_table_entries, hash_seed, high_watermark, victim_policy,
               list_findable, id_tag, copies_by_host, max_announced_tokens, null_block] = here;
  KVFOLIO_RETURN_IF_ERROR(same("max_sequences", max_sequences, there.max_sequences));
  KVFOLIO_RETURN_IF_ERROR(same("max_pins", max_pins, there.max_pins));
  KVFOLIO_RETURN_IF_ERROR(same("max_transfers", max_transfers, there.max_transfers));
  KVFOLIO_RETURN_IF_ERROR(
      same("max_steps_in_flight", max_steps_in_flight, there.max_steps_in_flight));
  KVFOLIO_RETURN_IF_ERROR(same("order", order, there.order));
  KVFOLIO_RETURN_IF_ERROR(same("prefix_cache", prefix_cache, there.prefix_cache));
  KVFOLIO_RETURN_IF_ERROR(
      same("max_sequence_tokens", max_sequence_tokens, there.max_sequence_tokens));
  KVFOLIO_RETURN_IF_ERROR(same("max_index_tokens", max_index_tokens, there.max_index_tokens));
  KVFOLIO_RETURN_IF_ERROR(same("max_runs", max_runs, there.max_runs));
  KVFOLIO_RETURN_IF_ERROR(same("max_root_keys", max_root_keys, there.max_root_keys));
  KVFOLIO_RETURN_IF_ERROR(same("max_root_key_bytes", max_root_key_bytes, there.max_root_key_bytes));
  KVFOLIO_RETURN_IF_ERROR(same("max_media_extents", max_media_extents, there.max_media_extents));
  KVFOLIO_RETURN_IF_ERROR(same("max_table_entries", max_table_entries, there.max_table_entries));
  KVFOLIO_RETURN_IF_ERROR(same("hash_seed", hash_seed, there.hash_seed));
  KVFOLIO_RETURN_IF_ERROR(same("high_watermark", high_watermark, there.high_watermark));
  KVFOLIO_RETURN_IF_ERROR(same("victim_policy", victim_policy, there.victim_policy));
  KVFOLIO_RETURN_IF_ERROR(same("list_findable", list_findable, there.list_findable));
  KVFOLIO_RETURN_IF_ERROR(same("id_tag", id_tag, there.id_tag));
  KVFOLIO_RETURN_IF_ERROR(same("copies_by_host", copies_by_host, there.copies_by_host));
  KVFOLIO_RETURN_IF_ERROR(same("null_block", null_block, there.null_block));
  return same("max_announced_tokens", max_announced_tokens, there.max_announced_tokens);
}

}  // namespace

// Requires: both are quiet.
Status KVCacheManager::Impl::copy_bytes_to(KVStorage& target) const {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const BlockPool& pool = blocks_.pool(g);
    for (std::int32_t block = pool.has_null_block() ? 1 : 0; block < pool.num_blocks(); ++block) {
      if (pool.state(BlockId(block)) == BlockState::kFree) continue;
      KVFOLIO_RETURN_IF_ERROR(target.copy_blocks_from(*storage_, GroupId(g), {&block, 1}));
    }
  }
  return {};
}

Status KVCacheManager::Impl::copy_to(Impl& target, bool& lost_bytes) const {
  if (&target == this) return {};
  KVFOLIO_RETURN_IF_ERROR(same_spec(spec_, target.spec_));
  KVFOLIO_RETURN_IF_ERROR(same_options(options_, target.options_));
  if (storage_.has_value() != target.storage_.has_value()) {
    return {ErrorCode::kInvalidArgument,
            concat("copy_to: ", storage_ ? "the target has no storage and this manager has"
                                         : "this manager has no storage and the target has")};
  }
  KVFOLIO_RETURN_IF_ERROR(transfers_.check_none_open("copy_to", "this manager"));
  KVFOLIO_RETURN_IF_ERROR(target.transfers_.check_none_open("copy_to", "the target"));
  if (storage_) {
    KVFOLIO_RETURN_IF_ERROR(steps_.check_quiet("this manager"));
    KVFOLIO_RETURN_IF_ERROR(target.steps_.check_quiet("the target"));
    // Without blocks it only says whether it can.
    KVFOLIO_RETURN_IF_ERROR(target.storage_->copy_blocks_from(*storage_, GroupId(0), {}));
    if (Status copied = copy_bytes_to(*target.storage_); !copied.ok()) {
      lost_bytes = true;
      target.stop_log("copy_to failed and closed the sequences of the manager");
      return copied;
    }
  }
  target.copy_from(*this);
  target.stop_log("copy_to gave the manager another state; a log begins with a new manager");
  return {};
}

// For blocks that have lost their bytes.
void KVCacheManager::Impl::close_all(KVCacheManager& manager) {
  static_cast<void>(manager.reset());
  std::array<SequenceId, 64> open;
  for (std::int32_t left = manager.num_sequences(); left > 0; left = manager.num_sequences()) {
    static_cast<void>(manager.sequences(open));
    const auto count = static_cast<std::size_t>(std::min<std::int32_t>(left, std::ssize(open)));
    for (const SequenceId id : std::span(open).first(count)) {
      KVFOLIO_CHECK(manager.close(id).ok());
    }
  }
}

void KVCacheManager::Impl::copy_from(const Impl& other) noexcept {
  const auto& [spec, options, storage, imagines_storage, rules_of, counters, log, lifetime,
               sequences, groups, tree, blocks, tables, spans, promises, prompts, append_rules,
               borders, announcements, publisher, table_blocks, caller_ids, pins, transfers,
               load_blocks, scratch, victims, ended, steps, unnamed, drafts, forgets] = other;
  tree_->copy_from(*tree);
  blocks_.copy_from(blocks);

  counters_ = counters;
  rows_.copy_from(sequences);
  tables_.copy_from(tables);
  caller_ids_.copy_from(caller_ids);
  pins_.copy_from(pins);
  transfers_.copy_from(transfers);
  victims_.copy_from(victims);

  steps_.copy_from(steps);
  unnamed_.copy_from(unnamed);
  drafts_.copy_from(drafts);
  announcements_.copy_from(announcements);
  promises_.copy_from(promises);
  forget_count_ = std::max(forget_count_, forgets) + 1;  // whatever was forgotten there is here
}

Status KVCacheManager::copy_to(KVCacheManager& target) const {
  KVFOLIO_RETURN_IF_MOVED("copy_to");
  if (target.impl_ == nullptr) return moved_from("copy_to: the target");
  bool lost_bytes = false;
  Status status = impl_->copy_to(*target.impl_, lost_bytes);
  if (lost_bytes) Impl::close_all(target);
  return status;
}

}  // namespace kvfolio
