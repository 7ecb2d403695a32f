// SPDX-License-Identifier: Apache-2.0
//
// Sequences: arguments that several calls share, rows, and how a sequence begins and ends. What it
// holds meanwhile changes in append.cc, truncate.cc and adopt.cc.

#include <algorithm>
#include <cstring>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

// ---- rows ----

std::int32_t KVCacheManager::Impl::take_row() noexcept {
  const std::int32_t row = rows_.take();
  if (row == Rows::kNone) return -1;
  Sequence& s = rows_[row];
  SequenceDetails& d = details(row);
  s.exact_until = kNever;
  s.unnamed_from = kNever;
  d.own_from = kNever;
  d.losses_seen = blocks_.losses();
  s.step_entry = -1;
  victims_.begin(row);
  tables_.begin(row);
  unnamed_.begin(row);
  drafts_.clear(row);
  return row;
}

Status KVCacheManager::Impl::no_row(std::string_view what, std::string_view advice) const {
  if (rows_.open().size() == static_cast<std::size_t>(options_.max_sequences)) {
    return {ErrorCode::kResourceExhausted,
            concat(what, ": all ", options_.max_sequences, " sequences are open", advice)};
  }
  std::uint64_t oldest = steps_.last_committed();
  for (const std::int32_t row : rows_.closing()) {
    oldest = std::min(oldest, rows_[row].last_ticket);
  }
  for (const std::int32_t row : rows_.resting()) {
    oldest = std::min(oldest, rows_[row].row_ticket());
  }
  return {
      ErrorCode::kResourceExhausted,
      concat(what, ": all ", rows_.size(), " rows are in use, ",
             rows_.closing().size() + rows_.resting().size(),
             " of them by closed sequences of steps that are not complete, the oldest ", oldest)};
}

// Everything that the row owned is given back already.
void KVCacheManager::Impl::give_row(std::int32_t row, bool aborted) noexcept {
  spans_.release(row);
  victims_.forget(row);
  rows_.end(row, aborted);
  if (row_is_used(row) && !mutant(Mutant::kRowGivenAwayInFlight)) {
    rows_.rest(row);
  } else {
    rows_.free(row);
  }
}

// A call failed: the id was not returned, so the next sequence gets it.
void KVCacheManager::Impl::untake_row(std::int32_t row) noexcept {
  rows_.leave_open(row);
  give_row(row, false);
  rows_.give_id_again(row);
}

// ---- open ----

Result<std::int32_t> KVCacheManager::probe(std::span<const std::int32_t> tokens,
                                           const OpenOptions& options) const {
  KVFOLIO_RETURN_IF_MOVED("probe");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(check_open("probe", tokens, options, m.arena()));
  if (!m.options_.prefix_cache || !options.prefix_cache || !options.look_up || tokens.empty()) {
    return 0;
  }
  const std::int32_t root = m.tree_->find_root(options.root);
  if (root < 0) return 0;
  const auto size = static_cast<std::int32_t>(tokens.size());
  const PrefixMatch match = m.tree_->match(root, tokens, options.media, size - 1, true);
  return m.fits_promises(match, size) ? match.tokens : 0;
}

