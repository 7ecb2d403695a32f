// SPDX-License-Identifier: Apache-2.0
// The order of eviction by the rules of the design, from scratch: what each block's turn depends on
// is noted after every operation, and the victims of evict() are chosen one by one among all
// blocks.
//
//   turn 0  a partial tail in which no prompt's hit ended; in a window group, a full block that no
//           end reads (harness_ends.cc)
//   turn 1  all others that take no entry of a held block along
//   turn 2  in a full group, those that do; in a window group, the border: blocks that the window
//           of an open sequence has passed and that a hit at its last full-block border reads
//   never   what is not cached, and in a full group what has a cached block of its group below
//
// Within a turn the block goes first that was let go first; of those that one call let go of, the
// deeper one. Some facts cannot be known from outside: in which order two sequences let go within
// one call, how long an entry is that another block may have been taken for. The forecast follows
// each possibility, and the manager has to match one of them.
//
// Two moments the design leaves open, and the model takes them from the manager: the border of an
// opened sequence begins with its first commit or accept; a block that retired is as old as the
// call that made it cached.

#include <algorithm>

#include "model_check/harness.h"

namespace kvfolio::model_check {
namespace {

constexpr int kNever = 3;
constexpr std::size_t kMostOutcomes = 64;

// The first `count` of `nodes`, which stand in a block from its start, begin `others`.
bool begins_with(const std::vector<int>& others, const std::vector<int>& nodes, int count) {
  return count <= isize(nodes) && count <= isize(others) &&
         std::equal(nodes.begin(), nodes.begin() + count, others.begin());
}

}  // namespace

bool Harness::waits_for_step(std::uint64_t ticket) const {
  return std::any_of(flight_.begin(), flight_.end(),
                     [&](const StepWork& step) { return step.ticket <= ticket; });
}

// ---- what is noted after each operation ----

void Harness::want_last_blocks(const Seq& seq) {
  const Tables tables = state_of(seq).tables;
  for (int g = 0; g < num_groups(); ++g) {
    const std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(g)];
    if (!table.empty() && table.back() >= 0) wanted_.emplace_back(g, table.back());
  }
}

void Harness::note_order(const Snapshot& now) {
  if (config_.transfers) return;
  ++num_looks_;
  note_losses(now);
  note_let_go(now);
  for (const auto& [g, b] : wanted_) order(g, b).wanted = true;
  for (int g = 0; g < num_groups(); ++g) {
    for (int b = 0; b < group(g).num_blocks; ++b) {
      BlockOrder& at = order(g, b);
      const int certain = block(g, b).certain;
      if (certain == 0) at.least = 0;
      if (certain != at.certain && is_hung(now, g, b, certain)) at.least = certain;
    }
  }
  note_ends(now);
  doubt_twins(now);
  note_borders(now);
  for (int g = 0; g < num_groups(); ++g) {
    const std::vector<int> by_steps = step_references(g);
    for (int b = 0; b < group(g).num_blocks; ++b) {
      BlockOrder& at = order(g, b);
      at.published = block(g, b).published;
      at.certain = block(g, b).certain;
      at.by_steps = by_steps[static_cast<std::size_t>(b)];
    }
  }
}

// This operation offered so many tokens of the block: are they hung? Not where the tree was full,
// or where it had been full and the sequence does not publish any more.
bool Harness::is_hung(const Snapshot& now, int g, int b, int tokens) const {
  if (now.counters.publications_skipped == 0) return true;
  if (now.counters.publications_skipped != before_.counters.publications_skipped) return false;
  for (const auto& [seq, state] : before_.seqs) {
    const auto after = std::find_if(now.seqs.begin(), now.seqs.end(),
                                    [&own = seq](const auto& each) { return each.first == own; });
    const std::vector<std::int32_t>& table = state.tables[static_cast<std::size_t>(g)];
    for (int j = 0; j < isize(table); ++j) {
      if (table[static_cast<std::size_t>(j)] != b) continue;
      const int end = j * group(g).block_size + tokens;
      if (after == now.seqs.end() ? state.info.published_length > 0 && state.info.length >= end
                                  : after->second.info.published_length >= end) {
        return true;
      }
    }
  }
  return false;
}

