// SPDX-License-Identifier: Apache-2.0
//
// Admission: whether appends would succeed, of open sequences or of a prompt that is not open yet.
// It asks what append() asks (append.cc) and plans as append() plans (room.h), so what it says is
// what append() does.

#include <algorithm>
#include <array>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

// ---- open sequences ----

// Every named sequence may be appended to, and is named once.
Status KVCacheManager::Impl::check_demands(std::span<const AppendDemand> demands) {
  Status answer;
  std::size_t marked = 0;
  std::int32_t* marks = scratch_.data() + rows_.size();
  for (; marked < demands.size() && answer.ok(); ++marked) {
    const AppendDemand& demand = demands[marked];
    std::int32_t row = 0;
    answer = find(demand.sequence, row);
    if (!answer.ok()) break;
    answer = check_ready(row, "admit");
    if (answer.ok()) answer = check_growth(rows_[row], "admit", demand.num_tokens);
    if (!answer.ok()) break;
    if (marks[row] != 0) {
      answer = {ErrorCode::kInvalidArgument,
                concat("admit names a sequence twice, the second time as demand ", marked)};
      break;
    }
    marks[row] = 1;
  }
  for (std::size_t i = 0; i < marked; ++i) marks[PackedId::row_of(demands[i].sequence.value())] = 0;
  return answer;
}

// Blocks of one group that these demands need together. While there is no room for all copies, the
// last of those that need none does without; it is marked in `reused`.
std::int64_t KVCacheManager::Impl::total_demand(std::span<const AppendDemand> demands,
                                                std::int32_t g, std::int32_t* reused) noexcept {
  const BlockPool& pool = blocks_.pool(g);
  const auto demand_of = [&](std::size_t i) {
    const std::int32_t row = PackedId::row_of(demands[i].sequence.value());
    const Sequence& s = rows_[row];
    const std::int32_t end = s.length + static_cast<std::int32_t>(demands[i].num_tokens);
    return append_rules_.demand(row, g, s.length + (s.replay && end > s.length ? 1 : 0), end);
  };
  // Sequences that share a tail claim it one after the other: play that, and take it back.
  std::int64_t needed = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const std::int32_t row = PackedId::row_of(demands[i].sequence.value());
    const Sequence& s = rows_[row];
    const std::int64_t count = demands[i].num_tokens;
    const std::int32_t begin = s.length + (s.replay && count > 0 ? 1 : 0);
    const Demand needs = demand_of(i);
    needed += needs.blocks - append_rules_.from_ready(row, g, needs);
    scratch_[i] = BlockId().value();
    if (s.length + count > begin && group(g).size.offset_of(begin) != 0 && !needs.new_tail) {
      const BlockId tail = table(row, g).at(arena(), block_of(g, begin));
      if (pool.writer(tail) == BlockPool::kNobody) {
        blocks_.set_writer(g, tail, row);
        scratch_[i] = tail.value();
      }
    }
  }
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if (scratch_[i] >= 0) blocks_.set_writer(g, BlockId(scratch_[i]), BlockPool::kNobody);
  }
  for (std::size_t i = demands.size(); i-- > 0 && !blocks_.has_room(g, needed);) {
    const Demand needs = demand_of(i);
    if (!needs.can_reuse || needs.reuse) continue;
    reused[i] |= std::int32_t{1} << g;
    --needed;
  }
  return needed;
}

