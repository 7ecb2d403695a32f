// SPDX-License-Identifier: Apache-2.0
// Tokens of a step: append, open by count, names.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {

void Harness::append(Rng& rng, bool named) {
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 5 && (seq->in_step || seq->undecided() > 0); ++i) seq = any_seq(rng);
  if (!seq) return;
  if (config_.drafts_ahead && rng.chance(60)) {
    std::vector<SeqPtr> undecided;
    std::copy_if(seqs_.begin(), seqs_.end(), std::back_inserter(undecided),
                 [](const SeqPtr& each) { return !each->in_step && each->undecided() > 0; });
    if (!undecided.empty()) seq = rng.pick(undecided);
  }
  const int rest = isize(seq->prompt.tokens) - seq->length();
  int count = rest > 0 && rng.chance(60) ? rest : rng.between(1, rng.chance(20) ? 9 : 3);
  count = std::min(count, config_.max_length + 4 - seq->length());
  if (count <= 0) return;
  const int guesses = config_.drafts_ahead ? 35 : 15;
  const int draft = config_.drafts && rng.chance(guesses) ? rng.between(1, count) : 0;
  if (config_.mistakes && named && seq->length() > 0 && seq->stands == seq->length() &&
      2 * isize(seq->known_prompt) + 2 <= config_.max_length && rng.chance(15)) {
    // One token of it may be another one: then it is not the prompt.
    std::vector<std::int32_t> again(
        seq->known_prompt.begin() + (config_.transfers && rng.chance(30) ? seq->cached : 0),
        seq->known_prompt.end());
    if (rng.chance(20)) again[rng.next() % again.size()] = rng.below(config_.alphabet);
    for (int more = rng.below(3); more > 0; --more) again.push_back(rng.below(config_.alphabet));
    append_tokens(seq, again, 0, true, rng);
    return;
  }
  append_to(seq, count, draft, named, rng);
}

// They begin with the whole prompt, or with what open() did not find of it, and not with the rest
// of it behind what the sequence has.
bool Harness::is_prompt_again(const Seq& seq, const std::vector<std::int32_t>& tokens) {
  const std::vector<std::int32_t>& prompt = seq.known_prompt;
  if (seq.stands != seq.length()) return false;
  const auto begins_with = [&](int from) {
    return isize(tokens) >= isize(prompt) - from &&
           std::equal(prompt.begin() + from, prompt.end(), tokens.begin());
  };
  const bool is_again = (seq.length() > 0 && begins_with(0)) ||
                        (seq.length() > seq.cached && begins_with(seq.cached));
  return is_again && !begins_with(seq.length());
}

// The host has planned, another sequence comes, and it goes on with the plan that it has.
void Harness::commit_behind_plan(Rng& rng) {
  note(" commit behind the plan");
  const Ticket ticket(last_ticket_);
  expect(rng.chance(50) ? manager_->commit(ticket) : manager_->finish(ticket), {kMoment});
  ++coverage_.behind_plan;
}

bool Harness::waits_for_last_token(const Seq& seq) {
  return seq.fresh && seq.cached + 1 == isize(seq.prompt.tokens);
}

// The step whose end the sequence has to wait for before it enters another one, or 0.
std::uint64_t Harness::waits_for(const Seq& seq) const {
  for (const std::uint64_t ticket : seq.tickets) {
    if (incomplete(ticket)) return ticket;
  }
  return 0;
}

const GroupUsage& Harness::usage_before(const Shortage& shortage) const {
  KVFOLIO_REQUIRE(shortage.group >= 0 && shortage.group < num_groups(),
                  "the shortage names a group");
  return before_.groups[static_cast<std::size_t>(shortage.group)].usage;
}

void Harness::check_shortage(const Shortage& shortage, const Seq& seq, int count,
                             const GroupUsage& usage) const {
  const int size = group(shortage.group).block_size;
  const int fresh = (seq.length() + count + size - 1) / size -
                    isize(seq.tables[static_cast<std::size_t>(shortage.group)]);
  KVFOLIO_REQUIRE(shortage.needed > shortage.free + shortage.evictable,
                  "needed > free + evictable");
  const int ready = seq.has_promise() ? usage.reserved : 0;  // not more lie ready for the sequence
  KVFOLIO_REQUIRE(shortage.needed >= fresh - ready && shortage.needed <= fresh + 1,
                  "needed is the new blocks and at most one copy, " + std::to_string(fresh) +
                      ", but for those that lie ready");
  KVFOLIO_REQUIRE(shortage.reserved == usage.reserved, "the shortage's reserved is usage()'s");
  KVFOLIO_REQUIRE(shortage.free == usage.free, "the shortage's free is usage()'s");
  KVFOLIO_REQUIRE(shortage.evictable == usage.evictable, "the shortage's evictable is usage()'s");
  KVFOLIO_REQUIRE(shortage.retiring == usage.retiring, "the shortage's retiring is usage()'s");
  KVFOLIO_REQUIRE(shortage.pinned == usage.held + usage.cached - usage.evictable,
                  "pinned = held + cached above held");
}