// Entries that went, and blocks that took their places with the same tokens: these inherit.
void Harness::note_losses(const Snapshot& now) {
  const bool made_room = now.counters.blocks_evicted != before_.counters.blocks_evicted ||
                         now.counters.blocks_unhung != before_.counters.blocks_unhung;
  for (int g = 0; g < num_groups(); ++g) {
    const std::vector<char>& was = before_.groups[static_cast<std::size_t>(g)].findable;
    const std::vector<char>& is = now.groups[static_cast<std::size_t>(g)].findable;
    const auto has_changed = [&](std::size_t b) {
      const BlockOrder& at = orders_[static_cast<std::size_t>(g)][b];
      const BlockModel& model = blocks_[static_cast<std::size_t>(g)][b];
      return was[b] == 0 || at.published.size() != model.published.size() ||
             at.certain != model.certain;
    };
    std::vector<std::uint64_t> hung_at;
    for (std::size_t b = 0; b < is.size(); ++b) {
      hung_at.push_back(orders_[static_cast<std::size_t>(g)][b].hung_at);
      if (is[b] == 0 || !has_changed(b)) continue;
      orders_[static_cast<std::size_t>(g)][b].hung_at = num_looks_;
      if (was[b] == 0) orders_[static_cast<std::size_t>(g)][b].lost_count = false;
    }
    for (std::size_t b = 0; b < is.size(); ++b) {
      BlockOrder& lost = orders_[static_cast<std::size_t>(g)][b];
      // It may have lost its entry and got one again: to make room in the tree, or because the call
      // published several sequences, and a block of another one with the same first tokens came
      // first. That block then has the mark. Who came first cannot be seen.
      if (is[b] != 0 && was[b] != 0 && has_changed(b)) {
        bool maybe_lost = made_room;
        for (std::size_t other = 0; other < is.size(); ++other) {
          if (other == b || is[other] == 0 || !has_changed(other) ||
              !begins_with(blocks_[static_cast<std::size_t>(g)][other].published, lost.published,
                           std::max(1, lost.least))) {
            continue;
          }
          maybe_lost = true;
          BlockOrder& heir = orders_[static_cast<std::size_t>(g)][other];
          heir.maybe_wanted |= lost.wanted || lost.maybe_wanted;
          heir.maybe_read |= lost.read || lost.maybe_read;
        }
        lost.maybe_wanted |= maybe_lost && lost.wanted;
        lost.wanted &= !maybe_lost;
        lost.maybe_read |= maybe_lost && lost.read;
        lost.read &= !maybe_lost;
      }
      if (was[b] == 0 || is[b] != 0) continue;
      std::vector<std::size_t> heirs;  // with a new entry, or else any
      std::size_t num_changed = 0;
      for (const bool changed : {true, false}) {
        for (std::size_t h = 0; h < is.size() && (changed || num_changed == 0); ++h) {
          if (is[h] != 0 && (!changed || has_changed(h)) &&
              begins_with(blocks_[static_cast<std::size_t>(g)][h].published, lost.published,
                          std::max(1, lost.least))) {
            heirs.push_back(h);
          }
        }
        num_changed = heirs.size();
      }
      const bool sure = heirs.size() == 1 && !made_room;
      for (const std::size_t h : heirs) {
        BlockOrder& heir = orders_[static_cast<std::size_t>(g)][h];
        heir.wanted |= sure && lost.wanted;
        heir.maybe_wanted |= lost.maybe_wanted || (!sure && lost.wanted);
        heir.lost_count |= lost.lost_count;
        const bool same_tokens =
            blocks_[static_cast<std::size_t>(g)][h].published == lost.published &&
            lost.least == isize(lost.published);
        if (sure && same_tokens) heir.hung_at = hung_at[b];
        heir.read |= sure && same_tokens && lost.read;
        heir.maybe_read |= lost.read || lost.maybe_read;
      }
      lost.rank.reset();
      lost.wanted = lost.maybe_wanted = lost.lost_count = false;
      lost.read = lost.maybe_read = false;
    }
  }
}

