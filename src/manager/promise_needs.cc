// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of promises (promise_needs.h).

#include "manager/promise_needs.h"

#include <algorithm>

#include "base/mutants.h"

namespace kvfolio {

bool PromiseNeeds::owns_tail(std::int32_t row, std::int32_t g, std::int32_t length) const noexcept {
  if (group(g).size.offset_of(length) == 0) return true;  // there is none to copy
  const BlockId tail = block_at(row, g, length);
  return tail.valid() && reservations_.owner(g, tail) == row;
}

PromiseState PromiseNeeds::state(std::int32_t row, std::int32_t g,
                                 std::int32_t length) const noexcept {
  return {reservations_.tokens(row), reservations_.most_per_step(row), length,
          reservations_.num_own(row, g), owns_tail(row, g, length)};
}

std::int32_t PromiseNeeds::ready_for(std::int32_t g, const PromiseState& at) const noexcept {
  KVFOLIO_DCHECK(at.tokens >= 0 && at.own >= 0);
  if (at.tokens == 0) return 0;
  const Group& of = group(g);
  const auto end =
      static_cast<std::int32_t>(std::min<std::int64_t>(at.length + at.tokens, kMaxSequenceTokens));
  const std::int32_t to_fill =
      of.blocks_for(end) - of.blocks_for(at.length) + (at.owns_tail ? 0 : 1);
  if (!come_back(g)) return to_fill;
  // The most blocks that what is kept to go back, a query's window, the rest of its step and the
  // sinks lie in.
  const std::int32_t size = of.spec.block_size;
  const std::int32_t rewind = mutant(Mutant::kRewindNotReserved) ? 0 : of.spec.rewind;
  const std::int64_t span = std::int64_t{of.spec.window} - 1 + rewind + at.most_per_step;
  const std::int64_t most = (span + size - 2) / size + 1 + of.blocks_for(of.rule.num_sinks());
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(most - at.own, 0, to_fill));
}

bool PromiseNeeds::needs_another(std::int32_t owner, std::int32_t g, BlockId block) const noexcept {
  return come_back(g) || is_tail_of(owner, g, block);
}

// The row may have to append inside this block, at its length or where the append of the open step
// is undone; or a draft that is rejected would have given it back. Asked of each block of a hit, so
// it looks at no table: a long prompt may be found in blocks of one that is computed.
bool PromiseNeeds::is_tail_of(std::int32_t row, std::int32_t g, BlockId block) const noexcept {
  const Sequence& s = rows_[row];
  // All that is not accepted whole, the open step's tokens among them.
  const std::int32_t logical = reservations_.logical(g, block);
  if (logical >= group(g).block_of(s.accepted) && logical < group(g).blocks_for(s.length)) {
    return true;
  }
  return s.step_entry >= 0 && steps_.open().change(s.step_entry, g).source == block.value();
}

}  // namespace kvfolio