Result<Opened> KVCacheManager::Impl::open(std::span<const std::int32_t> tokens,
                                          const OpenOptions& options, std::string_view what) {
  KVFOLIO_RETURN_IF_ERROR(check_open(what, tokens, options, arena()));
  KVFOLIO_RETURN_IF_ERROR(check_publish(what, options.publish));
  KVFOLIO_RETURN_IF_ERROR(caller_ids_.check_free(what, options.caller_id));
  const std::int32_t row = take_row();
  if (row < 0) return no_row(what, "; close one or raise max_sequences");
  Sequence& s = rows_[row];
  SequenceDetails& d = details(row);
  if (!spans_.keep_media(s, options.media)) {
    untake_row(row);
    return spans_.full(what, static_cast<std::int64_t>(options.media.size_bytes() / 4));
  }

  Soon soon;
  const bool wants = options_.prefix_cache && options.prefix_cache;
  const bool publishes = wants && options.publish != Publish::kNothing;
  const std::int32_t root = publishes                  ? tree_->make_root(options.root)
                            : wants && options.look_up ? tree_->find_root(options.root)
                                                       : -1;
  if (publishes && root < 0) ++counters_.publications_skipped;
  if (root >= 0) {
    // The place keeps the root, and then the path, alive from here on.
    s.place = tree_->enter(root, 0);
    s.publishes = publishes;
    s.full_blocks_only = options.publish == Publish::kFullBlocks;
    const auto size = static_cast<std::int32_t>(tokens.size());
    PrefixMatch match = options.look_up
                            ? tree_->match(root, tokens, options.media, size - 1, size > 0)
                            : PrefixMatch{.run = root};
    // Caching never takes room: without table entries for the hit it is a miss.
    if (!fits_promises(match, size) || !spans_.grow_for_hit(row, match)) match = {.run = root};
    const std::int32_t held = match.held_tokens();
    const std::int32_t kept = spans_.kept_tokens(match);
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      table(row, g).grow(arena(), blocks_for(g, held));
      tree_->fill_table(match, GroupId(g), table(row, g).blocks(arena()));
    }
    const Place found = publishes ? tree_->enter(match.run, kept) : Place();
    tree_->leave(s.place);
    s.place = found;
    const std::int32_t num_held = mutant(Mutant::kHitReferencedLate) ? 0 : num_groups();
    promises_.share([&](const auto& visit) {
      for (std::int32_t g = 0; g < num_held; ++g) visit(g, table(row, g).blocks(arena()));
    });
    table_blocks_.note_hit(row, held);
    borders_.note_prompt(row, size);
    if (publishes) {
      std::copy(tokens.begin() + kept, tokens.begin() + match.tokens, arena().at(s.pending));
    }
    s.length = s.accepted = d.settled = d.rewind_base = match.tokens;
    s.replay = match.whole;
    const Announcements::Prompt prompt{root, tokens, options.media};
    if (announcements_.any() && options.look_up) soon = find_soon(prompt);
    if (options.announce && publishes) announce(row, prompt);
    if (match.whole) d.replay_token = tokens.back();
    d.found_tokens = match.tokens;
    blocks_.note_peak();
  }
  prompts_.keep(row, tokens, options_.max_transfers > 0);
  d.max_tokens = options.max_tokens;
  s.has_limit = options.max_tokens > 0;
  s.late_names = options.late_names;
  d.priority = options.priority;
  keep_caller_id(row, options.caller_id);
  victims_.note_use(row);
  ++counters_.sequences_opened;
  counters_.tokens_looked_up += tokens.size();
  counters_.tokens_reused += static_cast<std::uint64_t>(s.length);
  return Opened{rows_.id_of(s), s.length, soon};
}

// ---- fork ----

