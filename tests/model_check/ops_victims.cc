// SPDX-License-Identifier: Apache-2.0
// Victims: who is preempted first, by a scan over all sequences each time.

#include <algorithm>
#include <map>
#include <tuple>

#include "model_check/ops.h"

namespace kvfolio::model_check {
namespace {

const char* name_of(VictimPolicy policy) {
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
  return "invalid";
}

std::int64_t rank_of(const Seq& seq, VictimPolicy policy) {
  switch (policy) {
    case VictimPolicy::kLru:
      return static_cast<std::int64_t>(seq.last_use);
    case VictimPolicy::kLfu:
      return static_cast<std::int64_t>(seq.use_count);
    case VictimPolicy::kLongest:
      return -seq.length();
    case VictimPolicy::kLowestPriority:
      break;
  }
  return seq.priority;
}

VictimPolicy any_policy(Rng& rng) { return static_cast<VictimPolicy>(rng.below(4)); }

}  // namespace

Harness::Refs Harness::refs_now() const {
  Refs refs;
  for (const GroupState& state : before_.groups) refs.push_back(state.refs);
  return refs;
}

// Held blocks over all blocks of the fullest group.
double Harness::utilization_of(const Refs& refs) const {
  double most = 0.0;
  for (int g = 0; g < num_groups(); ++g) {
    const std::vector<std::int32_t> by_steps = step_references(g);
    int held = 0;
    for (std::size_t b = 0; b < by_steps.size(); ++b) {
      held += refs[static_cast<std::size_t>(g)][b] > by_steps[b] ? 1 : 0;
    }
    most = std::max(most, static_cast<double>(held) / (group(g).num_blocks - first_block()));
  }
  return most;
}

// All references to one of its blocks are its own.
bool Harness::frees_a_block(const Seq& seq, const Refs& refs) {
  for (std::size_t g = 0; g < refs.size(); ++g) {
    std::map<std::int32_t, std::int32_t> own;
    for (const std::int32_t b : seq.tables[g]) {
      if (b >= 0) ++own[b];
    }
    for (const auto& [b, count] : own) {
      if (refs[g][static_cast<std::size_t>(b)] == count) return true;
    }
  }
  return false;
}

// Ties go to the lower id; sequences without a caller's id come later.
Harness::SeqPtr Harness::scan_for_victim(VictimPolicy policy, const std::vector<SeqPtr>& seqs,
                                         const Refs& refs) {
  const auto order = [&](const Seq& seq) {
    return std::tuple(rank_of(seq, policy), !seq.caller_id.has_value(),
                      seq.caller_id.value_or(seq.id.value()));
  };
  SeqPtr victim;
  for (const SeqPtr& seq : seqs) {
    if (seq->in_step || !frees_a_block(*seq, refs)) continue;
    if (!victim || order(*seq) < order(*victim)) victim = seq;
  }
  return victim;
}

void Harness::select_victim(Rng& rng) {
  read_only_ = true;
  if (skip_questions_) return;
  for (int i = rng.between(1, 3); i > 0; --i) {
    const VictimPolicy policy = any_policy(rng);
    const SeqPtr expected = scan_for_victim(policy, seqs_, refs_now());
    const std::optional<SequenceId> victim = manager_->select_victim(policy);
    note(std::string("select_victim ") + name_of(policy) + " " +
         (victim ? std::to_string(victim->value()) : "none") + "; ");
    KVFOLIO_REQUIRE(
        has_promises() || victim == (expected ? std::optional(expected->id) : std::nullopt),
        "the victim is " + (expected ? model_check::name_of(*expected) : std::string("nobody")));
    coverage_.victims += victim ? 1 : 0;
  }
}

void Harness::preempt_to(Rng& rng) {
  const double target = rng.between(rng.chance(70) ? 50 : 0, 100) / 100.0;
  const VictimPolicy policy = any_policy(rng);
  note("preempt_to " + std::to_string(target) + " " + name_of(policy));
  // Preempt by hand what a scan finds, until it is enough.
  std::vector<SeqPtr> left = seqs_;
  std::vector<SequenceId> expected;
  Refs refs = refs_now();
  while (utilization_of(refs) > target) {
    const SeqPtr victim = scan_for_victim(policy, left, refs);
    if (!victim) break;
    expected.push_back(victim->id);
    std::erase(left, victim);
    for (std::size_t g = 0; g < refs.size(); ++g) {
      for (const std::int32_t b : victim->tables[g]) {
        if (b >= 0) --refs[g][static_cast<std::size_t>(b)];
      }
    }
  }

  const auto preempted = manager_->preempt_to(target, policy);
  if (!expect(status_of(preempted), {})) return;
  std::vector<SequenceId> victims;
  for (const EndedSequence& ended : *preempted) {
    victims.push_back(ended.sequence);
    const auto seq = std::find_if(seqs_.begin(), seqs_.end(),
                                  [&](const SeqPtr& s) { return s->id == ended.sequence; });
    KVFOLIO_REQUIRE(seq != seqs_.end() && (*seq)->caller_id == ended.caller_id,
                    "a victim comes with its caller's id");
  }
  for (const SequenceId id : victims) note(" " + std::to_string(id.value()));
  // A pin that ends inside a block may move to the block that a victim leaves behind.
  const bool pins_move = std::any_of(pins_.begin(), pins_.end(), [&](const Pin& pin) {
    return pin.pinned % common_multiple() != 0;
  });
  // Whose blocks lie ready frees some, and the model does not know whose they are.
  KVFOLIO_REQUIRE(victims == expected || pins_move || has_promises(),
                  "a scan preempts " + std::to_string(expected.size()) + " sequences, in order");
  for (const SequenceId id : victims) {
    const auto seq =
        std::find_if(seqs_.begin(), seqs_.end(), [&](const SeqPtr& s) { return s->id == id; });
    KVFOLIO_REQUIRE(seq != seqs_.end() && !(*seq)->in_step,
                    "victims are open, and not in the open step");
    changed_ = true;
    ++coverage_.victims_preempted;
    ++expected_.sequences_preempted;
    const SeqPtr gone = *seq;
    end(gone, rng);
  }
}

}  // namespace kvfolio::model_check
