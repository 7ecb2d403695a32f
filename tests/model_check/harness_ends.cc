// SPDX-License-Identifier: Apache-2.0
// Ends, of which the order of eviction of window groups depends (harness_order.cc): a full block is
// read by an end if a hit there reads some of it. Ends are
//
//   - position n - 1 of a prompt of n tokens: of what it finds when it is opened, of the rest when
//     its sequence publishes, unless it was cut back in front of it;
//   - the last full-block border of a sequence, when it closes;
//   - what a pin holds;
//   - where paths part, whenever a sequence publishes that comes by.
//
// A mark is as old as the entry. Where paths part cannot be seen from outside, since a path may
// have no entry and yet a place: it is sure where two strings with entries or places part, and
// possible where any two that ever were on the tree did.

#include <algorithm>

#include "model_check/harness.h"

namespace kvfolio::model_check {

void Harness::read_what_was_found(const Seq& seq) {
  const Tables tables = state_of(seq).tables;
  for (int g = 0; g < num_groups(); ++g) {
    const GroupRule rule(group(g));
    const int size = group(g).block_size;
    const std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(g)];
    for (int j = 0; j < isize(table) && j * size < seq.prompt_end; ++j) {
      const bool is_read = j * size < rule.num_sinks() ||
                           j >= rule.first_read(static_cast<std::int32_t>(seq.prompt_end)) / size;
      const std::int32_t b = table[static_cast<std::size_t>(j)];
      if (b >= 0 && is_read) read_.emplace_back(g, b);
    }
  }
}

// ---- where paths part ----

void Harness::see_on_tree(int node) {
  const auto at = static_cast<std::size_t>(node);
  if (on_tree_.size() <= at) on_tree_.resize(at + 1, 0);
  if (on_tree_[at] != 0) return;
  on_tree_[at] = 1;
  const int p = trie_.position_of(node);
  const int parent = trie_.before(node, p - 1);
  const auto [other, is_first] = followed_by_.try_emplace(parent, node);
  const int q = p / unit() * unit();
  if (!is_first && other->second != node) parted_behind_.insert(trie_.before(node, q - 1));
}

void Harness::note_where_paths_part(const Snapshot& now) {
  for (int g = 0; g < num_groups(); ++g) {
    for (int b = 0; b < group(g).num_blocks; ++b) {
      if (now.groups[static_cast<std::size_t>(g)].findable[static_cast<std::size_t>(b)] == 0)
        continue;
      for (const int node : block(g, b).published) see_on_tree(node);
    }
  }
  for (const auto& [seq, state] : now.seqs) {
    for (int p = 0; p < std::min(state.info.published_length, isize(seq->nodes)); ++p) {
      see_on_tree(seq->nodes[static_cast<std::size_t>(p)]);
    }
  }
}

bool Harness::maybe_parts(const Seq& seq, int q) const {
  return q > 0 && parted_behind_.contains(seq.nodes[static_cast<std::size_t>(q - 1)]);
}

// Behind q tokens of a sequence that goes on there for a unit, another string does otherwise,
// before and after this operation.
bool Harness::surely_parts(const Seq& seq, int q, const Snapshot& now) const {
  const auto parts = [&](int last_node) {
    const int last = std::min(trie_.position_of(last_node), q + unit() - 1);
    return last >= q &&
           trie_.before(last_node, q - 1) == seq.nodes[static_cast<std::size_t>(q - 1)] &&
           trie_.before(last_node, last) != seq.nodes[static_cast<std::size_t>(last)];
  };
  for (int g = 0; g < num_groups(); ++g) {
    const auto at_g = static_cast<std::size_t>(g);
    for (int b = 0; b < group(g).num_blocks; ++b) {
      const auto at_b = static_cast<std::size_t>(b);
      if (before_.groups[at_g].findable[at_b] == 0 || now.groups[at_g].findable[at_b] == 0)
        continue;
      const std::vector<int>& nodes = block(g, b).published;
      const int least = order(g, b).least;
      if (least == 0 || nodes != order(g, b).published) continue;
      if (parts(nodes[static_cast<std::size_t>(least - 1)])) return true;
    }
  }
  return std::any_of(before_.seqs.begin(), before_.seqs.end(), [&](const auto& each) {
    const auto& [other, before] = each;
    const auto after = std::find_if(now.seqs.begin(), now.seqs.end(),
                                    [&own = other](const auto& one) { return one.first == own; });
    if (after == now.seqs.end() || other.get() == &seq) return false;
    const int published =
        std::min(before.info.published_length, after->second.info.published_length);
    return published > 0 && parts(other->nodes[static_cast<std::size_t>(published - 1)]);
  });
}