void Harness::check_full(const Status& status, const Seq& seq) {
  ++coverage_.full_refused;
  const std::string full =
      "full: " + std::to_string(seq.length()) + " of " + std::to_string(seq.max_tokens) + " tokens";
  KVFOLIO_REQUIRE(status.message().find(full) != std::string::npos, "the error says " + full);
}

// accept() has to decide on something before the sequence may grow.
bool Harness::waits_for_accept(const Seq& seq) const {
  return !seq.drafts.empty() && (!in_order() || !config_.drafts_ahead ||
                                 isize(seq.drafts) >= config_.options.max_steps_in_flight);
}

// Without Config::drafts_ahead nothing asks for what was refused before that was drawn.
bool Harness::is_held_back(const Seq& seq) const {
  return !config_.drafts_ahead && !seq.drafts.empty();
}

// What an append of `count` tokens deserves now, but for a shortage.
Harness::Codes Harness::append_errors(const Seq& seq, int count, bool named,
                                      Codes& tolerated) const {
  Codes errors;
  if (!open_step_ || seq.in_step || waits_for_accept(seq) || waits_for_load(seq)) {
    errors.insert(kMoment);
  }
  if (!in_order() && waits_for(seq) != 0) errors.insert(kMoment);
  if (seq.is_full_for(count)) errors.insert(kExhausted);
  const bool too_scattered = !named && count > 0 && !seq.has_room_for_unnamed(most_stretches());
  if (too_scattered) errors.insert(kExhausted);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  if (!in_order() && !errors.contains(kMoment)) {
    // It was cut back to before that step: waiting is allowed.
    if (incomplete(seq.last_step)) tolerated.insert(kMoment);
    // Its blocks are being written though all of its own tokens are there: waiting is allowed.
    for (const StepWork& step : flight_) {
      for (int g = 0; g < num_groups(); ++g) {
        const StepWork::Group& work = step.groups[static_cast<std::size_t>(g)];
        for (const std::int32_t b : seq.tables[static_cast<std::size_t>(g)]) {
          if (b < 0) continue;
          for (const std::int32_t slot : work.slots) {
            if (slot / group(g).block_size == b && slot >= 0) tolerated.insert(kMoment);
          }
          for (const std::int32_t dst : work.copy_dst) {
            if (dst == b) tolerated.insert(kMoment);
          }
        }
      }
    }
  }
  return errors;
}

void Harness::append_to(const SeqPtr& seq, int count, int draft, bool named, Rng& rng) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    const int p = seq->length() + i;
    tokens.push_back(p < isize(seq->prompt.tokens) && !rng.chance(3)
                         ? seq->prompt.tokens[static_cast<std::size_t>(p)]
                         : rng.below(config_.alphabet));
  }
  // By chance; append() draws it where it is meant.
  if (named && is_prompt_again(*seq, tokens)) tokens[0] = (tokens[0] + 1) % config_.alphabet;
  append_tokens(seq, tokens, draft, named, rng);
}

