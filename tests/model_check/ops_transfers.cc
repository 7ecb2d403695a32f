// SPDX-License-Identifier: Apache-2.0
// Loads and holds. A load writes its blocks late, piece by piece, also after the sequence is
// gone, and sometimes rubbish; the load is then finished as far as the bytes are good. A reader
// that holds blocks expects them to stay as they are.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {
namespace {

// Bytes that no token has, of a copy that went wrong.
constexpr fake_device::Digest kRubbish = 0x0badc0de0badc0deull;

}  // namespace

// ---- loads ----

Harness::Codes Harness::load_errors(const Seq& seq, int end, int prompt_size,
                                    Codes& tolerated) const {
  Codes errors;
  const bool named = std::all_of(seq.named.begin(), seq.named.end(), [](char n) { return n == 1; });
  const bool exact =
      std::all_of(seq.nodes.begin(), seq.nodes.end(), [&](int node) { return trie_.exact(node); });
  if (seq.in_step || seq.undecided() > 0 || waits_for_load(seq) || seq.promised > 0 || !named ||
      !exact || seq.adopted || seq.hole() != 0 || (!in_order() && waits_for(seq) != 0)) {
    errors.insert(kMoment);
  }
  // It was cut back to before its last step, or into a span that it had computed whole.
  if (!in_order() && incomplete(seq.last_step)) tolerated.insert(kMoment);
  if (splits_self_attending_span(seq.prompt.media, seq.length())) tolerated.insert(kMoment);
  if (end < seq.length() || end > prompt_size) errors.insert(kInvalid);
  if (splits_self_attending_span(seq.prompt.media, end)) errors.insert(kInvalid);
  if (end >= seq.length() && seq.is_full_for(end - seq.length())) errors.insert(kExhausted);
  if (errors.empty()) tolerated.insert({kNoBlocks, kExhausted});
  return errors;
}

void Harness::begin_load(Rng& rng) {
  const SeqPtr seq = any_seq(rng);
  if (!seq) return;
  std::vector<std::int32_t> prompt = seq->tokens;
  const int wanted = std::min(config_.max_length, seq->length() + rng.between(0, 14));
  while (isize(prompt) < wanted) {
    const auto at = prompt.size();
    prompt.push_back(at < seq->prompt.tokens.size() && !rng.chance(2)
                         ? seq->prompt.tokens[at]
                         : rng.below(config_.alphabet));
  }
  int end = isize(prompt) - (rng.chance(30) ? rng.below(3) : 0);
  if (rng.chance(3)) end = rng.chance(50) ? isize(prompt) + 1 : seq->length() - 1;
  start_load(seq, prompt, end);
}

Harness::OpenLoad* Harness::start_load(const SeqPtr& seq, const std::vector<std::int32_t>& prompt,
                                       int end) {
  note("begin_load " + name_of(*seq) + " " + text_of(prompt) + " to " + std::to_string(end));
  Codes tolerated;
  const Codes errors = load_errors(*seq, end, isize(prompt), tolerated);
  const Result<Load> begun = manager_->begin_load(seq->id, prompt, end);
  const Status status = status_of(begun);
  if (!expect(status, errors, tolerated)) {
    if (const Shortage* s = status.shortage(); s != nullptr) {
      ++coverage_.shortages;
      KVFOLIO_REQUIRE(s->needed > s->free + s->evictable, "needed > free + evictable");
      KVFOLIO_REQUIRE(s->loads == isize(loads_) && s->holds == isize(holds_),
                      "a shortage counts loads and holds");
    }
    return nullptr;
  }
  changed_ = revives_ = true;
  note(" at " + std::to_string(begun->begin));
  KVFOLIO_REQUIRE(begun->begin >= seq->length() && begun->begin <= end && begun->end == end,
                  "a load begins where the sequence's tokens end");
  KVFOLIO_REQUIRE(begun->id.valid() == (begun->begin < end), "there is a load if one is needed");
  Seq whole = *seq;
  for (int p = seq->length(); p < end; ++p) {
    whole.say(trie_, prompt[static_cast<std::size_t>(p)], true, 0);
  }
  whole.known_prompt = prompt;
  grow_by(seq, whole, begun->begin, state_of(*seq).tables);
  if (!begun->id.valid()) return nullptr;
  OpenLoad load;
  load.id = begun->id;
  load.seq = seq;
  load.begin = begun->begin;
  load.end = end;
  load.content = whole;
  for (int g = 0; g < num_groups(); ++g) {
    std::vector<LoadBlock> blocks(static_cast<std::size_t>(group(g).num_blocks));
    const Result<std::int32_t> count = manager_->blocks_to_load(begun->id, GroupId(g), blocks);
    KVFOLIO_REQUIRE(count.has_value(), "blocks_to_load of an open load");
    blocks.resize(static_cast<std::size_t>(*count));
    for (const LoadBlock& each : blocks) {
      fresh_.emplace(g, each.block.value());
      note(" " + std::to_string(each.block.value()));
    }
    load.blocks.push_back(std::move(blocks));
  }
  ++coverage_.loads;
  loads_.push_back(std::move(load));
  note_load_references();
  return &loads_.back();
}

