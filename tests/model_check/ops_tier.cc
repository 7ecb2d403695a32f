// SPDX-License-Identifier: Apache-2.0
// A tier below the manager, at the level of its calls: what becomes findable is held, copied out of
// the device's memory later, and kept by name; what is missing is loaded from there, block by block
// and late, by a tier that misses, damages, mixes up, repeats and goes silent. What arrives is
// checked, as a checksum would, and the load is finished as far as its blocks are good.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {

void Harness::store(Rng& rng) {
  std::vector<FindableBlock> found(static_cast<std::size_t>(rng.between(1, 16)));
  found.resize(static_cast<std::size_t>(manager_->take_findable(found)));
  note("take_findable " + std::to_string(found.size()));
  const auto is_there = [&](const FindableBlock& each) {
    const Result<std::uint64_t> serial = manager_->entry_serial(each.group, each.block);
    return serial.has_value() && *serial == each.serial && *serial != 0;
  };
  KVFOLIO_REQUIRE(std::all_of(found.begin(), found.end(), is_there), "what is taken is findable");
  for (const FindableBlock& each : found) {
    // A hold may share the tail of a promise, which takes a block for the copy: of another one.
    if (!is_there(each) && has_promises()) continue;
    if (each.end % group(each.group.value()).block_size == 0) begin_store(each);
  }
}

void Harness::begin_store(const FindableBlock& found) {
  const int g = found.group.value();
  const int b = found.block.value();
  Prompt path;
  path.tokens.resize(static_cast<std::size_t>(found.end));
  path.media.resize(16);
  const Result<BlockPrefix> prefix =
      manager_->prefix_of(found.group, found.block, 0, path.tokens, path.media);
  KVFOLIO_REQUIRE(prefix.has_value() && prefix->num_tokens == found.end && prefix->num_media <= 16,
                  "prefix_of says what a findable block ends");
  path.media.resize(static_cast<std::size_t>(prefix->num_media));
  const auto root = std::find_if(kRoots.begin(), kRoots.end(), [&](const RootKey& each) {
    const RootKey& is = prefix->root;
    return each.model == is.model && each.adapter == is.adapter &&
           each.adapter_version == is.adapter_version && each.tenant_salt == is.tenant_salt &&
           each.epoch == is.epoch;
  });
  KVFOLIO_REQUIRE(root != kRoots.end(), "prefix_of knows the root key");
  path.root = static_cast<int>(root - kRoots.begin());
  const int last = nodes_of(trie_, path).back();
  const std::vector<int>& published = block(g, b).published;
  KVFOLIO_REQUIRE(isize(published) == group(g).block_size && published.back() == last,
                  "prefix_of names what the block holds");
  note(" hold " + std::to_string(g) + ":" + std::to_string(b));
  const bool all_open = isize(holds_) == config_.options.max_transfers;
  Codes tolerated;
  if (config_.tight_tables) tolerated.insert(kExhausted);
  if (has_promises()) tolerated.insert(kNoBlocks);
  const std::vector<std::int32_t> blocks = {b};
  const Result<HoldId> begun = manager_->hold_blocks(found.group, blocks);
  if (!expect(status_of(begun), all_open ? Codes{kExhausted} : Codes{}, tolerated)) return;
  OpenHold& hold = keep_hold(*begun, g, blocks);
  hold.stored = last;
  hold.path = path;
  ++coverage_.stores;
}

// The copy is made now: whatever happened to the block's owners meanwhile, its bytes are still
// those of its name.
void Harness::end_store(const OpenHold& hold, Rng& rng) {
  meet_device();
  const int size = group(hold.group).block_size;
  const int b = hold.blocks.front();
  const auto bytes = device_->memory(hold.group)
                         .subspan(static_cast<std::size_t>(b) * static_cast<std::size_t>(size),
                                  static_cast<std::size_t>(size));
  const int end = trie_.position_of(hold.stored) + 1;
  for (int off = 0; off < size; ++off) {
    const int node = trie_.before(hold.stored, end - size + off);
    KVFOLIO_REQUIRE(bytes[static_cast<std::size_t>(off)] == trie_.digest_of(node),
                    "a store of group " + std::to_string(hold.group) + " block " +
                        std::to_string(b) + " reads its own tokens");
  }
  const auto& refs = before_.groups[static_cast<std::size_t>(hold.group)].refs;
  if (refs[static_cast<std::size_t>(b)] == 1) ++coverage_.stores_alone;
  if (rng.chance(10)) return;  // the tier failed
  tier_[{hold.group, hold.stored}] = {hold.path, {bytes.begin(), bytes.end()}};
}

// ---- loads ----

