// SPDX-License-Identifier: Apache-2.0
#pragma once

// StepPlan is what an engine needs to run one step on a device: plain int32 arrays in the forms
// that paged attention kernels take. The arrays live in buffers of their step, so those of a
// committed step may still be uploaded while the next step is planned. Another plan() of the same
// step reuses them, and so does a later step once their step was completed, dropped or failed. The
// StepPlan that plan() returns lives as long: it is one object for each step, which another plan()
// of that step rewrites in place. A copy of it has the same spans, so it is good no longer.
//
// It knows ids, counts and positions, in tokens and blocks; no bytes and no device. It owns
// nothing: every span points into the manager and must not outlive it. With PlanOptions::memory the
// arrays of numbers lie there instead; `sequences`, `caller_ids`, `groups` and `shared_prefixes`
// stay in the manager.
// Invariants: num_tokens == query_start.back(), all arrays of one plan have the same sequences in
// the same order, and no copy reads what another of the same step writes.
//
// A graph that was captured once and is launched for every step wants the same shapes and places
// each time: PlanOptions::table_stride, padded_sequences and padded_tokens. num_sequences below is
// padded_sequences then, and num_tokens of an array padded_tokens; `sequences` and `caller_ids`
// name those of the step alone, and StepPlan::num_tokens counts its tokens. A row of padding has no
// tokens, kv_len 0, row -1, no trim, rewinds 0, a table of padding, no pages, a last page of 1 and
// no gap; a token of padding has slot -1 and position 0.
// Thread safety: read-only; any thread may read the arrays until they are reused.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/ids.h"

namespace kvfolio {

// Sequences [first_sequence, first_sequence + num_sequences) of the plan begin with the same
// num_blocks physical blocks. All of these are full, no trim of these sequences dropped a token of
// them, and all tokens of the step lie behind them. So attend to these blocks once, then merge (a
// cascade, see merge_states()). In a window group this is right only for queries whose window and
// sinks include all of these tokens.
struct SharedPrefix {
  std::int32_t first_sequence = 0;
  std::int32_t num_sequences = 0;
  std::int32_t num_blocks = 0;

