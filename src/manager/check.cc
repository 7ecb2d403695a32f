// SPDX-License-Identifier: Apache-2.0
//
// check_invariants: references, writers, memory and lists counted again from every table, pin and
// step; states held against the tree and the order of eviction. It writes nothing, and takes no
// heap memory unless something is broken: so references are compared as sums (member_sum.h).

#include <algorithm>

#include "base/member_sum.h"
#include "manager/impl.h"

namespace kvfolio {

namespace {

using text::concat;

Status broken(const std::string& what) {
  return {ErrorCode::kFailedPrecondition, "manager: " + what};
}

}  // namespace

// Reads all of a manager; each of these answers with the first thing that is broken.
class KVCacheManager::Impl::Checker {
 public:
  explicit Checker(const Impl& m) noexcept : m_(m) {}

  [[nodiscard]] Status all() const;

 private:
  [[nodiscard]] Status nouns() const;
  [[nodiscard]] Status ownership() const;
  [[nodiscard]] Status announcements() const;
  [[nodiscard]] Status lengths() const;
  [[nodiscard]] Status counters() const;
  // The next ones look at one group.
  [[nodiscard]] Status writers(std::int32_t g) const;
  [[nodiscard]] Status references(std::int32_t g) const;
  [[nodiscard]] Status states(std::int32_t g) const;
  [[nodiscard]] Status borders(std::int32_t g) const;
  [[nodiscard]] Status loads(std::int32_t g) const;
  [[nodiscard]] Status serials(std::int32_t g) const;
  template <typename Visit>
  void for_each_reference(std::int32_t g, const Visit& visit) const;

  const Impl& m_;
};

// Every row, caller id and span of the arena has exactly one owner.
Status KVCacheManager::Impl::Checker::ownership() const {
  KVFOLIO_RETURN_IF_ERROR(m_.rows_.check());
  std::int32_t named = 0;
  std::int64_t words = m_.arena().free_words();
  for (std::int32_t row = 0; row < m_.rows_.size(); ++row) {
    const Sequence& s = m_.rows_[row];
    const SequenceDetails& d = m_.details(row);
    words += m_.tables_.words_of(row);
    if (s.life == Life::kUnused) continue;
    words += SpanArena::capacity(s.pending) + SpanArena::capacity(d.media);
    if (s.publishes && s.pending_end() - s.place.position > SpanArena::capacity(s.pending)) {
      return broken(concat("sequence ", row, " has no room for its unpublished tokens"));
    }
    const std::int64_t kept = s.publishes && s.place.position > 0 ? m_.tree_->unit() : 0;
    if (s.life == Life::kOpen && kept > SpanArena::capacity(s.pending)) {
      return broken(concat("sequence ", row, " lacks room for a unit of tokens"));
    }
    for (std::int32_t g = 0; g < m_.num_groups() && s.life == Life::kOpen; ++g) {
      if (m_.blocks_for(g, d.admitted) <= m_.table(row, g).capacity()) continue;
      return broken(concat("sequence ", row, " lacks table entries, admitted to ", d.admitted));
    }
    const bool in_step = s.step_entry >= 0 && m_.steps_.is_open() &&
                         s.step_entry < m_.steps_.open().num_entries &&
                         m_.steps_.open().entries[s.step_entry].row == row &&
                         m_.steps_.open().entries[s.step_entry].birth == s.birth;
    if (s.step_entry >= 0 && !in_step) {
      return broken(concat("sequence ", row, " is not entry ", s.step_entry, " of the open step"));
    }
    KVFOLIO_RETURN_IF_ERROR(
        m_.unnamed_.check(m_.steps_, {row, s.birth}, s.late_names,
                          in_step ? m_.steps_.open().entries[s.step_entry].unnamed : 0));
    if (s.unnamed_from != m_.unnamed_.first(row)) {
      return broken(concat("sequence ", row, ": its first unnamed token is at ",
                           m_.unnamed_.first(row), ", it has ", s.unnamed_from));
    }
    KVFOLIO_RETURN_IF_ERROR(m_.drafts_.check(
        row, s.accepted, in_step ? m_.steps_.open().entries[s.step_entry].begin : s.length));
    if (s.life != Life::kOpen || !s.has_caller_id) continue;
    ++named;
    if (m_.caller_ids_.find(d.caller_id) != row) {
      return broken(concat("caller_id ", d.caller_id, " does not find sequence ", row));
    }
  }
  KVFOLIO_RETURN_IF_ERROR(m_.caller_ids_.check());
  if (named != m_.caller_ids_.size()) {
    return broken("the table of caller ids names sequences that are not open");
  }
  KVFOLIO_RETURN_IF_ERROR(m_.pins_.check());
  m_.pins_.for_each_open([&](std::int32_t pin) {
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) words += m_.pins_.table(pin, g).capacity();
  });
  words += m_.transfers_.words();
  if (words != m_.arena().num_words()) {
    return broken(
        concat("the table arena has ", m_.arena().num_words(), " words, counted ", words));
  }
  std::size_t num_used = 0;  // rows without a sequence that a step uses
  for (std::int32_t row = 0; row < m_.rows_.size(); ++row) {
    num_used += m_.rows_[row].life == Life::kUnused && m_.row_is_used(row) ? 1 : 0;
  }
  for (const std::int32_t row : m_.rows_.resting()) {
    if (!m_.row_is_used(row)) return broken(concat("row ", row, " waits for no step"));
  }
  if (num_used != m_.rows_.resting().size()) {
    return broken(concat(num_used, " rows without a sequence are in use, ",
                         m_.rows_.resting().size(), " wait"));
  }
  return {};
}

