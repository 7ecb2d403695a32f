// SPDX-License-Identifier: Apache-2.0
// Sequences: open, probe, fork, truncate and clear, trim, close and preempt, accept.

#include <algorithm>
#include <limits>

#include "model_check/ops.h"

namespace kvfolio::model_check {

void Harness::open(Rng& rng) { open_prompt(any_prompt(rng), rng); }

void Harness::open_prompt(const Prompt& prompt, Rng& rng) {
  const OpenOptions options = open_options(prompt, rng);
  note("open " + text_of(prompt) + text_of(options));
  int probed = -1;
  if (!skip_questions_) {
    const Result<std::int32_t> answer = manager_->probe(prompt.tokens, prompt.options());
    KVFOLIO_REQUIRE(answer.has_value(), "probe of a good prompt succeeds");
    probed = *answer;
    if (config_.announces) ask_soon(prompt);
  }
  Codes errors;
  Codes tolerated;
  add_slot_errors(errors, tolerated);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  const bool too_long = options.max_tokens > 0 && isize(prompt.tokens) > options.max_tokens;
  if (too_long || is_taken(options.caller_id)) errors.insert(kInvalid);
  keep_cold_twin();
  prospect_.reset();
  if (!skip_questions_) prospect_.emplace(manager_->admit(prompt.tokens, options, 0));
  if (config_.chunks) check_chunks(prompt, options);
  Result<Opened> opened = manager_->open(prompt.tokens, options);
  if (!expect(status_of(opened), errors, tolerated)) {
    if (!too_long && errors == Codes{kInvalid} && opened.error().code() == kInvalid) {
      check_refused_by_name(opened.error(), *options.caller_id);
    }
    return;
  }
  if (!skip_questions_) check_soon(prompt, opened->soon);
  if (prospect_ && *prospect_) check_soon(prompt, (*prospect_)->soon);
  changed_ = revives_ = true;
  auto seq = std::make_shared<Seq>();
  seq->id = opened->sequence;
  seq->number = next_number_++;
  seq->prompt = prompt;
  seq->caller_id = options.caller_id;
  seq->max_tokens = options.max_tokens;
  seq->priority = options.priority;
  seq->cached = seq->stands = opened->cached_tokens;
  seq->prompt_end = std::max(0, isize(prompt.tokens) - 1);
  seq->known_prompt = prompt.tokens;
  note(" " + name_of(*seq) + " id " + std::to_string(seq->id.value()) + " cached " +
       std::to_string(seq->cached));
  const bool no_entries = config_.tight_tables && seq->cached == 0;  // a hit needs some
  KVFOLIO_REQUIRE(probed < 0 || probed == seq->cached || no_entries,
                  "open finds what probe promised, " + std::to_string(probed));
  if (!no_entries) check_hit(prompt, seq->cached);
  for (int p = 0; p < seq->cached; ++p) {
    seq->say(trie_, prompt.tokens[static_cast<std::size_t>(p)], true, 0);
  }
  seq->committed = seq->accepted = seq->rewind_base = seq->cached;
  for (const SeqPtr& other : seqs_) KVFOLIO_REQUIRE(other->id != seq->id, "ids are unique");
  for (const SequenceId id : stale_)
    KVFOLIO_REQUIRE(id != seq->id, "ids of closed sequences stay closed");
  use(*seq);
  seqs_.push_back(seq);
  const Counters& after = manager_->counters();
  if (options.announce) {
    begin_announcement(seq, after.publications_skipped == before_.counters.publications_skipped,
                       after.announcements_skipped != before_.counters.announcements_skipped);
  }
  seq->maybe_whole = waits_for_last_token(*seq);
  want_last_blocks(*seq);
  read_what_was_found(*seq);
  if (said_.size() < 40) {
    said_.push_back(prompt);
  } else {
    said_[rng.next() % said_.size()] = prompt;
  }
  ask_twins(prompt, *seq);
  ++expected_.sequences_opened;
  expected_.tokens_looked_up += prompt.tokens.size();
  expected_.tokens_reused += static_cast<std::uint64_t>(seq->cached);
  if (seq->cached > 0) {
    ++coverage_.hits;
    if (seq->cached % unit() != 0) ++coverage_.hits_inside_block;
    coverage_.tokens_reused += static_cast<std::uint64_t>(seq->cached);
  }
}

void Harness::probe(Rng& rng) {
  read_only_ = true;
  const Prompt prompt = any_prompt(rng);
  if (skip_questions_) return;
  note("probe " + text_of(prompt));
  const Result<std::int32_t> answer = manager_->probe(prompt.tokens, prompt.options());
  if (!expect(status_of(answer), {})) return;
  note(" " + std::to_string(*answer));
  check_hit(prompt, *answer);
  ask_soon(prompt);
}

void Harness::fork(Rng& rng) {
  const SeqPtr parent = any_seq(rng);
  if (!parent) return;
  const ForkOptions options{any_caller_id(rng), any_priority(rng)};
  note("fork " + name_of(*parent) +
       text_of(OpenOptions{.caller_id = options.caller_id, .priority = options.priority}));
  Codes errors;
  Codes tolerated;
  if (parent->in_step || parent->undecided() > 0) errors.insert(kMoment);
  add_slot_errors(errors, tolerated);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  if (is_taken(options.caller_id)) errors.insert(kInvalid);
  if (has_promises()) tolerated.insert(kNoBlocks);
  Result<SequenceId> child_id = manager_->fork(parent->id, options);
  if (!expect(status_of(child_id), errors, tolerated)) return;
  changed_ = true;
  auto child = std::make_shared<Seq>(*parent);
  child->id = *child_id;
  child->number = next_number_++;
  child->caller_id = options.caller_id;
  child->priority = options.priority;
  child->use_count = 0;
  child->promised = 0;
  child->of_promise.clear();
  child->rewinds = 0;
  child->certain = false;
  child->row_ticket = 0;
  child->used = true;
  child->announced.clear();
  use(*child);
  note(" " + name_of(*child) + " id " + std::to_string(child->id.value()));
  KVFOLIO_REQUIRE(state_of(*child).tables == parent->tables, "a child shares every block");
  seqs_.push_back(child);
  ++expected_.forks;
}

void Harness::truncate(Rng& rng) {
  const SeqPtr seq = any_seq(rng);
  if (!seq) return;
  const int n =
      rng.chance(70) ? std::max(0, seq->length() - rng.below(5)) : rng.between(0, seq->length());
  cut(seq, n, false);
}

void Harness::clear(Rng& rng) {
  const SeqPtr seq = any_seq(rng);
  if (seq) cut(seq, 0, true);
}

int Harness::rewind_from(const Seq& seq) const {
  int least = std::numeric_limits<int>::max();
  for (const GroupSpec& each : config_.spec.groups) {
    if (each.kind != AttentionKind::kFull) least = std::min(least, each.rewind);
  }
  const bool has_windows = least != std::numeric_limits<int>::max();
  const int from = has_windows ? std::max(seq.rewind_base, seq.accepted - least) : 0;
  return seq.first_kept > seq.sinks ? std::max(from, seq.first_kept) : from;
}

// clear() is truncate to 0.
void Harness::cut(const SeqPtr& seq, int n, bool by_clear) {
  note((by_clear ? "clear " : "truncate ") + name_of(*seq) + " " + std::to_string(n));
  Codes errors;
  Codes tolerated;
  if (seq->in_step) errors.insert(kMoment);
  if (errors.empty() && n < seq->accepted) {
    for (int g = 0; g < num_groups(); ++g) {
      for (int p = 0; p < n; ++p) {
        const auto& table = seq->tables[static_cast<std::size_t>(g)];
        if (reads(group(g), n, p) && !seq->dropped(p) &&
            table[static_cast<std::size_t>(p / group(g).block_size)] < 0) {
          errors.insert(kMoment);
        }
      }
    }
    // The next token is written behind the one before it, read or not.
    for (int g = 0; n > 0 && g < num_groups(); ++g) {
      const int size = group(g).block_size;
      const auto& table = seq->tables[static_cast<std::size_t>(g)];
      if (n % size != 0 && table[static_cast<std::size_t>(n / size)] < 0) errors.insert(kMoment);
    }
    // What a trim dropped cannot be read again.
    if (n > seq->sinks && n < seq->first_kept) errors.insert(kMoment);
  }
  // What the windows have let go of, the cache may have.
  const bool in_gap = n > seq->sinks && n < seq->first_kept && n < seq->accepted;
  if (!seq->in_step && !in_gap && errors == Codes{kMoment}) {
    KVFOLIO_REQUIRE(n < rewind_from(*seq), "harness: nothing is missing from rewind_from on");
    errors.clear();
    tolerated = {kMoment};
    if (has_promises()) tolerated.insert(kNoBlocks);
    took_back_ = seq;
    revives_ = true;
  }
  const int rewind_base = std::min(rewind_from(*seq), n);
  const Status status = by_clear ? manager_->clear(seq->id) : manager_->truncate(seq->id, n);
  if (!expect(status, errors, tolerated)) {
    const bool says = status.shortage() != nullptr ||
                      status.message().find(seq->in_step ? "step" : "group") != std::string::npos;
    KVFOLIO_REQUIRE(says, "the error names the step or the group");
    took_back_.reset();
    return;
  }
  changed_ = true;
  seq->rewind_base = rewind_base;
  if (n < seq->length()) ++seq->rewinds;
  seq->certain = false;  // others may hold what it is cut back into
  if (n < seq->length()) {
    if (n < seq->prompt_end) seq->prompt_end = 0;
    leave_load(*seq);
    seq->announced.clear();
    seq->used = true;
    seq->maybe_whole = false;
  } else {
    seq->maybe_used |= seq->maybe_whole;
  }
  seq->fresh = false;  // nothing is held for the last token of a full hit any more
  seq->forget_from(n);
}

void Harness::trim(Rng& rng) {
  const SeqPtr seq = any_seq(rng);
  if (!seq || !config_.trims) return;
  const bool huge = rng.chance(5);
  const auto some = [&rng](int below) { return rng.chance(25) ? 0 : rng.below(below); };
  const std::int64_t sinks =
      huge ? std::numeric_limits<std::int64_t>::max() : some(seq->length() / 2 + 2);
  const std::int64_t window = huge && rng.chance(50) ? std::numeric_limits<std::int64_t>::max() - 1
                                                     : some(seq->length() + 2);
  note("trim " + name_of(*seq) + " sinks " + std::to_string(sinks) + " window " +
       std::to_string(window));
  Codes errors;
  Codes tolerated;
  if (seq->in_step || waits_for_load(*seq)) errors.insert(kMoment);
  if (seq->undecided() > 0) tolerated.insert(kMoment);
  const Result<std::int32_t> dropped =
      manager_->trim(seq->id, {.num_sinks = sinks, .window = window});
  if (!expect(status_of(dropped), errors, tolerated)) return;
  note(" " + std::to_string(*dropped));
  const std::int64_t length = seq->length();
  const std::int64_t low = std::min(sinks, length);
  const std::int64_t high = window >= length ? 0 : length - window;
  int expected = 0;
  if (low < high) {
    if (seq->hole() == 0) {
      seq->sinks = static_cast<int>(low);
      seq->first_kept = static_cast<int>(high);
      expected = seq->first_kept - seq->sinks;
    } else if (high >= seq->sinks) {
      const int old = seq->first_kept - seq->sinks;
      seq->sinks = std::min(seq->sinks, static_cast<int>(low));
      seq->first_kept = std::max(seq->first_kept, static_cast<int>(high));
      expected = seq->first_kept - seq->sinks - old;
    }  // else there would be two holes: nothing is dropped
  }
  KVFOLIO_REQUIRE(*dropped == expected, "trim() drops " + std::to_string(expected));
  changed_ = expected > 0;
  if (expected > 0 && !seq->used) trimmed_ = seq;
  if (expected > 0) seq->used = true;
  if (expected > 0) seq->announced.clear();
}

void Harness::close(Rng& rng, bool preempt) {
  if (seqs_.empty()) return;
  const SeqPtr seq = rng.pick(seqs_);  // not mostly the newest
  note((preempt ? "preempt " : "close ") + name_of(*seq));
  const Codes errors = seq->in_step && !preempt ? Codes{kMoment} : Codes{};
  const bool was_in_step = seq->in_step;
  if (!expect(preempt ? manager_->preempt(seq->id) : manager_->close(seq->id), errors)) return;
  changed_ = true;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].seq == seq) {
      forget_member(i, true);
      break;
    }
  }
  ++(preempt ? expected_.sequences_preempted : expected_.sequences_closed);
  const Tables tables = seq->tables;
  end(seq, rng);
  if (was_in_step) capture({});
  // With nothing evicted, all of it is found again but the token that gives the logits.
  Prompt said = seq->prompt;
  said.tokens = seq->tokens;
  said.be_plain();
  const int n = seq->length();
  const Counters& counters = manager_->counters();
  // Tokens named after their window moved on are not kept for the sake of a hit.
  bool holds_all = true;
  bool has_path = n == 1;  // windows of one token may need no block, yet where none is, no path is
  for (int g = 0; g < num_groups(); ++g) {
    for (int p = 0; p + 1 < n; ++p) {
      const std::int32_t b =
          tables[static_cast<std::size_t>(g)][static_cast<std::size_t>(p / group(g).block_size)];
      holds_all = holds_all && (b >= 0 || !hit_needs(group(g), n - 1, p));
      has_path |= b >= 0 && p + 2 == n;
    }
    // Without its tail the hit ends further up, where windows need what they may have let go.
    const std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(g)];
    holds_all = holds_all && (seq->prompt.publish == Publish::kAll ||
                              std::find(table.begin(), table.end(), -1) == table.end());
  }
  if (n > 0 && holds_all && has_path && seq->hole() == 0 && publishable(*seq) == n &&
      config_.options.prefix_cache && !failed_once_ && counters.blocks_evicted == 0 &&
      counters.publications_skipped == 0 && (in_order() || flight_.empty()) &&
      !splits_self_attending_span(said.media, n - 1) && !skip_questions_ && !has_promises()) {
    const Result<std::int32_t> again = manager_->probe(said.tokens, said.options());
    // A rest inside a block may be looked for in a neighbour that shares as much, and that not all
    // groups can serve.
    int whole = (n - 1) / common_multiple() * common_multiple();
    while (splits_self_attending_span(said.media, whole)) --whole;
    KVFOLIO_REQUIRE(again.has_value() && *again <= n - 1 && *again >= whole,
                    "the tokens of a closed sequence hit but for one: " + std::to_string(n - 1) +
                        " expected, " + std::to_string(again.has_value() ? *again : -1) + " found");
    if (seq->prompt.publish == Publish::kAll) {
      ++(*again == n - 1 ? coverage_.tails_found : coverage_.tails_lost);
    }
  }
}

