// SPDX-License-Identifier: Apache-2.0
// The whole observable state after each operation, and its comparison with the model.

#include <algorithm>
#include <cstring>
#include <set>

#include "model_check/harness.h"

namespace kvfolio::model_check {
namespace {

bool same(const SequenceInfo& a, const SequenceInfo& b) {
  return a.length == b.length && a.accepted_length == b.accepted_length &&
         a.published_length == b.published_length && a.trim_sinks == b.trim_sinks &&
         a.trim_first_kept == b.trim_first_kept && a.in_open_step == b.in_open_step &&
         a.caller_id == b.caller_id && a.max_tokens == b.max_tokens && a.priority == b.priority &&
         a.last_use == b.last_use && a.use_count == b.use_count && a.num_unnamed == b.num_unnamed &&
         a.reserved_tokens == b.reserved_tokens && a.load == b.load;
}

bool same(const GroupUsage& a, const GroupUsage& b) {
  return a.num_blocks == b.num_blocks && a.free == b.free && a.held == b.held &&
         a.cached == b.cached && a.retiring == b.retiring && a.evictable == b.evictable &&
         a.reserved == b.reserved && a.loading == b.loading && a.on_hold == b.on_hold;
}

}  // namespace

Harness::SeqState Harness::state_of(const Seq& seq) const {
  SeqState state;
  const Result<SequenceInfo> info = manager_->info(seq.id);
  KVFOLIO_REQUIRE(info.has_value(), "info of s" + std::to_string(seq.number) + ", which is open");
  state.info = *info;
  for (int g = 0; g < num_groups(); ++g) {
    const auto table = manager_->block_table(seq.id, GroupId(g));
    KVFOLIO_REQUIRE(table.has_value(), "block_table of s" + std::to_string(seq.number));
    state.tables.emplace_back((*table).begin(), (*table).end());
  }
  return state;
}

Harness::Snapshot Harness::look() const {
  Snapshot now;
  for (const SeqPtr& seq : seqs_) now.seqs.emplace_back(seq, state_of(*seq));
  for (int g = 0; g < num_groups(); ++g) {
    const Result<GroupUsage> usage = manager_->usage(GroupId(g));
    KVFOLIO_REQUIRE(usage.has_value(), "usage of a group");
    GroupState state{*usage, {}, {}};
    for (int b = 0; b < group(g).num_blocks; ++b) {
      const Result<std::int32_t> refs = manager_->ref_count(GroupId(g), BlockId(b));
      const Result<bool> findable = manager_->is_findable(GroupId(g), BlockId(b));
      KVFOLIO_REQUIRE(refs.has_value() && findable.has_value(),
                      "ref_count and is_findable of a block");
      // The null block has no owner: to the model it is never taken.
      const bool is_null = b < first_block();
      KVFOLIO_REQUIRE(!is_null || (*refs == 1 && !*findable), "the null block is held, and alone");
      state.refs.push_back(is_null ? 0 : *refs);
      state.findable.push_back(*findable ? 1 : 0);
    }
    now.groups.push_back(std::move(state));
  }
  now.counters = manager_->counters();
  KVFOLIO_REQUIRE(manager_->num_sequences() == isize(seqs_), "num_sequences counts the open ones");
  return now;
}

void Harness::verify() {
  const Status invariants = manager_->check_invariants();
  KVFOLIO_REQUIRE(invariants.ok(), "check_invariants: " + invariants.message());
  Snapshot now = look();
  if (!changed_) check_unchanged(now);
  check_sequences(now);
  check_names();
  check_blocks(now);
  check_usage(now);
  check_held_entries(now);
  note_order(now);
  settle_announcements(now);
  meet_device();
  check_content(now);
  check_findable_content(now);
  check_transfers(now);
  check_counters(now);
  digest_counters(now.counters);
  before_ = std::move(now);
  const double utilization = utilization_of(refs_now());
  KVFOLIO_REQUIRE(manager_->utilization() == utilization &&
                      manager_->needs_eviction() == (utilization >= config_.options.high_watermark),
                  "utilization is held blocks over all, " + std::to_string(utilization));
  if (changed_) check_pins();
  ask_twins_of_all();
  coverage_.evictions = before_.counters.blocks_evicted;
  coverage_.publications_skipped = before_.counters.publications_skipped;
}

void Harness::digest_counters(const Counters& counters) {
  const auto& [blocks_allocated, blocks_freed, blocks_evicted, blocks_unhung, block_copies,
               sequences_opened, sequences_closed, sequences_preempted, sequences_aborted, forks,
               tokens_loaded, tokens_looked_up, tokens_reused, tokens_committed, blocks_published,
               publications_skipped, blocks_used_peak, announcements_skipped] = counters;
  static_cast<void>(tokens_loaded);          // check_counters() knows it
  static_cast<void>(announcements_skipped);  // begin_announcement() knows it
  for (const std::uint64_t counter :
       {blocks_allocated, blocks_freed, blocks_evicted, blocks_unhung, block_copies,
        sequences_opened, sequences_closed, sequences_preempted, sequences_aborted, forks,
        tokens_looked_up, tokens_reused, tokens_committed, blocks_published, publications_skipped,
        blocks_used_peak}) {
    digest(counter);
  }
}

void Harness::check_unchanged(const Snapshot& now) const {
  KVFOLIO_REQUIRE(now.seqs.size() == before_.seqs.size(), "no sequence came or went");
  for (std::size_t i = 0; i < now.seqs.size(); ++i) {
    KVFOLIO_REQUIRE(same(now.seqs[i].second.info, before_.seqs[i].second.info) &&
                        now.seqs[i].second.tables == before_.seqs[i].second.tables,
                    "the call changed nothing of s" + std::to_string(now.seqs[i].first->number));
  }
  for (std::size_t g = 0; g < now.groups.size(); ++g) {
    KVFOLIO_REQUIRE(same(now.groups[g].usage, before_.groups[g].usage),
                    "the call changed no usage");
    KVFOLIO_REQUIRE(now.groups[g].refs == before_.groups[g].refs, "the call changed no ref_count");
    KVFOLIO_REQUIRE(now.groups[g].findable == before_.groups[g].findable,
                    "the call changed nothing findable");
  }
  KVFOLIO_REQUIRE(std::memcmp(&now.counters, &before_.counters, sizeof(Counters)) == 0,
                  "the call changed no counter");
}

void Harness::check_sequences(const Snapshot& now) {
  for (const auto& [seq, state] : now.seqs) {
    const auto name = [&, number = seq->number] { return "s" + std::to_string(number); };
    const SequenceInfo& info = state.info;
    KVFOLIO_REQUIRE(info.length == seq->length(), name() + " has length " +
                                                      std::to_string(seq->length()) +
                                                      ", info says " + std::to_string(info.length));
    KVFOLIO_REQUIRE(info.accepted_length == seq->accepted,
                    name() + " has accepted length " + std::to_string(seq->accepted) +
                        ", info says " + std::to_string(info.accepted_length));
    KVFOLIO_REQUIRE(info.in_open_step == seq->in_step, name() + " is in the open step or is not");
    KVFOLIO_REQUIRE(info.reserved_tokens == seq->promised,
                    name() + " has " + std::to_string(seq->promised) +
                        " promised tokens, info says " + std::to_string(info.reserved_tokens));
    KVFOLIO_REQUIRE(info.num_unnamed == seq->unnamed(),
                    name() + " has " + std::to_string(seq->unnamed()) +
                        " unnamed tokens, info says " + std::to_string(info.num_unnamed));
    KVFOLIO_REQUIRE(info.trim_sinks == seq->sinks && info.trim_first_kept == seq->first_kept,
                    name() + " has trims " + std::to_string(seq->sinks) + ", " +
                        std::to_string(seq->first_kept) + ", info says " +
                        std::to_string(info.trim_sinks) + ", " +
                        std::to_string(info.trim_first_kept));
    KVFOLIO_REQUIRE(info.rewinds == seq->rewinds && info.rewind_from == rewind_from(*seq),
                    name() + " was cut " + std::to_string(seq->rewinds) +
                        " times and may be cut back to " + std::to_string(rewind_from(*seq)) +
                        ", info says " + std::to_string(info.rewinds) + " and " +
                        std::to_string(info.rewind_from));
    KVFOLIO_REQUIRE(info.published_length >= 0 && info.published_length <= publishable(*seq),
                    name() + " publishes at most " + std::to_string(publishable(*seq)) +
                        ", info says " + std::to_string(info.published_length));

    KVFOLIO_REQUIRE(info.caller_id == seq->caller_id && info.max_tokens == seq->max_tokens &&
                        info.priority == seq->priority,
                    name() + " has the caller's id, the limit and the priority that it was given");
    KVFOLIO_REQUIRE(info.last_use == seq->last_use && info.use_count == seq->use_count,
                    name() + " was used " + std::to_string(seq->use_count) + " times, last at " +
                        std::to_string(seq->last_use) + ", info says " +
                        std::to_string(info.use_count) + " and " + std::to_string(info.last_use));

    const auto old =
        std::find_if(before_.seqs.begin(), before_.seqs.end(),
                     [wanted = seq](const auto& entry) { return entry.first == wanted; });
    const bool was_moved = std::find(moved_.begin(), moved_.end(), seq) != moved_.end();
    for (int g = 0; g < num_groups(); ++g) {
      const int size = group(g).block_size;
      const auto where = [&] { return name() + " group " + std::to_string(g); };
      const std::vector<std::int32_t>& table = state.tables[static_cast<std::size_t>(g)];
      const int blocks = (seq->length() + size - 1) / size;
      const bool extra = seq->fresh && isize(table) == seq->cached / size + 1;
      KVFOLIO_REQUIRE(isize(table) == blocks || extra,
                      where() + " has a table of " + std::to_string(table.size()) + " for " +
                          std::to_string(seq->length()) + " tokens");
      for (int j = 0; j < isize(table); ++j) {
        const std::int32_t b = table[static_cast<std::size_t>(j)];
        const auto entry = [&] { return where() + " logical block " + std::to_string(j); };
        KVFOLIO_REQUIRE((b == -1 || b >= first_block()) && b < group(g).num_blocks,
                        entry() + " is a block that was given out, or -1");
        bool all_trimmed = true;
        bool unread = true;
        bool unread_hit = true;
        for (int p = j * size; p < (j + 1) * size; ++p) {
          all_trimmed = all_trimmed && seq->dropped(p);
          unread = unread && p < seq->accepted && !keeps(group(g), seq->accepted, p);
          unread_hit = unread_hit && !hit_needs(group(g), seq->accepted, p);
        }
        if (b == -1) {
          KVFOLIO_REQUIRE(droppable(group(g), *seq, seq->accepted, j),
                          entry() + " is read, yet dropped");
          for (int n = rewind_from(*seq); n < seq->accepted; ++n) {
            KVFOLIO_REQUIRE(n <= seq->sinks || j * size >= n || droppable(group(g), *seq, n, j),
                            entry() + " is read at " + std::to_string(n) +
                                ", to which it may be cut back, yet dropped");
          }
        } else {
          KVFOLIO_REQUIRE(!all_trimmed, entry() + " is wholly trimmed, yet held");
          if (was_moved)
            KVFOLIO_REQUIRE(!unread, entry() + " left the window at the commit, yet is held");
          if (old == before_.seqs.end() && seq->fresh && revives_) {
            KVFOLIO_REQUIRE(!unread || !unread_hit,
                            entry() + " is not read after the hit, yet held");
          }
        }
        if (old == before_.seqs.end()) continue;
        const std::vector<std::int32_t>& old_table =
            old->second.tables[static_cast<std::size_t>(g)];
        if (j < isize(old_table) && old_table[static_cast<std::size_t>(j)] == -1 && b != -1) {
          KVFOLIO_REQUIRE(took_back_ == seq && !droppable(group(g), *seq, seq->length(), j),
                          entry() + " was dropped and came back");
          const auto& was = before_.groups[static_cast<std::size_t>(g)];
          KVFOLIO_REQUIRE(was.findable[static_cast<std::size_t>(b)] != 0,
                          entry() + " came back from the cache");
          ++coverage_.taken_back;
        }
      }
    }
    seq->tables = state.tables;
  }
}

// For each block of group g: references of copies that wait or run, and of blocks that a step put
// others in the place of.
std::vector<std::int32_t> Harness::step_references(int g) const {
  std::vector<std::int32_t> refs(static_cast<std::size_t>(group(g).num_blocks), 0);
  const auto count = [&](std::int32_t b) {
    if (b >= 0) ++refs[static_cast<std::size_t>(b)];
  };
  const auto count_sources = [&](const StepWork& step) {
    for (const std::int32_t src : step.groups[static_cast<std::size_t>(g)].copy_src) count(src);
    for (const auto& row : step.rows) count(row.displaced[static_cast<std::size_t>(g)]);
  };
  for (const StepWork& step : flight_) count_sources(step);
  if (open_step_) count_sources(*open_step_);
  return refs;
}

// Those of tables, steps, pins, loads and holds.
std::vector<std::int32_t> Harness::references(const Snapshot& at, int g) const {
  std::vector<std::int32_t> refs = step_references(g);
  for (const auto& [seq, state] : at.seqs) {
    for (const std::int32_t b : state.tables[static_cast<std::size_t>(g)]) {
      if (b >= 0) ++refs[static_cast<std::size_t>(b)];
    }
  }
  for (const Pin& pin : pins_) {
    for (const std::int32_t b : pin.blocks[static_cast<std::size_t>(g)]) {
      ++refs[static_cast<std::size_t>(b)];
    }
  }
  for (const OpenLoad& load : loads_) {
    for (const LoadBlock& each : load.blocks[static_cast<std::size_t>(g)]) {
      ++refs[static_cast<std::size_t>(each.block.value())];
    }
  }
  for (const OpenHold& hold : holds_) {
    if (hold.group != g) continue;  // its ids may exceed this group's
    for (const std::int32_t b : hold.blocks) ++refs[static_cast<std::size_t>(b)];
  }
  return refs;
}

void Harness::check_blocks(const Snapshot& now) {
  for (int g = 0; g < num_groups(); ++g) {
    const GroupState& is = now.groups[static_cast<std::size_t>(g)];
    const GroupState& was = before_.groups[static_cast<std::size_t>(g)];
    const std::vector<std::int32_t> expected = references(now, g);
    int others = is.usage.reserved;  // what lies ready is in no table
    for (const OpenLoad& load : loads_) others += load.found[static_cast<std::size_t>(g)];
    for (int b = 0; b < group(g).num_blocks; ++b) {
      const auto at = static_cast<std::size_t>(b);
      const auto name = [&] {
        return "group " + std::to_string(g) + " block " + std::to_string(b);
      };
      BlockModel& model = block(g, b);
      // What these do not explain is of promises, and what loads found.
      others -= is.refs[at] - expected[at];
      KVFOLIO_REQUIRE(is.refs[at] >= expected[at] && others >= 0,
                      name() + " has " + std::to_string(expected[at]) +
                          " references of tables, copies and pins, ref_count says " +
                          std::to_string(is.refs[at]));
      if (was.refs[at] > 0 && is.refs[at] == 0) {
        // A block that the open step took and gave back is free: no step that runs knows it.
        model.released_at = model.taken_at > last_committed_ ? 0 : last_committed_;
      }
      if (is.refs[at] > 0) {
        model.maybe_released_at = 0;
      }
      // The windows of a sequence may let a block go in the call in which its load takes it.
      const bool is_loaded = fresh_.contains({g, b});
      if ((was.refs[at] == 0 || is_loaded) && is.refs[at] > 0) {
        const bool lies_ready = is.usage.reserved > 0 && expected[at] == 0 && is.findable[at] == 0;
        if (allocates_ || lies_ready || is_loaded) {
          for (const StepWork& step : flight_) {
            KVFOLIO_REQUIRE(step.groups[static_cast<std::size_t>(g)].touched[at] == 0,
                            name() + " is handed out while step t" + std::to_string(step.ticket) +
                                " may touch it");
          }
          KVFOLIO_REQUIRE(is.findable[at] == 0, name() + " is handed out, yet findable");
          poison(g, b);
          model.poisoned = false;
          // A load's blocks that are given back are free at once.
          model.taken_at = is_loaded ? ~std::uint64_t{0} : lies_ready ? 0 : last_ticket_;
        } else {
          KVFOLIO_REQUIRE((revives_ && was.findable[at] != 0) || held_again_.contains({g, b}),
                          name() + " is held again out of nowhere");
          model.taken_at = 0;
        }
      }
      const bool retiring = std::any_of(flight_.begin(), flight_.end(), [&](const StepWork& step) {
        return step.ticket <= std::max(model.released_at, model.maybe_released_at);
      });
      // Free from this call on.
      if (is.refs[at] == 0 && is.findable[at] == 0 && !retiring) poison(g, b);
      // A block that this operation hung is findable as far as its sequence offered it.
      if (is.findable[at] == 0) model.certain = 0;
      // One that hung before with fewer tokens stays as it is where another block has these
      // already.
      if (is.findable[at] != 0 && (was.findable[at] == 0 || !is_published_twice(g, b))) {
        model.certain = std::max(model.certain, model.offered);
      }
      model.offered = 0;
      if (is.findable[at] != 0) {
        KVFOLIO_REQUIRE(!model.published.empty(), name() + " is findable before its time");
      }
    }
    KVFOLIO_REQUIRE(others == 0, "group " + std::to_string(g) + ": promises and loads lost " +
                                     std::to_string(others) + " references");
  }
}

void Harness::check_usage(const Snapshot& now) {
  for (int g = 0; g < num_groups(); ++g) {
    const GroupState& state = now.groups[static_cast<std::size_t>(g)];
    const GroupUsage& usage = state.usage;
    const std::string name = "group " + std::to_string(g);
    int held = 0;
    int num_retiring = 0;
    int maybe_retiring = 0;
    int cached = 0;
    int maybe_not_cached = 0;
    std::string odd;  // blocks that retire in the model or in the manager alone
    const std::vector<std::int32_t> by_steps = step_references(g);
    for (int b = 0; b < group(g).num_blocks; ++b) {
      const auto at = static_cast<std::size_t>(b);
      if (state.refs[at] > 0) {
        ++(state.refs[at] > by_steps[at] ? held : num_retiring);
        continue;
      }
      const BlockModel& model = block(g, b);
      const auto waits_for = [&](std::uint64_t released_at) {
        return std::any_of(flight_.begin(), flight_.end(),
                           [&](const StepWork& step) { return step.ticket <= released_at; });
      };
      const bool retiring = waits_for(model.released_at);
      const Result<BlockState> is = manager_->block_state(GroupId(g), BlockId(b));
      if ((is.has_value() && *is == BlockState::kRetiring) != retiring) {
        odd += " " + std::to_string(b) + " (taken at " + std::to_string(model.taken_at) +
               ", released at " + std::to_string(model.released_at) + ")";
      }
      if (retiring) ++num_retiring;
      const bool may_retire = !retiring && waits_for(model.maybe_released_at);
      if (may_retire) ++maybe_retiring;
      if (state.findable[at] != 0 && !retiring) ++cached;
      if (state.findable[at] != 0 && may_retire) ++maybe_not_cached;
    }
    coverage_.retiring_seen += static_cast<std::uint64_t>(usage.retiring);
    KVFOLIO_REQUIRE(usage.num_blocks == group(g).num_blocks - first_block(),
                    name + " has its blocks");
    KVFOLIO_REQUIRE(usage.free + usage.held + usage.cached + usage.retiring == usage.num_blocks,
                    name + ": free + held + cached + retiring = num_blocks");
    KVFOLIO_REQUIRE(usage.held == held, name + " holds " + std::to_string(held) +
                                            " blocks, usage says " + std::to_string(usage.held));
    KVFOLIO_REQUIRE(
        usage.retiring >= num_retiring && usage.retiring <= num_retiring + maybe_retiring,
        name + " has " + std::to_string(num_retiring) + " blocks retiring, maybe " +
            std::to_string(maybe_retiring) + " more, usage says " + std::to_string(usage.retiring) +
            ";" + odd);
    KVFOLIO_REQUIRE(usage.cached <= cached && usage.cached >= cached - maybe_not_cached,
                    name + " has " + std::to_string(cached) + " blocks cached, usage says " +
                        std::to_string(usage.cached));
    KVFOLIO_REQUIRE(usage.evictable == usage.cached, name + ": every cached block can go");
  }
}

// Sequences hold what they said: in the model, and on the device as far as it is.
void Harness::check_content(const Snapshot& now) {
  for (const auto& [seq, state] : now.seqs) {
    const Tables* tables = &state.tables;
    for (const Member& member : members_) {
      if (member.seq == seq) tables = &member.state_before.tables;  // copies have not run yet
    }
    for (int g = 0; g < num_groups(); ++g) {
      const int size = group(g).block_size;
      for (int p = 0; p < seq->committed; ++p) {
        const std::int32_t b =
            (*tables)[static_cast<std::size_t>(g)][static_cast<std::size_t>(p / size)];
        if (b < 0) continue;
        const int want = seq->nodes[static_cast<std::size_t>(p)];
        const int slot = b * size + p % size;
        KVFOLIO_REQUIRE(cell(logical_, g, slot).node == want && device_agrees(g, slot),
                        "s" + std::to_string(seq->number) + " group " + std::to_string(g) +
                            " position " + std::to_string(p) + " is intact in block " +
                            std::to_string(b));
      }
    }
  }
}

void Harness::check_findable_content(const Snapshot& now) {
  for (int g = 0; g < num_groups(); ++g) {
    for (int b = 0; b < group(g).num_blocks; ++b) {
      if (now.groups[static_cast<std::size_t>(g)].findable[static_cast<std::size_t>(b)] == 0) {
        continue;
      }
      const std::vector<int>& published = block(g, b).published;
      for (int off = 0; off < isize(published); ++off) {
        const int slot = b * group(g).block_size + off;
        const auto what = [&](const char* how) {
          return "group " + std::to_string(g) + " block " + std::to_string(b) +
                 " is findable and its token " + std::to_string(off) + how;
        };
        KVFOLIO_REQUIRE(cell(logical_, g, slot).node == published[static_cast<std::size_t>(off)],
                        what(" changed"));
        KVFOLIO_REQUIRE(device_agrees(g, slot), what(" is not on the device"));
        KVFOLIO_REQUIRE(in_order() || !incomplete(cell(logical_, g, slot).ticket),
                        what(" is of a step that is not complete"));
      }
    }
  }
}

void Harness::check_pins() {
  for (const Pin& pin : pins_) {
    if (!pin.prompt.looks() || has_promises()) continue;  // which may make a hit a miss
    // A longer prompt finds it all.
    Prompt longer = pin.prompt;
    longer.tokens.resize(static_cast<std::size_t>(pin.pinned));
    longer.tokens.push_back(config_.alphabet);
    const Result<std::int32_t> found = manager_->probe(longer.tokens, longer.options());
    KVFOLIO_REQUIRE(found.has_value(), "probe of a good prompt succeeds");
    KVFOLIO_REQUIRE(*found >= pin.pinned, "a pinned prefix of " + std::to_string(pin.pinned) +
                                              " tokens is found, " + std::to_string(*found));
  }
}

void Harness::check_counters(const Snapshot& now) const {
  const Counters& c = now.counters;
  const auto same_count = [&](const char* name, std::uint64_t got, std::uint64_t want) {
    KVFOLIO_REQUIRE(got == want, std::string("counter ") + name + " is " + std::to_string(want) +
                                     ", counters() says " + std::to_string(got));
  };
  same_count("sequences_opened", c.sequences_opened, expected_.sequences_opened);
  same_count("sequences_closed", c.sequences_closed, expected_.sequences_closed);
  same_count("sequences_preempted", c.sequences_preempted, expected_.sequences_preempted);
  same_count("sequences_aborted", c.sequences_aborted, expected_.sequences_aborted);
  same_count("forks", c.forks, expected_.forks);
  same_count("tokens_looked_up", c.tokens_looked_up, expected_.tokens_looked_up);
  same_count("tokens_reused", c.tokens_reused, expected_.tokens_reused);
  same_count("tokens_committed", c.tokens_committed, expected_.tokens_committed);
  same_count("block_copies", c.block_copies, expected_.block_copies);
  same_count("tokens_loaded", c.tokens_loaded, expected_.tokens_loaded);
  std::uint64_t taken = 0;
  for (const GroupState& state : now.groups) {
    taken += static_cast<std::uint64_t>(state.usage.num_blocks - state.usage.free);
  }
  same_count("blocks_allocated - blocks_freed", c.blocks_allocated - c.blocks_freed, taken);
}

}  // namespace kvfolio::model_check