// Blocks that several of the sequences hold count once for the one that holds most of them: never
// more than there are.
Shortage KVCacheManager::Impl::shortage_of(const Room::Plan& plan,
                                           std::span<const AppendDemand> demands) const noexcept {
  const std::int32_t g = plan.short_of;
  std::int32_t alone = 0;
  std::int32_t shared = 0;
  std::int32_t copies = 0;
  for (const AppendDemand& demand : demands) {
    const std::int32_t row = PackedId::row_of(demand.sequence.value());
    const Sequence& s = rows_[row];
    const auto end = static_cast<std::int32_t>(s.length + demand.num_tokens);
    const std::int32_t begin = s.length + (s.replay && end > s.length ? 1 : 0);
    copies += append_rules_.demand_in_room(row, g, begin, end).copies;
    std::int32_t among_others = 0;
    for (const std::int32_t b : table(row, g).blocks(arena())) {
      if (b < 0) continue;
      (blocks_.pool(g).refs(BlockId(b)) == 1 ? alone : among_others) += 1;
    }
    alone += promises_.num_ready(row, g);
    shared = std::max(shared, among_others);
  }
  return shortage(plan, alone + shared, copies);
}

Status KVCacheManager::admit(std::span<const AppendDemand> demands) {
  KVFOLIO_RECORDED(kAdmit, admit(demands), demands);
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_demands(demands));
  const auto admitted_end = [&](std::size_t i) {
    const Sequence& s = m.rows_[PackedId::row_of(demands[i].sequence.value())];
    return s.length + static_cast<std::int32_t>(demands[i].num_tokens);
  };
  std::int32_t* reused = m.scratch_.data() + m.rows_.size();  // by demand: groups, by bit
  Room::Needs needs;
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    std::int64_t& needed = needs.blocks[static_cast<std::size_t>(g)];
    needed = m.total_demand(demands, g, reused);
    if (mutant(Mutant::kAdmissionIgnoresRetiring)) needed -= m.blocks_.pool(g).num_retiring();
  }
  const Room::Plan plan = m.blocks_.plan(needs);
  Status answer = plan.fits() ? Status() : m.shortage_of(plan, demands);
  std::size_t kept = 0;  // demands with room for their table entries
  for (; answer.ok() && kept < demands.size(); ++kept) {
    const std::int32_t row = PackedId::row_of(demands[kept].sequence.value());
    // Tokens may find no room: then the append stops publishing.
    const std::int32_t end = admitted_end(kept);
    if (m.spans_.grow(row, end, true) || m.spans_.grow(row, end, false)) continue;
    answer = m.spans_.full("admit", m.spans_.words_for(m.rows_[row], end));
    while (kept-- > 0) m.spans_.shrink_to_need(PackedId::row_of(demands[kept].sequence.value()));
    break;
  }
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if (answer.ok()) {
      SequenceDetails& d = m.details(PackedId::row_of(demands[i].sequence.value()));
      if (d.reuse_step != m.append_rules_.next_step()) d.reuse = 0;
      d.reuse |= static_cast<std::uint16_t>(reused[i]);
      d.reuse_step = m.append_rules_.next_step();
    }
    reused[i] = 0;
  }
  KVFOLIO_RETURN_IF_ERROR(answer);
  for (std::size_t i = 0; i < demands.size(); ++i) {
    std::int32_t& admitted = m.details(PackedId::row_of(demands[i].sequence.value())).admitted;
    admitted = std::max(admitted, admitted_end(i));
  }
  return {};
}

Status KVCacheManager::admit(SequenceId sequence, std::int64_t num_tokens) {
  KVFOLIO_RECORDED(kAdmitOne, admit(sequence, num_tokens), sequence, num_tokens);
  const AppendDemand demand{sequence, num_tokens};
  return admit({&demand, 1});
}

// ---- a prompt ----

// The sequence that open() would make, as far as append() asks.
struct KVCacheManager::Impl::Prospect {
  PrefixMatch match;  // nothing if the hit lacks table entries
  bool publishes = false;
  Soon soon;
  // Words of the arena, and the capacity of each span that open() would have taken.
  SpanTrial words;
  std::int64_t pending = 0;
  std::array<std::int64_t, kMaxGroups> tables{};

  [[nodiscard]] std::int64_t& table(std::int32_t g) noexcept {
    return tables[static_cast<std::size_t>(g)];
  }
};

