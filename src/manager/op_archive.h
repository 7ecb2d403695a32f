// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the arguments of calls are made of, for who writes, reads or prints them. An archive is a
// class derived from OpArchive<itself>; visit(name, value) hands each value down to the few kinds
// that it knows: flag(), integer(), real(), bytes(), content(), memory() and list(). Structs name
// their fields in a structured binding: with a new member this does not compile until it is
// recorded.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/root_key.h"
#include "kvfolio/spec.h"
#include "kvfolio/step_plan.h"
#include "manager/op_codes.h"

namespace kvfolio {

// Tables in a call of adopt(): more than that are as wrong as one more.
inline constexpr std::size_t kMostTables = static_cast<std::size_t>(kMaxGroups) + 1;

// Where a call writes what it answers beside what it returns.
struct OutCount {
  std::int32_t* count = nullptr;
};
struct OutBlocks {
  std::span<std::int32_t> blocks{};
};
struct OutFindable {
  std::span<FindableBlock> blocks{};
};

template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <typename T>
inline constexpr bool kIsList = false;
template <typename T>
inline constexpr bool kIsList<std::span<const T>> = true;

template <typename Derived>
class OpArchive {
 public:
  // The format of the log. A field that is younger is not in it.
  [[nodiscard]] std::uint32_t format() const noexcept { return kOpLogFormat; }
  template <typename T>
  void visit(std::string_view name, T& value) {
    Derived& self = static_cast<Derived&>(*this);
    if constexpr (std::is_same_v<T, bool>) {
      self.flag(name, value);
    } else if constexpr (std::integral<T>) {
      self.integer(name, value);
    } else if constexpr (std::is_enum_v<T>) {
      auto number = static_cast<std::underlying_type_t<T>>(value);
      self.integer(name, number);
      value = static_cast<T>(number);
    } else if constexpr (std::is_same_v<T, double>) {
      self.real(name, value);
    } else if constexpr (std::is_same_v<T, std::string_view>) {
      self.bytes(name, value);
    } else if constexpr (std::is_same_v<T, std::array<std::byte, 32>>) {
      self.content(name, value);
    } else if constexpr (std::is_same_v<T, std::span<std::byte>>) {
      self.memory(name, value);
    } else if constexpr (requires { value.valid(); }) {
      self.id(name, value);
    } else if constexpr (kIsOptional<T>) {
      bool has = value.has_value();
      self.flag(std::string_view(), has);
      if (!has) {
        value.reset();
        return;
      }
      if (!value) value.emplace();
      visit(name, *value);
    } else if constexpr (kIsList<T>) {
      self.list(name, value);
    } else if constexpr (std::is_same_v<T, OutCount> || std::is_same_v<T, OutBlocks> ||
                         std::is_same_v<T, OutFindable>) {
      self.out(value);
    } else {
      fields(self, value);
    }
  }
};

// ---- structs ----

template <typename A>
void fields(A& a, RootKey& key) {
  auto& [model, adapter, adapter_version, tenant_salt, epoch] = key;
  a.visit("model", model);
  a.visit("adapter", adapter);
  a.visit("adapter_version", adapter_version);
  a.visit("tenant_salt", tenant_salt);
  a.visit("epoch", epoch);
}

template <typename A>
void fields(A& a, MediaSpan& span) {
  auto& [begin, end, content_id, attends_to_itself] = span;
  a.visit("begin", begin);
  a.visit("end", end);
  a.visit("content_id", content_id);
  a.visit("attends_to_itself", attends_to_itself);
}

template <typename A>
void fields(A& a, OpenOptions& options) {
  auto& [root, media, prefix_cache, look_up, publish, caller_id, max_tokens, priority, late_names,
         announce] = options;
  a.visit("root", root);
  a.visit("media", media);
  a.visit("prefix_cache", prefix_cache);
  a.visit("look_up", look_up);
  a.visit("publish", publish);
  a.visit("caller_id", caller_id);
  a.visit("max_tokens", max_tokens);
  a.visit("priority", priority);
  a.visit("late_names", late_names);
  if (a.format() >= 3) a.visit("announce", announce);
}

template <typename A>
void fields(A& a, ForkOptions& options) {
  auto& [caller_id, priority] = options;
  a.visit("caller_id", caller_id);
  a.visit("priority", priority);
}

template <typename A>
void fields(A& a, TrimOptions& options) {
  auto& [num_sinks, window] = options;
  a.visit("num_sinks", num_sinks);
  a.visit("window", window);
}

template <typename A>
void fields(A& a, StepOptions& options) {
  auto& [now_us] = options;
  a.visit("now_us", now_us);
}

template <typename A>
void fields(A& a, AppendOptions& options) {
  auto& [draft] = options;
  a.visit("draft", draft);
}

template <typename A>
void fields(A& a, AppendDemand& demand) {
  auto& [sequence, num_tokens] = demand;
  a.visit("sequence", sequence);
  a.visit("num_tokens", num_tokens);
}

template <typename A>
void fields(A& a, ReserveOptions& options) {
  auto& [most_per_step] = options;
  a.visit("most_per_step", most_per_step);
}

template <typename A>
void fields(A& a, PlanOptions& options) {
  auto& [pad, block_tables, changed_entries, flashinfer, shared_prefixes, positions, caller_ids,
         table_stride, padded_sequences, padded_tokens, int64_slots, memory] = options;
  a.visit("pad", pad);
  a.visit("block_tables", block_tables);
  a.visit("changed_entries", changed_entries);
  a.visit("flashinfer", flashinfer);
  a.visit("shared_prefixes", shared_prefixes);
  a.visit("positions", positions);
  if (a.format() >= 3) a.visit("caller_ids", caller_ids);
  if (a.format() < 4) return;
  a.visit("table_stride", table_stride);
  a.visit("padded_sequences", padded_sequences);
  a.visit("padded_tokens", padded_tokens);
  a.visit("int64_slots", int64_slots);
  a.visit("memory", memory);
}

template <typename A>
void fields(A& a, GroupSpec& group) {
  auto& [num_layers, num_kv_heads, head_dim_k, head_dim_v, v_is_prefix_of_k, block_size, dtype,
         format, kind, window, num_sinks, num_blocks, rewind] = group;
  a.visit("num_layers", num_layers);
  a.visit("num_kv_heads", num_kv_heads);
  a.visit("head_dim_k", head_dim_k);
  a.visit("head_dim_v", head_dim_v);
  a.visit("v_is_prefix_of_k", v_is_prefix_of_k);
  a.visit("block_size", block_size);
  a.visit("dtype", dtype);
  a.visit("format", format);
  a.visit("kind", kind);
  a.visit("window", window);
  a.visit("num_sinks", num_sinks);
  a.visit("num_blocks", num_blocks);
  if (a.format() >= 3) a.visit("rewind", rewind);
}

template <typename A>
void fields(A& a, ManagerOptions& options) {
  auto& [max_sequences, max_pins, max_transfers, max_steps_in_flight, order, prefix_cache,
         max_sequence_tokens, max_index_tokens, max_runs, max_root_keys, max_root_key_bytes,
         max_media_extents, max_table_entries, hash_seed, high_watermark, victim_policy,
         list_findable, id_tag, copies_by_host, max_announced_tokens, null_block] = options;
  a.visit("max_sequences", max_sequences);
  a.visit("max_pins", max_pins);
  a.visit("max_transfers", max_transfers);
  a.visit("max_steps_in_flight", max_steps_in_flight);
  a.visit("order", order);
  a.visit("prefix_cache", prefix_cache);
  a.visit("max_sequence_tokens", max_sequence_tokens);
  a.visit("max_index_tokens", max_index_tokens);
  a.visit("max_runs", max_runs);
  a.visit("max_root_keys", max_root_keys);
  a.visit("max_root_key_bytes", max_root_key_bytes);
  a.visit("max_media_extents", max_media_extents);
  a.visit("max_table_entries", max_table_entries);
  a.visit("hash_seed", hash_seed);
  a.visit("high_watermark", high_watermark);
  a.visit("victim_policy", victim_policy);
  a.visit("list_findable", list_findable);
  a.visit("id_tag", id_tag);
  if (a.format() >= 2) a.visit("copies_by_host", copies_by_host);
  if (a.format() >= 3) a.visit("max_announced_tokens", max_announced_tokens);
  if (a.format() >= 4) a.visit("null_block", null_block);
}

}  // namespace kvfolio