// Two full blocks with equal tokens are findable: one of them with its first tokens only. Without
// order a closed sequence whose block gave way to the other one's may have published its tail in
// the same call, and that hangs at any child that begins with its tokens. Which one it is cannot be
// seen.
void Harness::doubt_twins(const Snapshot& now) {
  for (int g = 0; g < num_groups(); ++g) {
    const std::vector<char>& findable = now.groups[static_cast<std::size_t>(g)].findable;
    const auto is_whole = [&](int b) {
      return findable[static_cast<std::size_t>(b)] != 0 && order(g, b).least == group(g).block_size;
    };
    for (int b = 0; b < group(g).num_blocks; ++b) {
      for (int other = 0; other < b && is_whole(b); ++other) {
        if (!is_whole(other) || block(g, b).published != block(g, other).published) continue;
        BlockOrder& one = order(g, b);
        BlockOrder& two = order(g, other);
        one.least = two.least = 1;
        one.maybe_wanted = two.maybe_wanted =
            one.wanted || one.maybe_wanted || two.wanted || two.maybe_wanted;
        one.wanted = two.wanted = false;
        one.maybe_read = two.maybe_read = one.read || one.maybe_read || two.read || two.maybe_read;
        one.read = two.read = false;
      }
    }
  }
}

// Blocks without a holder: those that steps in flight may touch wait, the others become
// cached, the warmest ones; they keep their rank where only unused sequences held them.
void Harness::note_let_go(const Snapshot& now) {
  using Droppers = std::map<int, int>;  // who, and which logical block it was there
  std::vector<std::vector<Droppers>> let_go;
  std::vector<std::vector<std::pair<int, int>>> by_sequences;  // references before and now
  std::vector<std::vector<char>> gained;
  for (int g = 0; g < num_groups(); ++g) {
    let_go.emplace_back(static_cast<std::size_t>(group(g).num_blocks));
    by_sequences.emplace_back(static_cast<std::size_t>(group(g).num_blocks));
    gained.emplace_back(static_cast<std::size_t>(group(g).num_blocks));
  }
  std::map<SeqPtr, const SeqState*> open_now;
  for (const auto& [seq, state] : now.seqs) open_now[seq] = &state;
  std::map<SeqPtr, const SeqState*> open_before;
  for (const auto& [seq, state] : before_.seqs) open_before[seq] = &state;
  const auto holds = [](const SeqState* state, std::size_t g, std::int32_t b) {
    return state != nullptr &&
           std::find(state->tables[g].begin(), state->tables[g].end(), b) != state->tables[g].end();
  };
  for (const auto& [seq, state] : open_now) {
    const SeqState* old = open_before.contains(seq) ? open_before[seq] : nullptr;
    for (std::size_t g = 0; g < let_go.size(); ++g) {
      for (const std::int32_t b : state->tables[g]) {
        if (b < 0) continue;
        ++by_sequences[g][static_cast<std::size_t>(b)].second;
        if (!holds(old, g, b)) gained[g][static_cast<std::size_t>(b)] = 1;
      }
    }
  }
  const auto drop = [&](const Seq& seq, std::size_t g, std::int32_t b, int logical) {
    BlockOrder& at = orders_[g][static_cast<std::size_t>(b)];
    let_go[g][static_cast<std::size_t>(b)].emplace(seq.number, logical);
    if (!seq.used) {
      at.maybe_touched |= seq.maybe_used;
      return;
    }
    const bool was_used = !trimmed_ || trimmed_.get() != &seq;
    at.touched |= was_used;
    at.maybe_touched |= !was_used && seq.maybe_whole;
  };
  std::vector<std::vector<int>> by_steps;
  by_steps.reserve(static_cast<std::size_t>(num_groups()));
  for (int g = 0; g < num_groups(); ++g) by_steps.push_back(step_references(g));
  for (const auto& [seq, state] : open_before) {
    const SeqState* after = open_now.contains(seq) ? open_now[seq] : nullptr;
    for (std::size_t g = 0; g < let_go.size(); ++g) {
      for (int j = 0; j < isize(state->tables[g]); ++j) {
        const std::int32_t b = state->tables[g][static_cast<std::size_t>(j)];
        if (b < 0) continue;
        const auto at = static_cast<std::size_t>(b);
        ++by_sequences[g][at].first;
        // A step that displaces a block takes the reference over.
        if (!holds(after, g, b) && by_steps[g][at] <= orders_[g][at].by_steps) {
          drop(*seq, g, b, j);
        }
      }
    }
  }
  // What a sequence's windows had passed enters the order with its other blocks when it closes. It
  // does not where the tree was full and the sequence could not publish its tail.
  const bool has_skipped =
      now.counters.publications_skipped != before_.counters.publications_skipped;
  std::set<std::pair<std::size_t, std::size_t>> taken_back;
  std::set<std::pair<std::size_t, std::size_t>> maybe_taken_back;
  for (const auto& [seq, passed] : borders_) {
    const bool aborted = std::find(aborted_.begin(), aborted_.end(), seq->id) != aborted_.end();
    if (open_now.contains(seq) || aborted) continue;
    for (const BorderBlock& place : passed) {
      const auto g = static_cast<std::size_t>(place.group);
      for (int b = 0; b < group(place.group).num_blocks; ++b) {
        const auto at = static_cast<std::size_t>(b);
        if (now.groups[g].findable[at] == 0) continue;
        const Answer there = is_at(place, b);
        if (there == Answer::kYes && place.sure && !has_skipped) {
          if (!let_go[g][at].contains(seq->number)) drop(*seq, g, b, place.logical);
          taken_back.emplace(g, at);
        } else if (there != Answer::kNo) {
          maybe_taken_back.emplace(g, at);
        }
      }
    }
  }

  // Behind what the device did meanwhile.
  const auto is_call = [this](std::string_view call) {
    const std::size_t at = log_.find(call);
    return at == 0 || (at != std::string::npos && log_.substr(at - 2, 2) == "] ");
  };
  const bool by_unpin = is_call("unpin ");
  const bool by_finish = is_call("finish ");
  const bool by_fail = is_call("fail ");
  SeqPtr preempted;
  for (const auto& [seq, state] : open_before) {
    if (is_call("preempt s") && !open_now.contains(seq)) preempted = seq;
  }
  for (int group_id = 0; group_id < num_groups(); ++group_id) {
    const auto g = static_cast<std::size_t>(group_id);
    for (int b = 0; b < group(group_id).num_blocks; ++b) {
      const auto i = static_cast<std::size_t>(b);
      BlockOrder& at = orders_[g][i];
      Droppers& droppers = let_go[g][i];
      const int was = before_.groups[g].refs[i];
      const int is = now.groups[g].refs[i];
      const auto [seqs_before, seqs_now] = by_sequences[g][i];
      const std::vector<int>& published = block(group_id, b).published;
      const int depth =
          published.empty() ? 0 : trie_.position_of(published.front()) / group(group_id).block_size;
      if (by_steps[g][i] < at.by_steps && gained[g][i] == 0 && preempted) {
        // The step gave the block back before the sequence let go of it.
        at.touched |= preempted->used;
        at.maybe_touched |= preempted->maybe_used;
        droppers.emplace(preempted->number, preempted->committed / group(group_id).block_size);
      } else if (by_steps[g][i] < at.by_steps && gained[g][i] == 0) {
        (by_fail ? at.maybe_touched : at.touched) = true;
        droppers.emplace(-2 - num_strangers_++, depth);
      }
      if (is - seqs_now - by_steps[g][i] < was - seqs_before - at.by_steps) {  // pins
        at.touched = true;
        droppers.emplace(by_unpin ? -1 : -2 - num_strangers_++, depth);
      }
      // Without order, commit and complete move the windows one after the other.
      if (by_finish && !in_order() && !droppers.empty())
        droppers.emplace(-2 - num_strangers_++, depth);
      const bool back = taken_back.contains({g, i});
      const bool maybe_back = !back && maybe_taken_back.contains({g, i});
      // Another sequence may hold it as well, one that lets go of it unused.
      at.maybe_touched |= maybe_back;
      if (is > 0) {
        at.next.reset();
        at.waits_for = at.maybe_waits_for = 0;
        continue;
      }
      if (was > 0 || back) {
        Rank rank{0, num_looks_, {}, 0, !maybe_back};
        for (const auto& [who, logical] : droppers) {
          rank.who.push_back(who);
          rank.known &= rank.depth == logical || rank.who.size() == 1;
          rank.depth = logical;
        }
        at.next = rank;
        at.waits_for = was > 0 ? block(group_id, b).released_at : last_committed_;
        at.maybe_waits_for = 0;
      } else if (maybe_back) {
        at.next = Rank{0, num_looks_, {}, 0, false};
        at.maybe_waits_for = last_committed_;
      }
      if (waits_for_step(at.waits_for)) continue;
      const bool findable = now.groups[g].findable[i] != 0;
      if (!findable) {
        at = BlockOrder{};
        continue;
      }
      if (at.next && (at.touched || !at.rank)) {
        at.rank = at.next;
        at.rank->parked = num_looks_;
      } else if (at.rank && at.maybe_touched) {
        at.rank->known = false;
      }
      if (at.maybe_waits_for != 0 && at.rank) at.rank->known = false;
      if (!waits_for_step(at.maybe_waits_for)) at.maybe_waits_for = 0;
      at.next.reset();
      at.touched = at.maybe_touched = false;
    }
  }
}

