// SPDX-License-Identifier: Apache-2.0
#include "world.h"

#define XXH_INLINE_ALL  // nothing to link
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "api/engine.h"
#include "state_reader.h"

namespace kvfolio::explore {

namespace {

std::string show(Prefix prefix) {
  std::string text = "\"";
  for (const std::int32_t token : tokens_of(first_of(prefix, length_of(prefix)))) {
    text += std::to_string(token);
  }
  return text + ((prefix & kInexact) != 0 ? "\" after a trim" : "\"");
}

Prefix prefix_of(const std::vector<std::int32_t>& tokens, std::int32_t n) {
  std::uint32_t prefix = kEmpty;
  for (std::int32_t i = 0; i < n; ++i) {
    prefix = prefix << 1 | static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(i)]);
  }
  return static_cast<Prefix>(prefix);
}

std::int32_t common(Prefix a, Prefix b) {
  std::int32_t n = 0;
  const std::int32_t most = std::min(length_of(a), length_of(b));
  while (n < most && token_of(a, n) == token_of(b, n)) ++n;
  return n;
}

KVCacheManager small_manager(Order order) {
  ManagerOptions options;
  options.order = order;
  options.max_sequences = kSequences;
  options.max_pins = 1;
  options.max_steps_in_flight = 2;
  options.max_index_tokens = 256;
  options.max_runs = 24;
  options.max_root_keys = 1;
  options.max_root_key_bytes = 256;
  options.max_media_extents = 1;
  options.max_table_entries = 256;
  const CacheSpec spec{{testing_engine::full_group(kBlockSize, kBlocks)}};
  return testing_engine::must(KVCacheManager::create(spec, options));
}

Outcome outcome(const Status& status) { return status.ok() ? Outcome::kDone : Outcome::kRefused; }

void add(std::string& broken, const std::string& what) {
  if (!broken.empty()) broken += "; ";
  broken += what;
}

}  // namespace

std::int32_t length_of(Prefix prefix) {
  return static_cast<std::int32_t>(std::bit_width(static_cast<std::uint32_t>(prefix & ~kInexact))) -
         1;
}
Prefix first_of(Prefix prefix, std::int32_t n) {
  const auto plain = static_cast<std::uint32_t>(prefix & ~kInexact);
  return static_cast<Prefix>(plain >> (length_of(prefix) - n));
}
std::int32_t token_of(Prefix prefix, std::int32_t position) {
  return prefix >> (length_of(prefix) - 1 - position) & 1;
}
std::vector<std::int32_t> tokens_of(Prefix prefix) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(length_of(prefix)));
  for (std::int32_t i = 0; i < length_of(prefix); ++i) tokens.push_back(token_of(prefix, i));
  return tokens;
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = [] {
    std::vector<Operation> made;
    for (const std::int32_t prompt : {0b10, 0b100, 0b101, 0b1000, 0b1001, 0b10010}) {
      made.push_back({Kind::kOpen, 0, prompt, 0});
    }
    made.push_back({Kind::kOpen, 0, 0b10, 1});
    made.push_back({Kind::kOpen, 0, 0b1001, kAnnounces});
    made.push_back({Kind::kOpen, 0, 0b10010, kAnnounces});
    for (const std::int32_t path : {0b10, 0b100, 0b101}) {
      made.push_back({Kind::kForget, 0, path, 0});
    }
    made.push_back({Kind::kReset, 0, 0, 0});
    for (std::int32_t who = 0; who < kSequences; ++who) {
      for (const std::int32_t more : {0b10, 0b11, 0b100, 0b1001}) {
        made.push_back({Kind::kAppend, who, more, 0});
      }
      for (const std::int32_t more : {0b10, 0b101, 0b1001}) {
        made.push_back({Kind::kFeed, who, more, 0});
        made.push_back({Kind::kLaunch, who, more, 0});
      }
      made.push_back({Kind::kAppend, who, 0b101, 1});
      made.push_back({Kind::kLaunch, who, 0b1001, 2});
      made.push_back({Kind::kAccept, who, 0, 0});
      made.push_back({Kind::kAccept, who, 1, 0});
      made.push_back({Kind::kAccept, who, 2, 0});
      made.push_back({Kind::kAdopt, who, 0, 0});
      made.push_back({Kind::kAppendUnnamed, who, 0b10, 0});
      made.push_back({Kind::kAppendUnnamed, who, 0b101, 0});
      made.push_back({Kind::kSetTokens, who, 1, 0});
      made.push_back({Kind::kFork, who, 0, 0});
      made.push_back({Kind::kTruncate, who, -1, 0});  // by one
      made.push_back({Kind::kTruncate, who, 1, 0});   // to one
      made.push_back({Kind::kClear, who, 0, 0});
      made.push_back({Kind::kTrim, who, 0, 2});
      made.push_back({Kind::kTrim, who, 1, 1});
      made.push_back({Kind::kPreempt, who, 0, 0});
      made.push_back({Kind::kClose, who, 0, 0});
      made.push_back({Kind::kUndo, who, 0, 0});
      for (const std::int32_t tokens : {0, 1, 3}) {
        made.push_back({Kind::kReserve, who, tokens, 0});
      }
      made.push_back({Kind::kComplete, who, 0, 0});
      made.push_back({Kind::kFail, who, 0, 0});
    }
    made.push_back({Kind::kBegin, 0, 0, 0});
    made.push_back({Kind::kCommit, 0, 0, 0});
    made.push_back({Kind::kFinish, 0, 0, 0});
    made.push_back({Kind::kDrop, 0, 0, 0});
    made.push_back({Kind::kEvict, 0, 1, 0});
    made.push_back({Kind::kPin, 0, 0b1000, 0});
    made.push_back({Kind::kPin, 0, 0b101, 0});
    made.push_back({Kind::kUnpin, 0, 0, 0});
    return made;
  }();
  return all;
}