// As SequenceSpans::grow_for_hit().
bool KVCacheManager::Impl::would_hold(Prospect& s) const noexcept {
  const std::int64_t own = spans_.kept_tokens(s.match) > 0 ? tree_->unit() : s.match.tokens;
  Prospect after = s;
  bool room = !s.publishes || after.words.reserve(after.pending, own);
  for (std::int32_t g = 0; g < num_groups() && room; ++g) {
    room = after.words.reserve(after.table(g), blocks_for(g, s.match.held_tokens()));
  }
  if (room) s = after;
  return room;
}

// As grow_spans(): without room for tokens that are kept to publish, the sequence does not.
bool KVCacheManager::Impl::would_fit(const Prospect& s, std::int32_t end) const noexcept {
  const auto fits = [&](bool with_pending) {
    Prospect after = s;
    bool room = true;
    for (std::int32_t g = 0; g < num_groups() && room; ++g) {
      room = after.words.reserve(after.table(g), blocks_for(g, end));
    }
    return room &&
           (!with_pending || after.words.reserve(after.pending, end - spans_.kept_tokens(s.match)));
  };
  return fits(s.publishes) || (s.publishes && fits(false));
}

// The blocks of the hit that count as room now, and would be held then.
Revived KVCacheManager::Impl::revived_by(const PrefixMatch& match, std::int32_t g) const noexcept {
  constexpr std::int32_t kPiece = 256;
  std::array<std::int32_t, kPiece> blocks;
  Revived revived;
  const std::int32_t count = blocks_for(g, match.held_tokens());
  for (std::int32_t first = 0; first < count; first += kPiece) {
    const auto piece =
        std::span(blocks).first(static_cast<std::size_t>(std::min(kPiece, count - first)));
    tree_->fill_table(match, GroupId(g), piece, false, first);
    for (const std::int32_t b : piece) {
      if (b >= 0) promises_.count_revived(g, BlockId(b), revived);
    }
  }
  return revived;
}

// What the sequence would take behind its hit: in one append, or, if the tokens come at most `most`
// in a step, what reserve() would keep.
Demand KVCacheManager::Impl::demand_behind(const Prospect& s, std::int32_t g, const Revived& held,
                                           std::int32_t end, std::int64_t most) const noexcept {
  const std::int32_t length = s.match.tokens;
  if (most > 0) {
    const bool owns_tail =
        group(g).size.offset_of(length) == 0 || blocks_.would_be_alone(g, held.last);
    const PromiseState at{end - length, most, length, held.alone, owns_tail};
    Demand needs;
    needs.blocks = promises_.needs().ready_for(g, at);
    needs.copies = owns_tail ? 0 : 1;
    return needs;
  }
  Demand needs = append_rules_.demand_behind_hit(g, held.last, s.match.held_tokens(), end);
  const bool is_short = !blocks_.has_room(g, needs.blocks + held.cached + held.cost);
  if (needs.can_reuse && is_short) needs.do_without_a_copy();
  return needs;
}

// The fewest blocks that the sequence would hold at once if all but the last token of a prompt of
// `size` tokens were found: in a window group a longer hit needs fewer.
std::int32_t KVCacheManager::Impl::least_blocks(std::int32_t g, std::int32_t size, std::int32_t end,
                                                std::int64_t most) const noexcept {
  const Group& of = group(g);
  const std::int32_t found = std::max(0, size - 1);
  const std::int32_t first = of.block_of(of.rule.first_read(found));
  const std::int32_t sinks = std::min(first, of.blocks_for(of.rule.num_sinks()));
  const std::int32_t held = of.blocks_for(found) - first + sinks;
  if (most == 0) return held + of.blocks_for(end) - of.blocks_for(found);
  const std::int64_t rest = end - found;
  return held + promises_.needs().ready_for(g, {rest, std::min(most, rest), found, held, true});
}

