// SPDX-License-Identifier: Apache-2.0
//
// Loads: appends whose bytes come from elsewhere. The sequence keeps its length and its tables
// until the load is finished, so close, preempt, fail and truncate need not know what a load holds:
// they let go of it (leave_load()), and its blocks stay with the load (transfers.h). LoadBlocks
// says which blocks a load takes.

#include <algorithm>
#include <array>

#include "base/joint_hit.h"
#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

// ---- what a load needs ----

// adopt() and begin_load() give a sequence blocks beside those that lie ready for it.
Status KVCacheManager::Impl::check_no_promise(std::int32_t row, std::string_view what) const {
  if (!promises_.has(row)) return {};
  return {ErrorCode::kFailedPrecondition,
          concat(what, ": ", promises_.tokens(row), " tokens are reserved for ", name_of(row),
                 "; reserve() 0 first, or after it")};
}

// The sequence may get tokens that no step computes. `end`: of them.
Status KVCacheManager::Impl::check_load(std::int32_t row, std::string_view what,
                                        std::span<const std::int32_t> prompt,
                                        std::int64_t end) const {
  KVFOLIO_RETURN_IF_ERROR(check_growing(row, what));
  KVFOLIO_RETURN_IF_ERROR(check_decided(row, what));
  const Sequence& s = rows_[row];
  if (s.unnamed_from != kNever) {
    return {ErrorCode::kFailedPrecondition,
            concat(what, ": token ", s.unnamed_from, " of ", name_of(row),
                   " has no name; set_tokens() first")};
  }
  if (s.exact_until != kNever) {
    return {ErrorCode::kFailedPrecondition,
            concat(what, ": the tokens of ", name_of(row), " from ", s.exact_until,
                   " on are not those that a prompt would have (trim, adopt, a cut media span)")};
  }
  KVFOLIO_RETURN_IF_ERROR(check_tokens(what, prompt, arena(), rows_.id_of(s)));
  if (end < s.length || end > static_cast<std::int64_t>(prompt.size())) {
    return {ErrorCode::kInvalidArgument,
            concat(what, " up to ", end, ", allowed: the length, ", s.length, ", to the prompt's ",
                   prompt.size(), " tokens")};
  }
  if (runs_with(row, prompt)) return {};
  return {ErrorCode::kInvalidArgument, concat(what, ": the prompt's first ", s.length,
                                              " tokens are not those of ", name_of(row))};
}

// The sequence's tokens, as far as it keeps them, begin this prompt.
bool KVCacheManager::Impl::runs_with(std::int32_t row,
                                     std::span<const std::int32_t> prompt) const noexcept {
  const Sequence& s = rows_[row];
  if (!s.publishes) return true;
  const auto on_tree = static_cast<std::size_t>(s.place.position);
  const auto kept = static_cast<std::size_t>(s.length - s.place.position);
  return tree_->begins_with(s.place, tree_->root_of(s.place), prompt.first(on_tree),
                            spans_.media_of(s)) &&
         std::equal(prompt.begin() + s.place.position, prompt.begin() + s.length,
                    arena().at(s.pending), arena().at(s.pending) + kept);
}

// What the cache has of the prompt behind the sequence's length, for all groups together.
PrefixMatch KVCacheManager::Impl::hit_behind(std::int32_t row,
                                             std::span<const std::int32_t> prompt) const noexcept {
  const Sequence& s = rows_[row];
  if (!s.publishes) return {};  // it has left its root
  const auto size = static_cast<std::int32_t>(prompt.size());
  const PrefixMatch hit =
      tree_->match(tree_->root_of(s.place), prompt, spans_.media_of(s), size, false);
  return hit.tokens > s.length && fits_promises(hit, size) ? hit : PrefixMatch{};
}

// Why the blocks cannot be had; ok if they can.
Status KVCacheManager::Impl::check_room(const LoadPlan& plan) const {
  Room::Needs needs = plan.fresh;
  std::array<Revived, kMaxGroups> revived;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    Revived& held = revived[static_cast<std::size_t>(g)];
    held = load_blocks_.revived_by(plan, g);
    needs.blocks[static_cast<std::size_t>(g)] += held.cached + held.cost;
  }
  const Room::Plan room = blocks_.plan(needs);
  if (room.fits()) return {};
  // A full group holds all of it at the end; a window group a part, which may be found another
  // time.
  const std::int32_t g = room.short_of;
  const std::int32_t least = windowed(g) ? 0 : blocks_for(g, plan.end);
  return shortage_behind(room, revived[static_cast<std::size_t>(g)], least);
}