// A load's references, but for those to the blocks that it waits for, are known by their number.
void Harness::note_load_references() {
  const Snapshot now = look();
  for (int g = 0; g < num_groups(); ++g) {
    const auto unexplained = [&](const Snapshot& at) {
      const std::vector<std::int32_t> known = references(at, g);
      const GroupState& state = at.groups[static_cast<std::size_t>(g)];
      int sum = -state.usage.reserved;
      for (std::size_t b = 0; b < known.size(); ++b) sum += state.refs[b] - known[b];
      return sum;
    };
    OpenLoad& load = loads_.back();
    // What the blocks that it waits for add to both is the same.
    const int before = unexplained(before_) + isize(load.blocks[static_cast<std::size_t>(g)]);
    load.found.push_back(unexplained(now) - before);
    KVFOLIO_REQUIRE(load.found.back() >= 0, "a load takes no reference away");
  }
}

// The sequence has tokens that no step computed.
void Harness::grow_by(const SeqPtr& seq, const Seq& whole, int end, const Tables& tables) {
  if (end == seq->length()) return;
  if (seq->stands == seq->length()) {
    seq->stands = end;
    if (whole.known_prompt.size() > seq->known_prompt.size()) {
      seq->known_prompt = whole.known_prompt;
    }
  }
  for (int p = seq->length(); p < end; ++p) {
    const auto at = static_cast<std::size_t>(p);
    seq->tokens.push_back(whole.tokens[at]);
    seq->named.push_back(1);
    seq->nodes.push_back(whole.nodes[at]);
    seq->tickets.push_back(0);
  }
  follow_announcement(*seq, seq->committed, true, 0);
  seq->committed = seq->accepted = seq->rewind_base = end;
  seq->used = true;
  seq->fresh = seq->maybe_whole = false;
  seq->windows_moved = true;
  seq->tables = tables;  // before windows move
  publish(*seq, tables, false, false);
  moved_.push_back(seq);
}

// Part of a load arrives: what the bytes of some blocks should be, or rubbish.
void Harness::write_load(const OpenLoad& load, bool good, Rng& rng) {
  meet_device();
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    for (const auto& [logical, block_id] : load.blocks[static_cast<std::size_t>(g)]) {
      if (!good && rng.chance(50)) continue;
      for (int off = 0; off < size; ++off) {
        const int p = logical * size + off;
        const std::int32_t at = block_id.value() * size + off;
        const auto slot = static_cast<std::size_t>(at);
        device_->memory(g)[slot] =
            good && p < load.end ? trie_.digest_of(load.content.nodes[static_cast<std::size_t>(p)])
                                 : kRubbish;
      }
    }
  }
}

// Only the first tokens of it arrived: blocks behind have rubbish in them.
void Harness::break_load(const OpenLoad& load, int good_end) {
  meet_device();
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    for (const auto& [logical, block_id] : load.blocks[static_cast<std::size_t>(g)]) {
      for (int off = 0; off < size; ++off) {
        if (logical * size + off < good_end) continue;
        const std::int32_t at = block_id.value() * size + off;
        device_->memory(g)[static_cast<std::size_t>(at)] = kRubbish;
      }
    }
  }
}

void Harness::arrive(Rng& rng) {
  if (loads_.empty()) return;
  OpenLoad& load = loads_[rng.next() % loads_.size()];
  note("part of a load of " + name_of(load.content) + " arrives");
  if (load.from_tier) return arrive_from_tier(load, rng);
  write_load(load, rng.chance(60), rng);
}

void Harness::finish_load(Rng& rng) {
  if (loads_.empty()) return;
  const std::size_t i = rng.next() % loads_.size();
  const int most = loads_[i].end - loads_[i].begin;
  int n = rng.chance(60) ? most : 0;
  if (rng.chance(30)) {
    // At the first, some middle or the last border.
    const int first = (loads_[i].begin / unit() + 1) * unit();
    const int border =
        first + rng.below(std::max(1, (loads_[i].end - first) / unit() + 1)) * unit();
    if (border <= loads_[i].end) n = border - loads_[i].begin;
  }
  const bool bad = rng.chance(4);
  if (bad) {
    const int wrong = rng.chance(50) ? most + 1 : -1;
    note("finish_load with " + std::to_string(wrong));
    expect(status_of(manager_->finish_load(loads_[i].id, wrong)), {kInvalid});
    return;
  }
  if (loads_[i].from_tier) {
    // Mostly when all is there that comes; else the rest is given up.
    for (int more = rng.chance(70) ? 20 : 0; more > 0; --more) arrive_from_tier(loads_[i], rng);
    n = good_tokens(loads_[i]);
  }
  end_load(i, n, rng);
}

