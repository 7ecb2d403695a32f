// SPDX-License-Identifier: Apache-2.0
//
// Appending. A decode step comes here once for each sequence. What an append needs and who may
// write where AppendRules says, which admission asks as well (admit.cc).

#include <algorithm>
#include <array>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::Impl::check_decided(std::int32_t row, std::string_view what) const {
  if (rows_[row].undecided() == 0) return {};
  return {ErrorCode::kFailedPrecondition,
          concat(what, ": ", name_of(row), " has ", rows_[row].undecided(),
                 " draft tokens; accept() first")};
}

Status KVCacheManager::Impl::check_growing(std::int32_t row, std::string_view what) const {
  KVFOLIO_RETURN_IF_ERROR(check_resting(row, what));
  KVFOLIO_RETURN_IF_ERROR(check_no_load(row, what));
  const Sequence& s = rows_[row];
  const bool one_append = options_.order == Order::kUnordered || rules_of_ < kOpLogFormatDrafts;
  if (s.undecided() > 0 && (one_append || !drafts_.has_room(row))) {
    return {ErrorCode::kFailedPrecondition,
            concat(what, ": ", name_of(row), " has ", s.undecided(), " draft tokens of ",
                   drafts_.num(row), drafts_.num(row) == 1 ? " append" : " appends",
                   " that are not decided, the most allowed; accept() first")};
  }
  if (options_.order == Order::kUnordered && !steps_.is_complete(s.last_ticket)) {
    return {ErrorCode::kFailedPrecondition,
            concat(what, ": the tokens of ", name_of(row), " are in step ", s.last_ticket,
                   ", which is not complete; complete it first")};
  }
  return {};
}

// May the sequence enter a step, the open one if there is one?
Status KVCacheManager::Impl::check_ready(std::int32_t row, std::string_view what) const {
  KVFOLIO_RETURN_IF_ERROR(check_growing(row, what));
  return check_step(what);
}

Status KVCacheManager::Impl::check_step(std::string_view what) const {
  if (!steps_.is_open() || !steps_.open().copies_ran) return {};
  return {ErrorCode::kFailedPrecondition,
          concat(what, ": run_copies() of step ", steps_.last_ticket(), " has run already")};
}

// Room for the tables of the row at `end` tokens. Tokens are kept for the cache alone: where there
// is no room for them, but for the tables, the sequence stops publishing.
bool KVCacheManager::Impl::grow_spans(std::int32_t row, std::int32_t end) noexcept {
  if (spans_.grow(row, end, true)) return true;
  if (!rows_[row].publishes || !spans_.grow(row, end, false)) return false;
  ++counters_.publications_skipped;
  publisher_.stop(row);
  return true;
}

// ---- append ----

Status KVCacheManager::Impl::check_append(std::int32_t row, std::string_view what,
                                          const std::int32_t* tokens, std::int64_t count,
                                          const AppendOptions& options) const {
  if (!steps_.is_open()) {
    return {ErrorCode::kFailedPrecondition, concat(what, ": no step is open; begin_step() first")};
  }
  KVFOLIO_RETURN_IF_ERROR(check_ready(row, what));
  KVFOLIO_RETURN_IF_ERROR(check_growth(rows_[row], what, count));
  if (options.draft < 0 || options.draft > count) {
    return {ErrorCode::kInvalidArgument,
            concat(what, " of ", count, " tokens to ", name_of(row), " with a draft of ",
                   options.draft, ", allowed: 0 to ", count)};
  }
  if (tokens != nullptr) {
    const std::span<const std::int32_t> named(tokens, static_cast<std::size_t>(count));
    KVFOLIO_RETURN_IF_ERROR(check_tokens(what, named, arena(), rows_.id_of(rows_[row])));
    const bool may_be_again = count > 1 && rows_[row].length > 0 && rules_of_ > kOpLogFormatBare;
    return may_be_again ? prompts_.check_not_again(row, what, named) : Status();
  }
  if (unnamed_.has_room(row, rows_[row].length)) return {};
  return {
      ErrorCode::kResourceExhausted,
      concat(what, ": the tokens without names of ", name_of(row), " lie in ",
             unnamed_.most_stretches(),
             " stretches with other tokens between them, the most allowed; set_tokens() first")};
}