// Cached blocks that the windows of a sequence have passed may retire with its others when it ends,
// so that they enter the order of eviction with these.
void Harness::retire_passed(const Seq& seq) {
  if (flight_.empty()) return;
  for (int g = 0; g < num_groups(); ++g) {
    if (group(g).kind == AttentionKind::kFull) continue;
    const int size = group(g).block_size;
    const std::vector<std::int32_t>& table = seq.tables[static_cast<std::size_t>(g)];
    for (int j = 0; j < isize(table) && (j + 1) * size <= seq.length(); ++j) {
      if (table[static_cast<std::size_t>(j)] >= 0) continue;
      for (int b = 0; b < group(g).num_blocks; ++b) {
        const std::vector<int>& published = block(g, b).published;
        if (isize(published) == size &&
            std::equal(published.begin(), published.end(), seq.nodes.begin() + j * size)) {
          block(g, b).maybe_released_at = last_committed_;
        }
      }
    }
  }
}

// A sequence that closes and waits for its step has the blocks of its border in its tables again.
// It offers them when the step is complete, if they have no entry then.
Tables Harness::take_border_back(const SeqPtr& seq) const {
  Tables taken(static_cast<std::size_t>(num_groups()));
  const auto before = std::find_if(before_.seqs.begin(), before_.seqs.end(),
                                   [&](const auto& each) { return each.first == seq; });
  if (before == before_.seqs.end()) return taken;
  for (const BorderBlock& passed : border_of(*seq, before->second)) {
    const int size = group(passed.group).block_size;
    const auto nodes = seq->nodes.begin() + passed.logical * size;
    std::vector<std::int32_t>& table = taken[static_cast<std::size_t>(passed.group)];
    table.resize(static_cast<std::size_t>((seq->length() + size - 1) / size), -1);
    for (int b = 0; b < group(passed.group).num_blocks; ++b) {
      const std::vector<int>& published = block(passed.group, b).published;
      if (isize(published) != size || !std::equal(published.begin(), published.end(), nodes)) {
        continue;
      }
      table[static_cast<std::size_t>(passed.logical)] = b;
    }
  }
  return taken;
}

