// SPDX-License-Identifier: Apache-2.0
// What commit, complete, drop and publication mean in the model; what a hit may and must be.

#include <algorithm>
#include <numeric>
#include <set>

#include "model_check/harness.h"

namespace kvfolio::model_check {

bool Harness::incomplete(std::uint64_t ticket) const {
  for (const StepWork& step : flight_) {
    if (step.ticket == ticket) return true;
  }
  return false;
}

int Harness::unit() const {
  int smallest = kMaxBlockSize;
  for (const GroupSpec& g : config_.spec.groups) smallest = std::min(smallest, g.block_size);
  return smallest;
}

int Harness::common_multiple() const {
  int multiple = 1;
  for (const GroupSpec& g : config_.spec.groups) multiple = std::lcm(multiple, g.block_size);
  return multiple;
}

// ---- publication ----

// The step in flight that writes or copies this token of the sequence, or 0.
std::uint64_t Harness::settles_with(const Seq& seq, int position) const {
  const std::uint64_t ticket = seq.tickets[static_cast<std::size_t>(position)];
  if (incomplete(ticket)) return ticket;
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    const std::vector<std::int32_t>& table = seq.tables[static_cast<std::size_t>(g)];
    if (position / size >= isize(table)) continue;
    const std::int32_t b = table[static_cast<std::size_t>(position / size)];
    if (b < 0) continue;
    const Cell& held = cell(logical_, g, b * size + position % size);
    if (incomplete(held.ticket)) return held.ticket;
  }
  return 0;
}

bool Harness::settles_later(const Seq& seq) const {
  for (int n = 0; n < seq.length(); ++n) {
    if (settles_with(seq, n) != 0) return true;
  }
  return false;
}

// Tokens of a sequence that may be findable now.
int Harness::publishable(const Seq& seq) const {
  if (!config_.options.prefix_cache || !seq.prompt.publishes() || seq.adopted || seq.forgotten) {
    return 0;
  }
  int n = 0;
  while (n < seq.accepted && seq.named[static_cast<std::size_t>(n)] == 1 &&
         trie_.exact(seq.nodes[static_cast<std::size_t>(n)]) &&
         (in_order() || !incomplete(seq.tickets[static_cast<std::size_t>(n)]))) {
    ++n;
  }
  // Truncated to the inside of a span that attends to itself: what is left of it has read more.
  while (splits_self_attending_span(seq.prompt.media, n)) --n;
  return n;
}

// Tokens that stood on the tree before this operation.
int Harness::published_before(const Seq& seq) const {
  for (const auto& [each, state] : before_.seqs) {
    if (each->id == seq.id) return state.info.published_length;
  }
  return 0;
}

// `tables` may be older than the sequence's own: windows drop blocks in the moment that publishes.
void Harness::publish(const Seq& seq, const Tables& tables, bool tail, bool certain) {
  int n = publishable(seq);
  // What a step in flight copies first is not there yet, though its tokens may be found elsewhere.
  for (int p = 0; p < n && !in_order(); ++p) {
    if (settles_with(seq, p) != 0) n = p;
  }
  // Offered are the blocks that end behind; who lets go of all of its blocks offers all of them.
  const int behind = tail ? seq.published_at_close : published_before(seq);
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    const std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(g)];
    const bool whole = tail && seq.prompt.publish == Publish::kAll;
    for (int p = 0; p < (whole ? n : n / size * size); ++p) {
      if (p / size >= isize(table) || table[static_cast<std::size_t>(p / size)] < 0) continue;
      const std::int32_t b = table[static_cast<std::size_t>(p / size)];
      const int node = seq.nodes[static_cast<std::size_t>(p)];
      if (cell(logical_, g, b * size + p % size).node != node) continue;
      std::vector<int>& published = block(g, b).published;
      if (isize(published) > p % size && published[static_cast<std::size_t>(p % size)] != node) {
        published.resize(static_cast<std::size_t>(p % size));
      }
      if (isize(published) == p % size) published.push_back(node);
      if (certain && !seq.maybe_forgotten && (p / size + 1) * size > behind)
        block(g, b).offered = std::max(block(g, b).offered, p % size + 1);
    }
  }
}