// The blocks of a group that may be appended to in place, by writers that hold them, are all that
// have a writer; and every token that a sequence counts is valid.
Status KVCacheManager::Impl::Checker::writers(std::int32_t g) const {
  const BlockPool& pool = m_.blocks_.pool(g);
  std::int32_t writers = 0;
  for (std::int32_t b = 0; b < pool.num_blocks(); ++b) {
    writers += pool.writer(BlockId(b)) != BlockPool::kNobody ? 1 : 0;
  }
  for (std::int32_t row = 0; row < m_.rows_.size(); ++row) {
    const Sequence& s = m_.rows_[row];
    if (s.life != Life::kOpen) continue;
    const auto blocks = m_.table(row, g).blocks(m_.arena());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] < 0) continue;
      const auto begin = static_cast<std::int32_t>(i) * m_.block_size(g);
      const std::int32_t tokens = std::min(m_.block_size(g), s.length + (s.replay ? 1 : 0) - begin);
      const BlockId block(blocks[i]);
      writers -= pool.writer(block) == row ? 1 : 0;
      if (pool.valid(block) < tokens) {
        return broken(concat("group ", g, " block ", block.value(), " has ", pool.valid(block),
                             " valid tokens, sequence ", row, " counts ", tokens));
      }
    }
    if (s.step_entry < 0) continue;
    const std::int32_t source = m_.steps_.open().change(s.step_entry, g).source;
    writers -= source >= 0 && pool.writer(BlockId(source)) == row ? 1 : 0;
  }
  if (writers == 0) return {};
  return broken(
      concat("group ", g, ": ", writers, " blocks have a writer that does not hold them"));
}

// A sequence announces what it has not published, up to where all groups have full blocks.
Status KVCacheManager::Impl::Checker::announcements() const {
  const Announcements& announced = m_.announcements_;
  for (std::int32_t row = 0; row < m_.rows_.size(); ++row) {
    const Sequence& s = m_.rows_[row];
    if (s.announces != announced.is_open(row) || (s.announces && s.life != Life::kOpen)) {
      return broken(concat("row ", row, s.announces ? " says" : " does not say",
                           " that it announces tokens"));
    }
    if (!s.announces) continue;
    if (s.publishes && announced.begin(row) == m_.publisher_.findable_of(s.place.position))
      continue;
    return broken(concat("sequence ", row, ", published to ", s.place.position, ", announces from ",
                         announced.begin(row), " on"));
  }
  return announced.check();
}

