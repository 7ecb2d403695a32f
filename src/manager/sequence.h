// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the manager knows of one sequence beside its block tables and its uses: plain records that
// Rows keeps and that the verbs read and write. Each sequence has two. Sequence is one line of the
// caches, with all that append() and commit() touch when named tokens are decoded in order;
// SequenceDetails has the rest. So a flag here often stands for a number there.

#include <cstdint>
#include <limits>

#include "kvfolio/ids.h"
#include "kvfolio/span_arena.h"

namespace kvfolio {

struct alignas(64) Sequence {
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

  enum class Life : std::uint8_t {
    kUnused,   // the row has no sequence
    kOpen,     // has an id
    kClosing,  // kUnordered: closed, waits for its last step before it publishes and lets go
  };

  std::uint32_t generation;  // of the row
  Life life;
  bool publishes : 1;         // stands on the tree and wants to go on there
  bool used : 1;              // its blocks lose their old rank when it lets them go
  bool replay : 1;            // the token at `length` is cached already: the prompt was found whole
  bool full_blocks_only : 1;  // leaves no partial tail on the tree
  bool has_caller_id : 1;
  bool has_limit : 1;       // details: max_tokens is not 0
  bool has_media : 1;       // details: num_media is not 0
  bool has_trim : 1;        // details: it has a gap, [trim_sinks, trim_first_kept); else both are 0
  bool has_unnamed : 1;     // it has appended unnamed tokens (UnnamedTokens)
  bool late_names : 1;      // these may get their names after their step is complete
  bool has_planned : 1;     // row_ticket() is last_ticket, not 0
  bool has_written : 1;     // wrote_last() is last_ticket, not 0
  bool has_promise : 1;     // reserve() keeps blocks for it (Reservations)
  bool has_load : 1;        // details: load. It takes no append
  bool has_rewinds : 1;     // details: rewinds is not 0
  bool announces : 1;       // tokens that it will append and publish (Announcements)
  std::int32_t step_entry;  // in the open step, or -1
  std::int32_t length;
  std::int32_t accepted;
  std::int32_t exact_until;   // nothing that ends after it becomes findable
  std::int32_t unnamed_from;  // position of the first unnamed token
  Place place;
  ArenaSpan pending;          // if it publishes: its tokens from place.position to pending_end()
  std::uint64_t last_ticket;  // newest step it took part in
  std::uint64_t birth;        // no other sequence of this manager ever has the same

  // Committed tokens behind the accepted ones: guesses that accept() decides on, and what was
  // appended behind these (Drafts). 0 in the open step.
  [[nodiscard]] std::int32_t undecided() const noexcept {
    return step_entry >= 0 ? 0 : length - accepted;
  }
  // Its pending tokens are those that the tree does not keep yet, from place.position on. Tokens
  // beyond exact_until are never published and need not be kept.
  [[nodiscard]] std::int32_t pending_end() const noexcept {
    return length < exact_until ? length : exact_until;
  }
  // The newest committed step whose plan has its row, and the newest in which it wrote; 0 if there
  // is none, as in a fork, whose last_ticket is its parent's. Only the first step of a sequence can
  // be one in which it writes nothing: a step that replays a token that was found.
  [[nodiscard]] std::uint64_t row_ticket() const noexcept { return has_planned ? last_ticket : 0; }
  [[nodiscard]] std::uint64_t wrote_last() const noexcept { return has_written ? last_ticket : 0; }
};
static_assert(sizeof(Sequence) == 64);

// Three lines, which a decode step does not touch.
struct alignas(64) SequenceDetails {
  std::int32_t trim_sinks;
  std::int32_t trim_first_kept;
  std::int32_t settled;      // kUnordered: its tokens before are there, whatever its last step does
  std::int32_t max_tokens;   // 0: no limit of its own
  std::int32_t admitted;     // admit() keeps room for table entries and tokens up to this length
  std::uint16_t reuse;       // groups, by bit, in which admit() counted on reuse (Demand),
  std::uint64_t reuse_step;  // and the step for which it did
  std::int32_t own_from;     // its own blocks at positions [own_from, own_to) may lack an entry
  std::int32_t own_to;
  std::uint64_t losses_seen;   // Blocks' losses when it last looked for blocks without an entry
  std::uint64_t entries_seen;  // Blocks' changes of entries when it last offered its own blocks
  std::uint64_t caller_id;     // if has_caller_id
  std::int32_t priority;
  std::int32_t replay_token;
  std::int32_t num_media;
  std::int32_t load;        // that it waits for, if has_load (Transfers)
  std::int32_t prompt_end;  // where its prompt would be found again (borders.h); 0: nowhere
  ArenaSpan media;
  // The prompt of open(), or the longer one of a load behind it that brought something, and what
  // the sequence had of it before its first step (stands_at_open()). Where open() found nothing and
  // there are no loads, the hashes are not needed.
  std::int32_t prompt_tokens;
  std::int32_t found_tokens;  // -1: cut, or of a fork of a sequence that has gone on
  std::int32_t head_tokens;   // that open() found
  std::uint64_t head_hash;    // if it does not publish; else the tree and its pending tokens tell
  std::uint64_t tail_hash;    // of the prompt from head_tokens on

  std::int32_t rewinds;      // how often committed tokens were cut
  std::int32_t rewind_base;  // with windows: truncate() goes no further back, but see rewind_from()

  // Of Rows.
  std::uint32_t aborted;   // the generation of this row that fail() closed, or 0
  std::int32_t list_link;  // place among the open ones, or the next free row
};
static_assert(sizeof(SequenceDetails) == 192);

}  // namespace kvfolio