bool Harness::is_published_twice(int g, int b) const {
  const std::vector<int>& own = block(g, b).published;
  const auto offered = static_cast<std::size_t>(block(g, b).offered);
  for (int other = 0; other < group(g).num_blocks; ++other) {
    const std::vector<int>& published = block(g, other).published;
    if (other == b || published.size() < offered || own.size() < offered) continue;
    if (std::equal(own.begin(), own.begin() + block(g, b).offered, published.begin())) return true;
  }
  return false;
}

void Harness::publish_whoever_waited() {
  for (const SeqPtr& seq : seqs_) {
    if (in_order()) break;
    const auto member = std::find_if(members_.begin(), members_.end(),
                                     [&](const Member& m) { return m.seq == seq; });
    // For sure what the step's own sequences have; a fork may wait for its own next step.
    const bool in_done = std::find(moved_.begin(), moved_.end(), seq) != moved_.end();
    publish(*seq, member == members_.end() ? seq->tables : member->state_before.tables, false,
            in_done);
  }
  for (const SeqPtr& seq : waiting_) {
    publish(*seq, seq->tables, true, seq->publishes_late);
    publish(*seq, seq->taken_back, true, false);
  }
  std::erase_if(waiting_, [&](const SeqPtr& seq) { return !settles_later(*seq); });
}

// ---- steps ----

void Harness::apply_commit() {
  StepWork& step = *open_step_;
  for (int g = 0; g < num_groups(); ++g) {
    const StepWork::Group& work = step.groups[static_cast<std::size_t>(g)];
    const int size = group(g).block_size;
    for (std::size_t i = 0; i < work.copy_src.size(); ++i) {
      for (int off = 0; off < size; ++off) {
        const int node = cell(logical_, g, work.copy_src[i] * size + off).node;
        cell(logical_, g, work.copy_dst[i] * size + off) = {node, step.ticket};
      }
    }
    std::size_t token = 0;
    for (const StepWork::Row& row : step.rows) {
      for (int p = row.begin; p < row.end; ++p, ++token) {
        const std::int32_t slot = work.slots[token];
        const int node = row.nodes[static_cast<std::size_t>(p)];
        if (slot >= 0) {
          cell(logical_, g, slot) = {node, step.ticket};
          block(g, slot / size).valid = slot % size + 1;
          // Tokens of a sequence that closed without being hung may go. Were they findable after
          // all, a hit would find more than the model allows.
          std::vector<int>& published = block(g, slot / size).published;
          const auto offset = static_cast<std::size_t>(slot % size);
          const bool is_there = offset < published.size() && published[offset] == node;
          if (offset < published.size() && (!is_there || !in_order())) published.resize(offset);
          continue;
        }
        const std::int32_t b =
            row.tables[static_cast<std::size_t>(g)][static_cast<std::size_t>(p / size)];
        KVFOLIO_REQUIRE(b >= 0 && cell(logical_, g, b * size + p % size).node == node,
                        "a token with slot -1 is there already, group " + std::to_string(g) +
                            " position " + std::to_string(p));
        ++coverage_.slots_kept;
      }
    }
    expected_.block_copies += work.copy_src.size();
    coverage_.copies += work.copy_src.size();
  }
  for (const Member& member : members_) {
    Seq& seq = *member.seq;
    if (in_order()) moved_.push_back(member.seq);
    expected_.tokens_committed += static_cast<std::uint64_t>(seq.length() - seq.committed);
    seq.committed = seq.length();
    seq.last_step = seq.row_ticket = step.ticket;
    const bool behind_drafts = !seq.drafts.empty();
    if (!behind_drafts) seq.accepted = seq.committed - seq.open_draft;
    if (behind_drafts || seq.open_draft > 0) seq.drafts.push_back({seq.committed, seq.open_draft});
    if (behind_drafts) ++coverage_.behind_drafts;
    seq.open_draft = 0;
    seq.in_step = seq.fresh = false;
    seq.windows_moved = true;
    seq.stands = -1;
  }
  if (in_order()) {
    for (const StepWork::Row& row : step.rows) publish(*row.seq, row.tables, false);
  }
  last_committed_ = step.ticket;
  flight_.push_back(std::move(step));
  open_step_.reset();
  members_.clear();
}