// Takes a sequence whose blocks are ready into the step. Unnamed where there are no tokens. With
// `overwrites`, what the prompt was found in is written over: undo() cannot bring it back. Inlined:
// for the one token of a decode step half of it falls away.
[[gnu::always_inline]] inline void KVCacheManager::Impl::join(
    Step& step, std::int32_t row, const std::int32_t* tokens, std::int32_t count,
    std::int32_t write_begin, std::int32_t draft, bool overwrites) noexcept {
  Sequence& s = rows_[row];
  const std::int32_t begin = s.length;
  const std::int32_t end = begin + count;
  const std::int32_t unnamed = tokens == nullptr ? count : 0;
  step.entries[step.num_entries] = {
      row,     begin,
      end,     write_begin,
      draft,   unnamed,
      s.birth, victims_.last_use(row),
      s.used,  s.replay && (!overwrites || mutant(Mutant::kUndoBringsBackTheReplay))};
  step.planned_changes = false;
  const std::int32_t kept_end = std::min(end, s.exact_until);
  if (s.publishes && kept_end > begin) {
    std::int32_t* to = arena().at(s.pending) + (begin - s.place.position);
    for (std::int32_t i = 0; i < kept_end - begin; ++i) {
      to[i] = tokens != nullptr ? tokens[i] : kUnnamed;
    }
  }
  if (unnamed > 0) {
    s.has_unnamed = true;
    unnamed_.append(row, begin, unnamed);
    s.unnamed_from = std::min(s.unnamed_from, begin);
    step.has_unnamed = true;
  }
  if (s.announces) [[unlikely]]
    follow_announcement(row, begin, tokens, count, draft);
  promises_.spend(row, begin, count);
  s.length = end;
  s.used = true;
  s.replay = false;
  s.step_entry = step.num_entries++;
  victims_.note_use(row);
  if (mutant(Mutant::kFindableAtBegin)) publisher_.publish(row, false);
  if (mutant(Mutant::kWindowReleasedBeforeCommit)) table_blocks_.move_windows(row);
}

// So say the open step and these tokens, if they have names.
bool KVCacheManager::Impl::may_append_inside(const std::int32_t* tokens,
                                             std::size_t count) const noexcept {
  return steps_.is_open() && !steps_.open().copies_ran &&
         (tokens == nullptr || !arena().overlaps({tokens, count}));
}

// What steady decode is made of: one token behind the last one, in blocks that the sequence already
// writes to. Returns false if the general path is needed; then only the next slot of step.changes
// was written. Requires: may_append_inside() of the step and the token.
bool KVCacheManager::Impl::append_inside(Step& step, std::int32_t row,
                                         const std::int32_t* token) noexcept {
  const Sequence& s = rows_[row];
  const std::int32_t at = s.length;
  if (s.step_entry >= 0 || at != s.accepted || s.replay || s.has_load || at >= kMaxSequenceTokens ||
      (s.has_limit && at >= details(row).max_tokens) || (token != nullptr && *token < 0) ||
      (token == nullptr && s.late_names && !unnamed_.has_room(row, at)) ||
      (options_.order == Order::kUnordered && !steps_.is_complete(s.last_ticket)) ||
      (s.publishes && at < s.exact_until &&
       at - s.place.position >= SpanArena::capacity(s.pending))) {
    return false;
  }
  std::array<std::int32_t, kMaxGroups> tails;
  const BlockTable* tables = &table(row, 0);
  TailChange* changes = &step.change(step.num_entries, 0);
  std::int32_t* tail = tails.data();
  std::int32_t g = 0;
  for (const Group& group : groups_) {
    const std::int32_t logical = group.size.block_of(at);
    const std::int32_t offset = group.size.offset_of(at);
    if (offset == 0) return false;
    const BlockId block = tables++->at(arena(), logical);
    const BlockPool& pool = blocks_.pool(g++);
    if (pool.writer(block) != row || pool.valid(block) != offset) return false;
    const std::int32_t slot = block.value() * group.spec.block_size + offset;
    *changes++ = {-1, -1, offset, row, pool.written_in(block), slot};
    *tail++ = block.value();
  }
  for (g = 0; g < num_groups(); ++g) {
    blocks_.append_one(g, BlockId(tails[static_cast<std::size_t>(g)]), step.ticket);
  }
  join(step, row, token, 1, at, 0, false);
  return true;
}