// The sequences count no more than they may, and their tables have the blocks for that.
Status KVCacheManager::Impl::Checker::lengths() const {
  for (std::int32_t row = 0; row < m_.rows_.size(); ++row) {
    const Sequence& s = m_.rows_[row];
    if (s.life == Life::kUnused) continue;
    if (s.accepted > s.length || (s.publishes && s.place.position > s.accepted)) {
      return broken(concat("sequence ", row, ": length ", s.length, ", accepted ", s.accepted,
                           ", published ", s.place.position));
    }
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      const std::int32_t blocks = m_.table(row, g).size();
      const std::int32_t needed = m_.blocks_for(g, s.length + (s.replay ? 1 : 0));
      if (blocks != needed) {
        return broken(concat("sequence ", row, " of ", s.length, " tokens has ", blocks,
                             " blocks in group ", g));
      }
    }
  }
  return {};
}

// Calls visit(block) for each reference to a block of the group.
template <typename Visit>
void KVCacheManager::Impl::Checker::for_each_reference(std::int32_t g, const Visit& visit) const {
  const auto visit_table = [&](const BlockTable& table) {
    for (const std::int32_t block : table.blocks(m_.arena())) {
      if (block >= 0) visit(block);
    }
  };
  if (m_.blocks_.pool(g).has_null_block()) visit(0);  // without an owner
  const auto visit_sources = [&](const Step& step) {
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      const std::int32_t source = step.change(i, g).source;
      if (source >= 0) visit(source);
    }
  };
  for (std::int32_t row = 0; row < m_.rows_.size(); ++row) {
    if (m_.rows_[row].life == Life::kOpen) visit_table(m_.table(row, g));
    if (m_.promises_.has(row)) {
      m_.promises_.reservations().for_each_ready(row, g,
                                                 [&](BlockId block) { visit(block.value()); });
    }
  }
  m_.pins_.for_each_open([&](std::int32_t pin) { visit_table(m_.pins_.table(pin, g)); });
  m_.transfers_.for_each_load(
      [&](std::int32_t load) { visit_table(m_.transfers_.table(load, g)); });
  m_.transfers_.for_each_hold([&](std::int32_t hold) {
    if (m_.transfers_.group_of(hold) == g) visit_table(m_.transfers_.held(hold));
  });
  for (std::int32_t i = 0; i < m_.steps_.num_in_flight(); ++i)
    visit_sources(m_.steps_.in_flight(i));
  if (m_.steps_.is_open()) visit_sources(m_.steps_.open());
}

// Each block has as many references as tables, pins, transfers and steps name it.
Status KVCacheManager::Impl::Checker::references(std::int32_t g) const {
  const BlockPool& pool = m_.blocks_.pool(g);
  MemberSum kept;
  MemberSum counted;
  for (std::int32_t b = 0; b < pool.num_blocks(); ++b) kept.add(b, pool.refs(BlockId(b)));
  for_each_reference(g, [&](std::int32_t block) { counted.add(block); });
  if (kept == counted) return {};
  // Something is broken. Which block it is costs a count of each one alone.
  for (std::int32_t b = 0; b < pool.num_blocks(); ++b) {
    std::int32_t references = 0;
    for_each_reference(g, [&](std::int32_t block) { references += block == b ? 1 : 0; });
    if (pool.refs(BlockId(b)) == references) continue;
    return broken(concat("group ", g, " block ", b, " has ", pool.refs(BlockId(b)),
                         " references, counted ", references));
  }
  return broken(concat("group ", g, " has references to blocks beyond ", pool.num_blocks()));
}

