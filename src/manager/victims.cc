// SPDX-License-Identifier: Apache-2.0
//
// Victims: which sequence is preempted when the pool has to get emptier.
//
// A heap of snapshots, one policy at a time. Steady decode must not pay for it: a use only puts the
// slot on a list, once, and whoever asks for a victim brings the heap up to date. A snapshot is
// good while its version is the slot's, so a changed sequence is pushed again and its old snapshot
// is thrown away when it comes to the top. When much changed, building anew is cheaper.

#include <algorithm>

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::Impl::set_priority(SequenceId id, std::int32_t priority) {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find(id, slot));
  sequences_[slot].priority = priority;
  note_change(slot);
  return {};
}

// ---- the heap ----

std::uint64_t KVCacheManager::Impl::rank_of(const Sequence& s, VictimPolicy policy) noexcept {
  switch (policy) {
    case VictimPolicy::kLru:
      return s.last_use;
    case VictimPolicy::kLfu:
      return s.use_count;
    case VictimPolicy::kLongest:
      return ~static_cast<std::uint64_t>(s.length);
    case VictimPolicy::kLowestPriority:
      return static_cast<std::uint64_t>(std::int64_t{s.priority} -
                                        std::numeric_limits<std::int32_t>::min());
  }
  return 0;
}

KVCacheManager::Impl::Victim KVCacheManager::Impl::victim_of(std::int32_t slot,
                                                             VictimPolicy policy) const noexcept {
  const Sequence& s = sequences_[slot];
  return {rank_of(s, policy), s.has_caller_id ? s.caller_id : id_of(s).value(), slot,
          victim_versions_[slot], !s.has_caller_id};
}

namespace {

bool is_policy(VictimPolicy policy) {
  return policy >= VictimPolicy::kLru && policy <= VictimPolicy::kLowestPriority;
}

// For the heap of <algorithm>, whose top is the largest.
constexpr auto kLater = [](const auto& a, const auto& b) {
  if (a.rank != b.rank) return a.rank > b.rank;
  if (a.anonymous != b.anonymous) return a.anonymous;
  return a.id > b.id;
};

}  // namespace

// So much changed that the heap is worth nothing.
bool KVCacheManager::Impl::victims_are_stale(VictimPolicy policy) const noexcept {
  return victim_policy_ != policy || num_changed_ > num_sequences_ / 8 ||
         num_victims_ + num_changed_ > static_cast<std::int32_t>(victims_.size());
}

void KVCacheManager::Impl::refresh_victims(VictimPolicy policy) noexcept {
  const bool anew = victims_are_stale(policy);
  if (anew) num_victims_ = 0;
  for (; num_changed_ > 0; --num_changed_) {
    const std::int32_t slot = changed_[num_changed_ - 1];
    is_changed_[slot] = 0;
    ++victim_versions_[slot];
    if (anew || sequences_[slot].life != Life::kOpen) continue;
    victims_[num_victims_++] = victim_of(slot, policy);
    std::push_heap(victims_.data(), victims_.data() + num_victims_, kLater);
  }
  if (!anew) return;
  for (const std::int32_t slot : open_slots()) victims_[num_victims_++] = victim_of(slot, policy);
  std::make_heap(victims_.data(), victims_.data() + num_victims_, kLater);
  victim_policy_ = policy;
}

bool KVCacheManager::Impl::frees_a_block(std::int32_t slot) const noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const auto blocks = table(slot, g).blocks(arena());
    // From the end: what a sequence has alone is its newest.
    for (std::size_t i = blocks.size(); i-- > 0;) {
      if (blocks[i] >= 0 && group(g).pool.refs(BlockId(blocks[i])) == 1) return true;
    }
  }
  return false;
}

bool KVCacheManager::Impl::shares_a_block(std::int32_t slot) const noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for (const std::int32_t block : table(slot, g).blocks(arena())) {
      if (block >= 0 && group(g).pool.refs(BlockId(block)) > 1) return true;
    }
  }
  return false;
}

// The slot of the first sequence that may go and whose going helps, or -1. It stays on top; those
// before it wait in passed_over_. Requires: refresh_victims().
std::int32_t KVCacheManager::Impl::next_victim() noexcept {
  while (num_victims_ > 0) {
    const Victim top = victims_[0];
    const bool good = top.version == victim_versions_[top.slot];
    if (good && sequences_[top.slot].step_entry < 0 && frees_a_block(top.slot)) return top.slot;
    std::pop_heap(victims_.data(), victims_.data() + num_victims_, kLater);
    --num_victims_;
    if (good) passed_over_[num_passed_over_++] = top;
  }
  return -1;
}

