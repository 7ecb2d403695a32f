// SPDX-License-Identifier: Apache-2.0
//
// What a sequence forgets while it is open: tokens behind a position, and those between sinks and a
// window.

#include <algorithm>
#include <array>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

// ---- truncate ----

std::int32_t KVCacheManager::Impl::rewind_from(std::int32_t row) const noexcept {
  const SequenceDetails& d = details(row);
  std::int32_t from = 0;
  if (borders_.any()) {
    std::int32_t least = kMaxSequenceTokens;
    for (const Group& group : groups_) {
      if (group.windowed()) least = std::min(least, group.spec.rewind);
    }
    from = std::max(d.rewind_base, rows_[row].accepted - least);
  }
  return std::max(from, d.trim_first_kept);
}

// Calls visit(g, logical) for each block that position n reads and that a window group does not
// hold any more, in order. A full group lacks nothing but what a trim dropped. The others are asked
// about what position n reads, not about what they dropped before.
template <typename Visit>
void KVCacheManager::Impl::for_each_missing(std::int32_t row, std::int32_t n,
                                            const Visit& visit) const {
  const SequenceDetails& d = details(row);
  const bool trimmed = rows_[row].has_trim && n > d.trim_sinks;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (!windowed(g)) continue;
    const GroupRule& rule = group(g).rule;
    const std::int32_t size = block_size(g);
    const auto over = [&](std::int32_t from, std::int32_t to) {
      for (std::int32_t logical = from / size; logical * size < to; ++logical) {
        if (table(row, g).at(arena(), logical).valid()) continue;
        const bool is_next = logical * size < n && (logical + 1) * size > n;
        const bool in_trim = trimmed && !is_next &&
                             std::max(from, logical * size) >= d.trim_sinks &&
                             std::min(to, (logical + 1) * size) <= d.trim_first_kept;
        if (!in_trim) visit(g, logical);
      }
    };
    // The block that the next token goes to has to be there, whatever the window.
    const std::int32_t first =
        n % size == 0 ? rule.first_read(n) : std::min(rule.first_read(n), n / size * size);
    const std::int32_t sinks = std::min(rule.num_sinks(), n);
    if (sinks <= first / size * size) {
      over(0, sinks);
      over(first, n);
    } else {
      over(0, n);
    }
  }
}

// What the cache has of the sequence's own path; not valid() if it has given it up.
BlockId KVCacheManager::Impl::block_on_path(const Sequence& s, std::int32_t g,
                                            std::int32_t logical) const noexcept {
  const std::int64_t end = std::int64_t{logical + 1} * block_size(g);
  if (!s.publishes || end > s.place.position) return {};
  return tree_->entry_at(s.place, GroupId(g), logical);
}

// Every group holds what position n reads, or can take it back from the cache.
Status KVCacheManager::Impl::check_truncate(std::int32_t row, std::int32_t n) const {
  const Sequence& s = rows_[row];
  const SequenceDetails& d = details(row);
  if (s.has_trim && n > d.trim_sinks && n < d.trim_first_kept) {
    return {ErrorCode::kFailedPrecondition,
            concat("truncate to ", n, ": every group dropped positions ", d.trim_sinks, " to ",
                   d.trim_first_kept - 1, " in a trim")};
  }
  std::int32_t lacking = -1;
  std::int32_t missing = -1;
  std::array<Revived, kMaxGroups> revived;
  const bool takes_back = rules_of_ >= kOpLogFormatTakesBack;
  for_each_missing(row, n, [&](std::int32_t g, std::int32_t logical) {
    const BlockId block = takes_back ? block_on_path(s, g, logical) : BlockId();
    if (block.valid()) {
      promises_.count_revived(g, block, revived[static_cast<std::size_t>(g)]);
    } else if (lacking < 0) {
      lacking = g;
      missing = logical;
    }
  });
  if (lacking >= 0) {
    return {ErrorCode::kFailedPrecondition,
            concat("truncate to ", n, ": group ", lacking, " (window ", group(lacking).spec.window,
                   ") no longer holds block ", missing, ", which position ", n,
                   " reads: rewind_from is ", rewind_from(row), ", ",
                   s.publishes ? "the cache has not kept it" : "the sequence is not in the cache")};
  }
  Room::Needs needs;
  for (std::int32_t g = 0; g < num_groups() && promises_.any(); ++g) {
    const Revived& held = revived[static_cast<std::size_t>(g)];
    needs.blocks[static_cast<std::size_t>(g)] = held.cost > 0 ? held.cost + held.cached : 0;
  }
  const Room::Plan plan = blocks_.plan(needs);
  return plan.fits() ? Status() : shortage(plan);
}