// What the sequence had becomes findable, and prompts are made of what it said.
void Harness::end(const SeqPtr& seq, Rng& rng) {
  leave_load(*seq);
  retire_passed(*seq);
  stale_.push_back(seq->id);
  gone_.push_back(seq);
  std::erase(seqs_, seq);
  publish(*seq, seq->tables, true);
  seq->published_at_close = published_before(*seq);
  if (settles_later(*seq)) {
    seq->publishes_late = isize(waiting_) < config_.options.max_sequences;
    seq->taken_back = take_border_back(seq);
    waiting_.push_back(seq);
  }
  Prompt said = seq->prompt;
  said.tokens = seq->tokens;
  said.be_plain();
  if (said_.size() < 40) {
    said_.push_back(said);
  } else {
    said_[rng.next() % said_.size()] = said;
  }
}

void Harness::accept(Rng& rng) {
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 6 && seq->undecided() == 0; ++i) seq = any_seq(rng);
  if (!seq) return;
  const int draft = seq->next_draft();
  const int n = rng.chance(5) ? draft + 1 : rng.between(0, draft);
  note("accept " + name_of(*seq) + " " + std::to_string(n));
  Codes errors;
  Codes tolerated;
  if (seq->in_step) errors.insert(kMoment);
  if (n > draft) errors.insert(kInvalid);
  if (draft == 0) {
    errors.insert(kMoment);
    if (n == 0) tolerated.insert(ErrorCode::kOk);
  }
  if (!expect(manager_->accept(seq->id, n), errors, tolerated)) return;
  changed_ = true;
  if (n < draft && seq->accepted + n < seq->prompt_end) seq->prompt_end = 0;
  if (n < draft) ++seq->rewinds;
  if (n < draft) seq->announced.clear();
  if (n < draft) {
    if (seq->drafts.size() > 1) ++coverage_.void_rows;
    const int again = seq->spent_behind(seq->accepted + n);
    if (again > 0) ++coverage_.promised_again;
    seq->promised += again;
    seq->forget_from(seq->accepted + n);
    seq->drafts.clear();
  } else if (draft > 0) {
    // Appends without guesses stand with what is before them.
    do seq->drafts.erase(seq->drafts.begin());
    while (!seq->drafts.empty() && seq->drafts.front().draft == 0);
  }
  seq->accepted =
      seq->drafts.empty() ? seq->committed : seq->drafts.front().end - seq->drafts.front().draft;
  seq->windows_moved = true;
  publish(*seq, seq->tables, false);
}

}  // namespace kvfolio::model_check