void Harness::apply_complete(std::uint64_t ticket) {
  std::vector<StepWork> done;
  while (!flight_.empty()) {
    const auto step = std::find_if(flight_.begin(), flight_.end(), [&](const StepWork& s) {
      return s.ticket == ticket || (in_order() && s.ticket < ticket);
    });
    if (step == flight_.end()) break;
    device_->forget(Ticket(step->ticket));
    done.push_back(std::move(*step));
    flight_.erase(step);
  }
  for (const StepWork& step : done) {
    for (const SeqPtr& seq : seqs_) seq->lose_names(step.ticket, false);
    for (Member& member : members_) member.model_before.lose_names(step.ticket, false);
  }
  if (!in_order()) {
    // Windows wait with what they have to publish.
    for (const StepWork& step : done) {
      for (const StepWork::Row& row : step.rows) {
        publish(*row.seq, row.tables, false, false);  // a trim may have been quicker
        moved_.push_back(row.seq);
      }
    }
  }
  publish_whoever_waited();
  // Complete, but behind one that is not: fail() of that one ends them too.
  for (StepWork& step : done) overtakers_.push_back(std::move(step));
  std::erase_if(overtakers_, [&](const StepWork& step) {
    return flight_.empty() || step.ticket < flight_.front().ticket;
  });
}

// The device may have written what the sequence appended: behind the first of these slots its block
// holds nothing valid.
void Harness::forget_overwritten(const SeqPtr& seq) {
  const bool had_promise = std::any_of(members_.begin(), members_.end(), [&](const Member& m) {
    return m.seq == seq && m.model_before.has_promise();
  });
  std::size_t token = 0;
  for (const StepWork::Row& row : open_step_->rows) {
    if (row.seq != seq) {
      token += static_cast<std::size_t>(row.end - row.begin);
      continue;
    }
    for (int g = 0; g < num_groups(); ++g) {
      const std::vector<std::int32_t>& slots =
          open_step_->groups[static_cast<std::size_t>(g)].slots;
      auto at = token;
      const auto end = token + static_cast<std::size_t>(row.end - row.begin);
      while (at < end && slots[at] < 0) ++at;  // found whole, and kept
      if (at == end) continue;
      const int offset = slots[at] % group(g).block_size;
      BlockModel& model = block(g, slots[at] / group(g).block_size);
      model.valid = std::min(model.valid, offset);
      // Without order no step in flight reads what is written again: it is free at once, unless it
      // lay ready.
      if (offset == 0 && !in_order() && !had_promise) model.taken_at = open_step_->ticket;
    }
    return;
  }
}

// Takes a sequence out of the open step: it is what it was.
void Harness::forget_member(std::size_t index, bool restore) {
  if (restore && open_step_) forget_overwritten(members_[index].seq);
  Member member = std::move(members_[index]);
  members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(index));
  if (!restore) return;
  // Names given since the append stay, and so does a new priority.
  const std::vector<char> named = member.seq->named;
  const std::int32_t priority = member.seq->priority;
  std::vector<std::int32_t> announced = std::move(member.seq->announced);
  const bool maybe_silent = member.seq->maybe_silent;
  *member.seq = member.model_before;
  member.seq->priority = priority;
  member.seq->announced = std::move(announced);  // an append that differed ended it for good
  member.seq->maybe_silent = maybe_silent;
  for (std::size_t p = 0; p < member.seq->named.size(); ++p) member.seq->named[p] = named[p];
}

void Harness::apply_drop() {
  while (!members_.empty()) forget_member(members_.size() - 1, true);
  open_step_.reset();
}

// ---- hits ----