// The sequence holds again what position n reads and its windows had let go of. Requires:
// check_truncate().
void KVCacheManager::Impl::take_back(std::int32_t row, std::int32_t n) noexcept {
  const Sequence& s = rows_[row];
  promises_.share([&](const auto& visit) {
    for_each_missing(row, n, [&](std::int32_t g, std::int32_t logical) {
      const std::int32_t block[] = {block_on_path(s, g, logical).value()};
      visit(g, block);
    });
  });
  blocks_.note_peak();
  // Each entry that is set is missing no more, and those behind it are visited all the same.
  for_each_missing(row, n, [&](std::int32_t g, std::int32_t logical) {
    table(row, g).set(arena(), logical, block_on_path(s, g, logical));
    tables_.note_entries(row, g, logical);
    if (mutant(Mutant::kTakeBackKeepsWindow)) return;
    std::int32_t& begin = tables_.window_begin(row, g);
    begin = std::min(begin, std::max(logical, blocks_for(g, group(g).rule.num_sinks())));
  });
}

// The tokens that the sequence itself keeps end with the sequence, or with what is exact of it;
// those before are on the tree.
void KVCacheManager::Impl::drop_pending_beyond(Sequence& s) noexcept {
  const std::int32_t end = s.pending_end();
  if (!s.publishes || s.place.position <= end) return;
  const std::int32_t unit = tree_->unit();
  const std::int32_t position = end / unit * unit;
  const std::int32_t rest = end - position;
  KVFOLIO_CHECK(rest <= SpanArena::capacity(s.pending));  // room for a unit is kept for this
  borders_.drop(rows_.row_of(s));
  tree_->copy_tokens(s.place, position, {arena().at(s.pending), static_cast<std::size_t>(rest)});
  tree_->climb(s.place, position);
}

void KVCacheManager::Impl::truncate_to(std::int32_t row, std::int32_t n) noexcept {
  Sequence& s = rows_[row];
  SequenceDetails& d = details(row);
  if (n < s.length) {
    leave_load(row);
    end_announcement(row);
    // Tokens of the open step are not here: the sequence rests.
    if (!mutant(Mutant::kRewindsNotCounted)) ++d.rewinds;
    s.has_rewinds = true;
  }
  d.rewind_base = std::min(rewind_from(row), n);
  if (n < d.found_tokens) d.found_tokens = -1;  // it does not stand there any more
  s.replay = false;
  s.used = true;
  table_blocks_.truncate(row, n);
  promises_.cut(row, n, false);
  if (s.accepted < s.length) drafts_.cut(row, n);
  s.length = n;
  s.accepted = std::min(s.accepted, n);
  d.settled = std::min(d.settled, n);
  if (n < d.prompt_end) d.prompt_end = 0;
  victims_.note_change(row);
  if (s.unnamed_from >= n) s.unnamed_from = kNever;
  if (s.has_unnamed) unnamed_.truncate(steps_, {row, s.birth}, n);
  if (n <= d.trim_sinks) {
    d.trim_sinks = d.trim_first_kept = 0;
    s.has_trim = false;
  }
  if (s.has_trim) {
    s.exact_until = std::min(s.exact_until, n);  // what follows reads across the gap
  } else if (s.exact_until >= n) {
    s.exact_until = kNever;  // what was not exact is gone
  }
  s.exact_until = std::min(s.exact_until,
                           spans_.cut_span(s, n));  // the tokens that stay attended to removed ones
  drop_pending_beyond(s);
  borders_.move(row);
}

