// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a call answered, in three numbers: its code, the first number of what it returned, and a
// hash of all of it. Sentences of errors do not count: a later version may say it better.

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "base/hash.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"
#include "manager/op_archive.h"

namespace kvfolio {

struct Answer {
  std::uint32_t code = 0;
  std::uint64_t first = 0;
  std::uint32_t hash = 0;

  friend bool operator==(const Answer&, const Answer&) = default;
};

class AnswerNote {
 public:
  // The first call says what the call returned; then out() for each of its arguments.
  void note(const Status& status) noexcept {
    code_ = static_cast<std::uint32_t>(status.code());
    if (const Shortage* const lack = status.shortage()) {
      // What follows budget_bytes came with format 3 and says nothing that the others do not
      // decide.
      const auto& [group, needed, free, evictable, pinned, retiring, sequences, pins, reserved,
                   loads, holds, budget_bytes, num_blocks, kept, spared] = *lack;
      for (const std::int32_t number : {needed, group, free, evictable, pinned, retiring, sequences,
                                        pins, reserved, loads, holds}) {
        add(number);
      }
      add(budget_bytes);
    }
  }
  template <typename T>
  void note(const Result<T>& result) noexcept {
    if (result) {
      add(*result);
    } else {
      note(result.error());
    }
  }
  void note(const std::optional<SequenceId>& id) noexcept { add(id.value_or(SequenceId())); }
  template <typename T>
  void note(const T& value) noexcept {
    add(value);
  }

  template <typename T>
  void out(const T&) noexcept {}
  void out(const OutCount& out) noexcept {
    if (out.count != nullptr) add(*out.count);
  }
  // As many as the call returned, if they fit.
  void out(const OutBlocks& out) noexcept {
    const std::size_t count = code_ == 0 ? static_cast<std::size_t>(first_) : 0;
    add(std::span<const std::int32_t>(out.blocks.first(std::min(count, out.blocks.size()))));
  }
  void out(const OutFindable& out) noexcept {
    for (std::size_t i = 0; i < std::min(static_cast<std::size_t>(first_), out.blocks.size());
         ++i) {
      const auto& [group, block, end, serial] = out.blocks[i];
      add(group);
      add(block);
      add(end);
      add(serial);
    }
  }

  [[nodiscard]] Answer answer() const noexcept {
    const std::uint64_t all = spread_bits(hash_ ^ code_);
    return {code_, first_, static_cast<std::uint32_t>(all ^ (all >> 32))};
  }

 private:
  template <typename T>
  void add(const T& value) noexcept {
    if constexpr (requires { value.value(); }) {
      word(static_cast<std::uint64_t>(value.value()));
    } else {
      word(static_cast<std::uint64_t>(value));
    }
  }
  void word(std::uint64_t value) noexcept {
    if (!has_first_) first_ = value;
    has_first_ = true;
    hash_ = spread_bits(hash_ ^ value);
  }
  void add(std::span<const std::int32_t> array) noexcept {
    word(array.size());
    word(array.empty() ? 0 : XXH3_64bits(array.data(), array.size_bytes()));
  }
  void add(const Opened& opened) noexcept {
    add(opened.sequence);
    add(opened.cached_tokens);
    if (opened.soon.tokens == 0) return;  // as in formats that know of no announcements
    add(opened.soon.tokens);
    add(opened.soon.by);
  }
  void add(const Pinned& pinned) noexcept {
    add(pinned.pin);
    add(pinned.pinned_tokens);
  }
  void add(const Load& load) noexcept {
    add(load.id);
    add(load.begin);
    add(load.end);
  }
  void add(const Forgotten& forgotten) noexcept {
    add(forgotten.blocks);
    add(forgotten.pins);
  }
  void add(std::span<const EndedSequence> ended) noexcept {
    word(ended.size());
    for (const EndedSequence& each : ended) {
      add(each.sequence);
      add(each.caller_id.has_value());
      add(each.caller_id.value_or(0));
    }
  }
  void add(const StepPlan* plan) noexcept {
    word(static_cast<std::uint64_t>(plan->num_tokens));
    add(plan->ticket);
    for (const SequenceId id : plan->sequences) add(id);
    for (const std::span<const std::int32_t> array :
         {plan->rows, plan->query_start, plan->positions, plan->kv_lens, plan->trim_sinks,
          plan->trim_first_kept}) {
      add(array);
    }
    for (const GroupPlan& group : plan->groups) add(group);
  }
  void add(const GroupPlan& group) noexcept {
    add(group.block_table_stride);
    for (const std::span<const std::int32_t> array :
         {group.slot_mapping, group.block_table, group.kv_indptr, group.kv_indices,
          group.kv_last_page_len, group.copy_src, group.copy_dst, group.changed_rows,
          group.changed_columns, group.changed_blocks}) {
      add(array);
    }
    if (!group.slot_mapping_64.empty()) {  // else as in formats that know of none
      word(XXH3_64bits(group.slot_mapping_64.data(), group.slot_mapping_64.size_bytes()));
    }
    for (const SharedPrefix& shared : group.shared_prefixes) {
      add(shared.first_sequence);
      add(shared.num_sequences);
      add(shared.num_blocks);
    }
  }

  std::uint32_t code_ = 0;
  bool has_first_ = false;
  std::uint64_t first_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace kvfolio
