// SPDX-License-Identifier: Apache-2.0
// reset() and forget(): what begins with these tokens is found no more, and who runs on such a path
// publishes nothing from then on.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {

// The sequence has all of these tokens, or may turn out to have them, and could publish them.
bool Harness::runs_on(const Seq& seq, const Prompt& path) const {
  if (!config_.options.prefix_cache || !seq.prompt.publishes()) return false;
  if (seq.prompt.root != path.root || seq.length() < isize(path.tokens)) return false;
  // What was adopted has no known tokens. Yet all of a root key concerns each open sequence, also
  // one that is cleared later and would publish again.
  if (seq.adopted && !path.tokens.empty()) return false;
  for (int p = 0; p < isize(path.tokens); ++p) {
    const auto at = static_cast<std::size_t>(p);
    if (!trie_.exact(seq.nodes[at]) || seq.named[at] == 2) return false;
    if (extra_at(seq.prompt.media, p) != extra_at(path.media, p)) return false;
    if (seq.named[at] == 1 && seq.tokens[at] != path.tokens[at]) return false;
  }
  return true;
}

// Tokens at the end of the path or behind it are findable nowhere any more.
void Harness::forget_content(const Prompt& path) {
  const std::vector<int> nodes = nodes_of(trie_, path);
  const int size = isize(nodes);
  const int last = size == 0 ? trie_.root(path.root) : nodes.back();
  for (int g = 0; g < num_groups(); ++g) {
    for (int b = 0; b < group(g).num_blocks; ++b) {
      std::vector<int>& published = block(g, b).published;
      if (published.empty() || trie_.position_of(published.back()) < size - 1) continue;
      if (trie_.before(published.back(), size - 1) != last) continue;
      const int begin = trie_.position_of(published.front());
      published.resize(static_cast<std::size_t>(std::max(0, size - 1 - begin)));
      block(g, b).certain = std::min(block(g, b).certain, isize(published));
    }
  }
}

// A query behind `size` tokens reads the last of them.
bool Harness::reads_back(int size) const {
  return std::any_of(config_.spec.groups.begin(), config_.spec.groups.end(),
                     [&](const GroupSpec& g) { return reads(g, size, size - 1); });
}

void Harness::forget(Rng& rng) {
  const bool resets = rng.chance(10);
  const bool whole_root = !resets && rng.chance(15);
  Prompt path = any_prompt(rng);
  path.be_plain();
  path.late_names = false;
  if (whole_root) path.tokens.clear();
  note(resets ? std::string("reset") : "forget " + text_of(path));
  std::vector<int> roots;
  if (resets) {
    path.tokens.clear();
    for (int root = 0; root < isize(kRoots); ++root) roots.push_back(root);
  } else {
    roots.push_back(path.root);
  }
  Forgotten forgotten;
  if (resets) {
    forgotten = manager_->reset();
  } else if (whole_root) {
    forgotten = manager_->forget(kRoots[static_cast<std::size_t>(path.root)]);
  } else {
    const Result<Forgotten> answer = manager_->forget(path.tokens, path.options());
    if (!expect(status_of(answer), {})) return;
    forgotten = *answer;
  }
  changed_ = true;
  note(" " + std::to_string(forgotten.blocks) + " blocks " + std::to_string(forgotten.pins) +
       " pins");
  for (const int root : roots) {
    path.root = root;
    for (const std::vector<SeqPtr>* list : {&seqs_, &waiting_}) {
      for (const SeqPtr& seq : *list) {
        seq->forgotten = seq->forgotten || runs_on(*seq, path);
        if (!seq->maybe_whole) continue;
        Seq whole = *seq;
        whole.say(trie_, seq->prompt.tokens.back(), true, 0);
        seq->maybe_forgotten = seq->maybe_forgotten || runs_on(whole, path);
      }
    }
    for (OpenLoad& load : loads_) {
      const bool is_now = load.seq && !load.forgotten && runs_on(load.content, path);
      if (is_now) ++coverage_.loads_forgotten;
      load.forgotten = load.forgotten || is_now;
    }
    for (Member& member : members_) {
      member.model_before.forgotten = member.seq->forgotten;
      if (!member.model_before.maybe_whole) continue;
      member.model_before.maybe_forgotten = true;
      member.seq->maybe_forgotten = true;
    }
    forget_content(path);
    // Where no query reads the last of the tokens, a hit behind it needs no block of it.
    if (path.tokens.empty() || !reads_back(isize(path.tokens))) continue;
    Prompt longer = path;
    longer.tokens.push_back(config_.alphabet);
    const Result<std::int32_t> found = manager_->probe(longer.tokens, longer.options());
    KVFOLIO_REQUIRE(found.has_value() && *found < isize(path.tokens),
                    "what was forgotten is not found");
  }
  std::int64_t lost = 0;
  for (int g = 0; g < num_groups(); ++g) {
    for (int b = 0; b < group(g).num_blocks; ++b) {
      const Result<bool> findable = manager_->is_findable(GroupId(g), BlockId(b));
      const char before =
          before_.groups[static_cast<std::size_t>(g)].findable[static_cast<std::size_t>(b)];
      lost += before != 0 && !*findable ? 1 : 0;
    }
  }
  KVFOLIO_REQUIRE(forgotten.blocks == lost,
                  "forget() says how many blocks lost their entry: " + std::to_string(lost));
  coverage_.forgotten += static_cast<std::uint64_t>(lost);
  KVFOLIO_REQUIRE(settle_forgotten_pins(path, resets) == forgotten.pins,
                  "forget() says how many pins ended");
}

// Pins whose prefix begins with the path may have ended, and no others. Asked in a copy where that
// can be, since only unpin() tells. Returns how many ended.
int Harness::settle_forgotten_pins(const Prompt& path, bool resets) {
  std::optional<Aside> copy;
  if (!pins_.empty() && !config_.host_copies) {
    copy.emplace(make_target());
    KVFOLIO_REQUIRE(manager_->copy_to(copy->manager).ok(), "copy_to after forget()");
  }
  int ended = 0;
  const std::vector<int> wanted = nodes_of(trie_, path);
  std::vector<Pin> kept;
  for (Pin& pin : pins_) {
    const Status gone = (copy ? copy->manager : *manager_).unpin(pin.id);
    const std::vector<int> has = nodes_of(trie_, pin.prompt);
    const bool begins = pin.prompt.root == path.root && pin.pinned >= isize(wanted) &&
                        std::equal(wanted.begin(), wanted.end(), has.begin());
    KVFOLIO_REQUIRE(gone.ok() || ((begins || resets) && gone.code() == kNotFound),
                    "forget() ends no pin on another prefix");
    ended += gone.ok() ? 0 : 1;
    if (gone.ok() && copy) {
      kept.push_back(std::move(pin));
    } else {
      stale_pins_.push_back(pin.id);
    }
  }
  pins_ = std::move(kept);
  return ended;
}

}  // namespace kvfolio::model_check