// The longest hit that must be found: it ends at a multiple of every block size, and every block
// that it reads is findable whole.
int Harness::must_hit(const Prompt& prompt, const std::vector<int>& nodes) const {
  if (!config_.options.prefix_cache || !prompt.looks()) return 0;
  const int n = isize(nodes);
  int best = 0;
  for (int hit = common_multiple(); hit <= n - 1; hit += common_multiple()) {
    if (splits_self_attending_span(prompt.media, hit)) continue;
    bool all = true;
    bool any = false;  // a window of one token needs nothing at a border: no path, no hit
    for (int g = 0; all && g < num_groups(); ++g) {
      const int size = group(g).block_size;
      for (int j = 0; all && j < hit / size; ++j) {
        bool needed = false;
        for (int p = j * size; p < (j + 1) * size; ++p) needed |= hit_needs(group(g), hit, p);
        const bool last = (j + 1) * size == hit;
        if (!needed && !last) continue;
        bool found = false;
        for (int b = 0; !found && b < group(g).num_blocks; ++b) {
          const std::vector<int>& published = block(g, b).published;
          found =
              before_.groups[static_cast<std::size_t>(g)].findable[static_cast<std::size_t>(b)] !=
                  0 &&
              block(g, b).certain == size && isize(published) == size &&
              std::equal(published.begin(), published.end(), nodes.begin() + j * size);
        }
        all = found || !needed;
        any |= found && last;
      }
    }
    if (all && any) best = hit;
  }
  return best;
}

// The longest hit that findable content allows.
int Harness::best_hit(const Prompt& prompt, const std::vector<int>& nodes) const {
  if (!config_.options.prefix_cache || !prompt.looks()) return 0;
  std::vector<std::set<int>> found(static_cast<std::size_t>(num_groups()));
  for (int g = 0; g < num_groups(); ++g) {
    for (int b = 0; b < group(g).num_blocks; ++b) {
      if (before_.groups[static_cast<std::size_t>(g)].findable[static_cast<std::size_t>(b)] == 0) {
        continue;
      }
      const std::vector<int>& published = block(g, b).published;
      found[static_cast<std::size_t>(g)].insert(published.begin(), published.end());
    }
  }
  for (int hit = isize(nodes) - 1; hit > 0; --hit) {
    if (splits_self_attending_span(prompt.media, hit)) continue;
    bool all = true;
    for (int g = 0; all && g < num_groups(); ++g) {
      for (int p = hit - 1; all && p >= 0; --p) {
        all = !reads(group(g), hit, p) ||
              found[static_cast<std::size_t>(g)].contains(nodes[static_cast<std::size_t>(p)]);
      }
    }
    if (all) return hit;
  }
  return 0;
}

void Harness::check_hit(const Prompt& prompt, int hit) {
  const std::vector<int> nodes = nodes_of(trie_, prompt);
  KVFOLIO_REQUIRE(hit >= 0 && hit <= std::max(0, isize(nodes) - 1),
                  "a hit leaves a token for the logits");
  KVFOLIO_REQUIRE(!splits_self_attending_span(prompt.media, hit),
                  "a hit never ends inside a span that attends to itself");
  const int best = best_hit(prompt, nodes);
  if (hit < best) ++coverage_.hits_below_best;
  KVFOLIO_REQUIRE(hit <= best, "a hit of " + std::to_string(hit) +
                                   " reads what is findable: at most " + std::to_string(best));
  // A hit may cost blocks that lie ready for others, and is a miss then.
  if (manager_->counters().publications_skipped == 0 && !(hit == 0 && has_promises())) {
    int least = must_hit(prompt, nodes);
    // Without order the model may take a block for whole that is hung in part: such a hit ends
    // inside the last one, and they are counted.
    if (!in_order() && hit < least && hit > least - unit()) {
      ++coverage_.tails_lost;
      least = hit;
    }
    std::string findable;
    for (int g = 0; hit < least && g < num_groups(); ++g) {
      for (int b = 0; b < group(g).num_blocks; ++b) {
        const GroupState& state = before_.groups[static_cast<std::size_t>(g)];
        if (state.findable[static_cast<std::size_t>(b)] == 0) continue;
        findable += "\n  group " + std::to_string(g) + " block " + std::to_string(b) + " nodes";
        for (const int node : block(g, b).published) findable += " " + std::to_string(node);
      }
    }
    for (int p = 0; hit < least && p < isize(nodes); ++p) {
      findable += (p == 0 ? "\n  the prompt's nodes " : " ") +
                  std::to_string(nodes[static_cast<std::size_t>(p)]);
    }
    KVFOLIO_REQUIRE(hit >= least, "whole findable blocks are found: " + std::to_string(least) +
                                      " expected, " + std::to_string(hit) +
                                      " found; findable:" + findable);
  }
}

}  // namespace kvfolio::model_check