// No block keeps the rank of a border that has moved on. What is hung at the place of a border
// later is not counted (borders.h), so there may be fewer.
Status KVCacheManager::Impl::Checker::borders(std::int32_t g) const {
  if (!m_.windowed(g)) return {};
  std::int64_t counted = 0;
  for (std::int32_t b = 0; b < m_.blocks_.pool(g).num_blocks(); ++b) {
    counted += m_.blocks_.room().num_borders(g, BlockId(b));
  }
  std::int64_t most = 0;
  for (const std::int32_t row : m_.rows_.open()) {
    const Border& border = m_.tables_.border(row, g);
    for (std::int32_t logical = border.first; logical < border.end; ++logical) {
      most += m_.tree_->entry_at(m_.rows_[row].place, GroupId(g), logical).valid() ? 1 : 0;
    }
  }
  if (counted <= most) return {};
  return broken(concat("group ", g, ": ", counted, " blocks count as borders, ", most, " are"));
}

// A load and the sequence that waits for it name each other; the blocks that it waits for are its
// alone and empty.
Status KVCacheManager::Impl::Checker::loads(std::int32_t g) const {
  Status answer;
  std::int32_t attached = 0;
  m_.transfers_.for_each_load([&](std::int32_t number) {
    const Transfers::Load& load = m_.transfers_.load(number);
    const BlockTable& blocks = m_.transfers_.table(number, g);
    const auto complain = [&](const std::string& what) {
      if (answer.ok()) answer = broken(concat("load ", number, ", group ", g, ": ", what));
    };
    if (load.row != Transfers::kNone) {
      ++attached;
      const Sequence& s = m_.rows_[load.row];
      if (s.life != Life::kOpen || !s.has_load || m_.details(load.row).load != number ||
          s.length != load.begin || m_.promises_.has(load.row) || s.step_entry >= 0) {
        complain(concat("sequence ", load.row, " does not wait for it"));
      }
    }
    if (blocks.size() != m_.blocks_for(g, load.end) - m_.block_of(g, load.begin)) {
      complain(
          concat("it has ", blocks.size(), " blocks for positions ", load.begin, " to ", load.end));
    }
    std::int32_t waiting = 0;
    for (const std::int32_t b : blocks.blocks(m_.arena())) {
      const BlockId block(b);
      if (b < 0 || m_.blocks_.pool(g).valid(block) != 0) continue;
      ++waiting;
      if (m_.blocks_.pool(g).refs(block) != 1 ||
          m_.blocks_.pool(g).writer(block) != BlockPool::kNobody ||
          m_.tree_->is_findable(GroupId(g), block)) {
        complain(concat("block ", b, " is in use"));
      }
    }
    if (waiting != m_.transfers_.num_waiting(number, g)) {
      complain(concat("it waits for ", waiting, " blocks, counted ",
                      m_.transfers_.num_waiting(number, g)));
    }
  });
  for (const std::int32_t row : m_.rows_.open()) attached -= m_.rows_[row].has_load ? 1 : 0;
  if (answer.ok() && attached != 0) answer = broken("a sequence waits for a load that is not open");
  return answer;
}

// The list of what became findable has a serial for each entry of the tree.
Status KVCacheManager::Impl::Checker::serials(std::int32_t g) const {
  for (std::int32_t b = 0; m_.blocks_.findable().is_on() && b < m_.blocks_.pool(g).num_blocks();
       ++b) {
    const bool has_serial = m_.blocks_.findable().serial(g, b) != 0;
    if (has_serial == m_.tree_->is_findable(GroupId(g), BlockId(b))) continue;
    return broken(concat("group ", g, " block ", b, has_serial ? " has" : " lacks",
                         " a serial of its entry"));
  }
  return {};
}

