// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the manager knows of one sequence beside its block tables. A plain record that Rows keeps
// and that the verbs read and write.

#include <cstdint>
#include <limits>

#include "kvfolio/ids.h"
#include "kvfolio/span_arena.h"

namespace kvfolio {

struct Sequence {
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

  enum class Life : std::uint8_t {
    kUnused,   // the row has no sequence
    kOpen,     // has an id
    kClosing,  // kUnordered: closed, waits for its last step before it publishes and lets go
  };

  // Of the row.
  std::uint32_t generation;
  std::uint32_t aborted;  // the generation that fail() closed, or 0

  Life life;
  bool publishes;  // stands on the tree and wants to go on there
  bool used;       // its blocks lose their old rank when it lets them go
  bool replay;     // the token at `length` is cached already: the prompt was found whole
  bool has_caller_id;
  bool full_blocks_only;  // leaves no partial tail on the tree
  // A search for a victim reads up to here.
  std::uint64_t last_use;  // tick
  std::uint64_t use_count;
  std::int32_t step_entry;  // in the open step, or -1
  std::int32_t priority;
  std::int32_t length;
  std::int32_t accepted;
  std::int32_t settled;       // kUnordered: length before the last step it took part in
  std::int32_t draft;         // tokens between accepted and length that accept() decides on
  std::int32_t exact_until;   // nothing that ends after it becomes findable
  std::int32_t unnamed_from;  // position of the first unnamed token
  std::int32_t trim_sinks;
  std::int32_t trim_first_kept;
  std::int32_t replay_token;
  std::int32_t max_tokens;  // 0: no limit of its own
  std::int32_t admitted;    // admit() keeps room for table entries and tokens up to this length
  std::int32_t list_link;   // of Rows: its place among the open ones, or the next free row
  std::int32_t num_media;
  std::uint64_t birth;         // no other sequence of this manager ever has the same
  std::uint64_t caller_id;     // if has_caller_id
  std::uint64_t last_ticket;   // newest step it took part in
  std::uint64_t wrote_last;    // newest step it wrote in
  std::uint64_t row_ticket;    // newest committed step whose plan has its row
  std::uint64_t num_unnamed;   // tokens appended without a name so far
  std::uint64_t num_named;     // of these, the oldest, that set_tokens() named or complete() lost
  std::uint64_t losses_seen;   // losses_ when it last looked for blocks without an entry
  std::uint64_t reuse_step;    // the step that admit() answered for,
  std::uint16_t reuse;         // and the groups, by bit, in which it counted on reuse (Demand)
  std::uint64_t entries_seen;  // entry_changes_ when it last offered its own blocks
  std::int32_t own_from;       // its own blocks at positions [own_from, own_to) may lack an entry
  std::int32_t own_to;
  Place place;
  ArenaSpan tail;  // its tokens from place.position to tail_end()
  ArenaSpan media;

  // Tokens beyond exact_until are never published and need not be kept.
  [[nodiscard]] std::int32_t tail_end() const noexcept {
    return length < exact_until ? length : exact_until;
  }
};

}  // namespace kvfolio
