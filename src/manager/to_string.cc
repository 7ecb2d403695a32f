// SPDX-License-Identifier: Apache-2.0
//
// The records of manager_types.h for people: each field by its name. The structured bindings do not
// compile when a field is added and not printed here.

#include <string>
#include <string_view>

#include "base/text.h"
#include "kvfolio/manager_types.h"

namespace kvfolio {

using text::Fields;

namespace {

void add(Fields& out, std::string_view name, const std::optional<std::uint64_t>& number) {
  if (number) {
    out.add(name, *number);
  } else {
    out.add(name, std::string_view("none"));
  }
}

void add(Fields& out, const Soon& soon) {
  const auto& [tokens, by] = soon;
  out.add("soon_tokens", tokens).add("soon_by", by.valid() ? to_string(by) : std::string("none"));
}

std::string_view name_of(Order order) noexcept {
  switch (order) {
    case Order::kInOrder:
      return "in order";
    case Order::kUnordered:
      return "unordered";
  }
  return "invalid";
}

std::string_view name_of(Publish publish) noexcept {
  switch (publish) {
    case Publish::kAll:
      return "all";
    case Publish::kFullBlocks:
      return "full blocks";
    case Publish::kNothing:
      return "nothing";
  }
  return "invalid";
}

}  // namespace

std::string to_string(const ManagerOptions& options) {
  const auto& [max_sequences, max_pins, max_transfers, max_steps_in_flight, order, prefix_cache,
               max_sequence_tokens, max_index_tokens, max_runs, max_root_keys, max_root_key_bytes,
               max_media_extents, max_table_entries, hash_seed, high_watermark, victim_policy,
               list_findable, id_tag, copies_by_host, max_announced_tokens, null_block] = options;
  Fields out;
  out.add("max_sequences", max_sequences)
      .add("max_pins", max_pins)
      .add("max_transfers", max_transfers)
      .add("max_steps_in_flight", max_steps_in_flight)
      .add("order", name_of(order))
      .add("prefix_cache", prefix_cache)
      .add("max_sequence_tokens", max_sequence_tokens)
      .add("max_index_tokens", max_index_tokens)
      .add("max_runs", max_runs)
      .add("max_root_keys", max_root_keys)
      .add("max_root_key_bytes", max_root_key_bytes)
      .add("max_media_extents", max_media_extents)
      .add("max_table_entries", max_table_entries)
      .add("hash_seed", std::string_view(hash_seed == 0 ? "0" : "set"))  // a secret, if it is one
      .add("high_watermark", std::to_string(high_watermark))
      .add("victim_policy", std::string_view(to_string(victim_policy)))
      .add("list_findable", list_findable)
      .add("id_tag", id_tag)
      .add("copies_by_host", copies_by_host)
      .add("max_announced_tokens", max_announced_tokens)
      .add("null_block", null_block);
  return out.take();
}

std::string to_string(const OpenOptions& options) {
  const auto& [root, media, prefix_cache, look_up, publish, caller_id, max_tokens, priority,
               late_names, announce] = options;
  Fields out;
  const auto& [model, adapter, adapter_version, tenant_salt, epoch] = root;
  const bool has_root = epoch != 0 || !(model.empty() && adapter.empty() &&
                                        adapter_version.empty() && tenant_salt.empty());
  out.add("root", std::string_view(has_root ? "set" : "empty"))
      .add("media", media.size())
      .add("prefix_cache", prefix_cache)
      .add("look_up", look_up)
      .add("publish", name_of(publish));
  add(out, "caller_id", caller_id);
  out.add("max_tokens", max_tokens)
      .add("priority", priority)
      .add("late_names", late_names)
      .add("announce", announce);
  return out.take();
}

std::string to_string(const Opened& opened) {
  const auto& [sequence, cached_tokens, soon] = opened;
  Fields out;
  out.add("cached_tokens", cached_tokens);
  add(out, soon);
  return text::concat(to_string(sequence), ", ", out.take());
}

std::string to_string(const Admission& admission) {
  const auto& [cached_tokens, blocks, soon] = admission;
  std::size_t groups = blocks.size();
  while (groups > 1 && blocks[groups - 1] == 0) --groups;
  std::string of_groups;
  for (std::size_t g = 0; g < groups; ++g) {
    of_groups += (g == 0 ? "" : " ") + std::to_string(blocks[g]);
  }
  Fields out;
  out.add("cached_tokens", cached_tokens).add("blocks", of_groups);
  add(out, soon);
  return out.take();
}

std::string to_string(const SequenceInfo& info) {
  const auto& [length, accepted_length, published_length, trim_sinks, trim_first_kept, in_open_step,
               num_unnamed, reserved_tokens, caller_id, max_tokens, priority, last_use, use_count,
               load, rewinds, rewind_from] = info;
  Fields out;
  out.add("length", length)
      .add("accepted_length", accepted_length)
      .add("published_length", published_length)
      .add("trim_sinks", trim_sinks)
      .add("trim_first_kept", trim_first_kept)
      .add("in_open_step", in_open_step)
      .add("num_unnamed", num_unnamed)
      .add("reserved_tokens", reserved_tokens);
  add(out, "caller_id", caller_id);
  out.add("max_tokens", max_tokens)
      .add("priority", priority)
      .add("last_use", last_use)
      .add("use_count", use_count)
      .add("load", load.valid() ? to_string(load) : std::string("none"))
      .add("rewinds", rewinds)
      .add("rewind_from", rewind_from);
  return out.take();
}

std::string to_string(const GroupUsage& usage) {
  const auto& [num_blocks, free, held, cached, retiring, evictable, reserved, loading, on_hold,
               budget_bytes] = usage;
  return Fields()
      .add("num_blocks", num_blocks)
      .add("free", free)
      .add("held", held)
      .add("cached", cached)
      .add("retiring", retiring)
      .add("evictable", evictable)
      .add("reserved", reserved)
      .add("loading", loading)
      .add("on_hold", on_hold)
      .add("budget_bytes", budget_bytes)
      .take();
}

std::string to_string(const Counters& counters) {
  const auto& [blocks_allocated, blocks_freed, blocks_evicted, blocks_unhung, block_copies,
               sequences_opened, sequences_closed, sequences_preempted, sequences_aborted, forks,
               tokens_loaded, tokens_looked_up, tokens_reused, tokens_committed, blocks_published,
               publications_skipped, blocks_used_peak, announcements_skipped] = counters;
  return Fields()
      .add("blocks_allocated", blocks_allocated)
      .add("blocks_freed", blocks_freed)
      .add("blocks_evicted", blocks_evicted)
      .add("blocks_unhung", blocks_unhung)
      .add("block_copies", block_copies)
      .add("sequences_opened", sequences_opened)
      .add("sequences_closed", sequences_closed)
      .add("sequences_preempted", sequences_preempted)
      .add("sequences_aborted", sequences_aborted)
      .add("forks", forks)
      .add("tokens_loaded", tokens_loaded)
      .add("tokens_looked_up", tokens_looked_up)
      .add("tokens_reused", tokens_reused)
      .add("tokens_committed", tokens_committed)
      .add("blocks_published", blocks_published)
      .add("publications_skipped", publications_skipped)
      .add("blocks_used_peak", blocks_used_peak)
      .add("announcements_skipped", announcements_skipped)
      .take();
}

}  // namespace kvfolio