// ---- blocks change hands ----

// The sequence has the tokens up to `end`, whose blocks are in its tables. Requires: `tokens` are
// those behind its length, and there is room for them.
void KVCacheManager::Impl::grow_without_step(std::int32_t row, std::int32_t end,
                                             const std::int32_t* tokens,
                                             const Transfers::Prompt& prompt) noexcept {
  Sequence& s = rows_[row];
  prompts_.note_loaded(row, end, prompt);
  if (s.announces) follow_announcement(row, s.length, tokens, end - s.length, 0);
  if (s.publishes) {
    std::copy_n(tokens, end - s.length, arena().at(s.pending) + (s.length - s.place.position));
  }
  SequenceDetails& d = details(row);
  s.length = s.accepted = d.settled = d.rewind_base = end;
  s.replay = false;
  s.used = true;
  victims_.note_change(row);
  publisher_.publish(row, false);
  table_blocks_.move_windows(row);
}

// The sequence gets what the cache has. Requires: the hits are held.
void KVCacheManager::Impl::take_hit(std::int32_t row, std::span<const std::int32_t> prompt,
                                    LoadPlan& plan) noexcept {
  const std::int32_t length = rows_[row].length;
  if (plan.begin == length) return;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const auto hits =
        std::as_const(plan.hits[static_cast<std::size_t>(g)]).blocks(std::as_const(*this).arena());
    table_blocks_.replace(row, g, block_of(g, length), hits);
  }
  table_blocks_.note_hit(row, plan.begin);
  grow_without_step(row, plan.begin, prompt.data() + length, plan.prompt);
}

// ---- begin ----

Result<Load> KVCacheManager::begin_load(SequenceId id, std::span<const std::int32_t> prompt,
                                        std::int32_t end) {
  KVFOLIO_RECORDED(kBeginLoad, begin_load(id, prompt, end), id, prompt, end);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  KVFOLIO_RETURN_IF_ERROR(m.check_no_promise(row, "begin_load"));
  KVFOLIO_RETURN_IF_ERROR(m.check_load(row, "begin_load", prompt, end));
  const Sequence& s = m.rows_[row];
  KVFOLIO_RETURN_IF_ERROR(m.check_growth(s, "begin_load", end - s.length));
  if (m.spans_.cut_span(s, end) != Impl::kNever) {
    return Status(
        ErrorCode::kInvalidArgument,
        concat("begin_load up to ", end, ": a media span that attends to itself begins at ",
               m.spans_.cut_span(s, end), " and ends behind it"));
  }
  if (end == s.length) return Load{{}, end, end};
  return m.begin_load(row, prompt, end);
}

Result<Load> KVCacheManager::Impl::begin_load(std::int32_t row, std::span<const std::int32_t> whole,
                                              std::int32_t end) {
  const auto prompt = whole.first(static_cast<std::size_t>(end));
  LoadPlan plan;
  plan.load = transfers_.next_load();
  if (plan.load == Transfers::kNone) {
    return Status(ErrorCode::kResourceExhausted,
                  concat("begin_load: all ", options_.max_transfers,
                         " loads are open; finish one or raise max_transfers"));
  }
  plan.end = end;
  plan.hit = hit_behind(row, prompt);
  plan.begin = std::max(rows_[row].length, plan.hit.tokens);
  const bool has_spans = spans_.grow(row, plan.end, true) &&
                         load_blocks_.lay_out(row, whole, spans_.media_of(rows_[row]), plan);
  Status status = has_spans ? check_room(plan)
                            : spans_.full("begin_load", 2 * spans_.words_for(rows_[row], plan.end));
  if (!status.ok()) {
    load_blocks_.drop(plan);
    spans_.shrink_to_need(row);
    return status;
  }
  // Nothing fails from here on.
  SequenceDetails& d = details(row);
  d.admitted = std::max(d.admitted, plan.end);  // the room stays
  plan.prompt = prompts_.behind(row, whole);
  load_blocks_.hold(plan);
  take_hit(row, prompt, plan);
  load_blocks_.take(plan);
  for (BlockTable& hits : plan.hits) hits.release(arena());
  blocks_.note_peak();
  if (plan.begin == plan.end) {
    transfers_.release_spans(plan.load, arena());
    return Load{{}, plan.end, plan.end};
  }
  Transfers::Load& load = transfers_.load(plan.load);
  load.row = row;
  load.begin = plan.begin;
  load.end = load.sound_end = plan.end;
  load.prompt = plan.prompt;
  if (SpanArena::capacity(load.tokens) > 0) {
    std::copy(prompt.begin() + plan.begin, prompt.end(), arena().at(load.tokens));
  }
  rows_[row].has_load = true;
  d.load = plan.load;
  const LoadId id = transfers_.take_load();
  if (mutant(Mutant::kLoadFindableAtBegin)) hand_over(plan.load, plan.end);
  return Load{id, plan.begin, plan.end};
}