Result<SequenceId> KVCacheManager::fork(SequenceId parent_id, const ForkOptions& options) {
  KVFOLIO_RECORDED(kFork, fork(parent_id, options), parent_id, options);
  Impl& m = *impl_;
  std::int32_t from = 0;
  KVFOLIO_RETURN_IF_ERROR(m.caller_ids_.check_free("fork", options.caller_id));
  KVFOLIO_RETURN_IF_ERROR(m.find_resting(parent_id, "fork", from));
  KVFOLIO_RETURN_IF_ERROR(m.check_decided(from, "fork"));
  KVFOLIO_RETURN_IF_ERROR(m.check_sharing(from));
  const std::int32_t row = m.take_row();
  if (row < 0) return m.no_row("fork", "; close one or raise max_sequences");
  Sequence& parent = m.rows_[from];
  Sequence& child = m.rows_[row];
  bool publishes = false;
  if (!m.spans_.grow_for_fork(from, row, publishes)) {
    m.untake_row(row);
    return m.spans_.full("fork", m.spans_.words_for(parent, parent.length));
  }
  const ArenaSpan pending = child.pending;
  const ArenaSpan media = m.details(row).media;
  m.rows_.copy_sequence(from, row);
  SequenceDetails& child_details = m.details(row);
  child_details.admitted = 0;
  m.prompts_.note_fork(from, row, publishes);
  child_details.reuse_step = 0;
  child_details.rewinds = 0;
  child_details.media = media;
  child_details.priority = options.priority;
  child.has_written = false;  // the parent's blocks tell whether a failed step concerns it
  child.has_planned = false;  // no plan had its row yet
  child.pending = pending;
  child.used = true;
  child.has_promise = false;
  child.has_load = false;
  child.has_rewinds = false;
  child.announces = false;
  child.publishes = publishes;
  child.place = publishes ? m.tree_->copy(parent.place) : Place();
  if (publishes) {
    std::copy_n(m.arena().at(parent.pending), m.spans_.pending_words(parent, parent.length),
                m.arena().at(pending));
  }
  m.counters_.publications_skipped += parent.publishes && !publishes ? 1 : 0;
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    BlockTable& to = m.table(row, g);
    to.assign(m.arena(), m.table(from, g).blocks(m.arena()));
    m.tables_.window_begin(row, g) = m.tables_.window_begin(from, g);
  }
  m.promises_.share([&](const auto& visit) {
    for (std::int32_t g = 0; g < m.num_groups(); ++g) visit(g, m.table(row, g).blocks(m.arena()));
  });
  m.borders_.move(row);
  if (parent.has_unnamed) {
    // Its copies of the unnamed tokens may be named as long as the parent's.
    m.unnamed_.become(row, from);
    if (m.unnamed_.num_waiting(row) > 0) {
      UnnamedTokens::share(m.steps_, {from, parent.birth}, {row, child.birth});
    }
  }
  m.keep_caller_id(row, options.caller_id);
  m.victims_.note_use(row);
  ++m.counters_.forks;
  return m.rows_.id_of(child);
}

// ---- close ----

void KVCacheManager::Impl::forget_sequence(std::int32_t row, bool aborted) noexcept {
  tree_->leave(rows_[row].place);
  give_row(row, aborted);
}

void KVCacheManager::Impl::end_sequence(std::int32_t row) noexcept {
  Sequence& s = rows_[row];
  if (!mutant(Mutant::kSoonKeptAfterClose)) end_announcement(row);
  promises_.end(row);
  leave_load(row);
  rows_.leave_open(row);
  forget_caller_id(row);
  const bool unsettled = options_.order == Order::kUnordered && !steps_.is_complete(s.last_ticket);
  // A sequence that has nothing to publish of its last step does not wait for it.
  const std::int32_t is_there = std::max(details(row).settled, s.place.position);
  if (unsettled && s.publishes && publisher_.end_when_complete(s) > is_there &&
      rows_.closing().size() < static_cast<std::size_t>(options_.max_sequences)) {
    // Its last tokens become findable when their step completes. Until then its blocks retire,
    // nothing is written below their valid tokens, and its table tells where they are. Beyond that
    // many sequences, they are not published.
    borders_.take_back(row);
    table_blocks_.let_go(row);
    victims_.forget(row);
    rows_.close_later(row);
    return;
  }
  publisher_.publish(row, true);
  borders_.note_last(row);
  borders_.take_back(row);
  table_blocks_.let_go(row);
  forget_sequence(row, false);
}

Status KVCacheManager::close(SequenceId id) {
  KVFOLIO_RECORDED(kClose, close(id), id);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find_resting(id, "close", row));
  m.end_sequence(row);
  ++m.counters_.sequences_closed;
  return {};
}

Status KVCacheManager::preempt(SequenceId id) {
  KVFOLIO_RECORDED(kPreempt, preempt(id), id);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  if (m.rows_[row].step_entry >= 0) KVFOLIO_RETURN_IF_ERROR(undo(id));
  m.end_sequence(row);
  ++m.counters_.sequences_preempted;
  return {};
}

Status KVCacheManager::cancel(SequenceId id) {
  KVFOLIO_RECORDED(kCancel, cancel(id), id);
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(impl_->find(id, row));
  if (impl_->rows_[row].step_entry >= 0) KVFOLIO_RETURN_IF_ERROR(undo(id));
  return close(id);
}

Result<Opened> KVCacheManager::open(std::span<const std::int32_t> tokens,
                                    const OpenOptions& options) {
  KVFOLIO_RECORDED(kOpen, open(tokens, options), tokens, options);
  return impl_->open(tokens, options, "open");
}

}  // namespace kvfolio