std::string_view name(Kind kind) {
  static constexpr std::array<std::string_view, 27> kNames = {
      "open",  "append",  "append_unnamed", "set_tokens", "fork",   "truncate", "clear",
      "trim",  "preempt", "close",          "begin",      "commit", "complete", "finish",
      "drop",  "undo",    "evict",          "pin",        "unpin",  "fail",     "accept",
      "adopt", "launch",  "feed",           "reserve",    "forget", "reset"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string show(const Operation& op) {
  std::string text(name(op.kind));
  switch (op.kind) {
    case Kind::kOpen:
    case Kind::kPin:
    case Kind::kForget:
      return text + " " + show(static_cast<Prefix>(op.a)) +
             (op.b == kAnnounces ? " announced"
              : op.b > 0         ? " late"
                                 : "");
    case Kind::kAppend:
    case Kind::kAppendUnnamed:
    case Kind::kLaunch:
    case Kind::kFeed:
      return text + " " + std::to_string(op.who) + " " + show(static_cast<Prefix>(op.a)) +
             (op.b > 0 ? " draft " + std::to_string(op.b) : "");
    case Kind::kAccept:
    case Kind::kReserve:
      return text + " " + std::to_string(op.who) + " " + std::to_string(op.a);
    case Kind::kTruncate:
      return text + " " + std::to_string(op.who) + (op.a < 0 ? " by 1" : " to 1");
    case Kind::kTrim:
      return text + " " + std::to_string(op.who) + " {" + std::to_string(op.a) + ", " +
             std::to_string(op.b) + "}";
    case Kind::kBegin:
    case Kind::kCommit:
    case Kind::kFinish:
    case Kind::kDrop:
    case Kind::kUnpin:
    case Kind::kEvict:
    case Kind::kReset:
      return text;
    default:
      return text + " " + std::to_string(op.who);
  }
}

World::World(Order order) : manager_(small_manager(order)), order_(order) {}

void World::copy_from(const World& other) {
  const Status copied = other.manager_.copy_to(manager_);
  if (!copied.ok()) throw std::runtime_error(copied.message());
  shadow_ = other.shadow_;
}

void World::cut(ShadowSequence& sequence, std::int32_t n) {
  sequence.announced = kEmpty;
  sequence.tokens = first_of(sequence.tokens, n);
  sequence.accepted = std::min(sequence.accepted, n);
  sequence.spent_begin = std::min(sequence.spent_begin, n);
  sequence.spent_end = std::min(sequence.spent_end, n);
  while (sequence.num_drafts > 0) {
    auto& last = sequence.drafts.at(static_cast<std::size_t>(sequence.num_drafts - 1));
    const bool is_first = sequence.num_drafts == 1;
    const std::int32_t begin = is_first ? 0 : sequence.drafts[0].end;
    last.draft = std::max(0, last.draft - std::max(0, last.end - n));
    last.end = std::min(last.end, n);
    if (last.end > begin && (last.draft > 0 || !is_first)) break;
    --sequence.num_drafts;
  }
  if (n == 0) sequence.adopted = false;
  if (sequence.lost_from >= n) sequence.lost_from = kNever;
  for (std::int32_t i = n; i < kMaxTokens; ++i) sequence.unnamed[static_cast<std::size_t>(i)] = 0;
  // What follows is computed across the gap as long as there is one before it.
  const Result<SequenceInfo> info = manager_.info(sequence.id);
  const bool gap = info.has_value() && info->trim_first_kept > info->trim_sinks;
  if (gap) {
    sequence.inexact_from = std::min(sequence.inexact_from, n);
  } else if (sequence.inexact_from >= n) {
    sequence.inexact_from = kNever;
  }
}

void World::end_entry(ShadowSequence& sequence) {
  if (!sequence.in_step) return;
  sequence.tokens = sequence.before;
  sequence.promised = sequence.promised_before;
  sequence.spent_end = sequence.spent_end_before;
  for (std::int32_t i = length_of(sequence.before); i < kMaxTokens; ++i) {
    sequence.unnamed[static_cast<std::size_t>(i)] = 0;
  }
  sequence.in_step = false;
}

// Asked of a copy: admit() keeps room for table entries.
bool World::fits(SequenceId sequence, std::int32_t count) const {
  static KVCacheManager copies[] = {small_manager(Order::kInOrder),
                                    small_manager(Order::kUnordered)};
  KVCacheManager& copy = copies[order_ == Order::kInOrder ? 0 : 1];
  const Status copied = manager_.copy_to(copy);
  if (!copied.ok()) throw std::runtime_error(copied.message());
  return copy.admit(sequence, count).code() != ErrorCode::kNoBlocks;
}

// A sequence that runs alone, with no step under way, gets all blocks that it does not hold.
void World::check_alone(std::string& broken) const {
  const ShadowSequence* alone = nullptr;
  std::int32_t open = 0;
  for (const ShadowSequence& s : shadow_.sequences) {
    if (!s.id.valid()) continue;
    ++open;
    alone = &s;
  }
  if (open != 1 || shadow_.open_ticket != 0 || shadow_.num_in_flight != 0 || shadow_.pin.valid() ||
      alone->accepted < length_of(alone->tokens)) {
    return;
  }
  const GroupUsage usage = *manager_.usage(GroupId(0));
  if (usage.evictable != usage.cached || usage.retiring != 0) {
    add(broken, "a cached block cannot be evicted, or one retires without a step");
  }
  const std::int32_t length = length_of(alone->tokens);
  std::int32_t held = 0;
  for (const std::int32_t block : *manager_.block_table(alone->id, GroupId(0))) held += block >= 0;
  const bool has_extra = StateReader::replays(manager_, alone->id) && length % kBlockSize == 0;
  const std::int32_t blocks = kBlocks - held + (has_extra ? 1 : 0);
  const std::int32_t most =
      (length + kBlockSize - 1) / kBlockSize * kBlockSize + blocks * kBlockSize;
  if (!fits(alone->id, most - length)) {
    add(broken, "alone it has " + std::to_string(length) + " tokens and does not get to " +
                    std::to_string(most));
  }
}

Outcome World::open(const Operation& op, std::string& broken) {
  auto at = std::find_if(shadow_.sequences.begin(), shadow_.sequences.end(),
                         [](const ShadowSequence& s) { return !s.id.valid(); });
  if (at == shadow_.sequences.end()) return Outcome::kSkipped;
  const auto prompt = static_cast<Prefix>(op.a);
  const GroupUsage usage = *manager_.usage(GroupId(0));
  const std::int32_t room = usage.free + usage.cached;
  const Result<Opened> opened =
      manager_.open(tokens_of(prompt), {.late_names = op.b == 1, .announce = op.b == kAnnounces});
  if (!opened) return Outcome::kRefused;
  // Caching never takes room: where the prompt fits without it, so does what is left of it.
  const std::int32_t rest = length_of(prompt) - opened->cached_tokens;
  if ((length_of(prompt) + kBlockSize - 1) / kBlockSize <= room && !fits(opened->sequence, rest)) {
    add(broken, "the prompt fits without the cache, but not with a hit of " +
                    std::to_string(opened->cached_tokens));
  }
  *at = {};
  at->id = opened->sequence;
  at->tokens = first_of(prompt, opened->cached_tokens);
  at->accepted = opened->cached_tokens;
  at->late_names = op.b == 1;
  at->opened = ++shadow_.num_opened;
  const std::int32_t whole = length_of(prompt) / kBlockSize * kBlockSize;
  if (op.b == kAnnounces && whole > manager_.info(at->id)->published_length) {
    at->announced = first_of(prompt, whole);
  }
  return Outcome::kDone;
}

// All that the other one has. The manager is not told which tokens these are.
Outcome World::adopt(ShadowSequence& s, const ShadowSequence& other) {
  if (!other.id.valid() || length_of(s.tokens) != 0) return Outcome::kSkipped;
  const auto blocks = *manager_.block_table(other.id, GroupId(0));
  const std::int32_t length = length_of(other.tokens);
  const std::span<const std::int32_t> tables[] = {blocks};
  if (length == 0 || !manager_.adopt(s.id, tables, length).ok()) return Outcome::kRefused;
  s.tokens = other.tokens;
  s.inexact_from = other.inexact_from;
  s.accepted = length;
  s.certain = false;
  s.announced = kEmpty;
  s.adopted = true;
  return Outcome::kDone;
}

Outcome World::append(const Operation& op, std::string& broken) {
  ShadowSequence& s = shadow_.sequences[static_cast<std::size_t>(op.who)];
  const auto more = static_cast<Prefix>(op.a);
  const std::int32_t length = length_of(s.tokens);
  const std::int32_t count = length_of(more);
  if (shadow_.open_ticket == 0 || s.in_step || length + count > kMaxTokens) {
    return Outcome::kSkipped;
  }
  const auto table_of = [&] {
    const auto table = *manager_.block_table(s.id, GroupId(0));
    return std::vector<std::int32_t>(table.begin(), table.end());
  };
  const std::vector<std::int32_t> table = table_of();
  std::array<BlockState, kBlocks> states{};
  std::int32_t room = 0;
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    const BlockState state = StateReader::block_state(manager_, BlockId(b));
    states[static_cast<std::size_t>(b)] = state;
    if (state == BlockState::kFree || state == BlockState::kCached) ++room;
  }
  const std::vector<std::int32_t> ready = StateReader::ready(manager_, s.id);
  room += static_cast<std::int32_t>(ready.size());
  // Asked on the same manager: a refusal below would show that admit() changed something.
  const bool replays = StateReader::replays(manager_, s.id);
  const bool admitted = manager_.admit(s.id, count).ok();
  const auto needed =
      (length + count + kBlockSize - 1) / kBlockSize - static_cast<std::int32_t>(table.size());
  if (admitted && needed > room) {
    add(broken, "admitted an append of " + std::to_string(needed) + " blocks, only " +
                    std::to_string(room) + " are free or cached");
    return Outcome::kRefused;
  }
  const Status status = op.kind == Kind::kAppend
                            ? manager_.append(s.id, tokens_of(more), {.draft = op.b})
                            : manager_.append_unnamed(s.id, count);
  if (status.ok() && !admitted) add(broken, "append() does what admit() refused");
  if (status.code() == ErrorCode::kNoBlocks && s.certain && count <= s.promised) {
    add(broken, "within its promise a sequence is short of blocks: " + status.message());
  }
  if (!status.ok()) {
    // admit() speaks of room only, and takes a token of a prompt found whole to be the prompt's.
    // The whole prompt behind a hit is refused.
    const bool again = op.kind == Kind::kAppend && length > 0 && count > 1 && count >= length &&
                       first_of(more, length) == s.tokens;
    const bool may_be = status.code() == ErrorCode::kFailedPrecondition ||
                        (again && status.code() == ErrorCode::kInvalidArgument);
    if (admitted && !replays && !may_be) add(broken, "admitted, but: " + status.message());
    return Outcome::kRefused;
  }
  for (std::int32_t i = 0; i < count && length + i < length_of(s.announced); ++i) {
    if (op.kind == Kind::kAppend && token_of(more, i) == token_of(s.announced, length + i) &&
        i < count - op.b) {
      continue;
    }
    s.announced = kEmpty;
  }
  s.in_step = true;
  s.before = s.tokens;
  s.draft = op.b;
  s.promised_before = s.promised;
  s.spent_end_before = s.spent_end;
  if (s.promised > 0) s.spent_end = length + std::min(s.promised, count);
  s.promised -= std::min(s.promised, count);
  for (std::int32_t i = 0; i < count; ++i) {
    s.tokens = static_cast<Prefix>(s.tokens << 1 | token_of(more, i));
    if (op.kind == Kind::kAppendUnnamed) {
      s.unnamed[static_cast<std::size_t>(length) + static_cast<std::size_t>(i)] =
          shadow_.open_ticket;
    }
  }
  for (const std::int32_t block : table_of()) {
    if (block < 0 || std::find(table.begin(), table.end(), block) != table.end()) continue;
    const BlockState before = states[static_cast<std::size_t>(block)];
    const bool lay_ready = std::find(ready.begin(), ready.end(), block) != ready.end();
    if (!lay_ready && before != BlockState::kFree && before != BlockState::kCached) {
      add(broken, "append took block " + std::to_string(block) + ", which was " +
                      (before == BlockState::kHeld ? "held" : "retiring"));
    }
    // Given up, if it was cached: nothing is in it now.
    shadow_.bytes[static_cast<std::size_t>(block)] = {};
  }
  return Outcome::kDone;
}

Outcome World::step(const Operation& op, std::string& broken) {
  if (shadow_.open_ticket != 0) return Outcome::kSkipped;
  if (op.kind == Kind::kFeed && shadow_.num_in_flight != 0) return Outcome::kSkipped;
  const Result<Ticket> ticket = manager_.begin_step();
  if (!ticket) return Outcome::kRefused;
  shadow_.open_ticket = ticket->value();
  const Outcome appended = append({Kind::kAppend, op.who, op.a, op.b}, broken);
  if (appended != Outcome::kDone) {
    if (!manager_.drop(*ticket).ok()) add(broken, "drop of an empty step");
    shadow_.open_ticket = 0;
    return appended;
  }
  const Outcome committed = commit(broken);
  if (committed != Outcome::kDone) add(broken, "commit refused");
  return op.kind == Kind::kFeed ? complete(0) : committed;
}

Outcome World::commit(std::string& broken) {
  if (shadow_.open_ticket == 0) return Outcome::kSkipped;
  ShadowStep step;
  step.ticket = shadow_.open_ticket;
  const Result<const StepPlan*> planned = manager_.plan();
  if (!planned) {
    add(broken, "plan: " + planned.error().message());
    return Outcome::kRefused;
  }
  const StepPlan& plan = **planned;
  const GroupPlan& group = plan.groups[0];
  for (std::size_t i = 0; i < group.copy_src.size(); ++i) {
    const auto from = static_cast<std::size_t>(group.copy_src[i]);
    const auto to = static_cast<std::size_t>(group.copy_dst[i]);
    shadow_.bytes[to] = shadow_.bytes[from];
    step.touched |= 1u << from | 1u << to;
    step.written |= 3u << (kBlockSize * to);
  }
  for (std::size_t row = 0; row < plan.sequences.size(); ++row) {
    const auto s =
        std::find_if(shadow_.sequences.begin(), shadow_.sequences.end(),
                     [&](const ShadowSequence& each) { return each.id == plan.sequences[row]; });
    if (s == shadow_.sequences.end() || !s->in_step) {
      add(broken, "the plan has a sequence that is not in the step");
      continue;
    }
    std::int32_t position = length_of(s->before);
    for (std::int32_t i = plan.query_start[row]; i < plan.query_start[row + 1]; ++i, ++position) {
      const std::int32_t slot = group.slot_mapping[static_cast<std::size_t>(i)];
      if (slot < 0) continue;  // a replay: it is there already
      const Prefix exact = first_of(s->tokens, position + 1);
      const auto digest =
          static_cast<Prefix>(position >= s->inexact_from ? exact | kInexact : exact);
      shadow_.bytes[static_cast<std::size_t>(slot / kBlockSize)]
                   [static_cast<std::size_t>(slot % kBlockSize)] = digest;
      step.touched |= 1u << (slot / kBlockSize);
      step.written |= 1u << slot;
    }
    const auto table = *manager_.block_table(s->id, GroupId(0));
    for (const std::int32_t block : table) {
      if (block >= 0) step.touched |= 1u << block;
    }
  }
  if (!manager_.commit(Ticket(step.ticket)).ok()) return Outcome::kRefused;
  for (ShadowSequence& s : shadow_.sequences) {
    if (!s.in_step) continue;
    s.in_step = false;
    const std::int32_t length = length_of(s.tokens);
    if (s.num_drafts == 0) s.accepted = length - s.draft;
    if (s.num_drafts == 0 && s.draft == 0) continue;
    s.drafts.at(static_cast<std::size_t>(s.num_drafts++)) = {length, s.draft};
  }
  shadow_.open_ticket = 0;
  shadow_.in_flight.at(static_cast<std::size_t>(shadow_.num_in_flight++)) = step;
  return Outcome::kDone;
}

Outcome World::complete(std::int32_t which) {
  if (which >= shadow_.num_in_flight) return Outcome::kSkipped;
  const std::uint64_t ticket = shadow_.in_flight[static_cast<std::size_t>(which)].ticket;
  if (!manager_.complete(Ticket(ticket)).ok()) return Outcome::kRefused;
  const bool earlier = order_ == Order::kInOrder;
  for (ShadowSequence& s : shadow_.sequences) {
    for (std::int32_t i = 0; i < kMaxTokens && !s.late_names; ++i) {
      std::uint64_t& unnamed = s.unnamed[static_cast<std::size_t>(i)];
      if (unnamed == 0 || (unnamed != ticket && !(earlier && unnamed <= ticket))) continue;
      unnamed = 0;
      s.lost_from = std::min(s.lost_from, i);
    }
  }
  auto* const end = shadow_.in_flight.begin() + shadow_.num_in_flight;
  auto* const kept = std::remove_if(shadow_.in_flight.begin(), end, [&](const ShadowStep& step) {
    return step.ticket == ticket || (earlier && step.ticket <= ticket);
  });
  shadow_.num_in_flight = static_cast<std::int32_t>(kept - shadow_.in_flight.begin());
  return Outcome::kDone;
}

Outcome World::fail(std::int32_t which) {
  if (which >= shadow_.num_in_flight) return Outcome::kSkipped;
  const std::uint64_t failed = shadow_.in_flight[static_cast<std::size_t>(which)].ticket;
  if (!manager_.fail(Ticket(failed)).has_value()) return Outcome::kRefused;
  shadow_.num_in_flight = which;
  shadow_.open_ticket = 0;
  for (ShadowSequence& s : shadow_.sequences) {
    if (!s.id.valid()) continue;
    end_entry(s);
    if (!manager_.info(s.id)) s = {};
    for (std::int32_t i = 0; i < kMaxTokens; ++i) {
      std::uint64_t& unnamed = s.unnamed[static_cast<std::size_t>(i)];
      if (unnamed < failed) continue;
      unnamed = 0;
      s.lost_from = std::min(s.lost_from, i);
    }
  }
  return Outcome::kDone;
}

Outcome World::apply(const Operation& op, std::string& broken) {
  ShadowSequence& s = shadow_.sequences[static_cast<std::size_t>(op.who)];
  switch (op.kind) {
    case Kind::kAppend:
    case Kind::kAppendUnnamed:
    case Kind::kSetTokens:
    case Kind::kFork:
    case Kind::kTruncate:
    case Kind::kClear:
    case Kind::kTrim:
    case Kind::kPreempt:
    case Kind::kClose:
    case Kind::kUndo:
    case Kind::kAccept:
    case Kind::kAdopt:
    case Kind::kLaunch:
    case Kind::kFeed:
    case Kind::kReserve:
      if (!s.id.valid()) return Outcome::kSkipped;
      break;
    default:
      break;
  }
  const std::int32_t length = length_of(s.tokens);
  Outcome done = Outcome::kDone;
  switch (op.kind) {
    case Kind::kOpen:
      done = open(op, broken);
      break;
    case Kind::kAppend:
    case Kind::kAppendUnnamed:
      done = append(op, broken);
      break;
    case Kind::kLaunch:
    case Kind::kFeed:
      done = step(op, broken);
      break;
    case Kind::kSetTokens: {
      const auto at = std::find_if(s.unnamed.begin(), s.unnamed.end(),
                                   [](std::uint64_t ticket) { return ticket != 0; });
      if (at == s.unnamed.end()) return Outcome::kSkipped;
      const std::int32_t token =
          token_of(s.tokens, static_cast<std::int32_t>(at - s.unnamed.begin()));
      done = outcome(manager_.set_tokens(s.id, {&token, 1}));
      if (done == Outcome::kDone) *at = 0;
      if (done == Outcome::kRefused && !(s.in_step && *at == shadow_.open_ticket)) {
        add(broken, "set_tokens does not take the name of an unnamed token");
      }
      break;
    }
    case Kind::kFork: {
      ShadowSequence& other = shadow_.sequences[static_cast<std::size_t>(1 - op.who)];
      if (other.id.valid()) return Outcome::kSkipped;
      const Result<SequenceId> child = manager_.fork(s.id);
      if (!child) return Outcome::kRefused;
      other = s;
      other.id = *child;
      other.promised = other.spent_begin = other.spent_end = 0;
      other.certain = false;
      other.announced = kEmpty;
      break;
    }
    case Kind::kTruncate: {
      const std::int32_t n = op.a < 0 ? length - 1 : op.a;
      if (n < 0 || n >= length) return Outcome::kSkipped;
      done = outcome(manager_.truncate(s.id, n));
      if (done == Outcome::kDone) cut(s, n);
      if (done == Outcome::kDone) s.certain = false;
      break;
    }
    case Kind::kClear:
      if (length == 0) return Outcome::kSkipped;
      done = outcome(manager_.clear(s.id));
      if (done == Outcome::kDone) cut(s, 0);
      if (done == Outcome::kDone) s.certain = false;
      break;
    case Kind::kTrim: {
      const Result<std::int32_t> dropped = manager_.trim(s.id, {op.a, op.b});
      if (!dropped) return Outcome::kRefused;
      if (*dropped > 0) s.inexact_from = std::min(s.inexact_from, length);
      if (*dropped > 0) s.announced = kEmpty;
      break;
    }
    case Kind::kPreempt:
      done = outcome(manager_.preempt(s.id));
      if (done == Outcome::kDone) s = {};
      break;
    case Kind::kClose:
      done = outcome(manager_.close(s.id));
      if (done == Outcome::kDone) s = {};
      break;
    case Kind::kBegin: {
      if (shadow_.open_ticket != 0) return Outcome::kSkipped;
      const Result<Ticket> ticket = manager_.begin_step();
      if (!ticket) return Outcome::kRefused;
      shadow_.open_ticket = ticket->value();
      break;
    }
    case Kind::kCommit:
      done = commit(broken);
      break;
    case Kind::kFinish:
      if (shadow_.num_in_flight != 0) return Outcome::kSkipped;
      done = commit(broken);
      if (done == Outcome::kDone) done = complete(0);
      break;
    case Kind::kComplete:
      done = complete(op.who);
      break;
    case Kind::kDrop:
      if (shadow_.open_ticket == 0) return Outcome::kSkipped;
      done = outcome(manager_.drop(Ticket(shadow_.open_ticket)));
      if (done != Outcome::kDone) break;
      for (ShadowSequence& each : shadow_.sequences) end_entry(each);
      shadow_.open_ticket = 0;
      break;
    case Kind::kUndo:
      if (!s.in_step) return Outcome::kSkipped;
      done = outcome(manager_.undo(s.id));
      if (done == Outcome::kDone) end_entry(s);
      break;
    case Kind::kAccept: {
      if (s.in_step || s.num_drafts == 0 || op.a > s.drafts[0].draft) return Outcome::kSkipped;
      done = outcome(manager_.accept(s.id, op.a));
      if (done == Outcome::kDone) accept(s, op.a);
      break;
    }
    case Kind::kAdopt:
      done = adopt(s, shadow_.sequences[static_cast<std::size_t>(1 - op.who)]);
      break;
    case Kind::kEvict: {
      const Result<std::int32_t> evicted = manager_.evict(GroupId(0), op.a);
      if (!evicted || *evicted == 0) return Outcome::kRefused;
      break;
    }
    case Kind::kPin: {
      if (shadow_.pin.valid()) return Outcome::kSkipped;
      const Result<Pinned> pinned = manager_.pin(tokens_of(static_cast<Prefix>(op.a)));
      if (!pinned) return Outcome::kRefused;
      shadow_.pin = pinned->pin;
      shadow_.pinned = first_of(static_cast<Prefix>(op.a), pinned->pinned_tokens);
      break;
    }
    case Kind::kUnpin:
      if (!shadow_.pin.valid()) return Outcome::kSkipped;
      done = outcome(manager_.unpin(shadow_.pin));
      if (done != Outcome::kDone) return done;
      shadow_.pin = {};
      shadow_.pinned = kEmpty;
      break;
    case Kind::kFail:
      done = fail(op.who);
      if (done == Outcome::kDone) settle_pin();
      break;
    case Kind::kReserve:
      done = reserve(s, op.a);
      break;
    case Kind::kForget:
    case Kind::kReset:
      done = forget(op, broken);
      break;
  }
  if (done == Outcome::kDone) poison_free_blocks();
  return done;
}

void World::accept(ShadowSequence& s, std::int32_t count) {
  if (count == s.drafts[0].draft) {
    // What has no guesses stands with what is before it.
    const bool all = s.num_drafts == 1 || s.drafts[1].draft == 0;
    s.drafts[0] = s.drafts[1];
    s.num_drafts = all ? 0 : 1;
    s.accepted = all ? length_of(s.tokens) : s.drafts[0].end - s.drafts[0].draft;
    return;
  }
  const std::int32_t kept = s.accepted + count;
  s.promised += std::max(0, s.spent_end - std::max(s.spent_begin, kept));
  cut(s, kept);
  s.num_drafts = 0;
  s.accepted = kept;
}

void World::settle_pin() {
  if (StateReader::has_pin(manager_)) return;
  shadow_.pin = {};
  shadow_.pinned = kEmpty;
}

bool World::has_promises() const {
  return std::any_of(shadow_.sequences.begin(), shadow_.sequences.end(), [](const auto& s) {
    return s.id.valid() && (s.promised > 0 || (s.in_step && s.promised_before > 0) ||
                            s.spent_end > std::max(s.spent_begin, s.accepted));
  });
}

Outcome World::reserve(ShadowSequence& s, std::int32_t tokens) {
  if (s.in_step || (tokens == 0 && s.promised == 0)) return Outcome::kSkipped;
  if (!manager_.reserve(s.id, tokens).ok()) return Outcome::kRefused;
  s.promised = tokens;
  s.spent_begin = s.spent_end = length_of(s.tokens);
  s.certain = true;
  return Outcome::kDone;
}

Outcome World::forget(const Operation& op, std::string& broken) {
  const bool resets = op.kind == Kind::kReset;
  const auto path = resets ? kEmpty : static_cast<Prefix>(op.a);
  const std::int32_t length = length_of(path);
  if (resets) {
    static_cast<void>(manager_.reset());
  } else if (!manager_.forget(tokens_of(path))) {
    return Outcome::kRefused;
  }
  for (ShadowSequence& s : shadow_.sequences) {
    const std::int32_t known = std::min({length_of(s.tokens), s.inexact_from, s.lost_from});
    if (s.id.valid() && StateReader::replays(manager_, s.id) && known + 1 == length) {
      // It holds one more token, which is the path's last one if the manager says so.
      s.forgotten = s.forgotten || !StateReader::publishes(manager_, s.id);
    }
    if (!s.id.valid() || known < length) continue;
    bool has_them = true;
    for (std::int32_t i = 0; i < length; ++i) {
      const bool is_named = s.unnamed[static_cast<std::size_t>(i)] == 0;
      has_them = has_them && (!is_named || token_of(s.tokens, i) == token_of(path, i));
    }
    s.forgotten = s.forgotten || !StateReader::publishes(manager_, s.id);
    if (has_them && !s.forgotten && !s.adopted)
      add(broken, "a sequence on a forgotten path publishes on");
    if (s.forgotten) s.announced = kEmpty;
  }
  for (const FoundBlock& found : StateReader::findable(manager_)) {
    if (found.end >= length && first_of(prefix_of(found.tokens, found.end), length) == path) {
      add(broken, "block " + std::to_string(found.block) + " is findable and was forgotten");
    }
  }
  settle_pin();
  return Outcome::kDone;
}

void World::poison_free_blocks() {
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    if (StateReader::block_state(manager_, BlockId(b)) == BlockState::kFree) {
      shadow_.bytes[static_cast<std::size_t>(b)] = {};
    }
  }
}