// ---- while it is open ----

Status KVCacheManager::Impl::find_load(LoadId id, std::int32_t& load) const {
  load = transfers_.find(id);
  if (load != Transfers::kNone) return {};
  if (!id.valid()) return {ErrorCode::kNotFound, "the id names no load"};
  return {ErrorCode::kNotFound,
          concat(to_string(id), " is finished, of another manager, or was never given out")};
}

Status KVCacheManager::Impl::check_no_load(std::int32_t row, std::string_view what) const {
  if (!rows_[row].has_load) return {};
  return {ErrorCode::kFailedPrecondition,
          concat(what, ": ", to_string(transfers_.load_id(details(row).load)), " of ", name_of(row),
                 " is open; finish_load() first")};
}

// The sequence is about to end, or to lose tokens that stand in front of the load's.
void KVCacheManager::Impl::leave_load(std::int32_t row) noexcept {
  Sequence& s = rows_[row];
  if (!s.has_load) return;
  const std::int32_t number = details(row).load;
  transfers_.load(number).row = Transfers::kNone;
  s.has_load = false;
  if (mutant(Mutant::kCloseDropsLoad)) load_blocks_.let_go(number);
}

Result<std::int32_t> KVCacheManager::blocks_to_load(LoadId id, GroupId group_id,
                                                    std::span<LoadBlock> out,
                                                    std::int32_t first) const {
  KVFOLIO_RETURN_IF_MOVED("blocks_to_load");
  const Impl& m = *impl_;
  std::int32_t load = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find_load(id, load));
  KVFOLIO_RETURN_IF_ERROR(m.check_group("blocks_to_load", group_id));
  if (first < 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("blocks_to_load from number ", first, ", allowed: 0 and above"));
  }
  const std::int32_t g = group_id.value();
  const std::int32_t begin = m.block_of(g, m.transfers_.load(load).begin);
  const BlockTable& blocks = m.transfers_.table(load, g);
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < blocks.size(); ++i) {
    const BlockId block = blocks.at(m.arena(), i);
    if (!block.valid() || m.blocks_.pool(g).valid(block) != 0) continue;
    const std::int32_t at = count++ - first;
    if (at < 0 || static_cast<std::size_t>(at) >= out.size()) continue;
    out[static_cast<std::size_t>(at)] = {begin + i, block};
  }
  return count;
}

// ---- finish ----

// The load's blocks up to `end` are the sequence's.
void KVCacheManager::Impl::hand_over(std::int32_t number, std::int32_t end) noexcept {
  Transfers::Load& load = transfers_.load(number);
  const std::int32_t row = load.row;
  if (load.unfindable && rows_[row].publishes) publisher_.stop(row);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int32_t size = block_size(g);
    const std::int32_t first = block_of(g, load.begin);
    BlockTable& blocks = transfers_.table(number, g);
    const auto stand = static_cast<std::size_t>(blocks_for(g, end) - first);
    const auto entries = blocks.blocks(arena()).first(stand);
    std::int32_t arrived = 0;
    for (std::size_t i = 0; i < stand; ++i) {
      const BlockId block(entries[i]);
      if (!block.valid() || blocks_.pool(g).valid(block) != 0) continue;
      const std::int32_t tokens = end - (first + static_cast<std::int32_t>(i)) * size;
      blocks_.set_written(g, block,
                          {std::min(size, tokens), tokens < size ? row : BlockPool::kNobody, 0});
      ++arrived;
    }
    transfers_.set_waiting(number, g, transfers_.num_waiting(number, g) - arrived);
    table_blocks_.replace(row, g, first, entries);
    std::fill(entries.begin(), entries.end(), BlockTable::kDropped);
  }
  counters_.tokens_loaded += static_cast<std::uint64_t>(end - load.begin);
  grow_without_step(row, end, arena().at(load.tokens), load.prompt);
}

