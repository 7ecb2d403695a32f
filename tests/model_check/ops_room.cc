// SPDX-License-Identifier: Apache-2.0
// Room: pins, eviction, admission of several sequences together.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {

void Harness::pin(Rng& rng) {
  const Prompt prompt = any_prompt(rng);
  note("pin " + text_of(prompt));
  Codes errors;
  Codes tolerated;
  if (isize(pins_) >= config_.options.max_pins) errors.insert(kExhausted);
  if (!config_.options.prefix_cache || !prompt.looks()) tolerated = {kUnsupported, kInvalid};
  if (config_.tight_tables) tolerated.insert(kExhausted);
  if (has_promises()) tolerated.insert(kNoBlocks);
  Result<Pinned> pinned = manager_->pin(prompt.tokens, prompt.options());
  if (!expect(status_of(pinned), errors, tolerated)) return;
  changed_ = revives_ = true;
  note(" " + std::to_string(pinned->pinned_tokens));
  KVFOLIO_REQUIRE(pinned->pinned_tokens >= 0 && pinned->pinned_tokens <= isize(prompt.tokens),
                  "a pin is no longer than its tokens");
  KVFOLIO_REQUIRE(pinned->pinned_tokens % common_multiple() == 0,
                  "a pin ends where blocks of all groups do");
  for (const Pin& other : pins_) KVFOLIO_REQUIRE(other.id != pinned->pin, "ids of pins are unique");
  Pin pin{pinned->pin, prompt, pinned->pinned_tokens, {}};
  for (int g = 0; g < num_groups(); ++g) {
    pin.blocks.emplace_back();
    for (int b = 0; b < group(g).num_blocks; ++b) {
      const Result<std::int32_t> refs = manager_->ref_count(GroupId(g), BlockId(b));
      KVFOLIO_REQUIRE(refs.has_value(), "ref_count of a block");
      const Result<bool> findable = manager_->is_findable(GroupId(g), BlockId(b));
      KVFOLIO_REQUIRE(findable.has_value(), "is_findable of a block");
      if (!*findable) continue;  // it may lie ready now in place of one that the pin shares
      const int more =
          *refs - before_.groups[static_cast<std::size_t>(g)].refs[static_cast<std::size_t>(b)];
      KVFOLIO_REQUIRE(more == 0 || more == 1, "a pin references a block once");
      if (more == 0) continue;
      pin.blocks.back().push_back(b);
      read_.emplace_back(g, b);
    }
  }
  pins_.push_back(std::move(pin));
}

void Harness::unpin(Rng& rng) {
  if (pins_.empty()) return;
  const std::size_t i = rng.next() % pins_.size();
  note("unpin #" + std::to_string(i));
  if (!expect(manager_->unpin(pins_[i].id), {})) return;
  changed_ = true;
  stale_pins_.push_back(pins_[i].id);
  pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(i));
}

void Harness::evict(Rng& rng) {
  const int g = rng.below(num_groups());
  const int count = rng.chance(75) ? rng.between(1, 3) : rng.below(8);
  note("evict group " + std::to_string(g) + " blocks " + std::to_string(count));
  const GroupUsage& usage = before_.groups[static_cast<std::size_t>(g)].usage;
  const Forecast expected = config_.transfers ? Forecast{} : forecast_evictions(g, count);
  const Result<std::int32_t> evicted = manager_->evict(GroupId(g), count);
  if (!expect(status_of(evicted), {})) return;
  changed_ = count > 0;
  note(" " + std::to_string(*evicted));
  KVFOLIO_REQUIRE(*evicted == std::min(count, usage.evictable), "evict() gives what is evictable");
  const Result<GroupUsage> now = manager_->usage(GroupId(g));
  KVFOLIO_REQUIRE(now.has_value() && now->free == usage.free + *evicted,
                  "what was evicted is free");
  check_evictions(g, *evicted, expected);
}

