// SPDX-License-Identifier: Apache-2.0
// The operations of the random check: each draws its arguments, says which errors they deserve, and
// applies what the manager did to the model.

#include <algorithm>
#include <limits>

#include "model_check/harness.h"

namespace kvfolio::model_check {
namespace {

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
constexpr ErrorCode kNotFound = ErrorCode::kNotFound;
constexpr ErrorCode kMoment = ErrorCode::kFailedPrecondition;
constexpr ErrorCode kNoBlocks = ErrorCode::kNoBlocks;
constexpr ErrorCode kExhausted = ErrorCode::kResourceExhausted;
constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
constexpr ErrorCode kAborted = ErrorCode::kAborted;

template <typename T>
Status status_of(const Result<T>& result) {
  return result.has_value() ? Status() : result.error();
}

std::string text_of(std::span<const std::int32_t> values) {
  std::string text = "[";
  for (const std::int32_t value : values) text += std::to_string(value) + " ";
  if (text.back() == ' ') text.pop_back();
  return text + "]";
}

std::string text_of(const Prompt& prompt) {
  std::string text = "root " + std::to_string(prompt.root) + " " + text_of(prompt.tokens);
  for (const MediaSpan& span : prompt.media) {
    text += " media " + std::to_string(span.begin) + ".." + std::to_string(span.end) + " content " +
            std::to_string(static_cast<int>(span.content_id[0])) +
            (span.attends_to_itself ? " self" : "");
  }
  return text + (prompt.prefix_cache ? "" : " no-cache");
}

std::string name_of(const Seq& seq) { return "s" + std::to_string(seq.number); }

enum Op {
  kOpen,
  kProbe,
  kBegin,
  kAppend,
  kAppendUnnamed,
  kSetTokens,
  kUndo,
  kPlan,
  kCommit,
  kFinish,
  kDrop,
  kComplete,
  kDevice,
  kFork,
  kTruncate,
  kTrim,
  kPreempt,
  kClose,
  kAccept,
  kPin,
  kUnpin,
  kEvict,
  kAdmit,
  kFail,
  kBadId,
  kBadTicket,
  kBadArgument,
  kNumOps
};

// Out of 1000, roughly.
struct Weights {
  int between_steps;
  int in_step;
};
constexpr std::array<Weights, kNumOps> kWeights = {{
    {100, 80}, {40, 40}, {250, 5},  {10, 270}, {5, 50},  {40, 40}, {3, 25},  {3, 20},  {3, 110},
    {3, 25},   {3, 20},  {100, 50}, {50, 30},  {60, 25}, {40, 12}, {25, 10}, {15, 20}, {60, 25},
    {60, 30},  {15, 10}, {15, 10},  {12, 12},  {5, 30},  {3, 2},   {15, 15}, {8, 8},   {20, 20},
}};

}  // namespace

bool Harness::expect(const Status& status, const Codes& errors, const Codes& tolerated) {
  const ErrorCode code = status.code();
  note(std::string(" -> ") + kvfolio::to_string(code));
  if (!status.ok()) {
    const std::string message = status.message();
    note(" \"" + message + "\"");
    ++coverage_.errors;
    KVFOLIO_REQUIRE(!message.empty() && message != "ok", "an error has a text");
    KVFOLIO_REQUIRE((status.shortage() != nullptr) == (code == kNoBlocks),
                    "a shortage iff kNoBlocks");
  }
  if (tolerated.contains(code)) return status.ok();
  if (errors.empty()) {
    KVFOLIO_REQUIRE(status.ok(), "the call should succeed");
  } else {
    std::string allowed;
    for (const ErrorCode error : errors) allowed += std::string(" ") + kvfolio::to_string(error);
    KVFOLIO_REQUIRE(errors.contains(code), "the call should answer one of" + allowed);
  }
  return status.ok();
}

void Harness::run(std::uint64_t op_seed) {
  Rng rng(op_seed);
  log_.clear();
  read_only_ = changed_ = allocates_ = revives_ = false;
  moved_.clear();
  ++coverage_.operations;

  int total = 0;
  for (const Weights& w : kWeights) total += open_step_ ? w.in_step : w.between_steps;
  int roll = rng.below(total);
  int op = 0;
  for (;; ++op) {
    const Weights& w = kWeights[static_cast<std::size_t>(op)];
    roll -= open_step_ ? w.in_step : w.between_steps;
    if (roll < 0) break;
  }
  // Calls whose moment is wrong are worth little: mostly do what makes it right.
  const bool full = isize(seqs_) >= config_.options.max_sequences;
  const bool flying = isize(flight_) >= config_.options.max_steps_in_flight;
  if ((op == kOpen || op == kFork) && full && rng.chance(85)) op = open_step_ ? kPreempt : kClose;
  if (op == kBegin && flying && rng.chance(90)) op = kComplete;
  if (op == kComplete && flight_.empty() && rng.chance(90)) op = open_step_ ? kCommit : kBegin;
  switch (op) {
    case kOpen:
      open(rng);
      break;
    case kProbe:
      probe(rng);
      break;
    case kBegin:
      begin(rng);
      break;
    case kAppend:
      append(rng, true);
      break;
    case kAppendUnnamed:
      append(rng, !config_.unnamed);
      break;
    case kSetTokens:
      set_tokens(rng);
      break;
    case kUndo:
      undo(rng);
      break;
    case kPlan:
      plan(rng);
      break;
    case kCommit:
      commit(rng);
      break;
    case kFinish:
      finish(rng);
      break;
    case kDrop:
      drop(rng);
      break;
    case kComplete:
      complete(rng);
      break;
    case kDevice:
      run_device(rng);
      break;
    case kFork:
      fork(rng);
      break;
    case kTruncate:
      truncate(rng);
      break;
    case kTrim:
      trim(rng);
      break;
    case kPreempt:
      close(rng, true);
      break;
    case kClose:
      close(rng, false);
      break;
    case kAccept:
      accept(rng);
      break;
    case kPin:
      pin(rng);
      break;
    case kUnpin:
      unpin(rng);
      break;
    case kEvict:
      evict(rng);
      break;
    case kAdmit:
      admit_together(rng);
      break;
    case kFail:
      fail(rng);
      break;
    case kBadId:
      bad_sequence_id(rng);
      break;
    case kBadTicket:
      bad_ticket(rng);
      break;
    default:
      bad_argument(rng);
      break;
  }
  verify();
}

Harness::SeqPtr Harness::any_seq(Rng& rng) const {
  return seqs_.empty() ? nullptr : rng.pick(seqs_);
}

Prompt Harness::any_prompt(Rng& rng) {
  Prompt prompt;
  if (!said_.empty() && rng.chance(80)) {
    prompt = rng.pick(said_);
    if (rng.chance(60)) {
      prompt.tokens.resize(static_cast<std::size_t>(rng.between(0, isize(prompt.tokens))));
    }
    if (rng.chance(4)) prompt.media.clear();
    if (rng.chance(4)) prompt.root = rng.below(isize(kRoots));
  } else if (rng.chance(20)) {
    prompt.root = rng.below(isize(kRoots));
  }
  if (prompt.media.empty() && config_.media && rng.chance(15)) {
    int begin = rng.below(6);
    for (int i = rng.between(1, 2); i > 0; --i) {
      MediaSpan span;
      const int content = rng.between(1, 3);
      span.begin = begin;
      span.end = begin + 1 + content;
      span.content_id.fill(static_cast<std::byte>(content));
      span.attends_to_itself = content == 2;
      prompt.media.push_back(span);
      begin = span.end + rng.below(4);
    }
  }
  for (int i = rng.below(rng.chance(20) ? config_.max_length / 2 : 6); i > 0; --i) {
    prompt.tokens.push_back(rng.below(config_.alphabet));
  }
  if (isize(prompt.tokens) > config_.max_length) {
    prompt.tokens.resize(static_cast<std::size_t>(config_.max_length));
  }
  prompt.prefix_cache = !rng.chance(4);
  return prompt;
}

void Harness::open(Rng& rng) {
  const Prompt prompt = any_prompt(rng);
  note("open " + text_of(prompt));
  int probed = -1;
  if (!skip_questions_) {
    const Result<std::int32_t> answer = manager_->probe(prompt.tokens, prompt.options());
    KVFOLIO_REQUIRE(answer.has_value(), "probe of a good prompt succeeds");
    probed = *answer;
  }
  Codes errors;
  Codes tolerated;
  if (isize(seqs_) >= config_.options.max_sequences) errors.insert(kExhausted);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  Result<Opened> opened = manager_->open(prompt.tokens, prompt.options());
  if (!expect(status_of(opened), errors, tolerated)) return;
  changed_ = revives_ = true;
  auto seq = std::make_shared<Seq>();
  seq->id = opened->sequence;
  seq->number = next_number_++;
  seq->prompt = prompt;
  seq->cached = opened->cached_tokens;
  note(" " + name_of(*seq) + " id " + std::to_string(seq->id.value()) + " cached " +
       std::to_string(seq->cached));
  KVFOLIO_REQUIRE(probed < 0 || probed == seq->cached,
                  "open finds what probe promised, " + std::to_string(probed));
  check_hit(prompt, seq->cached);
  for (int p = 0; p < seq->cached; ++p) {
    seq->say(trie_, prompt.tokens[static_cast<std::size_t>(p)], true, 0);
  }
  seq->committed = seq->accepted = seq->cached;
  for (const SeqPtr& other : seqs_) KVFOLIO_REQUIRE(other->id != seq->id, "ids are unique");
  for (const SequenceId id : stale_)
    KVFOLIO_REQUIRE(id != seq->id, "ids of closed sequences stay closed");
  seqs_.push_back(seq);
  if (said_.size() < 40) {
    said_.push_back(prompt);
  } else {
    said_[rng.next() % said_.size()] = prompt;
  }
  ++expected_.sequences_opened;
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
}

void Harness::begin(Rng& rng) {
  note("begin_step");
  Codes errors;
  if (open_step_) errors.insert(kMoment);
  if (isize(flight_) >= config_.options.max_steps_in_flight) errors.insert(kMoment);
  Result<Ticket> ticket = manager_->begin_step({.now_us = rng.next()});
  if (!expect(status_of(ticket), errors)) return;
  KVFOLIO_REQUIRE(ticket->value() == last_ticket_ + 1, "tickets count up by one");
  note(" t" + std::to_string(ticket->value()));
  changed_ = true;
  last_ticket_ = ticket->value();
  open_step_.emplace();
  open_step_->ticket = last_ticket_;
  members_.clear();
  capture({});
  ++coverage_.steps;
}

void Harness::append(Rng& rng, bool named) {
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 5 && (seq->in_step || seq->draft() > 0); ++i) seq = any_seq(rng);
  if (!seq) return;
  const int rest = isize(seq->prompt.tokens) - seq->length();
  int count = rest > 0 && rng.chance(60) ? rest : rng.between(1, rng.chance(20) ? 9 : 3);
  count = std::min(count, config_.max_length + 4 - seq->length());
  if (count <= 0) return;
  const int draft = config_.drafts && rng.chance(15) ? rng.between(1, count) : 0;
  append_to(seq, count, draft, named, rng);
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

void Harness::append_to(const SeqPtr& seq, int count, int draft, bool named, Rng& rng) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    const int p = seq->length() + i;
    tokens.push_back(p < isize(seq->prompt.tokens) && !rng.chance(3)
                         ? seq->prompt.tokens[static_cast<std::size_t>(p)]
                         : rng.below(config_.alphabet));
  }
  note((named ? "append " : "append_unnamed ") + name_of(*seq) + " " + text_of(tokens) +
       (draft > 0 ? " draft " + std::to_string(draft) : ""));

  Codes errors;
  Codes tolerated;
  if (!open_step_ || seq->in_step || seq->draft() > 0) errors.insert(kMoment);
  if (!in_order() && waits_for(*seq) != 0) errors.insert(kMoment);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  if (!in_order() && errors.empty()) {
    // It was cut back to before that step: waiting is allowed.
    if (incomplete(seq->last_step)) tolerated.insert(kMoment);
    // Its blocks are being written though all of its own tokens are there: waiting is allowed.
    for (const StepWork& step : flight_) {
      for (int g = 0; g < num_groups(); ++g) {
        const StepWork::Group& work = step.groups[static_cast<std::size_t>(g)];
        for (const std::int32_t b : seq->tables[static_cast<std::size_t>(g)]) {
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
  // After a full hit admit() expects the prompt's last token, which needs no room.
  const bool as_prompted =
      !waits_for_last_token(*seq) || (named && tokens.front() == seq->prompt.tokens.back());
  std::optional<Status> predicted;
  if (errors.empty() && !skip_questions_ && as_prompted)
    predicted = manager_->admit(seq->id, count);
  if (errors.empty()) tolerated.insert(kNoBlocks);

  const Tables tables_before = seq->tables;
  const Status status = named ? manager_->append(seq->id, tokens, {.draft = draft})
                              : manager_->append_unnamed(seq->id, count, {.draft = draft});
  const bool ok = expect(status, errors, tolerated);
  if (predicted && !tolerated.contains(kMoment)) {
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
    KVFOLIO_REQUIRE(shortage->group >= 0 && shortage->group < num_groups(),
                    "the shortage names a group");
    const GroupUsage& usage = before_.groups[static_cast<std::size_t>(shortage->group)].usage;
    const int size = group(shortage->group).block_size;
    const int fresh = (seq->length() + count + size - 1) / size -
                      isize(seq->tables[static_cast<std::size_t>(shortage->group)]);
    KVFOLIO_REQUIRE(shortage->needed > shortage->free + shortage->evictable,
                    "needed > free + evictable");
    KVFOLIO_REQUIRE(shortage->needed == fresh || shortage->needed == fresh + 1,
                    "needed is the new blocks and at most one copy, " + std::to_string(fresh));
    KVFOLIO_REQUIRE(shortage->free == usage.free, "the shortage's free is usage()'s");
    KVFOLIO_REQUIRE(shortage->evictable == usage.evictable,
                    "the shortage's evictable is usage()'s");
    KVFOLIO_REQUIRE(shortage->retiring == usage.retiring, "the shortage's retiring is usage()'s");
    KVFOLIO_REQUIRE(shortage->pinned == usage.held + usage.cached - usage.evictable,
                    "pinned = held + cached above held");
    KVFOLIO_REQUIRE(shortage->sequences == isize(seqs_),
                    "the shortage's sequences are the open ones");
  }
  if (!ok) return;

  changed_ = allocates_ = true;
  const auto saved = std::find_if(before_.seqs.begin(), before_.seqs.end(),
                                  [&](const auto& entry) { return entry.first == seq; });
  KVFOLIO_REQUIRE(saved != before_.seqs.end(), "harness: the sequence was known");
  members_.push_back({seq, *seq, saved->second,
                      std::vector<std::int32_t>(static_cast<std::size_t>(num_groups()), -1)});
  for (const std::int32_t token : tokens) seq->say(trie_, token, named, last_ticket_);
  seq->open_draft = draft;
  seq->in_step = true;
  const SeqState now = state_of(*seq);
  for (int g = 0; g < num_groups(); ++g) {
    const auto& old_table = tables_before[static_cast<std::size_t>(g)];
    const auto& new_table = now.tables[static_cast<std::size_t>(g)];
    const std::vector<std::int32_t>& refs = before_.groups[static_cast<std::size_t>(g)].refs;
    const int size = group(g).block_size;
    for (int j = 0; j < isize(new_table); ++j) {
      const std::int32_t b = new_table[static_cast<std::size_t>(j)];
      if (j < isize(old_table) && old_table[static_cast<std::size_t>(j)] == b) continue;
      KVFOLIO_REQUIRE(b >= 0 && b < group(g).num_blocks, "a fresh table entry is a block");
      KVFOLIO_REQUIRE(refs[static_cast<std::size_t>(b)] == 0, "a fresh block had no references");
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
  capture({});
}

void Harness::set_tokens(Rng& rng) {
  // Mostly somebody who waits for names.
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 6 && seq->unnamed() == 0; ++i) seq = any_seq(rng);
  if (!seq) return;
  const int waiting = seq->unnamed();
  const int count = rng.chance(10) ? waiting + 1 : rng.between(0, waiting);
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
  changed_ = true;
  p = first;
  for (int i = 0; i < count; ++i) {
    while (seq->named[static_cast<std::size_t>(p)] != 0) ++p;
    seq->named[static_cast<std::size_t>(p)] = 1;
  }
  if (in_order() && !seq->in_step) publish(*seq, seq->tables, false);
  if (in_order() && seq->in_step) {
    for (const Member& member : members_) {
      if (member.seq == seq) publish(*seq, member.state_before.tables, false);
    }
  }
}

void Harness::undo(Rng& rng) {
  SeqPtr seq = any_seq(rng);
  if (!members_.empty() && rng.chance(85)) seq = rng.pick(members_).seq;
  if (!seq) return;
  note("undo " + name_of(*seq));
  const Codes errors = seq->in_step ? Codes{} : Codes{kMoment, kNotFound};
  if (!expect(manager_->undo(seq->id), errors)) return;
  changed_ = true;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].seq == seq) {
      forget_member(i, true);
      break;
    }
  }
  capture({});
}

void Harness::plan(Rng& rng) {
  read_only_ = true;
  PlanOptions options;
  options.pad = rng.chance(50) ? 0 : -1;
  options.block_tables = rng.chance(80);
  options.flashinfer = rng.chance(60);
  options.shared_prefixes = rng.chance(60);
  note("plan");
  if (open_step_) {
    capture(options);
  } else {
    expect(status_of(manager_->plan(options)), {kMoment});
  }
}

void Harness::commit(Rng& rng) {
  note("commit t" + std::to_string(last_ticket_));
  if (!open_step_) {
    expect(manager_->commit(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  if (rng.chance(40)) capture({.pad = 0, .flashinfer = true, .shared_prefixes = true});
  if (!expect(manager_->commit(Ticket(last_ticket_)), {})) return;
  changed_ = true;
  apply_commit();
}

void Harness::complete(Rng& rng) {
  if (flight_.empty()) {
    note("complete t" + std::to_string(last_ticket_));
    expect(manager_->complete(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  const std::uint64_t ticket = flight_[rng.next() % flight_.size()].ticket;
  note("complete t" + std::to_string(ticket));
  execute_up_to(ticket);  // the device has finished, then the host says so
  if (!expect(manager_->complete(Ticket(ticket)), {})) return;
  changed_ = true;
  apply_complete(ticket);
}

void Harness::finish(Rng&) {
  note("finish t" + std::to_string(last_ticket_));
  if (!open_step_) {
    // Finishing twice is an error; finish of a committed step says complete() or an error.
    const bool was_committed = incomplete(last_ticket_);
    if (was_committed) return;
    expect(manager_->finish(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  if (!expect(manager_->finish(Ticket(last_ticket_)), {})) return;
  changed_ = true;
  apply_commit();
  execute_up_to(last_ticket_);
  apply_complete(last_ticket_);
}

void Harness::drop(Rng&) {
  note("drop t" + std::to_string(last_ticket_));
  if (!open_step_) {
    expect(manager_->drop(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  if (!expect(manager_->drop(Ticket(last_ticket_)), {})) return;
  changed_ = true;
  apply_drop();
}

void Harness::fail(Rng& rng) {
  if (!config_.fails || flight_.empty()) return;
  const std::uint64_t ticket = flight_[rng.next() % flight_.size()].ticket;
  note("fail t" + std::to_string(ticket));
  // What ran before has run: the caller states that the device is idle.
  for (StepWork& step : flight_) {
    if (step.ticket < ticket && !step.executed) execute(step);
  }
  // Whose tokens are lost, and who may be closed for holding a block that the failed steps wrote.
  std::vector<StepWork> failed;
  for (const StepWork& step : flight_) {
    if (step.ticket >= ticket) failed.push_back(step);
  }
  if (open_step_) failed.push_back(*open_step_);
  std::vector<StepWork> ended = failed;
  for (const StepWork& step : overtakers_) {
    if (step.ticket > ticket) ended.push_back(step);
  }
  const auto wrote = [&](int g, std::int32_t b) {
    for (const StepWork& step : ended) {
      if (step.groups[static_cast<std::size_t>(g)].touched[static_cast<std::size_t>(b)] == 2) {
        return true;
      }
    }
    return false;
  };
  std::vector<std::pair<SeqPtr, std::pair<bool, bool>>> fate;  // must, may be aborted
  for (const SeqPtr& seq : seqs_) {
    bool must = false;
    bool may = seq->in_step;
    for (int g = 0; g < num_groups(); ++g) {
      for (int j = 0; j < isize(seq->tables[static_cast<std::size_t>(g)]); ++j) {
        const std::int32_t b =
            seq->tables[static_cast<std::size_t>(g)][static_cast<std::size_t>(j)];
        if (b < 0) continue;
        if (wrote(g, b)) may = true;
        for (int off = 0; off < group(g).block_size; ++off) {
          const int p = j * group(g).block_size + off;
          const Cell& held = cell(logical_, g, b * group(g).block_size + off);
          if (p < seq->committed && !seq->in_step && held.ticket >= ticket &&
              incomplete(held.ticket)) {
            must = true;
          }
        }
      }
    }
    for (const StepWork& step : ended) {
      for (const StepWork::Row& row : step.rows) {
        if (row.seq == seq) may = true;
      }
    }
    fate.push_back({seq, {must, may || must}});
  }
  if (!expect(manager_->fail(Ticket(ticket)), {})) return;
  changed_ = true;
  failed_once_ = true;
  if (open_step_) {
    while (!members_.empty()) forget_member(members_.size() - 1, true);
    open_step_.reset();
  }
  std::erase_if(flight_, [&](const StepWork& step) { return step.ticket >= ticket; });
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    for (int slot = 0; slot < group(g).num_blocks * size; ++slot) {
      Cell& lost = cell(logical_, g, slot);
      for (const StepWork& step : failed) {
        if (lost.node == kPoison || lost.ticket != step.ticket) continue;
        lost = cell(device_, g, slot) = Cell{};
        std::vector<int>& published = block(g, slot / size).published;
        if (isize(published) > slot % size) published.resize(static_cast<std::size_t>(slot % size));
      }
    }
  }
  for (const auto& [seq, verdict] : fate) {
    const Result<SequenceInfo> info = manager_->info(seq->id);
    if (info.has_value()) {
      KVFOLIO_REQUIRE(!verdict.first, "fail() aborts " + name_of(*seq) + ", whose tokens are lost");
      continue;
    }
    KVFOLIO_REQUIRE(info.error().code() == kAborted, "an aborted sequence answers kAborted");
    KVFOLIO_REQUIRE(verdict.second, "fail() leaves " + name_of(*seq) + " alone");
    aborted_.push_back(seq->id);
    std::erase(seqs_, seq);
    ++expected_.sequences_aborted;
    note(" aborts " + name_of(*seq));
  }
  std::erase_if(waiting_, [&](const SeqPtr& seq) { return waits_for(*seq) == 0; });
  for (const StepWork& step : failed) {
    for (const SeqPtr& seq : seqs_) seq->lose_names(step.ticket);
  }
  // Pins of what was lost are let go.
  for (const Pin& pin : pins_) {
    const ErrorCode code = manager_->unpin(pin.id).code();
    KVFOLIO_REQUIRE(code == ErrorCode::kOk || code == kNotFound, "unpin after fail()");
    stale_pins_.push_back(pin.id);
  }
  pins_.clear();
}

void Harness::fork(Rng& rng) {
  const SeqPtr parent = any_seq(rng);
  if (!parent) return;
  note("fork " + name_of(*parent));
  Codes errors;
  Codes tolerated;
  if (parent->in_step || parent->draft() > 0) errors.insert(kMoment);
  if (isize(seqs_) >= config_.options.max_sequences) errors.insert(kExhausted);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  Result<SequenceId> child_id = manager_->fork(parent->id);
  if (!expect(status_of(child_id), errors, tolerated)) return;
  changed_ = true;
  auto child = std::make_shared<Seq>(*parent);
  child->id = *child_id;
  child->number = next_number_++;
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
  note("truncate " + name_of(*seq) + " " + std::to_string(n));
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
  const Status status = manager_->truncate(seq->id, n);
  if (!expect(status, errors, tolerated)) {
    KVFOLIO_REQUIRE(status.message().find(seq->in_step ? "step" : "group") != std::string::npos,
                    "the error names the step or the group");
    return;
  }
  changed_ = true;
  seq->forget_from(n);
}

void Harness::trim(Rng& rng) {
  const SeqPtr seq = any_seq(rng);
  if (!seq || !config_.trims) return;
  const bool huge = rng.chance(5);
  const std::int64_t sinks =
      huge ? std::numeric_limits<std::int64_t>::max() : rng.below(seq->length() / 2 + 2);
  const std::int64_t window = huge && rng.chance(50) ? std::numeric_limits<std::int64_t>::max() - 1
                                                     : rng.below(seq->length() + 2);
  note("trim " + name_of(*seq) + " sinks " + std::to_string(sinks) + " window " +
       std::to_string(window));
  Codes errors;
  Codes tolerated;
  if (seq->in_step) errors.insert(kMoment);
  if (seq->draft() > 0) tolerated.insert(kMoment);
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
    } else {
      // Two holes, which nobody can represent: the answer is the manager's, the state must agree.
      const SequenceInfo info = state_of(*seq).info;
      const int old = seq->first_kept - seq->sinks;
      KVFOLIO_REQUIRE(info.trim_sinks <= seq->sinks && info.trim_first_kept >= seq->first_kept,
                      "what was dropped stays dropped");
      seq->sinks = info.trim_sinks;
      seq->first_kept = info.trim_first_kept;
      expected = seq->first_kept - seq->sinks - old;
    }
  }
  KVFOLIO_REQUIRE(*dropped == expected, "trim() drops " + std::to_string(expected));
  changed_ = expected > 0;
}

void Harness::close(Rng& rng, bool preempt) {
  const SeqPtr seq = any_seq(rng);
  if (!seq) return;
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
  stale_.push_back(seq->id);
  std::erase(seqs_, seq);
  const Tables tables = seq->tables;
  publish(*seq, tables, true);
  if (waits_for(*seq) != 0) {
    seq->publishes_late = isize(waiting_) < config_.options.max_sequences;
    waiting_.push_back(seq);
  }
  Prompt said = seq->prompt;
  said.tokens = seq->tokens;
  said.prefix_cache = true;
  if (said_.size() < 40) {
    said_.push_back(said);
  } else {
    said_[rng.next() % said_.size()] = said;
  }
  if (was_in_step) capture({});
  // With nothing evicted, all of it is found again but the token that gives the logits.
  const int n = seq->length();
  const Counters& counters = manager_->counters();
  if (n > 0 && seq->hole() == 0 && publishable(*seq) == n && config_.options.prefix_cache &&
      !failed_once_ && counters.blocks_evicted == 0 && counters.publications_skipped == 0 &&
      (in_order() || flight_.empty()) && !splits_self_attending_span(said.media, n - 1) &&
      !skip_questions_) {
    const Result<std::int32_t> again = manager_->probe(said.tokens, said.options());
    KVFOLIO_REQUIRE(again.has_value() && *again == n - 1,
                    "the tokens of a closed sequence hit but for one: " + std::to_string(n - 1) +
                        " expected, " + std::to_string(again.has_value() ? *again : -1) + " found");
  }
}

void Harness::accept(Rng& rng) {
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 6 && seq->draft() == 0; ++i) seq = any_seq(rng);
  if (!seq) return;
  const int draft = seq->draft();
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
  seq->forget_from(seq->accepted + n);
  seq->accepted = seq->committed;
  publish(*seq, seq->tables, false);
}

void Harness::pin(Rng& rng) {
  const Prompt prompt = any_prompt(rng);
  note("pin " + text_of(prompt));
  Codes errors;
  Codes tolerated;
  if (isize(pins_) >= config_.options.max_pins) errors.insert(kExhausted);
  if (!config_.options.prefix_cache || !prompt.prefix_cache) tolerated = {kUnsupported, kInvalid};
  if (config_.tight_tables) tolerated.insert(kExhausted);
  Result<Pinned> pinned = manager_->pin(prompt.tokens, prompt.options());
  if (!expect(status_of(pinned), errors, tolerated)) return;
  changed_ = revives_ = true;
  note(" " + std::to_string(pinned->pinned_tokens));
  KVFOLIO_REQUIRE(pinned->pinned_tokens >= 0 && pinned->pinned_tokens <= isize(prompt.tokens),
                  "a pin is no longer than its tokens");
  for (const Pin& other : pins_) KVFOLIO_REQUIRE(other.id != pinned->pin, "ids of pins are unique");
  Pin pin{pinned->pin, prompt, pinned->pinned_tokens, {}};
  for (int g = 0; g < num_groups(); ++g) {
    pin.blocks.push_back(0);
    for (int b = 0; b < group(g).num_blocks; ++b) {
      const Result<std::int32_t> refs = manager_->ref_count(GroupId(g), BlockId(b));
      KVFOLIO_REQUIRE(refs.has_value(), "ref_count of a block");
      const int more =
          *refs - before_.groups[static_cast<std::size_t>(g)].refs[static_cast<std::size_t>(b)];
      KVFOLIO_REQUIRE(more == 0 || more == 1, "a pin references a block once");
      pin.blocks.back() += more;
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
  const int count = rng.below(8);
  note("evict group " + std::to_string(g) + " blocks " + std::to_string(count));
  const GroupUsage& usage = before_.groups[static_cast<std::size_t>(g)].usage;
  const Result<std::int32_t> evicted = manager_->evict(GroupId(g), count);
  if (!expect(status_of(evicted), {})) return;
  changed_ = count > 0;
  note(" " + std::to_string(*evicted));
  KVFOLIO_REQUIRE(*evicted == std::min(count, usage.evictable), "evict() gives what is evictable");
  const Result<GroupUsage> now = manager_->usage(GroupId(g));
  KVFOLIO_REQUIRE(now.has_value() && now->free == usage.free + *evicted,
                  "what was evicted is free");
}

void Harness::admit_together(Rng& rng) {
  if (!open_step_) return;
  std::vector<SeqPtr> able;
  for (const SeqPtr& seq : seqs_) {
    if (!seq->in_step && seq->draft() == 0 && waits_for(*seq) == 0 && !waits_for_last_token(*seq) &&
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
  KVFOLIO_REQUIRE(together.ok() || together.code() == kNoBlocks,
                  "admit() answers ok or a shortage");
  if (together.shortage() != nullptr) {
    const Shortage& s = *together.shortage();
    KVFOLIO_REQUIRE(s.needed > s.free + s.evictable, "needed > free + evictable");
  }
  bool all = true;
  for (const auto& [seq, count] : chosen) {
    append_to(seq, count, 0, true, rng);
    all = all && seq->in_step;
    verify();
    changed_ = allocates_ = false;
    note("; ");
  }
  if (!skip_questions_ && !config_.tight_tables) {
    KVFOLIO_REQUIRE(all == together.ok(),
                    "admit() of several says whether all appends succeed: " + together.message());
  }
}

void Harness::run_device(Rng& rng) {
  read_only_ = true;
  for (StepWork& step : flight_) {
    if (step.executed || (!in_order() && rng.chance(50))) continue;
    note("device runs t" + std::to_string(step.ticket));
    execute(step);
    return;
  }
}

void Harness::bad_sequence_id(Rng& rng) {
  read_only_ = true;
  SequenceId id;
  Codes errors = {kNotFound};
  switch (rng.below(6)) {
    case 0:
      break;
    case 1:
      id = SequenceId(rng.next());
      break;
    case 2:
      id = SequenceId(~std::uint64_t{0});
      break;
    case 3:
      id = foreign_sequence_;
      break;
    case 4:
      if (aborted_.empty()) return;
      id = rng.pick(aborted_);
      errors.insert(kAborted);
      break;
    default:
      if (stale_.empty()) return;
      id = rng.pick(stale_);
      // Closed by its owner, and by fail() while it waited for its step.
      if (failed_once_ && !in_order()) errors.insert(kAborted);
      break;
  }
  for (const SeqPtr& seq : seqs_) {
    if (seq->id == id) return;  // a lucky draw
  }
  const std::vector<std::int32_t> tokens = {0};
  const int call = rng.below(15);
  note("bad id " + std::to_string(id.value()) + " call " + std::to_string(call));
  if (!open_step_) {
    // The moment is wrong too.
    if (call == 5 || call == 6 || call == 8) errors.insert(kMoment);
  }
  std::vector<std::int32_t> out(1);
  switch (call) {
    case 0:
      expect(manager_->close(id), errors);
      break;
    case 1:
      expect(manager_->preempt(id), errors);
      break;
    case 2:
      expect(status_of(manager_->fork(id)), errors);
      break;
    case 3:
      expect(manager_->truncate(id, 0), errors);
      break;
    case 4:
      expect(status_of(manager_->trim(id, {})), errors);
      break;
    case 5:
      expect(manager_->append(id, tokens), errors);
      break;
    case 6:
      expect(manager_->append_unnamed(id, 1), errors);
      break;
    case 7:
      expect(manager_->set_tokens(id, tokens), errors);
      break;
    case 8:
      expect(manager_->undo(id), errors);
      break;
    case 9:
      expect(manager_->accept(id, 0), errors);
      break;
    case 10:
      expect(manager_->admit(id, 1), errors);
      break;
    case 11:
      expect(status_of(manager_->info(id)), errors);
      break;
    case 12:
      expect(status_of(manager_->block_table(id, GroupId(0))), errors);
      break;
    case 13:
      expect(manager_->slot_mapping(id, GroupId(0), 0, out), errors);
      break;
    default: {
      PinId pin;
      if (rng.chance(30)) pin = foreign_pin_;
      if (!stale_pins_.empty() && rng.chance(50)) pin = rng.pick(stale_pins_);
      expect(manager_->unpin(pin), {kNotFound});
    }
  }
}

void Harness::bad_ticket(Rng& rng) {
  read_only_ = true;
  // One that is neither open nor in flight.
  std::uint64_t ticket = 0;
  switch (rng.below(4)) {
    case 0:
      break;
    case 1:
      ticket = last_ticket_ + 1;
      break;
    case 2:
      ticket = ~std::uint64_t{0};
      break;
    default:
      ticket = last_ticket_ == 0 ? 0 : 1 + rng.next() % last_ticket_;
      break;
  }
  const bool is_open = open_step_ && open_step_->ticket == ticket;
  const int call = rng.below(5);
  note("bad ticket " + std::to_string(ticket) + " call " + std::to_string(call));
  const Codes errors = {kInvalid, kNotFound, kMoment};
  switch (call) {
    case 0:
      if (!is_open) expect(manager_->commit(Ticket(ticket)), errors);
      break;
    case 1:
      if (!incomplete(ticket)) expect(manager_->complete(Ticket(ticket)), errors);
      break;
    case 2:
      if (!is_open) expect(manager_->drop(Ticket(ticket)), errors);
      break;
    case 3:
      if (!is_open && !incomplete(ticket)) expect(manager_->fail(Ticket(ticket)), errors);
      break;
    default:
      if (!is_open && !incomplete(ticket)) expect(manager_->finish(Ticket(ticket)), errors);
      break;
  }
}

void Harness::bad_argument(Rng& rng) {
  read_only_ = true;
  const SeqPtr seq = any_seq(rng);
  const int call = rng.below(28);
  if (!seq && call < 14) return;
  note("bad argument call " + std::to_string(call));
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  constexpr std::int32_t kHuge32 = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::int32_t> good = {0, 1};
  const std::vector<std::int32_t> negative = {0, -1};
  const SequenceId id = seq ? seq->id : SequenceId();
  // Calls whose moment may be wrong as well.
  Codes errors = {kInvalid};
  if (!open_step_ || (seq && (seq->in_step || seq->draft() > 0 || waits_for(*seq) != 0))) {
    errors.insert(kMoment);
  }
  if (!in_order()) errors.insert(kMoment);
  const std::int32_t bad_group = rng.chance(50) ? -1 : (rng.chance(50) ? num_groups() : kHuge32);
  const Codes range = {kInvalid, kNotFound};
  MediaSpan span;
  std::vector<MediaSpan> media;
  OpenOptions options;
  std::vector<std::int32_t> out(2);
  switch (call) {
    case 0:
      expect(manager_->append(id, negative), errors);
      break;
    case 1:
      expect(manager_->append(id, good, {.draft = 3}), errors);
      break;
    case 2:
      expect(manager_->append(id, good, {.draft = -1}), errors);
      break;
    case 3:
      expect(manager_->append_unnamed(id, -1), errors);
      break;
    case 4: {
      Codes too_many = errors;
      too_many.insert({kNoBlocks, kExhausted});
      expect(manager_->append_unnamed(id, rng.chance(50) ? kHuge : std::int64_t{1} << 30),
             too_many);
      break;
    }
    case 5: {
      Codes too_many = errors;
      too_many.insert({kNoBlocks, kExhausted});
      expect(manager_->admit(id, rng.chance(50) ? kHuge : std::int64_t{1} << 31), too_many);
      break;
    }
    case 6:
      expect(manager_->admit(id, -1), errors);
      break;
    case 7:
      expect(manager_->truncate(id, -1), {kInvalid, kMoment});
      break;
    case 8:
      expect(manager_->truncate(id, seq->length() + 1), {kInvalid, kMoment});
      break;
    case 9:
      expect(status_of(manager_->trim(id, {.num_sinks = -1})), {kInvalid, kMoment});
      break;
    case 10: {
      const auto least = std::numeric_limits<std::int64_t>::min();
      expect(status_of(manager_->trim(id, {.window = least})), {kInvalid, kMoment});
      break;
    }
    case 11:
      expect(manager_->accept(id, -1), {kInvalid, kMoment});
      break;
    case 12:
      expect(status_of(manager_->block_table(id, GroupId(bad_group))), range);
      break;
    case 13: {
      const int first = rng.chance(50) ? seq->length() - 1 : (rng.chance(50) ? -1 : kHuge32);
      expect(manager_->slot_mapping(id, GroupId(0), first, out), range);
      break;
    }
    case 14:
      expect(status_of(manager_->open(negative)), {kInvalid});
      break;
    case 15:
      expect(status_of(manager_->probe(negative)), {kInvalid});
      break;
    case 16:
      expect(status_of(manager_->pin(negative)), {kInvalid, kExhausted});
      break;
    case 17:  // empty, reversed, negative, overlapping, out of order
    case 18: {
      const int kind = rng.below(5);
      span.begin = kind == 2 ? -1 : 4;
      span.end = kind == 0 ? 4 : (kind == 1 ? 2 : 6);
      media.push_back(span);
      if (kind >= 3) {
        span.begin = kind == 3 ? 5 : 0;
        span.end = kind == 3 ? 8 : 2;
        media.push_back(span);
      }
      options.media = media;
      expect(call == 17 ? status_of(manager_->open(good, options))
                        : status_of(manager_->probe(good, options)),
             {kInvalid});
      break;
    }
    case 19: {
      const std::string long_name(65537, 'a');
      options.root.tenant_salt = long_name;
      expect(status_of(manager_->open(good, options)), {kInvalid});
      break;
    }
    case 20:
      expect(status_of(manager_->evict(GroupId(bad_group), 1)), range);
      break;
    case 21:
      expect(status_of(manager_->evict(GroupId(0), -1)), {kInvalid});
      break;
    case 22:
      expect(status_of(manager_->usage(GroupId(bad_group))), range);
      break;
    case 23:
      expect(status_of(manager_->ref_count(GroupId(bad_group), BlockId(0))), range);
      break;
    case 24:
      expect(status_of(manager_->ref_count(GroupId(0),
                                           BlockId(rng.chance(50) ? -1 : group(0).num_blocks))),
             range);
      break;
    case 25:
      expect(status_of(manager_->is_findable(
                 GroupId(0), BlockId(rng.chance(50) ? kHuge32 : group(0).num_blocks))),
             range);
      break;
    case 26: {
      const Codes pad = open_step_ ? Codes{kInvalid} : Codes{kInvalid, kMoment};
      expect(status_of(manager_->plan({.pad = 5})), pad);
      break;
    }
    default:
      expect(manager_->run_copies(),
             open_step_ ? Codes{kUnsupported} : Codes{kUnsupported, kMoment});
      break;
  }
}

}  // namespace kvfolio::model_check