void World::check_sequence(const ShadowSequence& s, std::string& broken) const {
  const Result<SequenceInfo> info = manager_.info(s.id);
  if (!info) return add(broken, "a sequence is gone: " + info.error().message());
  if (info->length != length_of(s.tokens)) {
    return add(broken, "length " + std::to_string(info->length) + " instead of " +
                           std::to_string(length_of(s.tokens)));
  }
  if (info->accepted_length != s.accepted) {
    return add(broken, "accepted length " + std::to_string(info->accepted_length) + " instead of " +
                           std::to_string(s.accepted));
  }
  if (info->reserved_tokens != s.promised) {
    return add(broken, "promises " + std::to_string(info->reserved_tokens) + " tokens instead of " +
                           std::to_string(s.promised));
  }
  const auto table = *manager_.block_table(s.id, GroupId(0));
  const std::int32_t committed = length_of(s.in_step ? s.before : s.tokens);
  for (std::int32_t i = 0; i < committed; ++i) {
    if (i >= info->trim_sinks && i < info->trim_first_kept) continue;
    const auto logical = static_cast<std::size_t>(i / kBlockSize);
    if (logical >= table.size() || table[logical] < 0) {
      add(broken, "no block holds position " + std::to_string(i));
      continue;
    }
    const auto block = static_cast<std::size_t>(table[logical]);
    // In the open step the table may lead to the copy already; its source holds the tokens.
    const Prefix exact = first_of(s.tokens, i + 1);
    const auto wanted = static_cast<Prefix>(i >= s.inexact_from ? exact | kInexact : exact);
    const Prefix is = shadow_.bytes[block][static_cast<std::size_t>(i % kBlockSize)];
    if (is != wanted &&
        !(s.in_step && logical == static_cast<std::size_t>(committed / kBlockSize) && is == 0)) {
      add(broken, "position " + std::to_string(i) + " of " + show(s.tokens) + " is in block " +
                      std::to_string(block) + ", which holds " + show(is) + " there");
    }
  }
}