void Harness::end_load(std::size_t i, int n, Rng& rng) {
  const OpenLoad load = loads_[i];
  if (n > 0 && !load.from_tier) write_load(load, true, rng);
  break_load(load, load.begin + n);
  note("finish_load of " + name_of(load.content) + " " + std::to_string(load.begin) + " + " +
       std::to_string(n) + " of " + std::to_string(load.end - load.begin));
  const Result<std::int32_t> stands = manager_->finish_load(load.id, n);
  if (!expect(status_of(stands), {})) return;
  changed_ = true;
  loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(i));
  note(" " + std::to_string(*stands));
  const bool full_groups_only =
      std::all_of(config_.spec.groups.begin(), config_.spec.groups.end(),
                  [](const GroupSpec& g) { return g.kind == AttentionKind::kFull; });
  const int end = load.begin + *stands;
  KVFOLIO_REQUIRE(*stands >= 0 && *stands <= n, "no more stands than is good");
  KVFOLIO_REQUIRE(load.seq || *stands == 0, "nothing stands without a sequence");
  KVFOLIO_REQUIRE(!splits_self_attending_span(load.content.prompt.media, end),
                  "no load ends inside a span that attends to itself");
  const bool all =
      n == load.end - load.begin ||
      (full_groups_only && !splits_self_attending_span(load.content.prompt.media, load.begin + n));
  // A failed step may have lost what the cache had for the load.
  const bool lost = failed_once_ && std::any_of(load.found.begin(), load.found.end(),
                                                [](int found) { return found > 0; });
  KVFOLIO_REQUIRE(!load.seq || !all || lost || *stands == n, "what is good and can stand stands");
  expected_.tokens_loaded += static_cast<std::uint64_t>(*stands);
  if (*stands == 0) return;
  ++coverage_.loads_that_stand;
  Tables tables = load.seq->tables;
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(g)];
    // The block that the load begins inside gives way, if only to none.
    table.resize(static_cast<std::size_t>(load.begin / size), -1);
    table.resize(static_cast<std::size_t>((end + size - 1) / size), -1);
    for (const auto& [logical, block_id] : load.blocks[static_cast<std::size_t>(g)]) {
      if (logical * size >= end) continue;
      BlockModel& model = block(g, block_id.value());
      model.taken_at = 0;
      model.valid = std::min(size, end - logical * size);
      for (int off = 0; off < model.valid; ++off) {
        const std::int32_t p = logical * size + off;
        cell(logical_, g, block_id.value() * size + off) = {
            load.content.nodes[static_cast<std::size_t>(p)], 0};
      }
      table[static_cast<std::size_t>(logical)] = block_id.value();
    }
  }
  load.seq->forgotten = load.seq->forgotten || load.forgotten;
  grow_by(load.seq, load.content, end, tables);
}

// The sequence ends, or loses tokens in front of its load.
void Harness::leave_load(const Seq& seq) {
  for (OpenLoad& load : loads_) {
    if (load.seq && load.seq->id == seq.id) load.seq.reset();
  }
}

bool Harness::waits_for_load(const Seq& seq) const {
  return std::any_of(loads_.begin(), loads_.end(),
                     [&](const OpenLoad& load) { return load.seq && load.seq->id == seq.id; });
}

// ---- holds ----