// The full blocks of the sequence's path, in window groups, that its windows have passed and that a
// hit at its last full-block border reads.
std::vector<Harness::BorderBlock> Harness::border_of(const Seq& seq, const SeqState& state) const {
  std::vector<BorderBlock> passed;
  if (!seq.windows_moved) return passed;
  int largest = 1;
  for (const GroupSpec& each : config_.spec.groups) largest = std::max(largest, each.block_size);
  const int published = state.info.published_length;
  const int hit = published / largest * largest;
  for (int g = 0; g < num_groups(); ++g) {
    const GroupRule rule(group(g));
    if (rule.keeps_all()) continue;
    const int size = group(g).block_size;
    const std::vector<std::int32_t>& table = state.tables[static_cast<std::size_t>(g)];
    for (int j = 0; j < isize(table) && (j + 1) * size <= published; ++j) {
      const bool is_sink = j * size < rule.num_sinks();
      if (table[static_cast<std::size_t>(j)] >= 0 || is_sink || j * size >= hit) continue;
      if (!rule.reads(hit, j * size, (j + 1) * size)) continue;
      bool trimmed = false;
      for (int p = j * size; p < (j + 1) * size; ++p) trimmed |= seq.dropped(p);
      const int last = seq.nodes[static_cast<std::size_t>((j + 1) * size - 1)];
      passed.push_back({g, j, last, num_looks_, !trimmed});
    }
  }
  return passed;
}