void World::check_findable(std::string& broken) const {
  struct Entry {
    Prefix path;
    std::int32_t begin;
  };
  std::array<Entry, kBlocks> entries{};
  std::size_t num_entries = 0;
  std::uint32_t in_flight = 0;
  for (std::int32_t i = 0; i < shadow_.num_in_flight; ++i) {
    in_flight |= shadow_.in_flight[static_cast<std::size_t>(i)].written;
  }
  for (const FoundBlock& found : StateReader::findable(manager_)) {
    const std::int32_t begin = (found.end - 1) / kBlockSize * kBlockSize;
    const auto block = static_cast<std::size_t>(found.block);
    for (std::int32_t i = begin; i < found.end; ++i) {
      const Prefix is = shadow_.bytes[block][static_cast<std::size_t>(i - begin)];
      const Prefix wanted = prefix_of(found.tokens, i + 1);
      if (is != wanted) {
        add(broken, "block " + std::to_string(block) + " is found for " + show(wanted) +
                        " and holds " + (is == 0 ? "nothing" : show(is)));
      }
      if (order_ == Order::kUnordered &&
          (in_flight >> (found.block * kBlockSize + i - begin) & 1u) != 0) {
        add(broken, "block " + std::to_string(block) + " is findable and its step not complete");
      }
    }
    entries.at(num_entries++) = {prefix_of(found.tokens, found.end), begin};
    for (const ShadowSequence& s : shadow_.sequences) {
      if (!s.id.valid() || s.in_step || s.accepted == length_of(s.tokens)) continue;
      const auto table = *manager_.block_table(s.id, GroupId(0));
      if (found.end > s.accepted &&
          std::find(table.begin(), table.end(), found.block) != table.end()) {
        add(broken, "block " + std::to_string(block) + " is findable with tokens of a draft");
      }
    }
  }
  const Entry* const begin = entries.data();
  const Entry* const end = begin + num_entries;
  const auto whole_block = [&](Prefix prefix) {
    return std::any_of(begin, end, [&](const Entry& e) { return e.path == prefix; });
  };
  const auto reachable = [&](const Entry& e) {
    for (std::int32_t n = kBlockSize; n <= e.begin; n += kBlockSize) {
      if (!whole_block(first_of(e.path, n))) return false;
    }
    return true;
  };
  for (Prefix prompt = 0b10000; prompt < 0b100000; ++prompt) {
    std::int32_t expected = 0;
    for (const Entry* e = begin; e != end; ++e) {
      const std::int32_t shared = common(e->path, prompt);
      if (shared > e->begin && reachable(*e)) expected = std::max(expected, shared);
    }
    expected = std::min(expected, 3);
    std::array<std::int32_t, 4> tokens{};
    for (std::int32_t i = 0; i < 4; ++i) tokens[static_cast<std::size_t>(i)] = token_of(prompt, i);
    const Result<std::int32_t> probed = manager_.probe(tokens);
    // A hit that would cost a promise too much is a miss.
    const bool may_miss = has_promises() && probed && *probed == 0;
    if (!probed || (*probed != expected && !may_miss)) {
      add(broken, "probe of " + show(prompt) + " gives " + std::to_string(probed ? *probed : -1) +
                      " instead of " + std::to_string(expected));
    }
    const std::int32_t pinned = length_of(shadow_.pinned) / kBlockSize * kBlockSize;
    if (common(shadow_.pinned, prompt) >= pinned && probed && *probed < std::min(pinned, 3) &&
        !may_miss) {
      add(broken, "pinned " + show(shadow_.pinned) + " is not found any more");
    }
  }
}