void Harness::hold(Rng& rng) {
  const int g = rng.below(num_groups());
  std::vector<std::int32_t> blocks;
  bool is_free = false;
  bool is_empty = false;
  bool is_written = false;  // by the open step
  for (int i = rng.between(1, 3); i > 0; --i) {
    const int b = rng.below(group(g).num_blocks);
    const Result<BlockState> state = manager_->block_state(GroupId(g), BlockId(b));
    if (*state == BlockState::kFree && !rng.chance(3)) continue;
    const bool is_loaded = std::any_of(loads_.begin(), loads_.end(), [&](const OpenLoad& load) {
      const std::vector<LoadBlock>& of = load.blocks[static_cast<std::size_t>(g)];
      return std::any_of(of.begin(), of.end(),
                         [&](const auto& each) { return each.block.value() == b; });
    });
    is_free = is_free || *state == BlockState::kFree || is_loaded;
    is_written = is_written || open_step_.has_value();
    // One that lay ready for a promise, and retires now, is empty as well.
    is_empty = is_empty || block(g, b).valid == 0 || *state == BlockState::kRetiring;
    blocks.push_back(b);
  }
  note("hold_blocks group " + std::to_string(g) + " " + text_of(blocks));
  Codes tolerated;
  Codes errors = is_free ? Codes{kInvalid} : Codes{};
  const bool all_open = isize(holds_) == config_.options.max_transfers;
  if (all_open) (is_free || is_empty || is_written ? tolerated : errors).insert(kExhausted);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  if (has_promises()) tolerated.insert(kNoBlocks);
  if (is_empty || has_promises()) tolerated.insert(kInvalid);  // it may lie ready
  if (is_written) tolerated.insert(kMoment);
  const Result<HoldId> begun = manager_->hold_blocks(GroupId(g), blocks);
  if (!expect(status_of(begun), errors, tolerated)) return;
  keep_hold(*begun, g, blocks);
}

Harness::OpenHold& Harness::keep_hold(HoldId id, int g, const std::vector<std::int32_t>& blocks) {
  changed_ = revives_ = true;
  ++coverage_.holds;
  OpenHold hold{id, g, blocks, {}, kPoison, {}};
  for (const std::int32_t b : blocks) {
    held_again_.emplace(g, b);
    std::vector<int>& nodes = hold.nodes.emplace_back();
    const bool writes =
        open_step_ &&
        open_step_->groups[static_cast<std::size_t>(g)].touched[static_cast<std::size_t>(b)] == 2;
    KVFOLIO_REQUIRE(!writes, "no block is held that the open step writes");
    for (int off = 0; off < block(g, b).valid; ++off) {
      const Cell& at = cell(logical_, g, b * group(g).block_size + off);
      if (at.node == kPoison || incomplete(at.ticket)) break;
      nodes.push_back(at.node);
    }
  }
  holds_.push_back(std::move(hold));
  return holds_.back();
}

void Harness::release(Rng& rng) {
  if (holds_.empty()) return;
  const std::size_t i = rng.next() % holds_.size();
  note("release_hold #" + std::to_string(i));
  if (holds_[i].stored != kPoison) end_store(holds_[i], rng);
  if (!expect(manager_->release_hold(holds_[i].id), {})) return;
  changed_ = true;
  holds_.erase(holds_.begin() + static_cast<std::ptrdiff_t>(i));
}

// ---- after each operation ----

void Harness::check_transfers(const Snapshot& now) const {
  for (int g = 0; g < num_groups(); ++g) {
    const GroupState& state = now.groups[static_cast<std::size_t>(g)];
    int loading = 0;
    int on_hold = 0;
    for (const OpenLoad& load : loads_) {
      for (const LoadBlock& each : load.blocks[static_cast<std::size_t>(g)]) {
        const auto b = static_cast<std::size_t>(each.block.value());
        KVFOLIO_REQUIRE(
            state.refs[b] == 1 && state.findable[b] == 0,
            "group " + std::to_string(g) + " block " + std::to_string(b) + " is a load's alone");
        ++loading;
      }
    }
    for (const OpenHold& hold : holds_) {
      for (std::size_t i = 0; hold.group == g && i < hold.blocks.size(); ++i, ++on_hold) {
        check_held(hold, i);
      }
    }
    KVFOLIO_REQUIRE(state.usage.loading == loading && state.usage.on_hold == on_hold,
                    "usage counts blocks of loads and references of holds");
  }
  for (const auto& [seq, state] : now.seqs) {
    const auto load = std::find_if(loads_.begin(), loads_.end(),
                                   [&own = seq](const auto& each) { return each.seq == own; });
    KVFOLIO_REQUIRE(state.info.load == (load == loads_.end() ? LoadId() : load->id),
                    "info names the load that a sequence waits for");
  }
}

// The bytes are those that were there when it was held.
void Harness::check_held(const OpenHold& hold, std::size_t i) const {
  const int size = group(hold.group).block_size;
  for (int off = 0; off < isize(hold.nodes[i]); ++off) {
    const int slot = hold.blocks[i] * size + off;
    const Cell& now = cell(logical_, hold.group, slot);
    if (now.node == kPoison && failed_once_) continue;  // its step failed
    KVFOLIO_REQUIRE(
        now.node == hold.nodes[i][static_cast<std::size_t>(off)] && device_agrees(hold.group, slot),
        "group " + std::to_string(hold.group) + " block " + std::to_string(hold.blocks[i]) +
            " changed while it was held");
  }
}

}  // namespace kvfolio::model_check