// What ends next is the first of the two below the top, and after it the other one or one of the
// two below it: all over memory, and asked for now.
void KVCacheManager::Impl::prefetch_victims() const noexcept {
  if (num_victims_ < 3) return;
  const std::int32_t next = kLater(victims_[1], victims_[2]) ? 2 : 1;
  const Sequence& now = sequences_[victims_[0].slot];
  if (now.place.valid()) tree_->prefetch_ends(now.place);
  const Sequence& then = sequences_[victims_[next].slot];
  if (then.place.valid()) tree_->prefetch(then.place);
  arena().prefetch(then.tail);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    prefetch_release(g, table(victims_[next].slot, g).blocks(arena()));
  }
  for (const std::int32_t at : {3 - next, 2 * next + 1, 2 * next + 2}) {
    if (at >= num_victims_) continue;
    const std::int32_t slot = victims_[at].slot;
    const auto* line = reinterpret_cast<const char*>(&sequences_[slot]);
    for (std::size_t i = 0; i < sizeof(Sequence); i += 64) __builtin_prefetch(line + i, 1);
    for (std::int32_t g = 0; g < num_groups(); ++g) table(slot, g).prefetch(arena());
  }
}

void KVCacheManager::Impl::restore_passed_over() noexcept {
  for (; num_passed_over_ > 0; --num_passed_over_) {
    victims_[num_victims_++] = passed_over_[num_passed_over_ - 1];
    std::push_heap(victims_.data(), victims_.data() + num_victims_, kLater);
  }
}

// ---- choosing and preempting ----

// The slot that is first for this policy, whether its going helps or not; -1: none may go.
std::int32_t KVCacheManager::Impl::first_of_all(VictimPolicy policy) const noexcept {
  Victim first{};
  first.slot = -1;
  for (const std::int32_t slot : open_slots()) {
    const Sequence& s = sequences_[slot];
    if (s.step_entry >= 0 || (first.slot >= 0 && rank_of(s, policy) > first.rank)) continue;
    const Victim victim = victim_of(slot, policy);
    if (first.slot < 0 || kLater(first, victim)) first = victim;
  }
  return first.slot;
}

std::optional<SequenceId> KVCacheManager::Impl::select_victim(VictimPolicy policy) {
  if (!is_policy(policy)) return std::nullopt;
  // After a step of every sequence, one look at each costs a tenth of a new heap. Asked again
  // before as much has happened, the heap pays.
  const bool again = scanned_policy_ == policy &&
                     num_uses_ - scanned_at_ <= static_cast<std::uint64_t>(num_sequences_ / 8);
  if (victims_are_stale(policy) && !again) {
    scanned_policy_ = policy;
    scanned_at_ = num_uses_;
    const std::int32_t first = first_of_all(policy);
    if (first < 0) return std::nullopt;
    if (frees_a_block(first)) return id_of(sequences_[first]);
  }
  refresh_victims(policy);
  const std::int32_t slot = next_victim();
  restore_passed_over();
  if (slot < 0) return std::nullopt;
  return id_of(sequences_[slot]);
}

double KVCacheManager::Impl::utilization() const noexcept {
  double most = 0.0;
  for (const Group& g : groups_) {
    most = std::max(most, static_cast<double>(g.pool.num_held()) / g.pool.num_blocks());
  }
  return most;
}

Result<std::span<const SequenceId>> KVCacheManager::Impl::preempt_to(double target,
                                                                     VictimPolicy policy) {
  if (!(target >= 0.0 && target <= 1.0)) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("preempt_to ", std::to_string(target), ", allowed: 0 to 1"));
  }
  if (!is_policy(policy)) {
    return Status(
        ErrorCode::kInvalidArgument,
        concat("preempt_to: policy ", static_cast<std::int32_t>(policy), ", allowed: 0 to 3"));
  }
  std::size_t count = 0;
  while (utilization() > target) {
    refresh_victims(policy);
    const std::int32_t slot = next_victim();
    if (slot < 0) break;
    if (count > 0) prefetch_victims();  // one that goes alone has no next
    // Blocks that it shared may be another's alone now: who was passed over gets another look.
    const bool shared = shares_a_block(slot);
    const SequenceId id = id_of(sequences_[slot]);
    preempted_[count++] = id;
    const Status gone = preempt(id);
    KVFOLIO_CHECK(gone.ok());  // it is open and rests
    if (shared) restore_passed_over();
  }
  restore_passed_over();
  return std::span<const SequenceId>(preempted_.data(), count);
}

}  // namespace kvfolio