Shortage KVCacheManager::Impl::shortage_behind(const Room::Plan& plan, const Revived& held,
                                               std::int32_t least) const noexcept {
  Shortage s = shortage(plan);
  // What the hit takes of the room. A promise that counts on its blocks may cost more than there
  // is; the rest is lacking.
  const std::int32_t from_free = std::min(s.free, held.cost);
  const std::int32_t evicted = std::min(s.evictable, held.cached + held.cost - from_free);
  const std::int32_t taken = from_free + evicted;
  s.needed -= taken;
  s.free -= from_free;
  s.evictable -= evicted;
  s.retiring -= held.retiring;
  s.pinned += taken + held.retiring;
  s.reserved += taken - held.cached;
  // What the sequence of a load holds already is among the least.
  s.kept = std::max(held.blocks, least - s.needed);
  s.spared = std::max(0, s.needed + s.kept - least);
  return s;
}

Status KVCacheManager::Impl::check_prospect(std::span<const std::int32_t> tokens,
                                            const OpenOptions& options,
                                            std::int64_t num_more) const {
  KVFOLIO_RETURN_IF_ERROR(check_open("admit", tokens, options, arena()));
  KVFOLIO_RETURN_IF_ERROR(check_publish("admit", options.publish));
  KVFOLIO_RETURN_IF_ERROR(caller_ids_.check_free("admit", options.caller_id));
  if (num_more < 0 || num_more > kMaxSequenceTokens) {
    return {ErrorCode::kInvalidArgument,
            concat("admit of ", num_more, " tokens behind a prompt, allowed: 0 to ",
                   kMaxSequenceTokens)};
  }
  if (rows_.has_room()) return {};
  return no_row("admit", "; close one or raise max_sequences");
}

Result<KVCacheManager::Impl::Prospect> KVCacheManager::Impl::prospect_of(
    std::span<const std::int32_t> tokens, const OpenOptions& options) const {
  Prospect s{{}, false, {}, SpanTrial(arena()), 0, {}};
  const auto media_words = static_cast<std::int64_t>(options.media.size_bytes() / 4);
  std::int64_t media = 0;
  if (!s.words.reserve(media, media_words)) return spans_.full("admit", media_words);
  if (!options_.prefix_cache || !options.prefix_cache) return s;
  const std::int32_t root = tree_->find_root(options.root);
  const bool wants = options.publish != Publish::kNothing;
  s.publishes = wants && (root >= 0 || tree_->has_room_for_root(options.root));
  const auto size = static_cast<std::int32_t>(tokens.size());
  if (root >= 0 && options.look_up) {
    s.match = tree_->match(root, tokens, options.media, size - 1, size > 0);
    if (announcements_.any()) s.soon = find_soon({root, tokens, options.media});
  }
  if (!fits_promises(s.match, size) || !would_hold(s)) s.match = {};
  return s;
}