// What each sequence announced and has not published, compared token by token.
void World::check_soon(std::string& broken) const {
  for (Prefix prompt = 0b10000; prompt < 0b100000; ++prompt) {
    const ShadowSequence* by = nullptr;
    std::int32_t deepest = 0;
    std::int32_t published = 0;
    for (const ShadowSequence& s : shadow_.sequences) {
      if (!s.id.valid() || s.announced == kEmpty) continue;
      const std::int32_t blocks = common(s.announced, prompt) / kBlockSize;
      const std::int32_t place = manager_.info(s.id)->published_length;
      if (blocks * kBlockSize <= place || blocks < deepest) continue;
      if (blocks == deepest && by->opened < s.opened) continue;
      by = &s;
      deepest = blocks;
      published = place;
    }
    Soon wanted;
    if (by != nullptr) wanted = {std::min(common(by->announced, prompt), 3), by->id};
    if (wanted.tokens <= published) wanted = {};
    const Result<Soon> soon = manager_.soon(tokens_of(prompt));
    if (soon && *soon == wanted) continue;
    add(broken, "soon of " + show(prompt) + " is " + std::to_string(soon ? soon->tokens : -1) +
                    " instead of " + std::to_string(wanted.tokens));
  }
}

void World::check(std::string& broken) const {
  const Status status = manager_.check_invariants();
  if (!status.ok()) add(broken, status.message());
  check_alone(broken);
  for (const ShadowSequence& s : shadow_.sequences) {
    if (!s.id.valid()) continue;
    check_sequence(s, broken);
    if (StateReader::publishes(manager_, s.id) == s.forgotten) {
      add(broken, s.forgotten ? "a forgotten sequence publishes" : "a sequence publishes no more");
    }
  }
  for (std::int32_t i = 0; i < shadow_.num_in_flight; ++i) {
    const ShadowStep& step = shadow_.in_flight[static_cast<std::size_t>(i)];
    for (std::int32_t b = 0; b < kBlocks; ++b) {
      if ((step.touched >> b & 1u) == 0) continue;
      const BlockState state = StateReader::block_state(manager_, BlockId(b));
      if (state == BlockState::kFree || state == BlockState::kCached) {
        add(broken, "block " + std::to_string(b) + " may be handed out, step " +
                        std::to_string(step.ticket) + " in flight touches it");
      }
    }
  }
  check_findable(broken);
  check_soon(broken);
}

std::array<std::uint64_t, 2> World::hash() const {
  std::array<std::array<std::uint64_t, 2>, 2> both{};
  const int num_orders = shadow_.sequences[0].id.valid() && shadow_.sequences[1].id.valid() ? 2 : 1;
  for (int swap = 0; swap < num_orders; ++swap) {
    StateReader::write(manager_, swap == 1, words_);
    for (const SequenceId id : StateReader::open_order(manager_, swap == 1)) {
      for (const ShadowSequence& s : shadow_.sequences) {
        if (s.id != id) continue;
        words_.push_back(s.tokens);
        words_.push_back(s.inexact_from);
        words_.push_back(s.certain ? 1 : 0);
      }
    }
    words_.push_back(shadow_.pinned);
    const XXH128_hash_t hash = XXH3_128bits(words_.data(), words_.size() * sizeof(words_[0]));
    both[static_cast<std::size_t>(swap)] = {hash.high64, hash.low64};
  }
  return num_orders == 2 ? std::min(both[0], both[1]) : both[0];
}

}  // namespace kvfolio::explore
