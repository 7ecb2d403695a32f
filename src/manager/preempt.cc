// SPDX-License-Identifier: Apache-2.0
//
// Which sequence makes room when the pool has to get emptier. Victims (victims.h) finds it, among
// sequences as RankedRows says they rank.

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::touch(SequenceId id) {
  KVFOLIO_RECORDED(kTouch, touch(id), id);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  if (m.rows_[row].step_entry < 0) m.victims_.note_use(row);
  return {};
}

Status KVCacheManager::set_priority(SequenceId id, std::int32_t priority) {
  KVFOLIO_RECORDED(kSetPriority, set_priority(id, priority), id, priority);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  m.details(row).priority = priority;
  m.victims_.note_change(row);
  return {};
}

// ---- what Victims asks ----

namespace {

bool is_policy(VictimPolicy policy) {
  return policy >= VictimPolicy::kLru && policy <= VictimPolicy::kLowestPriority;
}

}  // namespace

const char* to_string(VictimPolicy policy) noexcept {
  switch (policy) {
    case VictimPolicy::kLru:
      return "lru";
    case VictimPolicy::kLfu:
      return "lfu";
    case VictimPolicy::kLongest:
      return "longest";
    case VictimPolicy::kLowestPriority:
      return "lowest priority";
  }
  return "unknown";
}

// Requires: the sequence is open still.
void KVCacheManager::Impl::note_ended(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  EndedSequence ended{rows_.id_of(s)};
  if (s.has_caller_id) ended.caller_id = details(row).caller_id;
  ended_.add(ended);
}

RankedRows KVCacheManager::Impl::ranked_by(VictimPolicy policy) const noexcept {
  return {rows_, tables_, blocks_, promises_, victims_, num_groups(), policy};
}

// ---- choosing and preempting ----

std::optional<SequenceId> KVCacheManager::select_victim(std::optional<VictimPolicy> chosen) {
  KVFOLIO_RECORDED(kSelectVictim, select_victim(chosen), chosen);
  Impl& m = *impl_;
  const VictimPolicy policy = chosen.value_or(m.options_.victim_policy);
  if (!is_policy(policy)) return std::nullopt;
  const std::int32_t row = m.victims_.select(policy, m.ranked_by(policy));
  if (row == Victims::kNoRow) return std::nullopt;
  return m.rows_.id_of(m.rows_[row]);
}

// The victims of a large pool lie all over its memory: what the next ones need is asked for while
// this one ends.
void KVCacheManager::Impl::prefetch_victims(std::int32_t row) const noexcept {
  const Victims::Soon soon = victims_.soon();
  if (soon.next == Victims::kNoRow) return;
  const Sequence& now = rows_[row];
  if (now.place.valid()) tree_->prefetch_ends(now.place);
  const Sequence& next = rows_[soon.next];
  if (next.place.valid()) tree_->prefetch(next.place);
  arena().prefetch(next.pending);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    blocks_.prefetch_release(g, table(soon.next, g).blocks(arena()));
  }
  for (const std::int32_t then : soon.then) {
    if (then == Victims::kNoRow) break;
    rows_.prefetch(then);
    victims_.prefetch(then);
    for (std::int32_t g = 0; g < num_groups(); ++g) table(then, g).prefetch(arena());
  }
}

Result<std::span<const EndedSequence>> KVCacheManager::preempt_to(
    double target, std::optional<VictimPolicy> chosen) {
  KVFOLIO_RECORDED(kPreemptTo, preempt_to(target, chosen), target, chosen);
  Impl& m = *impl_;
  const VictimPolicy policy = chosen.value_or(m.options_.victim_policy);
  if (!(target >= 0.0 && target <= 1.0)) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("preempt_to ", std::to_string(target), ", allowed: 0 to 1"));
  }
  if (!is_policy(policy)) {
    return Status(
        ErrorCode::kInvalidArgument,
        concat("preempt_to: policy ", static_cast<std::int32_t>(policy), ", allowed: 0 to 3"));
  }
  const RankedRows rows = m.ranked_by(policy);
  m.ended_.clear();
  if (m.utilization() > target) m.victims_.rank(rows);
  while (m.utilization() > target) {
    const std::int32_t row = m.victims_.next(rows);
    if (row == Victims::kNoRow) break;
    if (!m.ended_.list().empty()) m.prefetch_victims(row);  // one that goes alone has no next
    // Blocks that it shares may be another's alone when it is gone: then the sequences that were
    // passed over are asked again.
    const bool shared = rows.shares_a_block(row);
    const SequenceId id = m.rows_.id_of(m.rows_[row]);
    m.note_ended(row);
    const Status gone = preempt(id);
    KVFOLIO_CHECK(gone.ok());  // it is open and rests
    if (shared) m.victims_.restore_passed_over();
  }
  return m.ended_.list();
}

}  // namespace kvfolio