Result<Admission> KVCacheManager::admit(std::span<const std::int32_t> tokens,
                                        const OpenOptions& options, std::int64_t num_more,
                                        const ReserveOptions& chunks) const {
  KVFOLIO_RETURN_IF_MOVED("admit");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_prospect(tokens, options, num_more));
  KVFOLIO_RETURN_IF_ERROR(m.check_chunks("admit", chunks));
  const Result<Impl::Prospect> opened = m.prospect_of(tokens, options);
  if (!opened) return opened.error();
  const PrefixMatch& match = opened->match;
  Admission admission;
  admission.cached_tokens = match.tokens;
  admission.soon = opened->soon;
  const auto size = static_cast<std::int32_t>(tokens.size());
  const std::int64_t count = size - match.tokens + num_more;
  if (count == 0) return admission;
  const std::int64_t most = std::min(chunks.most_per_step, count);
  if (most == 0) KVFOLIO_RETURN_IF_ERROR(m.check_step("admit"));
  KVFOLIO_RETURN_IF_ERROR(check_growth("admit", count, match.tokens, options.max_tokens));

  const auto end = static_cast<std::int32_t>(match.tokens + count);
  Room::Needs needs;
  std::array<Revived, kMaxGroups> revived;
  std::array<std::int32_t, kMaxGroups> copies;
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    const auto at = static_cast<std::size_t>(g);
    const Revived held = revived[at] = m.revived_by(match, g);
    const Demand needed = m.demand_behind(*opened, g, held, end, most);
    admission.blocks[at] = needed.blocks;
    copies[at] = needed.copies;
    needs.blocks[at] = needed.blocks + held.cached + held.cost;
  }
  const Room::Plan plan = m.blocks_.plan(needs);
  if (!plan.fits()) {
    const auto at = static_cast<std::size_t>(plan.short_of);
    const std::int32_t all = revived[at].blocks + admission.blocks[at] - copies[at];
    const bool may_find_more = m.options_.prefix_cache && options.prefix_cache && options.look_up;
    const std::int32_t least = may_find_more ? m.least_blocks(plan.short_of, size, end, most) : all;
    return m.shortage_behind(plan, revived[at], std::min(all, least));
  }
  // reserve() promises no table entries.
  if (most > 0 || m.would_fit(*opened, end)) return admission;
  const std::int64_t words =
      m.spans_.table_words(end) + (opened->publishes ? end - m.spans_.kept_tokens(match) : 0);
  return m.spans_.full("admit", words);
}

// ---- a sequence, once ----

// Would grow_spans() find room? It changes nothing.
bool KVCacheManager::Impl::would_fit(std::int32_t row, std::int32_t end) const noexcept {
  const Sequence& s = rows_[row];
  const auto fits = [&](bool with_pending) {
    SpanTrial words(arena());
    bool room = true;
    for (std::int32_t g = 0; g < num_groups() && room; ++g) {
      std::int64_t capacity = table(row, g).capacity();
      room = words.reserve(capacity, blocks_for(g, end));
    }
    std::int64_t pending = SpanArena::capacity(s.pending);
    return room && (!with_pending || words.reserve(pending, SequenceSpans::pending_words(s, end)));
  };
  return fits(true) || (s.publishes && fits(false));
}

Result<Admission> KVCacheManager::admit(SequenceId id, std::int64_t num_tokens,
                                        const ReserveOptions& chunks) const {
  KVFOLIO_RETURN_IF_MOVED("admit");
  const Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  KVFOLIO_RETURN_IF_ERROR(m.check_chunks("admit", chunks));
  Admission admission;
  if (chunks.most_per_step > 0) {
    const Result<Promises::Offer> offer = m.offer(row, "admit", num_tokens, chunks);
    if (!offer) return offer.error();
    admission.blocks = offer->ready;
    return admission;
  }
  KVFOLIO_RETURN_IF_ERROR(m.check_ready(row, "admit"));
  const Sequence& s = m.rows_[row];
  KVFOLIO_RETURN_IF_ERROR(m.check_growth(s, "admit", num_tokens));
  if (num_tokens == 0) return admission;
  const auto end = static_cast<std::int32_t>(s.length + num_tokens);
  Room::Needs needs;
  std::array<std::int32_t, kMaxGroups> copies;
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    const auto at = static_cast<std::size_t>(g);
    const Demand needed =
        m.append_rules_.demand_in_room(row, g, s.length + (s.replay ? 1 : 0), end);
    admission.blocks[at] = needed.blocks;
    copies[at] = needed.copies;
    needs.blocks[at] = needed.blocks - needed.ready;
  }
  const Room::Plan plan = m.blocks_.plan(needs);
  if (!plan.fits()) {
    const std::int32_t g = plan.short_of;
    return m.shortage(plan, m.num_kept(row, g), copies[static_cast<std::size_t>(g)]);
  }
  if (m.would_fit(row, end)) return admission;
  return m.spans_.full("admit", m.spans_.words_for(s, end));
}

}  // namespace kvfolio