void Harness::note_borders(const Snapshot& now) {
  std::map<SeqPtr, std::vector<BorderBlock>> borders;
  for (const auto& [seq, state] : now.seqs) {
    std::vector<BorderBlock> passed = border_of(*seq, state);
    const auto old = borders_.find(seq);
    for (BorderBlock& place : passed) {
      if (old == borders_.end()) break;
      for (const BorderBlock& before : old->second) {
        if (before.group == place.group && before.last_node == place.last_node) {
          place.since = before.since;
        }
      }
    }
    if (!passed.empty()) borders[seq] = std::move(passed);
  }
  // An entry that is younger than a border was not counted into it. When the border moves on, the
  // manager may take back what it did not count.
  for (const auto& [seq, passed] : borders_) {
    for (const BorderBlock& place : passed) {
      const auto still = borders.find(seq);
      const bool stays =
          still != borders.end() &&
          std::any_of(still->second.begin(), still->second.end(), [&](const BorderBlock& other) {
            return other.group == place.group && other.last_node == place.last_node;
          });
      for (int b = 0; b < group(place.group).num_blocks && !stays; ++b) {
        if (is_at(place, b) == Answer::kMaybe) order(place.group, b).lost_count = true;
      }
    }
  }
  borders_ = std::move(borders);
}

// ---- the naive order ----

bool Harness::surely_colder(const Rank& a, const Rank& b) {
  if (!a.known || !b.known) return false;
  if (a.parked != b.parked) return a.parked < b.parked;
  if (a.let_go != b.let_go) {
    // Those that retired leave in the order in which they came; others may come before or behind.
    return a.let_go < b.let_go && b.let_go < b.parked;
  }
  return a.who == b.who && a.depth > b.depth;
}