void Harness::reserve(Rng& rng) {
  const SeqPtr seq = any_seq(rng);
  if (!seq) return;
  const int tokens = rng.chance(15) ? 0 : rng.between(1, rng.chance(20) ? 40 : 12);
  const int most = rng.chance(40) ? 0 : rng.between(0, tokens > 0 ? std::min(tokens, 4) : 4);
  note("reserve " + name_of(*seq) + " " + std::to_string(tokens) + " most " + std::to_string(most));
  Codes errors;
  if (seq->in_step || waits_for_load(*seq)) errors.insert(kMoment);
  if (seq->is_full_for(tokens)) errors.insert(kExhausted);
  const Codes tolerated = errors.empty() && tokens > 0 ? Codes{kNoBlocks} : Codes{};
  const Status status = manager_->reserve(seq->id, tokens, {.most_per_step = most});
  if (!expect(status, errors, tolerated)) {
    if (const Shortage* s = status.shortage(); s != nullptr) {
      KVFOLIO_REQUIRE(s->needed > s->free + s->evictable, "needed > free + evictable");
    }
    return;
  }
  changed_ = true;
  ++coverage_.promises;
  seq->promised = tokens;
  seq->of_promise.clear();
  seq->most_per_step = most == 0 ? tokens + seq->undecided() : most;
  seq->certain = true;
}

void Harness::admit_together(Rng& rng) {
  if (!open_step_) return;
  std::vector<SeqPtr> able;
  for (const SeqPtr& seq : seqs_) {
    if (!seq->in_step && seq->undecided() == 0 && waits_for(*seq) == 0 &&
        !waits_for_last_token(*seq) && !waits_for_load(*seq) &&
        seq->length() < config_.max_length) {
      able.push_back(seq);
    }
  }
  if (!in_order() && !flight_.empty()) return;
  std::vector<std::pair<SeqPtr, int>> chosen;
  std::vector<AppendDemand> demands;
  for (int i = rng.between(1, 4); i > 0 && !able.empty(); --i) {
    const std::size_t k = rng.next() % able.size();
    const int count = rng.between(1, 6);
    chosen.emplace_back(able[k], count);
    demands.push_back({able[k]->id, count});
    able.erase(able.begin() + static_cast<std::ptrdiff_t>(k));
  }
  if (chosen.empty()) return;
  note("append to " + std::to_string(demands.size()) + " as admitted together: ");
  Status together;
  if (!skip_questions_) together = manager_->admit(demands);
  if (config_.tight_tables && together.code() == kExhausted) return;
  const bool is_full = std::any_of(chosen.begin(), chosen.end(), [](const auto& each) {
    return each.first->is_full_for(each.second);
  });
  if (is_full && !skip_questions_) {
    KVFOLIO_REQUIRE(together.code() == kExhausted, "admit() refuses what is beyond max_tokens");
  }
  if (is_full) return;
  KVFOLIO_REQUIRE(together.ok() || together.code() == kNoBlocks,
                  "admit() answers ok or a shortage");
  if (together.shortage() != nullptr) {
    const Shortage& s = *together.shortage();
    KVFOLIO_REQUIRE(s.needed > s.free + s.evictable, "needed > free + evictable");
  }
  bool all = true;
  const std::uint64_t evicted = manager_->counters().blocks_evicted;
  for (const auto& [seq, count] : chosen) {
    append_to(seq, count, 0, true, rng);
    all = all && seq->in_step;
    verify();
    changed_ = allocates_ = false;
    note("; ");
  }
  if (!skip_questions_ && (together.ok() || !config_.tight_tables)) {
    // Room made in one full group may take along what another could not evict by itself.
    const bool more_room =
        num_groups() > 1 && manager_->counters().blocks_evicted > evicted && !together.ok();
    KVFOLIO_REQUIRE(all == together.ok() || (all && more_room),
                    "admit() of several says whether all appends succeed: " + together.message());
  }
}

}  // namespace kvfolio::model_check