const std::vector<fake_device::Digest>* Harness::record_of(const OpenLoad& load, int g,
                                                           int logical) const {
  const auto last = static_cast<std::size_t>((logical + 1) * group(g).block_size) - 1;
  if (last >= load.prompt.size()) return nullptr;
  const auto found = tier_.find({g, load.prompt[last]});
  return found == tier_.end() ? nullptr : &found->second.bytes;
}

// All that no sequence holds has to come back from the tier.
void Harness::evict_all() {
  note("evict all");
  for (int g = 0; g < num_groups(); ++g) {
    const Result<std::int32_t> evicted = manager_->evict(GroupId(g), group(g).num_blocks);
    expect(status_of(evicted), {});
    KVFOLIO_REQUIRE(manager_->usage(GroupId(g))->cached == 0, "evict() gives what is evictable");
  }
  changed_ = true;
}

// A prompt asks for what the tier has, and mostly for more.
void Harness::open_from_tier(Rng& rng) {
  auto record = tier_.begin();
  std::advance(record, rng.below(isize(tier_)));
  Prompt prompt = record->second.path;
  for (int i = rng.below(6); i > 0 && isize(prompt.tokens) < config_.max_length; --i) {
    prompt.tokens.push_back(rng.below(config_.alphabet));
  }
  const int before = next_number_;
  open_prompt(prompt, rng);
  if (next_number_ > before) asks_tier_ = seqs_.back();
}

void Harness::load_from_tier(Rng& rng) {
  const auto asking = std::find(seqs_.begin(), seqs_.end(), asks_tier_);
  SeqPtr seq = asking != seqs_.end() ? asks_tier_ : any_seq(rng);
  asks_tier_.reset();
  if (asking == seqs_.end() && !tier_.empty() && !rng.chance(30)) {
    if (rng.chance(40)) return evict_all();
    if (isize(seqs_) < config_.options.max_sequences) return open_from_tier(rng);
  }
  if (!seq || seq->length() >= isize(seq->prompt.tokens)) return;
  Seq whole = *seq;
  for (int p = seq->length(); p < isize(seq->prompt.tokens); ++p) {
    whole.say(trie_, seq->prompt.tokens[static_cast<std::size_t>(p)], true, 0);
  }
  OpenLoad asked;  // what record_of() needs
  asked.prompt = whole.nodes;
  const std::vector<std::int32_t>& prompt = whole.tokens;
  const int limit = isize(prompt) - (rng.chance(70) ? 1 : 0);
  if (limit < seq->length()) return;
  std::vector<std::vector<std::uint8_t>> has;
  std::vector<std::span<std::uint8_t>> views;
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    std::vector<std::uint8_t>& of = has.emplace_back();
    for (int i = 0; i < (limit + size - 1) / size; ++i) {
      of.push_back(record_of(asked, g, i) != nullptr ? 1 : 0);
    }
  }
  views.reserve(has.size());
  for (std::vector<std::uint8_t>& of : has) views.emplace_back(of);
  note("loadable " + name_of(*seq) + " " + text_of(prompt) + " to " + std::to_string(limit));
  Codes tolerated;
  const Codes errors = load_errors(*seq, limit, isize(prompt), tolerated);
  const Result<Loadable> can = manager_->loadable(seq->id, prompt, limit, views);
  if (!can.has_value()) {
    expect(can.error(), errors, tolerated);
    return;
  }
  note(" " + std::to_string(can->begin) + " to " + std::to_string(can->end));
  if (can->end <= can->begin) return;
  OpenLoad* load = start_load(seq, prompt, can->end);
  if (load == nullptr) return;
  // What a hit costs a promise depends on the tokens that are asked for: here fewer than above.
  const bool may_differ = has_promises();
  KVFOLIO_REQUIRE(load->begin == can->begin || may_differ, "loadable() says where the load begins");
  std::int64_t count = 0;
  for (int g = 0; g < num_groups(); ++g) {
    std::vector<std::uint8_t> waits(has[static_cast<std::size_t>(g)].size(), 0);
    for (const LoadBlock& each : load->blocks[static_cast<std::size_t>(g)]) {
      waits[static_cast<std::size_t>(each.logical)] = 1;
      ++count;
      KVFOLIO_REQUIRE(record_of(asked, g, each.logical) != nullptr,
                      "a load waits for what the tier has");
    }
    const std::vector<std::uint8_t>& said = has[static_cast<std::size_t>(g)];
    const auto list = [](const std::vector<std::uint8_t>& of) {
      return text_of(std::vector<std::int32_t>(of.begin(), of.end()));
    };
    KVFOLIO_REQUIRE(waits == said || may_differ, "loadable() says that a load waits in group " +
                                                     std::to_string(g) + " for " + list(said) +
                                                     ", it waits for " + list(waits));
  }
  KVFOLIO_REQUIRE(count == can->blocks || may_differ, "loadable() counts the blocks");
  load->prompt = whole.nodes;
  load->from_tier = true;
  draw_luck(*load, rng);
  ++coverage_.tier_loads;
}