  friend bool operator==(const SharedPrefix&, const SharedPrefix&) = default;
};

struct GroupPlan {
  // [num_tokens]: block * block_size + offset, or -1 if the token's K and V are there already.
  // Empty with PlanOptions::int64_slots; slot_mapping_64 is empty without.
  std::span<const std::int32_t> slot_mapping{};
  std::span<const std::int64_t> slot_mapping_64{};
  // [num_sequences, block_table_stride]: physical block of each logical block. PlanOptions::pad
  // stands behind the last one and in place of a block that a window or a trim dropped.
  std::span<const std::int32_t> block_table{};
  std::int32_t block_table_stride = 0;
  // FlashInfer: live blocks only, in order. [num_sequences + 1], [kv_indptr.back()],
  // [num_sequences] with values in 1 .. block_size. Empty unless asked for.
  // Where a window or a trim dropped blocks, page j of a sequence is not logical block j. The last
  // page is always logical block (kv_lens[i] - 1) / block_size, and pages count back from it up to
  // the gap; those of the sinks stand in front of it and count from block 0, but where a window has
  // gone into the sinks of a trim: then only what it still keeps of them is there. Without sinks
  // and trims there is no gap inside the list, so masks that count from the end (causal,
  // window_left) are right as they are. What counts from the front (positions for RoPE or ALiBi in
  // the kernel) lacks the tokens of the dropped blocks: take positions from kv_lens. Behind a gap a
  // token of the sinks looks closer than it is, which a causal mask does not mind, but window_left
  // needs a mask of your own.
  std::span<const std::int32_t> kv_indptr{};
  std::span<const std::int32_t> kv_indices{};
  std::span<const std::int32_t> kv_last_page_len{};
  // With the FlashInfer arrays, [num_sequences]: the first position behind the gap in the list of
  // pages, or 0 if there is no gap. The pages of a sequence are those of its sinks, as above, and
  // then (kv_lens[i] - 1) / block_size - kv_first_live[i] / block_size + 1 pages from this
  // position on.
  std::span<const std::int32_t> kv_first_live{};
  // Whole-block copies to run before this step writes: sources and destinations are disjoint.
  // KVCacheManager::run_copies() runs them, or with ManagerOptions::copies_by_host the host: on a
  // device by cuda::copy_blocks(kernels, view, copy_src, copy_dst, stream) behind earlier steps.
  std::span<const std::int32_t> copy_src{};
  std::span<const std::int32_t> copy_dst{};
  // Empty unless asked for.
  std::span<const SharedPrefix> shared_prefixes{};
  // For an engine that keeps a block table [num_rows, widest] on its device, where widest is the
  // number of blocks of the longest sequence that it will open (KVCacheManager::widest()), in
  // window groups too, since indices never shift. OpenOptions::max_tokens keeps that bound. Set
  // table[changed_rows[i]][changed_columns[i]] = changed_blocks[i], and the rows of the plan's
  // sequences equal those of block_table but for entries of dropped blocks, which are never read.
  // Holds the entries that changed since the last committed, non-failed step whose final plan set
  // changed_entries. Empty unless asked for.
  std::span<const std::int32_t> changed_rows{};
  std::span<const std::int32_t> changed_columns{};
  std::span<const std::int32_t> changed_blocks{};
};

struct StepPlan {
  Ticket ticket{};
  std::int32_t num_tokens = 0;
  std::span<const SequenceId> sequences{};  // in append order
  // [num_sequences]: a number below KVCacheManager::num_rows() that a sequence keeps while it is
  // open. Another sequence may get it afterwards. Under kInOrder it may at once, since writes to a
  // table on the device follow in the stream. Under kUnordered it may when every step that was
  // committed with the closed sequence is complete.
  std::span<const std::int32_t> rows{};
  std::span<const std::int32_t> query_start{};  // [num_sequences + 1], tokens before each sequence
  // [num_tokens]: the position of each token in its sequence. Empty unless asked for.
  std::span<const std::int32_t> positions{};
  std::span<const std::int32_t> kv_lens{};  // [num_sequences], length with this step's tokens
  // [num_sequences]: position p is visible iff p < trim_sinks[i] or p >= trim_first_kept[i].
  // 0 and 0 for a sequence that was never trimmed.
  std::span<const std::int32_t> trim_sinks{};
  std::span<const std::int32_t> trim_first_kept{};
  std::span<const GroupPlan> groups{};  // by GroupId
  // [num_sequences]: SequenceInfo::rewinds of each sequence. A sequence that was cut back and has
  // grown again may look like its row here; the counts tell them apart.
  std::span<const std::int32_t> rewinds{};
  // [num_sequences]: the callers' own names; 0 for a sequence without one. Empty unless asked for.
  std::span<const std::uint64_t> caller_ids{};
  // Counts the plans of the manager from 1 on, this one included; those of a step that was dropped
  // and those that another one took the place of, too.
  std::uint64_t number = 0;
  // With changed_entries: the number of the plan that its lists follow, which is the final one of
  // the last committed step that had any. A table that has not got that plan lacks what it named,
  // and no later list names it. 0: there was none, so the lists name every entry of the step's
  // sequences.
  static constexpr std::uint64_t kNoChanges = ~std::uint64_t{0};
  std::uint64_t follows = kNoChanges;  // without changed_entries

  // The block table of the i-th sequence in a group, [block_table_stride]. Requires: block_tables,
  // `group` names a group, and 0 <= i < num_sequences.
  [[nodiscard]] std::span<const std::int32_t> table_of(GroupId group,
                                                       std::int32_t i) const noexcept {
    const GroupPlan& of = groups[static_cast<std::size_t>(group.value())];
    const auto stride = static_cast<std::size_t>(of.block_table_stride);
    return of.block_table.subspan(static_cast<std::size_t>(i) * stride, stride);
  }
};

struct PlanOptions {
  std::int32_t pad = -1;  // -1 or 0; always 0 with ManagerOptions::null_block
  bool block_tables = true;
  bool changed_entries = false;
  bool flashinfer = false;
  bool shared_prefixes = false;
  bool positions = false;
  bool caller_ids = false;

  // ---- fixed shapes ----

  // By group, or empty: entries of a row of block_table. 0: as many as the longest table of the
  // step has. A step with a longer table is refused, and so is a stride beyond what a table of the
  // group can ever have: the blocks of 2^30 tokens, or max_table_entries; widest() is allowed
  // always. Without `memory` a step keeps a buffer up to one and a half times as large as its
  // largest plan, and each step in flight has its own.
  std::span<const std::int32_t> table_stride{};
  std::int32_t padded_sequences = 0;  // up to max_sequences; 0: those of the step
  std::int32_t padded_tokens = 0;     // up to 2^30; 0: those of the step
  bool int64_slots = false;           // slot_mapping_64 in place of slot_mapping
  // Where the arrays of numbers are written, if not empty: memory of the caller, pinned, say. It
  // begins at a multiple of 8 and must stay until the step has ended or was planned again; what is
  // there is written by this plan() alone. Each array begins a multiple of 16 bytes behind the
  // begin of the memory, those whose size the options fix first. With equal options that fix all
  // shapes, each array begins at the same place in every plan, and plan_bytes() says how much
  // memory that is.
  std::span<std::byte> memory{};
};

}  // namespace kvfolio