Status KVCacheManager::Impl::append(SequenceId id, const std::int32_t* tokens, std::int64_t count,
                                    const AppendOptions& options) {
  const std::int32_t row = lookup(id);
  if (row < 0) return not_found(id);
  if (count == 1 && options.draft == 0 && may_append_inside(tokens, 1) &&
      append_inside(steps_.open(), row, tokens)) {
    return {};
  }
  return append_to(row, tokens != nullptr ? "append" : "append_unnamed", tokens, count, options);
}

Status KVCacheManager::Impl::append_to(std::int32_t row, std::string_view what,
                                       const std::int32_t* tokens, std::int64_t count,
                                       const AppendOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_append(row, what, tokens, count, options));
  if (count == 0) return {};
  Step& step = steps_.open();
  Sequence& s = rows_[row];

  const std::int32_t begin = s.length;
  const std::int32_t end = begin + static_cast<std::int32_t>(count);
  const std::int32_t write_begin = begin + (replays(s, tokens, count) ? 1 : 0);
  std::array<Demand, kMaxGroups> demands;
  Room::Needs needs;
  std::int64_t num_new = 0;
  bool overwrites = false;  // what the prompt was found in
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    Demand& needed = demands[static_cast<std::size_t>(g)];
    needed = append_rules_.demand_in_room(row, g, write_begin, end);
    num_new += needed.blocks;
    needs.blocks[static_cast<std::size_t>(g)] = needed.blocks - needed.ready;
    overwrites |= s.replay && write_begin == begin &&
                  (needed.reuse || append_rules_.writes_below_valid(row, g, write_begin, needed));
  }
  if (mutant(Mutant::kReservedIsRoom)) promises_.rob(needs);
  const Room::Plan plan = blocks_.plan(needs);
  if (!plan.fits()) {
    const std::int32_t g = plan.short_of;
    return shortage(plan, num_kept(row, g), demands[static_cast<std::size_t>(g)].copies);
  }
  if (!grow_spans(row, end)) return spans_.full(what, spans_.words_for(s, end));

  // Nothing fails from here on.
  if (mutant(Mutant::kHitReferencedLate) && !s.used) {
    for (std::int32_t g = 0; g < num_groups(); ++g) blocks_.hold(g, table(row, g).blocks(arena()));
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (!demands[static_cast<std::size_t>(g)].reuse) continue;
    const BlockId block = table(row, g).at(arena(), block_of(g, write_begin));
    if (tree_->is_findable(GroupId(g), block)) blocks_.evict_entry(g, block);
  }
  blocks_.take(plan);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    table_blocks_.append(step, row, g, write_begin, end, demands[static_cast<std::size_t>(g)]);
  }
  join(step, row, tokens, end - begin, write_begin, options.draft, overwrites);
  if (num_new > 0) blocks_.note_peak();
  return {};
}

