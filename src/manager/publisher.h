// SPDX-License-Identifier: Apache-2.0
#pragma once

// Publisher makes tokens of sequences findable: those that are accepted, exact, named and whose
// step is far enough. kInOrder: committed, since a reader comes later in the stream. kUnordered:
// complete. It moves the sequence's place on the tree over its pending tokens, and Blocks follows
// what that changes.
//
// The tree is never in the way: where it is full and may not be made shorter, the sequence stops
// publishing and goes on without.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/mutants.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/prefix_tree.h"
#include "manager/announcements.h"
#include "manager/blocks.h"
#include "manager/borders.h"
#include "manager/group.h"
#include "manager/prompts.h"
#include "manager/rows.h"
#include "manager/sequence.h"
#include "manager/sequence_spans.h"
#include "manager/step_log.h"
#include "manager/tables.h"

namespace kvfolio {

class Publisher {
 public:
  // Requires: all of these outlive this. They may be empty still.
  Publisher(Rows& rows, Tables& tables, const std::vector<Group>& groups,
            std::optional<PrefixTree>& tree, const StepLog& steps, Blocks& blocks, Borders& borders,
            SequenceSpans& spans, Prompts& prompts, Counters& counters,
            const ManagerOptions& options, Announcements& announcements) noexcept
      : rows_(rows),
        tables_(tables),
        groups_(groups),
        tree_(tree),
        steps_(steps),
        blocks_(blocks),
        borders_(borders),
        spans_(spans),
        prompts_(prompts),
        counters_(counters),
        options_(options),
        announcements_(announcements) {}

  // The groups are all there.
  void begin() { offers_.resize(groups_.size()); }

  // The position up to which tokens may become findable when the sequence's last step is complete;
  // a span that attends to itself may end them earlier.
  [[nodiscard]] std::int32_t end_when_complete(const Sequence& s) const noexcept {
    const std::int32_t done = mutant(Mutant::kFindableAtBegin) ? s.length : s.accepted;
    return std::min({done, s.exact_until, s.unnamed_from});
  }
  // The same now.
  [[nodiscard]] std::int32_t end_now(const Sequence& s) const noexcept {
    std::int32_t limit = end_when_complete(s);
    if (options_.order == Order::kUnordered && !steps_.is_complete(s.last_ticket)) {
      limit = std::min(limit, rows_.details(rows_.row_of(s)).settled);
    }
    return std::min(limit, spans_.cut_span(s, limit));
  }

  // Full blocks, and with `tail` the partial ones at the end. Own blocks that lack an entry, or
  // found another's in their place, are offered again each time. Harmless if it does not publish.
  void publish(std::int32_t row, bool tail) noexcept;
  // Prefetches what publish() of a sequence that fills a block reads, once tree's prefetch() of its
  // place has arrived. Changes nothing.
  void prefetch(std::int32_t row) const noexcept;
  // The sequence leaves the tree, and nothing of it becomes findable any more.
  void stop(std::int32_t row) noexcept;

  // How many of a sequence's tokens others find while it is open: those before the end of the last
  // block that is full in every group. A partial tail becomes findable when the sequence closes.
  [[nodiscard]] std::int32_t findable_of(std::int32_t size) const noexcept;
  // Others do not count on the sequence any more. Harmless if it announces nothing.
  void end_announcement(std::int32_t row) noexcept {
    if (rows_[row].announces) [[unlikely]]
      close_announcement(row);
  }

 private:
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  [[nodiscard]] const Group& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] SpanArena& arena() noexcept { return tables_.arena(); }
  void close_announcement(std::int32_t row) noexcept;
  void publish_announced(std::int32_t row) noexcept;
  // Widens the range of own blocks to the first one that is not findable whole any more.
  void find_lost(std::int32_t row) noexcept;

  Rows& rows_;
  Tables& tables_;
  const std::vector<Group>& groups_;
  std::optional<PrefixTree>& tree_;
  const StepLog& steps_;
  Blocks& blocks_;
  Borders& borders_;
  SequenceSpans& spans_;
  Prompts& prompts_;
  Counters& counters_;
  const ManagerOptions& options_;
  Announcements& announcements_;

  std::vector<std::span<const std::int32_t>> offers_;  // by group, scratch
};

}  // namespace kvfolio