// The tree and the writers agree with the state of each block.
Status KVCacheManager::Impl::Checker::states(std::int32_t g) const {
  const BlockPool& pool = m_.blocks_.pool(g);
  for (std::int32_t b = 0; b < pool.num_blocks(); ++b) {
    const BlockId block(b);
    const bool findable = m_.tree_->is_findable(GroupId(g), block);
    const BlockState state = pool.state(block);
    if (state == BlockState::kCached && !findable) {
      return broken(concat("group ", g, " block ", b, " is cached and not findable"));
    }
    if (state == BlockState::kFree && findable) {
      return broken(concat("group ", g, " block ", b, " is free and findable"));
    }
    // In a window group each cached block is a candidate, and nothing but itself says when it goes.
    if (m_.windowed(g) && state == BlockState::kCached &&
        m_.blocks_.room().turn(g, block) != m_.blocks_.turn_of(g, block, Candidate::kLeaf)) {
      return broken(
          concat("group ", g, " block ", b, " leaves in turn ",
                 static_cast<std::int32_t>(m_.blocks_.room().turn(g, block)), ", its turn is ",
                 static_cast<std::int32_t>(m_.blocks_.turn_of(g, block, Candidate::kLeaf))));
    }
    const std::int32_t first_position_behind =
        m_.tree_->findable_end(GroupId(g), block) % m_.block_size(g);
    if (findable && pool.valid(block) < first_position_behind) {
      return broken(concat("group ", g, " block ", b, " is findable beyond its valid tokens"));
    }
    const std::int32_t writer = pool.writer(block);
    if (writer >= 0 && (state != BlockState::kHeld || m_.rows_[writer].life == Life::kUnused)) {
      return broken(concat("group ", g, " block ", b, " has the writer ", writer,
                           ", which does not hold it"));
    }
  }
  if (m_.tree_->num_idle(GroupId(g)) != pool.num_cached()) {
    return broken(concat("group ", g, ": ", pool.num_cached(), " blocks are cached, ",
                         m_.tree_->num_idle(GroupId(g)), " entries idle"));
  }
  return {};
}

// The counters agree with the pools.
Status KVCacheManager::Impl::Checker::counters() const {
  const std::uint64_t held = m_.blocks_.room().num_held();
  if (held > m_.counters_.blocks_used_peak) {
    return broken(concat(held, " blocks are held, the peak is ", m_.counters_.blocks_used_peak));
  }
  std::int64_t not_free = 0;
  for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
    not_free += m_.blocks_.pool(g).num_usable() - m_.blocks_.pool(g).num_free();
  }
  const auto balance =
      static_cast<std::int64_t>(m_.counters_.blocks_allocated - m_.counters_.blocks_freed);
  if (balance == not_free) return {};
  return broken(concat(m_.counters_.blocks_allocated, " blocks allocated and ",
                       m_.counters_.blocks_freed, " freed, but ", not_free, " are not free"));
}

Status KVCacheManager::Impl::Checker::nouns() const {
  KVFOLIO_RETURN_IF_ERROR(m_.tree_->check_invariants());
  KVFOLIO_RETURN_IF_ERROR(m_.blocks_.check());
  KVFOLIO_RETURN_IF_ERROR(m_.steps_.check());
  KVFOLIO_RETURN_IF_ERROR(m_.tables_.check());
  return m_.transfers_.check();
}

Status KVCacheManager::Impl::Checker::all() const {
  KVFOLIO_RETURN_IF_ERROR(nouns());
  KVFOLIO_RETURN_IF_ERROR(ownership());
  KVFOLIO_RETURN_IF_ERROR(m_.victims_.check(m_.rows_.open()));
  KVFOLIO_RETURN_IF_ERROR(announcements());
  KVFOLIO_RETURN_IF_ERROR(lengths());
  for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
    KVFOLIO_RETURN_IF_ERROR(writers(g));
    KVFOLIO_RETURN_IF_ERROR(references(g));
    KVFOLIO_RETURN_IF_ERROR(states(g));
    KVFOLIO_RETURN_IF_ERROR(borders(g));
    KVFOLIO_RETURN_IF_ERROR(loads(g));
    KVFOLIO_RETURN_IF_ERROR(serials(g));
  }
  KVFOLIO_RETURN_IF_ERROR(m_.promises_.check());
  return counters();
}

Status KVCacheManager::check_invariants() const {
  KVFOLIO_RETURN_IF_MOVED("check_invariants");
  return Impl::Checker(*impl_).all();
}

}  // namespace kvfolio
