// SPDX-License-Identifier: Apache-2.0
// One operation of the random check: which one, what answer it may have, and what comes after it.
// The operations themselves (ops_*.cc) draw their arguments, say which errors these deserve, and
// apply what the manager did to the model.

#include "model_check/ops.h"

namespace kvfolio::model_check {
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
  if (!prompt.look_up) text += " no-look-up";
  if (prompt.publish == Publish::kFullBlocks) text += " full-blocks";
  if (prompt.publish == Publish::kNothing) text += " publishes-nothing";
  if (prompt.late_names) text += " late-names";
  return text + (prompt.prefix_cache ? "" : " no-cache");
}

std::string name_of(const Seq& seq) { return "s" + std::to_string(seq.number); }

namespace {

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
  kOpenUnnamed,
  kAdopt,
  kClear,
  kSetPriority,
  kSelectVictim,
  kPreemptTo,
  kCopy,
  kReserve,
  kForget,
  kBadId,
  kBadTicket,
  kBadArgument,
  kBeginLoad,  // from here on: only with Config::transfers
  kArrive,
  kFinishLoad,
  kHold,
  kRelease,
  kStore,  // from here on: only with Config::tier
  kLoadFromTier,
  kNumWeighted,
  kAppendEach,  // in place of others, with Config::batches
  kAppendUnnamedEach,
  kSetTokensEach,
};

// Out of 1000, roughly.
struct Weights {
  int between_steps;
  int in_step;
};
constexpr std::array<Weights, kNumWeighted> kWeights = {{
    {100, 80}, {40, 40}, {250, 5},  {10, 270}, {5, 50},  {40, 40}, {3, 25},   {3, 20},  {3, 110},
    {3, 25},   {3, 20},  {100, 50}, {50, 30},  {60, 25}, {40, 12}, {25, 10},  {15, 20}, {60, 25},
    {60, 30},  {15, 10}, {15, 10},  {60, 60},  {5, 30},  {3, 2},   {3, 30},   {40, 4},  {12, 6},
    {12, 12},  {15, 15}, {8, 6},    {8, 8},    {20, 10}, {3, 3},   {15, 15},  {8, 8},   {20, 20},
    {90, 60},  {40, 40}, {60, 50},  {40, 40},  {35, 35}, {60, 40}, {160, 90},
}};

}  // namespace