void Harness::append_tokens(const SeqPtr& seq, const std::vector<std::int32_t>& tokens, int draft,
                            bool named, Rng& rng) {
  const int count = isize(tokens);
  note((named ? "append " : "append_unnamed ") + name_of(*seq) + " " + text_of(tokens) +
       (draft > 0 ? " draft " + std::to_string(draft) : ""));

  Codes tolerated;
  Codes errors = append_errors(*seq, count, named, tolerated);
  const bool again = named && is_prompt_again(*seq, tokens);
  if (again) errors.insert(kInvalid);
  // After a full hit admit() expects the prompt's last token, which needs no room.
  const bool as_prompted =
      !waits_for_last_token(*seq) || (named && tokens.front() == seq->prompt.tokens.back());
  std::optional<Status> predicted;
  if (open_step_ && !skip_questions_ && as_prompted && !is_held_back(*seq)) {
    predicted = manager_->admit(seq->id, count);
  }
  if (errors.empty()) tolerated.insert(kNoBlocks);

  // One token may go in as a batch of one: that draws nothing, so that digests stay.
  const bool in_batch = !is_held_back(*seq) && count == 1 && draft == 0 &&
                        (last_ticket_ + static_cast<std::uint64_t>(seq->number)) % 2 == 0;
  std::int32_t joined = -1;
  Status status;
  if (is_held_back(*seq)) {
    status = Status(kMoment, "accept() comes first");
  } else if (in_batch) {
    status = named ? manager_->append_each({&seq->id, 1}, tokens, &joined)
                   : manager_->append_unnamed_each({&seq->id, 1}, &joined);
    KVFOLIO_REQUIRE(joined == (status.ok() ? 1 : 0), "append_each says how many joined");
  } else {
    status = named ? manager_->append(seq->id, tokens, {.draft = draft})
                   : manager_->append_unnamed(seq->id, count, {.draft = draft});
  }
  const bool is_promised = seq->certain && count <= seq->promised &&
                           count + seq->undecided() <= seq->most_per_step && errors.empty();
  if (is_promised) {
    KVFOLIO_REQUIRE(status.code() != kNoBlocks,
                    "within a promise no append is short: " + status.message());
    ++coverage_.promises_kept;
  }
  const bool ok = expect(status, errors, tolerated);
  if (status.code() == kInvalid) ++coverage_.prompts_again;
  if (predicted && !(again && status.code() == kInvalid)) {
    KVFOLIO_REQUIRE(predicted->code() == status.code(), "admit() predicts append(): it said " +
                                                            predicted->message() + ", append " +
                                                            status.message());
    if (status.shortage() != nullptr) {
      KVFOLIO_REQUIRE(*predicted->shortage() == *status.shortage(),
                      "admit() and append() count alike");
    }
  }
  if (const Shortage* shortage = status.shortage(); shortage != nullptr) {
    ++coverage_.shortages;
    check_shortage(*shortage, *seq, count, usage_before(*shortage));
    KVFOLIO_REQUIRE(shortage->sequences == isize(seqs_),
                    "the shortage's sequences are the open ones");
  }
  if (status.code() == kExhausted && seq->is_full_for(count)) check_full(status, *seq);
  if (!ok) return;

  const auto saved = std::find_if(before_.seqs.begin(), before_.seqs.end(),
                                  [&](const auto& entry) { return entry.first == seq; });
  KVFOLIO_REQUIRE(saved != before_.seqs.end(), "harness: the sequence was known");
  join_step(seq, saved->second, tokens, named, draft);
  if (config_.mistakes && rng.chance(8)) commit_behind_plan(rng);
  capture({});
  seq->open_draft = draft;
}

// The append succeeded: the sequence takes part in the open step.
void Harness::join_step(const SeqPtr& seq, const SeqState& before,
                        const std::vector<std::int32_t>& tokens, bool named, int draft) {
  changed_ = allocates_ = true;
  members_.push_back(
      {seq, *seq, before, std::vector<std::int32_t>(static_cast<std::size_t>(num_groups()), -1)});
  const int begin = seq->length();
  for (const std::int32_t token : tokens) seq->say(trie_, token, named, last_ticket_);
  seq->cut_spans(trie_, begin);
  follow_announcement(*seq, begin, named, draft);
  seq->in_step = seq->used = true;
  seq->maybe_whole = false;
  const bool had_promise = members_.back().model_before.has_promise();
  if (seq->length() - seq->accepted > seq->most_per_step) seq->certain = false;
  const int spent = std::min(seq->promised, isize(tokens));
  seq->of_promise.resize(static_cast<std::size_t>(begin), 0);
  seq->of_promise.resize(static_cast<std::size_t>(begin) + static_cast<std::size_t>(spent), 1);
  seq->promised -= spent;
  use(*seq);
  const SeqState now = state_of(*seq);
  for (int g = 0; g < num_groups(); ++g) {
    const auto& old_table = before.tables[static_cast<std::size_t>(g)];
    const auto& new_table = now.tables[static_cast<std::size_t>(g)];
    const std::vector<std::int32_t>& refs = before_.groups[static_cast<std::size_t>(g)].refs;
    const int size = group(g).block_size;
    for (int j = 0; j < isize(new_table); ++j) {
      const std::int32_t b = new_table[static_cast<std::size_t>(j)];
      if (j < isize(old_table) && old_table[static_cast<std::size_t>(j)] == b) continue;
      KVFOLIO_REQUIRE(b >= first_block() && b < group(g).num_blocks,
                      "a fresh table entry is a block");
      const bool lay_ready =
          had_promise && before_.groups[static_cast<std::size_t>(g)].usage.reserved > 0;
      KVFOLIO_REQUIRE(refs[static_cast<std::size_t>(b)] == 0 ||
                          (lay_ready && refs[static_cast<std::size_t>(b)] == 1),
                      "a fresh block had no references, or lay ready");
      if (j < isize(old_table)) {
        const std::int32_t old = old_table[static_cast<std::size_t>(j)];
        KVFOLIO_REQUIRE(j == seq->committed / size, "only the block of the next token is replaced");
        if (seq->committed % size == 0) {
          // Nothing to copy: the block was held for the last token of a full hit only.
          members_.back().displaced[static_cast<std::size_t>(g)] = old;
          continue;
        }
        KVFOLIO_REQUIRE(old >= 0 && (refs[static_cast<std::size_t>(old)] > 1 ||
                                     before_.groups[static_cast<std::size_t>(g)]
                                             .findable[static_cast<std::size_t>(old)] != 0 ||
                                     (!in_order() && !flight_.empty())),
                        "only a shared or findable block is copied");
      }
    }
  }
}

