// SPDX-License-Identifier: Apache-2.0
//
// The lists of blocks that lie ready, and the counts of own blocks.

#include "manager/reservations.h"

#include <algorithm>

#include "base/state_writer.h"
#include "base/text.h"

namespace kvfolio {

bool Reservations::allocate(std::int64_t rows, std::span<const GroupSpec> groups) {
  bool ok = rows_.allocate_zeroed(rows) &&
            lists_.allocate_zeroed(rows * static_cast<std::int64_t>(groups.size()));
  groups_.resize(groups.size());
  for (std::size_t g = 0; g < groups.size() && ok; ++g) {
    ok = groups_[g].next.allocate_zeroed(groups[g].num_blocks) &&
         groups_[g].owner.allocate_zeroed(groups[g].num_blocks) &&
         groups_[g].logical.allocate_zeroed(groups[g].num_blocks);
  }
  return ok;
}

void Reservations::promise(std::int32_t row, std::int32_t begin, std::int64_t num_tokens,
                           std::int64_t most_per_step) noexcept {
  Row& of = rows_[row];
  if (of.most_per_step == 0) {
    ++num_rows_;
    for (std::int32_t g = 0; g < num_groups(); ++g) at(row, g) = {kNobody, 0, 0, 0};
  }
  of = {num_tokens, most_per_step, 0, begin, begin, false};
}

void Reservations::end(std::int32_t row) noexcept {
  KVFOLIO_DCHECK(rows_[row].most_per_step != 0);
  rows_[row] = {};
  --num_rows_;
}

void Reservations::spend(std::int32_t row, std::int32_t begin, std::int64_t num_tokens,
                         std::int64_t beyond) noexcept {
  Row& of = rows_[row];
  of.spent = std::min(of.tokens, num_tokens);
  KVFOLIO_DCHECK(of.spent == 0 || of.spent_end == begin || !keeps_spent_);
  if (of.spent > 0 && keeps_spent_) of.spent_end = begin + static_cast<std::int32_t>(of.spent);
  of.lacks |= beyond > of.most_per_step;
  of.tokens -= of.spent;
}

void Reservations::undo(std::int32_t row) noexcept {
  Row& of = rows_[row];
  of.tokens += of.spent;
  if (keeps_spent_) of.spent_end -= static_cast<std::int32_t>(of.spent);
  settle(row);
}

void Reservations::cut(std::int32_t row, std::int32_t length, bool again) noexcept {
  Row& of = rows_[row];
  if (again) of.tokens += spent_behind(row, length);
  of.spent_begin = std::min(of.spent_begin, length);
  of.spent_end = std::min(of.spent_end, length);
}

void Reservations::settle(std::int32_t row) noexcept {
  rows_[row].spent = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) at(row, g).taken = 0;
}

void Reservations::put(std::int32_t row, std::int32_t g, BlockId block) noexcept {
  List& list = at(row, g);
  Group& of = groups_[static_cast<std::size_t>(g)];
  of.next[block.value()] = list.first;
  list.first = block.value();
  ++list.ready;
  ++of.ready;
}

BlockId Reservations::take(std::int32_t row, std::int32_t g) noexcept {
  List& list = at(row, g);
  Group& of = groups_[static_cast<std::size_t>(g)];
  KVFOLIO_CHECK(list.ready > 0);
  const BlockId block(list.first);
  list.first = of.next[block.value()];
  --list.ready;
  --of.ready;
  return block;
}

void Reservations::own(std::int32_t row, std::int32_t g, BlockId block,
                       std::int32_t logical) noexcept {
  Group& of = groups_[static_cast<std::size_t>(g)];
  KVFOLIO_DCHECK(of.owner[block.value()] == 0);
  of.owner[block.value()] = row + 1;
  of.logical[block.value()] = logical;
  ++at(row, g).own;
}

void Reservations::disown(std::int32_t g, BlockId block) noexcept {
  std::int32_t& owner = groups_[static_cast<std::size_t>(g)].owner[block.value()];
  if (owner == 0) return;
  --at(owner - 1, g).own;
  owner = 0;
}

MemoryUse Reservations::memory() const noexcept {
  MemoryUse sum = MemoryUse::whole(rows_.bytes() + lists_.bytes());
  for (const Group& group : groups_) {
    // Pages of blocks that no promise concerns were never touched.
    const std::int64_t bytes = group.next.bytes() + group.owner.bytes() + group.logical.bytes();
    sum += {bytes, num_rows_ > 0 ? bytes : 0};
  }
  return sum;
}

// A member that is not named here does not compile.
void Reservations::copy_from(const Reservations& other) noexcept {
  const auto& [rows, lists, groups, num_rows, keeps_spent] = other;
  static_cast<void>(keeps_spent);
  rows_.copy_from(rows);
  lists_.copy_from(lists);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& [next, owner, logical, ready] = groups[g];
    groups_[g].next.copy_from(next);
    groups_[g].owner.copy_from(owner);
    groups_[g].logical.copy_from(logical);
    groups_[g].ready = ready;
  }
  num_rows_ = num_rows;
}

Status Reservations::check() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "reservations: " + what);
  };
  std::int32_t num_rows = 0;
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(rows_.size()); ++row) {
    num_rows += rows_[row].most_per_step != 0 ? 1 : 0;
  }
  if (num_rows != num_rows_) {
    return broken(text::concat(num_rows, " rows have a promise, counted ", num_rows_));
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const Group& of = groups_[static_cast<std::size_t>(g)];
    std::int64_t ready = 0;
    std::int64_t own = 0;
    for (std::int32_t row = 0; row < static_cast<std::int32_t>(rows_.size()); ++row) {
      if (rows_[row].most_per_step == 0) continue;
      std::int32_t listed = 0;
      for (std::int32_t b = at(row, g).first; b >= 0 && listed <= at(row, g).ready;
           b = of.next[b]) {
        ++listed;
      }
      if (listed != at(row, g).ready) {
        return broken(text::concat("group ", g, " row ", row, ": ", listed,
                                   " blocks are listed, counted ", at(row, g).ready));
      }
      ready += listed;
      own += at(row, g).own;
    }
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(of.owner.size()) && num_rows_ > 0; ++b) {
      own -= of.owner[b] != 0 ? 1 : 0;
    }
    if (ready != of.ready || own != 0) {
      return broken(text::concat("group ", g, ": ", of.ready, " blocks lie ready, counted ", ready,
                                 "; own blocks counted wrong by ", own));
    }
  }
  return {};
}

void Reservations::put_state(StateWriter& out, std::int32_t row, std::int32_t accepted) const {
  out.put(tokens(row));
  out.put(most_per_step(row));
  out.put(spent(row));
  out.put(lacks(row));
  // What a draft that is rejected brings back lies behind what is accepted.
  const Spent behind = spent_from(row, accepted);
  out.put(behind.begin);
  out.put(behind.end);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    out.put(num_taken(row, g));
    out.put(num_ready(row, g));
  }
}

}  // namespace kvfolio
