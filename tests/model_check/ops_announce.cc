// SPDX-License-Identifier: Apache-2.0
// Announcements: which tokens sequences are going to append, as their owner knows it, and what
// soon() has to say then: every announcement is compared token by token.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {

// Tokens of `length` before the end of the last block that is full in every group.
int Harness::findable_of(int length) const {
  int end = length;
  for (const GroupSpec& each : config_.spec.groups) {
    end = std::min(end, length / each.block_size * each.block_size);
  }
  return end;
}

// Where the tokens begin that it announces and has not published.
int Harness::announced_from(const Seq& seq) const {
  const Result<SequenceInfo> info = manager_->info(seq.id);
  KVFOLIO_REQUIRE(info.has_value(), "info of an open sequence");
  return findable_of(info->published_length);
}

// open() is over. `skipped`: its counter says that there was no room. `has_root`: it publishes.
void Harness::begin_announcement(const SeqPtr& seq, bool has_root, bool skipped) {
  const int from = announced_from(*seq);
  const int end = findable_of(isize(seq->prompt.tokens));
  const bool wants = has_root && seq->prompt.publishes() && config_.options.prefix_cache;
  if (!wants || end <= from) {
    KVFOLIO_REQUIRE(!skipped, "nothing is left out where there is nothing to announce");
    return;
  }
  std::int64_t used = 0;
  bool sure = true;
  for (const SeqPtr& other : seqs_) {
    if (other == seq || other->announced.empty()) continue;
    sure = sure && !other->maybe_silent;
    used += isize(other->announced) - announced_from(*other);
  }
  std::int64_t most = config_.options.max_announced_tokens;
  for (int g = 0; config_.options.max_announced_tokens == 0 && g < num_groups(); ++g) {
    most = std::max(most, std::int64_t{group(g).num_blocks - first_block()} * group(g).block_size);
  }
  const std::int64_t room = most / unit() * unit();
  KVFOLIO_REQUIRE(!sure || skipped == (used + end - from > room),
                  "an announcement is kept iff all of it has room: " + std::to_string(used) +
                      " of " + std::to_string(room) + " tokens are announced");
  ++(skipped ? coverage_.announcements_left_out : coverage_.announcements);
  if (skipped) return;
  seq->announced.assign(seq->prompt.tokens.begin(), seq->prompt.tokens.begin() + end);
}

// The sequence has got the tokens from `begin` on, the last ones as guesses.
void Harness::follow_announcement(Seq& seq, int begin, bool named, int guesses) {
  const int end = std::min(seq.length(), isize(seq.announced));
  for (int p = begin; p < end; ++p) {
    const auto at = static_cast<std::size_t>(p);
    if (named && seq.tokens[at] == seq.announced[at] && p < seq.length() - guesses) continue;
    seq.announced.clear();
    return;
  }
}

// What no prompt will find ends it, and so does what everyone finds already.
void Harness::settle_announcements(const Snapshot& now) {
  const bool skipped = now.counters.publications_skipped != before_.counters.publications_skipped;
  for (const auto& [seq, state] : now.seqs) {
    if (seq->announced.empty()) continue;
    seq->maybe_silent |= skipped || seq->maybe_forgotten;
    bool over = seq->forgotten || findable_of(state.info.published_length) >= isize(seq->announced);
    const int known = std::min(seq->committed, isize(seq->announced));
    for (int p = 0; p < known; ++p) over |= !trie_.exact(seq->nodes[static_cast<std::size_t>(p)]);
    if (over) seq->announced.clear();
  }
}

// How far a hit of the prompt will reach, if some announcement shares a whole unit with it that is
// to come. The deepest decides, then the first to open. Where it is not sure that a sequence still
// announces, another one may be named.
void Harness::check_soon(const Prompt& prompt, const Soon& answer) {
  std::vector<Soon> allowed;
  bool sure = !prompt.looks();
  // From the deepest on: as long as it is not sure that one announces, the next may be named.
  struct Candidate {
    const Seq* seq;
    int common;
    int from;
  };
  std::vector<Candidate> candidates;
  for (const SeqPtr& seq : seqs_) {
    if (seq->announced.empty() || seq->prompt.root != prompt.root || sure) continue;
    int common = 0;
    while (common < std::min(isize(prompt.tokens), isize(seq->announced)) &&
           prompt.tokens[static_cast<std::size_t>(common)] ==
               seq->announced[static_cast<std::size_t>(common)] &&
           extra_at(prompt.media, common) == extra_at(seq->prompt.media, common)) {
      ++common;
    }
    const int from = announced_from(*seq);
    if (common / unit() * unit() > from) candidates.push_back({seq.get(), common, from});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [this](const Candidate& a, const Candidate& b) {
                     return a.common / unit() > b.common / unit();
                   });
  for (const Candidate& each : candidates) {
    int end = std::min(each.common, isize(prompt.tokens) - 1);
    while (splits_self_attending_span(prompt.media, end)) --end;
    allowed.push_back(end > each.from ? Soon{end, each.seq->id} : Soon{});
    sure = !each.seq->maybe_silent;
    if (sure) break;
  }
  if (!sure || allowed.empty()) allowed.push_back(Soon{});
  if (answer.tokens > 0) ++coverage_.soon_told;
  KVFOLIO_REQUIRE(std::find(allowed.begin(), allowed.end(), answer) != allowed.end(),
                  "soon() of " + text_of(prompt) + " is " + std::to_string(answer.tokens) + " by " +
                      std::to_string(answer.by.value()) + ", the model has " +
                      std::to_string(allowed.front().tokens) + " by " +
                      std::to_string(allowed.front().by.value()));
}

void Harness::ask_soon(const Prompt& prompt) {
  const Result<Soon> answer = manager_->soon(prompt.tokens, prompt.options());
  KVFOLIO_REQUIRE(answer.has_value(), "soon() of a good prompt succeeds");
  check_soon(prompt, *answer);
}

// A twin of each that announced asks, and one that goes another way at its last token.
void Harness::ask_twins_of_all() {
  if (!config_.announces || skip_questions_) return;
  for (const SeqPtr& seq : seqs_) {
    Prompt twin = seq->prompt;
    twin.prefix_cache = twin.look_up = true;
    ask_soon(twin);
    if (twin.tokens.empty()) continue;
    twin.tokens.back() = (twin.tokens.back() + 1) % config_.alphabet;
    ask_soon(twin);
  }
}

}  // namespace kvfolio::model_check