// Half of the loads fail in one block, at the first, some middle or the last of a group; others in
// any or none.
void Harness::draw_luck(OpenLoad& load, Rng& rng) {
  const std::vector<Luck> bad = {Luck::kMiss, Luck::kRubbish, Luck::kOther, Luck::kHalf,
                                 Luck::kSilent};
  const int kind = rng.below(8);  // 0 first, 1 middle, 2 last, 3 any
  for (const std::vector<LoadBlock>& blocks : load.blocks) {
    const int n = isize(blocks);
    std::vector<Arrival>& arrivals = load.arrivals.emplace_back(static_cast<std::size_t>(n));
    if (n == 0) continue;
    if (kind < 3) {
      const int at = kind == 0 ? 0 : kind == 1 ? n / 2 : n - 1;
      arrivals[static_cast<std::size_t>(at)].luck = rng.pick(bad);
      ++coverage_.bad_blocks[kind];
    }
    for (Arrival& each : arrivals) {
      if (kind == 3 && rng.chance(30)) each.luck = rng.pick(bad);
      if (each.luck == Luck::kSilent) ++coverage_.blocks_silent;
    }
  }
}

// Writes what the tier brings of a block, and checks it.
void Harness::bring(OpenLoad& load, int g, std::size_t i, Rng& rng) {
  Arrival& arrival = load.arrivals[static_cast<std::size_t>(g)][i];
  if (arrival.luck == Luck::kSilent) return;
  if (!load.seq) ++coverage_.arrivals_orphaned;
  if (load.failed) ++coverage_.arrivals_after_fail;
  if (arrival.has_come) ++coverage_.arrivals_twice;
  arrival.has_come = true;
  const auto [logical, block_id] = load.blocks[static_cast<std::size_t>(g)][i];
  const int size = group(g).block_size;
  const std::int32_t first_slot = block_id.value() * size;
  const auto memory = device_->memory(g).subspan(static_cast<std::size_t>(first_slot),
                                                 static_cast<std::size_t>(size));
  std::vector<fake_device::Digest> bytes = *record_of(load, g, logical);
  if (arrival.luck == Luck::kMiss) return;  // whatever lay there
  if (arrival.luck == Luck::kRubbish) bytes[rng.next() % bytes.size()] ^= 4;
  if (arrival.luck == Luck::kHalf) bytes.resize(rng.next() % bytes.size());
  if (arrival.luck == Luck::kOther) {
    auto other = tier_.begin();
    std::advance(other, rng.below(isize(tier_)));
    bytes = other->second.bytes;
    bytes.resize(static_cast<std::size_t>(size));
  }
  std::copy(bytes.begin(), bytes.end(), memory.begin());
  arrival.good = true;
  for (int off = 0; off < size && logical * size + off < load.end; ++off) {
    const std::int32_t p = logical * size + off;
    const int node = load.content.nodes[static_cast<std::size_t>(p)];
    arrival.good = arrival.good && memory[static_cast<std::size_t>(off)] == trie_.digest_of(node);
  }
}

// Some blocks of it, in any order; some of them once more.
void Harness::arrive_from_tier(OpenLoad& load, Rng& rng) {
  meet_device();
  for (int i = rng.between(1, 4); i > 0; --i) {
    const int g = rng.below(num_groups());
    const std::size_t count = load.blocks[static_cast<std::size_t>(g)].size();
    if (count == 0) continue;
    const std::size_t at = rng.next() % count;
    if (!load.arrivals[static_cast<std::size_t>(g)][at].has_come || rng.chance(30)) {
      bring(load, g, at, rng);
    }
  }
}

// In front of the first block that is not good, or that has not come.
int Harness::good_tokens(const OpenLoad& load) const {
  int end = load.end;
  for (int g = 0; g < num_groups(); ++g) {
    const std::vector<LoadBlock>& blocks = load.blocks[static_cast<std::size_t>(g)];
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (load.arrivals[static_cast<std::size_t>(g)][i].good) continue;
      end = std::min(end, blocks[i].logical * group(g).block_size);
    }
  }
  if (end != load.end) end = end / unit() * unit();
  return std::max(0, end - load.begin);
}

}  // namespace kvfolio::model_check