Harness::Answer Harness::is_cached(int g, int b) const {
  const GroupState& state = before_.groups[static_cast<std::size_t>(g)];
  const auto answer = [&](int each) {
    const auto at = static_cast<std::size_t>(each);
    if (state.refs[at] > 0 || state.findable[at] == 0) return Answer::kNo;
    if (waits_for_step(order(g, each).waits_for)) return Answer::kNo;
    return waits_for_step(order(g, each).maybe_waits_for) ? Answer::kMaybe : Answer::kYes;
  };
  if (answer(b) != Answer::kMaybe) return answer(b);
  int sure = 0;
  int perhaps = 0;
  for (int each = 0; each < group(g).num_blocks; ++each) {
    sure += answer(each) == Answer::kYes ? 1 : 0;
    perhaps += answer(each) == Answer::kMaybe ? 1 : 0;
  }
  if (state.usage.cached == sure) return Answer::kNo;
  return state.usage.cached == sure + perhaps ? Answer::kYes : Answer::kMaybe;
}

// Does a block, findable or so before this operation, stand at this place of a border?
Harness::Answer Harness::is_at(const BorderBlock& place, int b) const {
  const BlockModel& model = block(place.group, b);
  const int size = group(place.group).block_size;
  if (isize(model.published) < size || model.published.back() != place.last_node)
    return Answer::kNo;
  const bool counted = order(place.group, b).hung_at <= place.since;
  return counted && order(place.group, b).least == size ? Answer::kYes : Answer::kMaybe;
}

Harness::Answer Harness::is_border(int g, int b) const {
  Answer answer = Answer::kNo;
  for (const auto& [seq, passed] : borders_) {
    for (const BorderBlock& place : passed) {
      if (place.group != g) continue;
      const Answer there = is_at(place, b);
      if (there == Answer::kNo) continue;
      const bool sure = there == Answer::kYes && place.sure && !order(g, b).lost_count;
      if (sure) return Answer::kYes;
      answer = Answer::kMaybe;
    }
  }
  return answer;
}

// Does an entry go along when the entry of a block of a full group goes? It does if it begins there
// or behind, and its path leads through that block. Where the block ends inside a unit, or the
// other one before it, that depends on how other paths branch.
Harness::Answer Harness::is_below(int g, int b, int of_group, int of_block) const {
  const std::vector<int>& above = block(of_group, of_block).published;
  const std::vector<int>& below = block(g, b).published;
  const int above_begin = trie_.position_of(above.front());
  const int below_begin = trie_.position_of(below.front());
  if (below_begin < above_begin) return Answer::kNo;
  const int above_least = std::clamp(order(of_group, of_block).least, 1, isize(above));
  const int below_least = std::clamp(order(g, b).least, 1, isize(below));
  const int above_end = above_begin + above_least;
  const int below_end = below_begin + below_least;
  if (g == of_group && below_begin == above_begin && isize(below) <= above_least)
    return Answer::kNo;
  const int last = std::min(above_end, below_end) - 1;
  const int last_node = trie_.before(below[static_cast<std::size_t>(below_least - 1)], last);
  if (last_node != above[static_cast<std::size_t>(last - above_begin)]) return Answer::kNo;
  const bool sure =
      above_least == isize(above) && above_end % unit() == 0 && below_end >= above_end;
  return sure ? Answer::kYes : Answer::kMaybe;
}