bool Harness::expect(const Status& status, const Codes& errors, const Codes& tolerated) {
  const ErrorCode code = status.code();
  note(std::string(" -> ") + kvfolio::to_string(code));
  if (!status.ok()) {
    const std::string message = status.message();
    log_ += " \"" + message + "\"";
    if (const Shortage* s = status.shortage()) {
      const std::int32_t numbers[] = {s->group,  s->needed,   s->free,      s->evictable,
                                      s->pinned, s->retiring, s->sequences, s->pins};
      digest(numbers);
      KVFOLIO_REQUIRE(s->needed > s->free + s->evictable, "needed > free + evictable");
      KVFOLIO_REQUIRE(std::min({s->free, s->evictable, s->retiring, s->pinned - s->reserved,
                                s->reserved, s->kept, s->spared}) >= 0,
                      "no number of a shortage is negative");
      KVFOLIO_REQUIRE(s->free + s->evictable + s->retiring + s->pinned == s->num_blocks,
                      "each block of the group is one of a shortage's four kinds");
    }
    ++coverage_.errors;
    KVFOLIO_REQUIRE(!message.empty() && message != "ok", "an error has a text");
    if (message.find(" rows are in use") != std::string::npos) ++coverage_.rows_refused;
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

void Harness::begin_operation() {
  read_only_ = changed_ = allocates_ = revives_ = finishes_ = false;
  took_back_.reset();
  moved_.clear();
  trimmed_.reset();
  wanted_.clear();
  read_.clear();
  fresh_.clear();
  held_again_.clear();
}

void Harness::run(std::uint64_t op_seed) {
  Rng rng(op_seed);
  log_.clear();
  begin_operation();
  ++coverage_.operations;
  // The device goes on while the caller makes its next call. Its own generator: what the device
  // does decides about no operation.
  device_rng_ = Rng(op_seed ^ 0xd3b1ce5eedull);
  shape_rng_ = Rng(op_seed ^ 0x5a9e5ull);
  if (device_rng_.chance(30)) let_device_run();

  const int drawn = config_.tier ? kNumWeighted : config_.transfers ? kStore : kBeginLoad;
  const auto weights = std::span(kWeights).first(static_cast<std::size_t>(drawn));
  int total = 0;
  for (const Weights& w : weights) total += open_step_ ? w.in_step : w.between_steps;
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
  if (op == kAppend && config_.ahead && rng.chance(60)) op = kAppendUnnamed;
  if (op == kEvict && !config_.evicts && rng.chance(90)) op = kProbe;
  if (op == kComplete && config_.ahead && !flying && rng.chance(60)) {
    op = open_step_ ? kCommit : kBegin;
  }
  if (op == kComplete && config_.fails && rng.chance(config_.failures)) op = kFail;
  if (op == kComplete && flight_.empty() && rng.chance(90)) op = open_step_ ? kCommit : kBegin;
  if (config_.batches && rng.chance(30)) {
    if (op == kAppend) op = kAppendEach;
    if (op == kAppendUnnamed && config_.unnamed) op = kAppendUnnamedEach;
    if (op == kSetTokens) op = kSetTokensEach;
  }
  if (config_.drafts_ahead && op == kAccept && rng.chance(50)) op = open_step_ ? kAppend : kBegin;
  if (config_.tier && !loads_.empty() && rng.chance(2)) op = kForget;
  if (config_.tier && op == kHold && rng.chance(60)) op = kRelease;
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
      read_only_ = true;
      let_device_run();
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
    case kOpenUnnamed:
      config_.unnamed ? open_unnamed(rng) : open(rng);
      break;
    case kAdopt:
      adopt(rng);
      break;
    case kClear:
      clear(rng);
      break;
    case kSetPriority:
      set_priority(rng);
      break;
    case kSelectVictim:
      select_victim(rng);
      break;
    case kPreemptTo:
      preempt_to(rng);
      break;
    case kCopy:
      copy(rng);
      break;
    case kReserve:
      reserve(rng);
      break;
    case kForget:
      forget(rng);
      break;
    case kBadId:
      bad_sequence_id(rng);
      break;
    case kBadTicket:
      bad_ticket(rng);
      break;
    case kBeginLoad:
      begin_load(rng);
      break;
    case kArrive:
      read_only_ = true;
      arrive(rng);
      break;
    case kFinishLoad:
      finish_load(rng);
      break;
    case kHold:
      hold(rng);
      break;
    case kRelease:
      release(rng);
      break;
    case kStore:
      store(rng);
      break;
    case kLoadFromTier:
      load_from_tier(rng);
      break;
    case kAppendEach:
      append_each(rng, true);
      break;
    case kAppendUnnamedEach:
      append_each(rng, false);
      break;
    case kSetTokensEach:
      set_tokens_each(rng);
      break;
    default:
      bad_argument(rng);
      break;
  }
  verify();
}

Harness::SeqPtr Harness::any_seq(Rng& rng) const {
  if (seqs_.empty()) return nullptr;
  return rng.chance(config_.focus) ? seqs_.back() : rng.pick(seqs_);
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
  prompt.look_up = !rng.chance(4);
  prompt.publish = rng.chance(88)   ? Publish::kAll
                   : rng.chance(60) ? Publish::kFullBlocks
                                    : Publish::kNothing;
  prompt.late_names = config_.unnamed && rng.chance(40);
  return prompt;
}

}  // namespace kvfolio::model_check