// ---- marks ----

// A hit at `position` of the sequence's path, which is on the tree up to `limit`, is an end.
void Harness::mark_read(const Seq& seq, int position, int limit, bool sure, const Snapshot& now) {
  for (int g = 0; g < num_groups(); ++g) {
    const GroupRule rule(group(g));
    if (rule.keeps_all()) continue;
    const int size = group(g).block_size;
    const int first = rule.first_read(static_cast<std::int32_t>(position)) / size;
    for (int j = 0; j * size < position && (j + 1) * size <= limit; ++j) {
      if (j < first && j * size >= rule.num_sinks()) continue;
      const int last_node = seq.nodes[static_cast<std::size_t>((j + 1) * size - 1)];
      std::vector<int> there;
      for (int b = 0; b < group(g).num_blocks; ++b) {
        const std::vector<int>& published = block(g, b).published;
        const bool findable =
            now.groups[static_cast<std::size_t>(g)].findable[static_cast<std::size_t>(b)] != 0;
        if (findable && isize(published) == size && published.back() == last_node)
          there.push_back(b);
      }
      for (const int b : there) {
        const bool is_it = there.size() == 1 && order(g, b).least == size;
        (sure && is_it ? order(g, b).read : order(g, b).maybe_read) = true;
      }
    }
  }
}

void Harness::note_ends_of(const Seq& seq, const SeqState& before, const SeqState& state,
                           const Snapshot& now) {
  const int from = before.info.published_length;
  const int to = std::min(state.info.published_length, seq.length());
  const bool moved = to > from;
  mark_read(seq, seq.prompt_end, to, moved, now);
  for (int q = moved ? from : to; q <= to; q += unit()) {
    if (!maybe_parts(seq, q)) continue;
    mark_read(seq, q, q, moved && q + unit() <= to && surely_parts(seq, q, now), now);
  }
}

// It may have published more than what was seen of it last.
void Harness::note_ends_of_closed(const Seq& seq, int published, bool closes, const Snapshot& now) {
  const bool has_skipped =
      now.counters.publications_skipped != before_.counters.publications_skipped;
  int largest = 1;
  for (const GroupSpec& each : config_.spec.groups) largest = std::max(largest, each.block_size);
  // In order all but tails was published before.
  const int length = in_order() ? std::min(published, seq.length()) : seq.length();
  mark_read(seq, seq.prompt_end, length, false, now);
  for (int q = published / unit() * unit(); q <= length; q += unit()) {
    if (maybe_parts(seq, q)) mark_read(seq, q, q, false, now);
  }
  const int first = published / largest * largest;
  for (int border = first; border <= length; border += largest) {
    const bool sure = closes && published > 0 && in_order() && !has_skipped;
    // A hit there may end inside a block that is whole all the same.
    mark_read(seq, border, std::min(length, border + largest - 1), sure, now);
  }
}

void Harness::note_ends(const Snapshot& now) {
  note_where_paths_part(now);
  for (int g = 0; g < num_groups(); ++g) {
    for (int b = 0; b < group(g).num_blocks; ++b) {
      BlockOrder& at = order(g, b);
      const std::vector<int>& is = block(g, b).published;
      const auto same = static_cast<std::ptrdiff_t>(std::min(is.size(), at.published.size()));
      // Another entry stands there now. Without one before, a mark can only have come with the
      // entry whose place it took.
      if (before_.groups[static_cast<std::size_t>(g)].findable[static_cast<std::size_t>(b)] != 0 &&
          !std::equal(is.begin(), is.begin() + same, at.published.begin())) {
        at.read = at.maybe_read = false;
      }
    }
  }
  for (const auto& [g, b] : read_) {
    if (group(g).kind == AttentionKind::kFull ||
        isize(block(g, b).published) < group(g).block_size) {
      continue;
    }
    BlockOrder& at = order(g, b);
    (at.least == group(g).block_size ? at.read : at.maybe_read) = true;
  }
  for (const auto& [seq, before] : before_.seqs) {
    const auto after = std::find_if(now.seqs.begin(), now.seqs.end(),
                                    [&own = seq](const auto& each) { return each.first == own; });
    if (after != now.seqs.end()) {
      note_ends_of(*seq, before, after->second, now);
    } else if (std::find(aborted_.begin(), aborted_.end(), seq->id) == aborted_.end()) {
      note_ends_of_closed(*seq, before.info.published_length, true, now);
    }
  }
  for (const SeqPtr& seq : waited_) note_ends_of_closed(*seq, 0, false, now);
  waited_ = waiting_;
}

}  // namespace kvfolio::model_check