// The first and the last turn that a block may have.
std::pair<int, int> Harness::turns_of(int g, int b, const Fates& fates) const {
  const Answer cached = is_cached(g, b);
  if (cached == Answer::kNo) return {kNever, kNever};
  const int size = group(g).block_size;
  const BlockModel& model = block(g, b);
  const BlockOrder& at = order(g, b);
  const bool partial = isize(model.published) < size;
  const bool maybe_partial = at.least < size;
  const bool windowed = group(g).kind != AttentionKind::kFull;
  int first = partial && !at.wanted && !at.maybe_wanted ? 0 : 1;
  int last = first;
  if (maybe_partial && !at.wanted) first = 0;
  if (windowed && !partial) {
    const bool may_be_read = at.read || at.maybe_read;
    const bool is_tail = maybe_partial && (at.wanted || at.maybe_wanted);
    if (!at.read) first = 0;
    last = may_be_read || is_tail ? 1 : 0;
  }
  if (windowed) {
    const Answer border = is_border(g, b);
    if (border == Answer::kYes) first = 2;
    if (border != Answer::kNo) last = 2;
  }
  const std::vector<char>& findable = before_.groups[static_cast<std::size_t>(g)].findable;
  const std::vector<Fate>& fate = fates[static_cast<std::size_t>(g)];
  for (int other = 0; group(g).kind == AttentionKind::kFull && other < group(g).num_blocks;
       ++other) {
    const auto i = static_cast<std::size_t>(other);
    if (other == b || findable[i] == 0 || fate[i] == Fate::kGoes) continue;
    const Answer below = is_below(g, other, g, b);
    if (below == Answer::kNo) continue;
    const Answer is_idle = is_cached(g, other);
    const bool sure = below == Answer::kYes && fate[i] == Fate::kStays;
    if (sure && is_idle == Answer::kYes) return {kNever, kNever};
    if (sure) first = 2;
    last = std::max(last, is_idle == Answer::kNo ? 2 : kNever);
  }
  const bool sure = cached == Answer::kYes && fate[static_cast<std::size_t>(b)] == Fate::kStays;
  return {first, sure ? last : kNever};
}

// ---- evict() ----

void Harness::forecast(int g, int count, const Fates& fates, Forecast& result) const {
  const auto add = [&](const Fates& outcome) {
    if (std::find(result.outcomes.begin(), result.outcomes.end(), outcome) ==
        result.outcomes.end()) {
      result.outcomes.push_back(outcome);
    }
  };
  if (result.outcomes.size() >= kMostOutcomes || --result.budget < 0) {
    result.complete = false;
    return;
  }
  struct Candidate {
    int block;
    int first;
    int last;
  };
  std::vector<Candidate> candidates;
  int num_cached = 0;
  bool unsure = false;
  for (int b = 0; b < group(g).num_blocks; ++b) {
    if (fates[static_cast<std::size_t>(g)][static_cast<std::size_t>(b)] == Fate::kGoes) continue;
    num_cached += is_cached(g, b) == Answer::kNo ? 0 : 1;
    const auto [first, last] = turns_of(g, b, fates);
    if (first == kNever) continue;
    candidates.push_back({b, first, last});
    unsure = unsure || last == kNever;
  }
  const auto take = [&](int b, Fates& next) {
    next[static_cast<std::size_t>(g)][static_cast<std::size_t>(b)] = Fate::kGoes;
    if (group(g).kind != AttentionKind::kFull) return;
    for (int h = 0; h < num_groups(); ++h) {
      for (int other = 0; other < group(h).num_blocks; ++other) {
        Fate& fate = next[static_cast<std::size_t>(h)][static_cast<std::size_t>(other)];
        const bool findable =
            before_.groups[static_cast<std::size_t>(h)].findable[static_cast<std::size_t>(other)] !=
            0;
        if (!findable || fate == Fate::kGoes) continue;
        const Answer below = is_below(h, other, g, b);
        if (below == Answer::kYes) fate = Fate::kGoes;
        if (below == Answer::kMaybe) fate = Fate::kMayGo;
      }
    }
  };
  const auto is_sure = [](const Candidate& each) { return each.last != kNever; };
  if (count == 0 || std::none_of(candidates.begin(), candidates.end(), is_sure)) add(fates);
  if (count == 0) return;
  if (count >= num_cached && !unsure) {  // all of them go, in whatever order
    Fates next = fates;
    for (int b = 0; b < group(g).num_blocks; ++b) {
      if (is_cached(g, b) != Answer::kNo) take(b, next);
    }
    add(next);
    return;
  }
  for (const Candidate& each : candidates) {
    const auto goes_before = [&](const Candidate& other) {
      if (other.last == kNever || other.last > each.first) return false;
      if (other.last < each.first) return true;
      const auto& a = order(g, other.block).rank;
      const auto& b = order(g, each.block).rank;
      return a && b && surely_colder(*a, *b);
    };
    if (std::any_of(candidates.begin(), candidates.end(), goes_before)) continue;
    Fates next = fates;
    take(each.block, next);
    forecast(g, count - 1, next, result);
  }
}

