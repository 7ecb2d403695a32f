// SPDX-License-Identifier: Apache-2.0
#pragma once

// AppendRules says who may write to a block, and how many blocks an append needs. append() and
// admit() ask the same rules, so what was predicted is what is taken. It reads sequences, their
// tables, blocks, promises and the open step, and changes nothing. It has no state of its own.
//
// Bytes of valid tokens never change while another may read them. So a block is written in place by
//  - the sequence with the right to it, or any when none has it, exactly behind the valid tokens;
//  - its only holder, below them, when nothing findable ends above.
// Else the sequence writes to a new block, into which the tokens before are copied.

#include <cstdint>
#include <optional>
#include <vector>

#include "kvfolio/ids.h"
#include "kvfolio/prefix_tree.h"
#include "manager/blocks.h"
#include "manager/group.h"
#include "manager/promises.h"
#include "manager/rows.h"
#include "manager/sequence.h"
#include "manager/step_log.h"
#include "manager/tables.h"

namespace kvfolio {

// What an append needs of one group.
struct Demand {
  std::int32_t blocks = 0;
  bool new_tail = false;   // others read the tail block, or may find it: write to a new one
  bool can_reuse = false;  // the block that the append leaves has no other holder
  bool reuse = false;      // it writes there, and one block less is needed; nothing is found there
  std::int32_t ready = 0;  // of the blocks, those that lie ready (promises.h)
  // Copies among the blocks, 0 or 1: no append needs them once nothing else holds what is copied.
  std::int32_t copies = 0;

  // Caching never takes room: where a copy would leave the group short, the only holder of what was
  // found writes there, and it is found no more. Requires: can_reuse.
  void do_without_a_copy() noexcept {
    --blocks;
    copies = 0;
    new_tail = false;
    reuse = true;
  }
};

class AppendRules {
 public:
  // Requires: all of these outlive this. They may be empty still.
  AppendRules(const Rows& rows, const Tables& tables, const std::vector<Group>& groups,
              const std::optional<PrefixTree>& tree, const StepLog& steps, const Blocks& blocks,
              const Promises& promises) noexcept
      : rows_(rows),
        tables_(tables),
        groups_(groups),
        tree_(tree),
        steps_(steps),
        blocks_(blocks),
        promises_(promises) {}

  // What an append of the row needs that writes the positions [write_begin, end).
  [[nodiscard]] Demand demand(std::int32_t row, std::int32_t g, std::int32_t write_begin,
                              std::int32_t end) const noexcept;
  // The same, with what lies ready; without a copy where that would leave the group short, if it
  // can.
  [[nodiscard]] Demand demand_in_room(std::int32_t row, std::int32_t g, std::int32_t write_begin,
                                      std::int32_t end) const noexcept;
  // The same of a sequence that open() would make. `tail`: the block of its hit that it would begin
  // in, if it begins inside one.
  [[nodiscard]] Demand demand_behind_hit(std::int32_t g, BlockId tail, std::int32_t write_begin,
                                         std::int32_t end) const noexcept;
  // How many of the needed blocks the row's ready list gives. A copy that it could do without never
  // comes from there.
  [[nodiscard]] std::int32_t from_ready(std::int32_t row, std::int32_t g,
                                        const Demand& needs) const noexcept;
  // The append writes where the block holds valid tokens already.
  [[nodiscard]] bool writes_below_valid(std::int32_t row, std::int32_t g, std::int32_t write_begin,
                                        const Demand& needs) const noexcept;

  // The step that an append would join now.
  [[nodiscard]] std::uint64_t next_step() const noexcept {
    return steps_.is_open() ? steps_.last_ticket() : steps_.last_ticket() + 1;
  }
  // admit() counted on the sequence to do without a copy in this group, in this step.
  [[nodiscard]] bool promised_reuse(std::int32_t row, std::int32_t g) const noexcept {
    const SequenceDetails& d = rows_.details(row);
    return d.reuse_step == next_step() && (d.reuse >> g & 1) != 0;
  }

 private:
  [[nodiscard]] const Group& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  // `is_writer`: the sequence has the right to append to the block, or none has. `is_alone`: only
  // the sequence holds it, and it has no other reader.
  [[nodiscard]] bool may_write_in_place(std::int32_t g, BlockId block, std::int32_t position,
                                        bool is_writer, bool is_alone) const noexcept;

  const Rows& rows_;
  const Tables& tables_;
  const std::vector<Group>& groups_;
  const std::optional<PrefixTree>& tree_;
  const StepLog& steps_;
  const Blocks& blocks_;
  const Promises& promises_;
};

}  // namespace kvfolio