Status KVCacheManager::Impl::truncate(SequenceId id, std::int32_t n, std::string_view what) {
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(find_resting(id, what, row));
  const Sequence& s = rows_[row];
  if (n < 0 || n > s.length) {
    return {ErrorCode::kInvalidArgument,
            concat("truncate to ", n, ", allowed: 0 to the length, ", s.length)};
  }
  // Beyond the length a replayed token's block is held.
  if (n == s.length && !s.replay) return {};
  if (n < s.accepted) {
    KVFOLIO_RETURN_IF_ERROR(check_truncate(row, n));
    take_back(row, n);
  }
  truncate_to(row, n);
  promises_.return_surplus(row);
  return {};
}

// ---- trim ----

Result<std::int32_t> KVCacheManager::trim(SequenceId id, const TrimOptions& options) {
  KVFOLIO_RECORDED(kTrim, trim(id, options), id, options);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find_resting(id, "trim", row));
  KVFOLIO_RETURN_IF_ERROR(m.check_no_load(row, "trim"));
  Sequence& s = m.rows_[row];
  SequenceDetails& d = m.details(row);
  if (options.num_sinks < 0 || options.window < 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("trim keeps ", options.num_sinks, " sinks and a window of ",
                         options.window, ", allowed: 0 and above"));
  }
  KVFOLIO_RETURN_IF_ERROR(m.check_decided(row, "trim"));
  const bool trimmed = s.has_trim;
  // All of these are at most the length: no sum below can overflow.
  auto sinks = static_cast<std::int32_t>(std::min<std::int64_t>(options.num_sinks, s.length));
  const auto window = static_cast<std::int32_t>(std::min<std::int64_t>(options.window, s.length));
  if (trimmed) sinks = std::min(sinks, d.trim_sinks);
  const std::int32_t first_kept = std::max(s.length - window, trimmed ? d.trim_first_kept : 0);
  // All of it is kept; sinks that reach the window bring nothing back that is gone.
  if (options.num_sinks >= s.length - window || first_kept <= sinks) return 0;
  // The window reaches tokens before the gap: to drop what lies before them would be a second one.
  if (trimmed && s.length - window < d.trim_sinks) return 0;
  const std::int32_t before = trimmed ? d.trim_first_kept - d.trim_sinks : 0;
  const std::int32_t dropped = (first_kept - sinks) - before;
  if (dropped == 0) return 0;

  m.end_announcement(row);
  // A replayed token's block is held beyond the length; it goes, the append will do without.
  if (s.replay) m.truncate_to(row, s.length);
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    const std::int32_t size = m.block_size(g);
    // From block `from` down, those that begin at `end` or behind it.
    const auto drop = [&](std::int32_t from, std::int32_t end) {
      const std::int32_t first = (end + size - 1) / size;
      if (first > from) return;
      m.table_blocks_.drop(row, g, first, from + 1, s.length);
    };
    // What lies within the old gap is gone already and need not be looked at: a sequence that is
    // trimmed for each token pays for that token.
    const std::int32_t last = first_kept / size - 1;
    const std::int32_t old_end = trimmed ? d.trim_first_kept / size * size : 0;
    drop(last, std::max(sinks, old_end));
    if (trimmed && d.trim_sinks > 0) drop(std::min(last, (d.trim_sinks - 1) / size), sinks);
  }
  s.used = true;
  d.trim_sinks = sinks;
  d.trim_first_kept = first_kept;
  s.has_trim = true;
  if (mutant(Mutant::kTokensAfterTrimPublished)) return dropped;
  s.exact_until = std::min(s.exact_until, s.length);
  return dropped;
}

Status KVCacheManager::clear(SequenceId sequence) {
  KVFOLIO_RECORDED(kClear, clear(sequence), sequence);
  return impl_->truncate(sequence, 0, "clear");
}

Status KVCacheManager::truncate(SequenceId sequence, std::int32_t n) {
  KVFOLIO_RECORDED(kTruncate, truncate(sequence, n), sequence, n);
  return impl_->truncate(sequence, n, "truncate");
}

}  // namespace kvfolio