// As far as the sequence keeps its tokens itself: those that the tree does not have yet and that
// have names.
Status KVCacheManager::Impl::check_own_prompt(std::int32_t row,
                                              std::span<const std::int32_t> prompt) const {
  const Sequence& s = rows_[row];
  const auto size = static_cast<std::int64_t>(prompt.size());
  if (size < s.length) {
    return {ErrorCode::kInvalidArgument,
            concat("append_prompt to ", name_of(row), ": the prompt has ", size,
                   " tokens and the sequence ", s.length)};
  }
  if (!s.publishes) return {};
  const std::int32_t* const own = arena().at(s.pending);
  for (std::int32_t i = s.place.position; i < s.pending_end(); ++i) {
    const std::int32_t said = own[i - s.place.position];
    const std::int32_t given = prompt[static_cast<std::size_t>(i)];
    if (said == kUnnamed || said == given) continue;
    return {ErrorCode::kInvalidArgument,
            concat("append_prompt to ", name_of(row), ": at position ", i, " the prompt has token ",
                   given, " and the sequence ", said, "; it is not the sequence's prompt")};
  }
  return {};
}

Result<std::int32_t> KVCacheManager::append_prompt(SequenceId id,
                                                   std::span<const std::int32_t> prompt,
                                                   std::int64_t at_most) {
  KVFOLIO_RECORDED(kAppendPrompt, append_prompt(id, prompt, at_most), id, prompt, at_most);
  const Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  if (at_most < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("append_prompt of at most ", at_most, " tokens, allowed: 1 and above"));
  }
  KVFOLIO_RETURN_IF_ERROR(m.check_growing(row, "append_prompt"));
  KVFOLIO_RETURN_IF_ERROR(m.check_own_prompt(row, prompt));
  const auto rest = prompt.subspan(static_cast<std::size_t>(m.rows_[row].length));
  const auto chunk = rest.first(
      static_cast<std::size_t>(std::min(at_most, static_cast<std::int64_t>(rest.size()))));
  KVFOLIO_RETURN_IF_ERROR(append(id, chunk));
  return static_cast<std::int32_t>(chunk.size());
}

Result<SequenceId> KVCacheManager::open_unnamed(std::int64_t num_tokens,
                                                const OpenOptions& options) {
  KVFOLIO_RECORDED(kOpenUnnamed, open_unnamed(num_tokens, options), num_tokens, options);
  Impl& m = *impl_;
  const Counters before = m.counters_;
  const std::uint64_t uses_before = m.victims_.num_uses();
  Result<Opened> opened = m.open({}, options, "open_unnamed");
  if (!opened) return std::move(opened).error();
  Status status = m.append_to(PackedId::row_of(opened->sequence.value()), "open_unnamed", nullptr,
                              num_tokens, {});
  if (status.ok()) return opened->sequence;
  // The id was never returned: the next sequence gets it.
  const std::int32_t row = PackedId::row_of(opened->sequence.value());
  m.end_sequence(row);
  m.rows_.give_id_again(row);
  m.counters_ = before;
  m.victims_.take_back_uses(uses_before);
  if (status.shortage() == nullptr) return status;
  Shortage without_it = *status.shortage();
  --without_it.sequences;
  return without_it;
}

Status KVCacheManager::append(SequenceId sequence, std::span<const std::int32_t> tokens,
                              const AppendOptions& options) {
  KVFOLIO_RECORDED(kAppend, append(sequence, tokens, options), sequence, tokens, options);
  static constexpr std::int32_t kNothing = 0;
  return impl_->append(sequence, tokens.empty() ? &kNothing : tokens.data(),
                       static_cast<std::int64_t>(tokens.size()), options);
}

Status KVCacheManager::append_unnamed(SequenceId sequence, std::int64_t num_tokens,
                                      const AppendOptions& options) {
  KVFOLIO_RECORDED(kAppendUnnamed, append_unnamed(sequence, num_tokens, options), sequence,
                   num_tokens, options);
  return impl_->append(sequence, nullptr, num_tokens, options);
}

}  // namespace kvfolio
