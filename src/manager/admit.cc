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
  Status answer = plan.fits() ? Status() : m.shortage(plan);
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

Shortage KVCacheManager::Impl::shortage_behind(const Room::Plan& plan,
                                               const Revived& held) const noexcept {
  Shortage s = shortage(plan);
  const std::int32_t from_free = std::min(s.free, held.cost);
  s.needed -= held.cached + held.cost;
  s.free -= from_free;
  s.evictable -= held.cached + held.cost - from_free;
  s.retiring -= held.retiring;
  s.pinned += held.cached + held.retiring + held.cost;
  s.reserved += held.cost;
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
  Prospect s{{}, false, SpanTrial(arena()), 0, {}};
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
  }
  if (!fits_promises(s.match, size) || !would_hold(s)) s.match = {};
  return s;
}

Result<Admission> KVCacheManager::admit(std::span<const std::int32_t> tokens,
                                        const OpenOptions& options, std::int64_t num_more) const {
  KVFOLIO_RETURN_IF_MOVED("admit");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_prospect(tokens, options, num_more));
  const Result<Impl::Prospect> opened = m.prospect_of(tokens, options);
  if (!opened) return opened.error();
  const PrefixMatch& match = opened->match;
  Admission admission;
  admission.cached_tokens = match.tokens;
  const std::int64_t count = static_cast<std::int64_t>(tokens.size()) - match.tokens + num_more;
  if (count == 0) return admission;
  KVFOLIO_RETURN_IF_ERROR(m.check_step("admit"));
  KVFOLIO_RETURN_IF_ERROR(check_growth("admit", count, match.tokens, options.max_tokens));

  const std::int32_t write_begin = match.held_tokens();
  const auto end = static_cast<std::int32_t>(match.tokens + count);
  Room::Needs needs;
  std::array<Revived, kMaxGroups> revived;
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    Revived& held = revived[static_cast<std::size_t>(g)];
    held = m.revived_by(match, g);
    Demand needed = m.append_rules_.demand_behind_hit(g, held.last, write_begin, end);
    const bool is_short = !m.blocks_.has_room(g, needed.blocks + held.cached + held.cost);
    if (needed.can_reuse && is_short) needed.do_without_a_copy();
    admission.blocks[static_cast<std::size_t>(g)] = needed.blocks;
    needs.blocks[static_cast<std::size_t>(g)] = needed.blocks + held.cached + held.cost;
  }
  const Room::Plan plan = m.blocks_.plan(needs);
  if (!plan.fits()) {
    return m.shortage_behind(plan, revived[static_cast<std::size_t>(plan.short_of)]);
  }
  if (m.would_fit(*opened, end)) return admission;
  const std::int64_t words =
      m.spans_.table_words(end) + (opened->publishes ? end - m.spans_.kept_tokens(match) : 0);
  return m.spans_.full("admit", words);
}

}  // namespace kvfolio