Result<std::int32_t> KVCacheManager::finish_load(LoadId id, std::int32_t num_tokens) {
  KVFOLIO_RECORDED(kFinishLoad, finish_load(id, num_tokens), id, num_tokens);
  Impl& m = *impl_;
  std::int32_t number = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find_load(id, number));
  const Transfers::Load& load = m.transfers_.load(number);
  const std::int32_t unit = m.tree_->unit();
  const std::int32_t most = load.end - load.begin;
  if (num_tokens < 0 || num_tokens > most ||
      (num_tokens != 0 && num_tokens != most && (load.begin + num_tokens) % unit != 0)) {
    return Status(
        ErrorCode::kInvalidArgument,
        concat("finish_load of ", num_tokens, " tokens behind ", load.begin, ", allowed: 0, ", most,
               ", and what ends at a multiple of ", unit, " between"));
  }
  std::int32_t stands = 0;
  if (load.row != Transfers::kNone) {
    const std::int32_t good_end = std::min(load.begin + num_tokens, load.sound_end);
    const std::int32_t end =
        m.load_blocks_.stands_to(number, good_end, m.spans_.media_of(m.rows_[load.row]));
    stands = end - load.begin;
    m.rows_[load.row].has_load = false;
    if (stands > 0) m.hand_over(number, end);
  }
  m.load_blocks_.let_go(number);
  m.transfers_.release_spans(number, m.arena());
  m.transfers_.give_back_load(number);
  return stands;
}

// ---- how far a load would come ----

Status KVCacheManager::Impl::check_has(std::int32_t limit,
                                       std::span<const std::span<std::uint8_t>> has) const {
  if (has.size() != groups_.size()) {
    return {ErrorCode::kInvalidArgument,
            concat("loadable: ", has.size(), " spans for ", num_groups(), " groups")};
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::size_t size = has[static_cast<std::size_t>(g)].size();
    if (size == static_cast<std::size_t>(blocks_for(g, limit))) continue;
    return {ErrorCode::kInvalidArgument,
            concat("loadable: ", size, " entries for group ", g, ", needed: one for each of the ",
                   blocks_for(g, limit), " blocks of ", limit, " tokens")};
  }
  return {};
}

Result<Loadable> KVCacheManager::loadable(SequenceId id, std::span<const std::int32_t> prompt,
                                          std::int32_t limit,
                                          std::span<const std::span<std::uint8_t>> has) const {
  KVFOLIO_RETURN_IF_MOVED("loadable");
  const Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  KVFOLIO_RETURN_IF_ERROR(m.check_load(row, "loadable", prompt, limit));
  KVFOLIO_RETURN_IF_ERROR(m.check_has(limit, has));
  const Sequence& s = m.rows_[row];
  const auto limited = prompt.first(static_cast<std::size_t>(limit));
  Loadable answer;
  answer.begin = std::max(s.length, m.hit_behind(row, limited).tokens);
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    m.load_blocks_.mark_present(row, prompt, m.spans_.media_of(s), answer.begin, g,
                                has[static_cast<std::size_t>(g)]);
  }
  const auto reach = [&](std::int32_t g, std::int32_t logical) {
    const std::int32_t size = m.block_size(g);
    const auto bits = has[static_cast<std::size_t>(g)][static_cast<std::size_t>(logical)];
    return bits != 0 ? std::min((logical + 1) * size, limit) : logical * size;
  };
  answer.end = std::max(answer.begin,
                        joint_hit(
                            limit, answer.begin, m.spans_.media_of(s), m.num_groups(),
                            [&](std::int32_t g) -> const GroupRule& { return m.group(g).rule; },
                            [&](std::int32_t g) { return m.block_size(g); }, reach));
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    const std::span<std::uint8_t> of = has[static_cast<std::size_t>(g)];
    for (std::size_t i = 0; i < of.size(); ++i) {
      const auto logical = static_cast<std::int32_t>(i);
      const bool waits = answer.end > answer.begin && logical >= m.block_of(g, answer.begin) &&
                         logical < m.blocks_for(g, answer.end) &&
                         (of[i] & LoadBlocks::kPresent) == 0 &&
                         m.load_blocks_.is_read_at(answer.end, g, logical);
      of[i] = waits ? 1 : 0;
      answer.blocks += waits ? 1 : 0;
    }
  }
  return answer;
}

}  // namespace kvfolio