Harness::Forecast Harness::forecast_evictions(int g, int count) const {
  Forecast result;
  Fates fates;
  for (int h = 0; h < num_groups(); ++h) {
    fates.emplace_back(static_cast<std::size_t>(group(h).num_blocks), Fate::kStays);
  }
  forecast(g, count, fates, result);
  return result;
}

void Harness::check_evictions(int g, int evicted, const Forecast& expected) {
  if (evicted == 0 || config_.transfers) return;
  const auto text_of = [&](const auto& goes) {
    std::string text;
    for (int h = 0; h < num_groups(); ++h) {
      text += " group " + std::to_string(h) + ":";
      for (int b = 0; b < group(h).num_blocks; ++b) {
        if (goes(h, b)) text += " " + std::to_string(b);
      }
    }
    return text;
  };
  const auto lost = [&](int h, int b) {
    const Result<bool> findable = manager_->is_findable(GroupId(h), BlockId(b));
    KVFOLIO_REQUIRE(findable.has_value(), "is_findable of a block");
    return before_.groups[static_cast<std::size_t>(h)].findable[static_cast<std::size_t>(b)] != 0 &&
           !*findable;
  };
  note("," + text_of(lost));
  if (!expected.complete) {
    ++coverage_.orders_skipped;
    return;
  }
  bool found = false;
  for (const Fates& outcome : expected.outcomes) {
    bool same = true;
    for (int h = 0; h < num_groups(); ++h) {
      for (int b = 0; b < group(h).num_blocks; ++b) {
        const Fate fate = outcome[static_cast<std::size_t>(h)][static_cast<std::size_t>(b)];
        same = same && (fate == Fate::kMayGo || lost(h, b) == (fate == Fate::kGoes));
      }
    }
    found = found || same;
  }
  if (!found) {
    std::string wanted;
    for (const Fates& outcome : expected.outcomes) {
      wanted += wanted.empty() ? "" : ", or";
      wanted += text_of([&](int h, int b) {
        return outcome[static_cast<std::size_t>(h)][static_cast<std::size_t>(b)] == Fate::kGoes;
      });
    }
    throw CheckFailed("evict() takes" + wanted + "; it took" + text_of(lost) + describe_order(g));
  }
  const int left = before_.groups[static_cast<std::size_t>(g)].usage.cached - evicted;
  if (expected.outcomes.size() == 1) {
    ++coverage_.orders_checked;
    if (left > 0) ++coverage_.orders_chosen;
  } else {
    ++coverage_.orders_skipped;
  }
}

std::string Harness::describe_order(int g) const {
  Fates fates;
  for (int h = 0; h < num_groups(); ++h) {
    fates.emplace_back(static_cast<std::size_t>(group(h).num_blocks), Fate::kStays);
  }
  std::string text;
  for (int b = 0; b < group(g).num_blocks; ++b) {
    const GroupState& state = before_.groups[static_cast<std::size_t>(g)];
    if (state.findable[static_cast<std::size_t>(b)] == 0) continue;
    const BlockModel& model = block(g, b);
    const BlockOrder& at = order(g, b);
    const auto [first, last] = turns_of(g, b, fates);
    text += "\n  block " + std::to_string(b) + " at " +
            std::to_string(trie_.position_of(model.published.front())) + " refs " +
            std::to_string(state.refs[static_cast<std::size_t>(b)]) + " turn " +
            std::to_string(first) + ".." + std::to_string(last) + " tokens " +
            std::to_string(at.least) + ".." + std::to_string(model.published.size()) + " nodes";
    for (const int node : model.published) text += " " + std::to_string(node);
    if (at.wanted || at.maybe_wanted) text += at.wanted ? " wanted" : " maybe wanted";
    if (at.read || at.maybe_read) text += at.read ? " read" : " maybe read";
    text += " hung at " + std::to_string(at.hung_at);
    if (!at.rank) continue;
    text += " parked " + std::to_string(at.rank->parked) + " let go " +
            std::to_string(at.rank->let_go) + " by";
    for (const int who : at.rank->who) text += " " + std::to_string(who);
    text += " depth " + std::to_string(at.rank->depth) + (at.rank->known ? "" : " unknown");
  }
  return text + "\n  after " + std::to_string(num_looks_) + " operations";
}

}  // namespace kvfolio::model_check