// open and append_unnamed in one: both or neither.
void Harness::open_unnamed(Rng& rng) {
  const Prompt prompt = any_prompt(rng);
  const OpenOptions options = open_options(prompt, rng);
  const int count = rng.chance(5) ? 0 : rng.between(1, rng.chance(30) ? 12 : 4);
  note("open_unnamed " + std::to_string(count) + " of " + text_of(prompt) + text_of(options));
  auto seq = std::make_shared<Seq>();
  seq->prompt = prompt;
  seq->caller_id = options.caller_id;
  seq->max_tokens = options.max_tokens;
  seq->priority = options.priority;
  seq->tables.resize(static_cast<std::size_t>(num_groups()));
  Codes errors;
  Codes tolerated;
  if (!open_step_) errors.insert(kMoment);
  add_slot_errors(errors, tolerated);
  if (is_taken(options.caller_id)) errors.insert(kInvalid);
  if (seq->is_full_for(count)) errors.insert(kExhausted);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  bool is_short = false;
  for (int g = 0; g < num_groups(); ++g) {
    const GroupUsage& usage = before_.groups[static_cast<std::size_t>(g)].usage;
    const int size = group(g).block_size;
    is_short = is_short || (count + size - 1) / size > usage.free + usage.evictable;
  }
  if (is_short) errors.insert(kNoBlocks);
  const Result<SequenceId> opened = manager_->open_unnamed(count, options);
  const Status status = status_of(opened);
  const bool ok = expect(status, errors, tolerated);
  if (status.shortage() != nullptr) {
    ++coverage_.shortages;
    check_shortage(*status.shortage(), *seq, count, usage_before(*status.shortage()));
  }
  if (errors == Codes{kInvalid}) check_refused_by_name(status, *options.caller_id);
  if (!ok) return;
  seq->id = *opened;
  seq->number = next_number_++;
  note(" " + name_of(*seq) + " id " + std::to_string(seq->id.value()));
  changed_ = true;
  use(*seq);
  seqs_.push_back(seq);
  ++expected_.sequences_opened;
  if (count == 0) return;
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (int p = 0; p < count; ++p) {
    tokens.push_back(p < isize(prompt.tokens) ? prompt.tokens[static_cast<std::size_t>(p)]
                                              : rng.below(config_.alphabet));
  }
  SeqState empty;
  empty.tables.resize(static_cast<std::size_t>(num_groups()));
  join_step(seq, empty, tokens, false);
  capture({});
}

void Harness::set_tokens(Rng& rng) {
  // Mostly a sequence that waits for names.
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 6 && seq->unnamed() == 0; ++i) seq = any_seq(rng);
  if (!seq) return;
  const int waiting = seq->unnamed();
  const int count = rng.chance(10)   ? waiting + 1
                    : rng.chance(50) ? waiting
                                     : rng.between(0, waiting);
  std::vector<std::int32_t> tokens;
  const int first = seq->first_unnamed();
  int p = first;
  while (isize(tokens) < count) {
    while (p < seq->length() && seq->named[static_cast<std::size_t>(p)] != 0) ++p;
    tokens.push_back(p < seq->length() ? seq->tokens[static_cast<std::size_t>(p)] : 0);
    ++p;
  }
  note("set_tokens " + name_of(*seq) + " " + text_of(tokens));
  Codes errors;
  Codes tolerated;
  if (count > waiting) errors = {kInvalid, kMoment};
  if (count == 0) tolerated = {kInvalid, kMoment};
  const Status status = manager_->set_tokens(seq->id, tokens);
  if (!expect(status, errors, tolerated)) return;
  give_names(seq, count);
}

// The oldest unnamed tokens have names now.
void Harness::give_names(const SeqPtr& seq, int count) {
  changed_ = true;
  for (int i = 0; i < count; ++i) {
    seq->named[static_cast<std::size_t>(seq->first_unnamed())] = 1;
  }
  const bool publishes_now = in_order() || seq->prompt.late_names;
  if (publishes_now && !seq->in_step) publish(*seq, seq->tables, false);
  if (publishes_now && seq->in_step) {
    for (const Member& member : members_) {
      if (member.seq == seq) publish(*seq, member.state_before.tables, false);
    }
  }
}

}  // namespace kvfolio::model_check
