// SPDX-License-Identifier: Apache-2.0
//
// Sequences and pins: who holds which blocks outside of steps.

#include <algorithm>
#include <array>
#include <cstring>

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

// ---- arguments ----

Status KVCacheManager::Impl::check_tokens(std::string_view what,
                                          std::span<const std::int32_t> tokens) const {
  if (tokens.size() > static_cast<std::size_t>(kMaxSequenceTokens)) {
    return {ErrorCode::kInvalidArgument,
            concat(what, ": ", tokens.size(), " tokens, allowed: at most ", kMaxSequenceTokens)};
  }
  if (arena().overlaps(tokens)) {
    return {ErrorCode::kInvalidArgument,
            concat(what,
                   ": the tokens lie in memory of the manager, which moves while it reads "
                   "them; copy them")};
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0) {
      return {ErrorCode::kInvalidArgument,
              concat(what, ": token ", i, " is ", tokens[i], ", allowed: 0 and above")};
    }
  }
  return {};
}

Status KVCacheManager::Impl::check_open(std::string_view what, std::span<const std::int32_t> tokens,
                                        const OpenOptions& options) const {
  KVFOLIO_RETURN_IF_ERROR(check_tokens(what, tokens));
  std::int32_t last = 0;
  for (std::size_t i = 0; i < options.media.size(); ++i) {
    const MediaSpan& span = options.media[i];
    if (span.begin < last || span.end <= span.begin || span.end > kMaxSequenceTokens) {
      return {
          ErrorCode::kInvalidArgument,
          concat(what, ": media span ", i, " is [", span.begin, ", ", span.end,
                 "), allowed: not empty, ascending, disjoint, within 0 to ", kMaxSequenceTokens)};
    }
    last = span.end;
  }
  if (options.max_tokens < 0 || options.max_tokens > kMaxSequenceTokens) {
    return {ErrorCode::kInvalidArgument, concat(what, ": max_tokens is ", options.max_tokens,
                                                ", allowed: 0 to ", kMaxSequenceTokens)};
  }
  if (options.max_tokens > 0 && tokens.size() > static_cast<std::size_t>(options.max_tokens)) {
    return {ErrorCode::kInvalidArgument, concat(what, ": a prompt of ", tokens.size(),
                                                " tokens with max_tokens ", options.max_tokens)};
  }
  const RootKey& root = options.root;
  constexpr std::size_t kMaxKeyBytes = 65536;
  std::size_t key_bytes = 0;
  for (const std::string_view field :
       {root.model, root.adapter, root.adapter_version, root.tenant_salt}) {
    // Field by field, so that the sum cannot wrap.
    if (field.size() > kMaxKeyBytes || (key_bytes += field.size()) > kMaxKeyBytes) {
      return {ErrorCode::kInvalidArgument, concat(what, ": the root key's fields have more than ",
                                                  kMaxKeyBytes, " bytes together")};
    }
  }
  return {};
}

// May the sequence get `count` tokens longer?
Status KVCacheManager::Impl::check_growth(const Sequence& s, std::string_view what,
                                          std::int64_t count) const {
  if (count < 0 || count > kMaxSequenceTokens - s.length) {
    return {ErrorCode::kInvalidArgument, concat(what, " of ", count, " tokens behind ", s.length,
                                                ", allowed: 0 to ", kMaxSequenceTokens - s.length)};
  }
  if (s.max_tokens > 0 && count > std::max(0, s.max_tokens - s.length)) {
    return {ErrorCode::kResourceExhausted, concat(what, " of ", count, " tokens: full: ", s.length,
                                                  " of ", s.max_tokens, " tokens")};
  }
  return {};
}

std::int64_t KVCacheManager::Impl::cells_for(const Sequence& s, std::int32_t end) const noexcept {
  std::int64_t cells = tail_cells(s, end);
  for (std::int32_t g = 0; g < num_groups(); ++g) cells += blocks_for(g, end);
  return cells;
}

Status KVCacheManager::Impl::table_entries_full(std::string_view what, std::int64_t wanted) const {
  return {ErrorCode::kResourceExhausted,
          concat(what, ": no room for ", wanted, " table entries and unpublished tokens: ",
                 arena().free_cells(), " of ", arena().num_cells(),
                 " cells are free, given out in powers of two; raise max_table_entries")};
}

// ---- slots ----

std::int32_t KVCacheManager::Impl::take_slot() noexcept {
  if (num_sequences_ == options_.max_sequences) return -1;
  const std::int32_t slot = free_sequence_;
  KVFOLIO_CHECK(slot >= 0);
  Sequence& s = sequences_[slot];
  free_sequence_ = s.next_free;
  const std::uint32_t generation = s.generation;
  const std::uint32_t aborted = s.aborted;
  s = {};
  s.generation = generation;
  s.aborted = aborted;
  s.life = Life::kOpen;
  s.exact_until = kNever;
  s.unnamed_from = kNever;
  s.step_entry = -1;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    window_begin(slot, g) = 0;
    unplanned_from(slot, g) = 0;
  }
  return slot;
}

// Everything that the slot owned is given back already.
void KVCacheManager::Impl::give_slot(std::int32_t slot, bool aborted) noexcept {
  Sequence& s = sequences_[slot];
  arena().release(s.tail);
  arena().release(s.media);
  for (std::int32_t g = 0; g < num_groups(); ++g) table(slot, g).release(arena());
  ++victim_versions_[slot];
  if (aborted) s.aborted = s.generation;
  s.generation = next_generation(s.generation);
  s.life = Life::kUnused;
  s.next_free = free_sequence_;
  free_sequence_ = slot;
}

void KVCacheManager::Impl::list_open(std::int32_t slot) noexcept {
  sequences_[slot].open_at = num_sequences_;
  open_slots_[num_sequences_++] = slot;
}

void KVCacheManager::Impl::unlist_open(std::int32_t slot) noexcept {
  const std::int32_t last = open_slots_[--num_sequences_];
  const std::int32_t at = sequences_[slot].open_at;
  open_slots_[at] = last;
  sequences_[last].open_at = at;
}

// Of a call that failed: nobody saw the id, so the next sequence gets it.
void KVCacheManager::Impl::untake_slot(std::int32_t slot) noexcept {
  const std::uint32_t generation = sequences_[slot].generation;
  give_slot(slot, false);
  sequences_[slot].generation = generation;
}

std::span<const MediaSpan> KVCacheManager::Impl::media_of(const Sequence& s) const noexcept {
  if (s.num_media == 0) return {};
  return {reinterpret_cast<const MediaSpan*>(arena().at(s.media)),
          static_cast<std::size_t>(s.num_media)};
}

bool KVCacheManager::Impl::keep_media(Sequence& s, std::span<const MediaSpan> media) noexcept {
  static_assert(alignof(MediaSpan) == alignof(std::int32_t) && sizeof(MediaSpan) % 4 == 0);
  if (media.empty()) return true;
  if (!arena().reserve(s.media, static_cast<std::int64_t>(media.size_bytes() / 4), 0)) return false;
  std::memcpy(arena().at(s.media), media.data(), media.size_bytes());
  s.num_media = static_cast<std::int32_t>(media.size());
  return true;
}

// ---- open ----

void KVCacheManager::Impl::hold_table(std::int32_t g,
                                      std::span<const std::int32_t> blocks) noexcept {
  constexpr std::size_t kAhead = 16;
  const auto ask_for = [&](std::size_t from) {
    if (from < blocks.size()) {
      prefetch(g, blocks.subspan(from, std::min(kAhead, blocks.size() - from)));
    }
  };
  ask_for(0);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % kAhead == 0) ask_for(i + kAhead);
    if (blocks[i] >= 0) hold(g, BlockId(blocks[i]));
  }
}

void KVCacheManager::Impl::prefetch(std::int32_t g,
                                    std::span<const std::int32_t> blocks) const noexcept {
  const BlockPool& pool = group(g).pool;
  for (const std::int32_t block : blocks) {
    if (block >= 0) pool.prefetch(BlockId(block));
  }
  tree_->prefetch(GroupId(g), blocks);
}

Result<std::int32_t> KVCacheManager::Impl::probe(std::span<const std::int32_t> tokens,
                                                 const OpenOptions& options) const {
  KVFOLIO_RETURN_IF_ERROR(check_open("probe", tokens, options));
  if (!options_.prefix_cache || !options.prefix_cache || tokens.empty()) return 0;
  const std::int32_t root = tree_->find_root(options.root);
  if (root < 0) return 0;
  const auto size = static_cast<std::int32_t>(tokens.size());
  return tree_->match(root, tokens, options.media, size - 1, true).tokens;
}

Result<Opened> KVCacheManager::Impl::open(std::span<const std::int32_t> tokens,
                                          const OpenOptions& options, std::string_view what) {
  KVFOLIO_RETURN_IF_ERROR(check_open(what, tokens, options));
  KVFOLIO_RETURN_IF_ERROR(check_caller_id(what, options.caller_id));
  const std::int32_t slot = take_slot();
  if (slot < 0) {
    return Status(ErrorCode::kResourceExhausted, concat(what, ": all ", options_.max_sequences,
                                                        " sequences are open; close one or raise "
                                                        "max_sequences"));
  }
  Sequence& s = sequences_[slot];
  if (!keep_media(s, options.media)) {
    untake_slot(slot);
    return table_entries_full(what, static_cast<std::int64_t>(options.media.size_bytes() / 4));
  }

  const bool wants = options_.prefix_cache && options.prefix_cache;
  const std::int32_t root = wants ? tree_->make_root(options.root) : -1;
  if (wants && root < 0) ++counters_.publications_skipped;
  if (root >= 0) {
    // The place keeps the root, and then the path, alive from here on.
    s.place = tree_->enter(root, 0);
    s.publishes = true;
    const auto size = static_cast<std::int32_t>(tokens.size());
    const PrefixMatch match = tree_->match(root, tokens, options.media, size - 1, size > 0);
    const std::int32_t held = match.held_tokens();
    const std::int32_t position = held / tree_->unit() * tree_->unit();
    const std::int32_t kept =
        match.tokens < position ? match.tokens / tree_->unit() * tree_->unit() : position;
    // Off the root there is room for a unit, which truncate() may bring back.
    bool room = arena().reserve(s.tail, kept > 0 ? tree_->unit() : match.tokens, 0);
    for (std::int32_t g = 0; g < num_groups() && room; ++g) {
      room = table(slot, g).reserve(arena(), blocks_for(g, held));
    }
    if (!room) {
      std::int64_t wanted = tree_->unit();
      for (std::int32_t g = 0; g < num_groups(); ++g) wanted += blocks_for(g, held);
      tree_->leave(s.place);
      untake_slot(slot);
      return table_entries_full(what, wanted);
    }
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      table(slot, g).grow(arena(), blocks_for(g, held));
      tree_->fill_table(match, GroupId(g), table(slot, g).blocks(arena()));
    }
    Place found = tree_->enter(match.run, kept);
    tree_->leave(s.place);
    s.place = found;
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      if (mutant(Mutant::kHitReferencedLate)) break;
      hold_table(g, table(slot, g).blocks(arena()));
      // Whoever revives a tail that nobody held becomes its writer.
      const std::int32_t offset = held % block_size(g);
      if (offset == 0) continue;
      const BlockId tail = table(slot, g).at(arena(), held / block_size(g));
      BlockPool& pool = group(g).pool;
      if (pool.refs(tail) == 1 && pool.writer(tail) == BlockPool::kNobody &&
          pool.valid(tail) == offset) {
        pool.set_writer(tail, slot);
      }
    }
    std::copy(tokens.begin() + kept, tokens.begin() + match.tokens, arena().at(s.tail));
    s.length = s.accepted = s.settled = match.tokens;
    s.replay = match.whole;
    if (match.whole) s.replay_token = tokens.back();
    note_peak();
  }
  s.max_tokens = options.max_tokens;
  s.priority = options.priority;
  keep_caller_id(slot, options.caller_id);
  note_use(slot);
  list_open(slot);
  ++counters_.sequences_opened;
  counters_.tokens_looked_up += tokens.size();
  counters_.tokens_reused += static_cast<std::uint64_t>(s.length);
  return Opened{id_of(s), s.length};
}

// ---- fork ----

KVCacheManager::Impl::StepEntry* KVCacheManager::Impl::unnamed_entry(Step& step,
                                                                     const Sequence& s) noexcept {
  const std::int32_t at = step.has_unnamed ? step.entry_of[slot_of(s)] : step.num_entries;
  if (at >= step.num_entries) return nullptr;
  StepEntry& entry = step.entries[at];
  return entry.slot == slot_of(s) && entry.generation == s.generation ? &entry : nullptr;
}

// The child takes part in the parent's steps in flight as far as names go: its copies of the
// unnamed tokens may be named until the same steps complete.
void KVCacheManager::Impl::share_unnamed(const Sequence& parent, Sequence& child) noexcept {
  for (const std::int32_t index : in_flight_) {
    Step& step = step_at(index);
    const StepEntry* entry = unnamed_entry(step, parent);
    if (entry == nullptr || entry->unnamed == 0) continue;
    if (static_cast<std::size_t>(step.num_entries) == step.entries.size()) {
      // Forked more often than a step remembers: these stay unnamed.
      child.exact_until = std::min(child.exact_until, child.unnamed_from);
      child.unnamed_from = kNever;
      child.num_named = child.num_unnamed;
      return;
    }
    StepEntry& copy = step.entries[step.num_entries];
    copy = *entry;
    copy.slot = slot_of(child);
    copy.generation = child.generation;
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      change(step, step.num_entries, g) = {-1, -1, -1, BlockPool::kNobody, 0};
    }
    step.entry_of[copy.slot] = step.num_entries++;
  }
}

Result<SequenceId> KVCacheManager::Impl::fork(SequenceId parent_id, const ForkOptions& options) {
  std::int32_t from = 0;
  KVFOLIO_RETURN_IF_ERROR(check_caller_id("fork", options.caller_id));
  KVFOLIO_RETURN_IF_ERROR(find_resting(parent_id, "fork", from));
  if (sequences_[from].draft > 0) {
    return Status(
        ErrorCode::kFailedPrecondition,
        concat("fork: the sequence has ", sequences_[from].draft, " draft tokens; accept() first"));
  }
  const std::int32_t slot = take_slot();
  if (slot < 0) {
    return Status(ErrorCode::kResourceExhausted,
                  concat("fork: all ", options_.max_sequences, " sequences are open"));
  }
  Sequence& parent = sequences_[from];
  Sequence& child = sequences_[slot];
  const std::int64_t tail_size = tail_cells(parent, parent.length);
  const std::int64_t unit = parent.publishes && parent.place.position > 0 ? tree_->unit() : 0;
  bool room = keep_media(child, media_of(parent)) &&
              arena().reserve(child.tail, std::max(tail_size, unit), 0);
  for (std::int32_t g = 0; g < num_groups() && room; ++g) {
    room = table(slot, g).reserve(arena(), table(from, g).size());
  }
  if (!room) {
    untake_slot(slot);
    return table_entries_full("fork", cells_for(parent, parent.length));
  }
  const std::uint32_t generation = child.generation;
  const std::uint32_t aborted = child.aborted;
  const ArenaSpan tail = child.tail;
  const ArenaSpan media = child.media;
  child = parent;
  child.generation = generation;
  child.aborted = aborted;
  child.admitted = 0;
  child.wrote_last = 0;  // the parent's blocks tell whether a failed step concerns it
  child.tail = tail;
  child.media = media;
  child.used = true;
  if (parent.place.valid()) child.place = tree_->copy(parent.place);
  std::copy_n(arena().at(parent.tail), tail_size, arena().at(tail));
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& to = table(slot, g);
    to.assign(arena(), table(from, g).blocks(arena()));
    hold_table(g, to.blocks(arena()));
    window_begin(slot, g) = window_begin(from, g);
  }
  if (parent.num_unnamed > parent.num_named) share_unnamed(parent, child);
  child.priority = options.priority;
  child.use_count = 0;
  keep_caller_id(slot, options.caller_id);
  note_use(slot);
  list_open(slot);
  ++counters_.forks;
  return id_of(child);
}

// ---- adopt ----

namespace {

// No block is two logical blocks at once. Each is referenced once more for the moment: all of their
// references together grow by the number of entries iff no block comes twice. O(blocks), no memory.
// Requires: somebody holds each of them.
Status check_distinct(BlockPool& pool, std::int32_t g, std::span<const std::int32_t> blocks) {
  std::int64_t surplus = 0;
  const auto for_each = [&](const auto& visit) {
    for (const std::int32_t block : blocks) {
      if (block >= 0) visit(BlockId(block));
    }
  };
  for_each([&](BlockId block) { surplus -= pool.refs(block) + 1; });
  for_each([&](BlockId block) { pool.hold(block); });
  for_each([&](BlockId block) { surplus += pool.refs(block); });
  for_each([&](BlockId block) { static_cast<void>(pool.release(block)); });
  if (surplus == 0) return {};
  return {ErrorCode::kInvalidArgument,
          concat("adopt: group ", g, ": a block stands twice in the table of ", blocks.size())};
}

}  // namespace

Status KVCacheManager::Impl::adopt(SequenceId id,
                                   std::span<const std::span<const std::int32_t>> tables,
                                   std::int32_t num_tokens) {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find_resting(id, "adopt", slot));
  Sequence& s = sequences_[slot];
  if (open_step_ >= 0) {
    return {ErrorCode::kFailedPrecondition,
            concat("adopt: step ", last_ticket_, " is open; commit or drop it first")};
  }
  if (s.length > 0) {
    return {ErrorCode::kFailedPrecondition,
            concat("adopt: the sequence has ", s.length, " tokens; clear() it first")};
  }
  KVFOLIO_RETURN_IF_ERROR(check_growth(s, "adopt", num_tokens));
  if (tables.size() != groups_.size()) {
    return {ErrorCode::kInvalidArgument,
            concat("adopt: ", tables.size(), " tables for ", num_groups(), " groups")};
  }
  // Where the entries go: into the table, or into a new one if it is too small or still counts.
  std::array<BlockTable, kMaxGroups> fresh;
  const auto target = [&](std::int32_t g) -> BlockTable& {
    const bool fits = blocks_for(g, num_tokens) <= table(slot, g).capacity();
    return fits && !s.replay ? table(slot, g) : fresh[static_cast<std::size_t>(g)];
  };
  Status status;
  for (std::int32_t g = 0; g < num_groups() && status.ok(); ++g) {
    if (!target(g).reserve(arena(), blocks_for(g, std::max(num_tokens, s.admitted)))) {
      status = table_entries_full("adopt", cells_for(s, num_tokens));
    }
  }
  for (std::int32_t g = 0; g < num_groups() && status.ok(); ++g) {
    // The caller may give what block_table() showed. Then nothing is written where something else
    // will be read.
    const std::span<const std::int32_t> blocks = tables[static_cast<std::size_t>(g)];
    for (std::int32_t other = 0; other < num_groups() && arena().overlaps(blocks); ++other) {
      if (other == g || !target(other).overlaps(arena(), blocks)) continue;
      status = {ErrorCode::kInvalidArgument,
                concat("adopt: the table for group ", g, " lies where that of group ", other,
                       " is written; copy it")};
    }
    if (status.ok()) status = check_adopted(g, blocks, num_tokens);
    if (status.ok()) status = check_distinct(group(g).pool, g, blocks);
  }
  if (!status.ok()) {
    for (BlockTable& blocks : fresh) blocks.release(arena());
    return status;
  }
  if (num_tokens == 0) return {};  // what follows may be findable as ever
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    target(g).assign(arena(), tables[static_cast<std::size_t>(g)]);
  }
  // Held first: the only reference to one of them may be this sequence's own, to the block beyond
  // its length that its prompt was found in.
  for (std::int32_t g = 0; g < num_groups(); ++g) hold_table(g, target(g).blocks(arena()));
  if (s.replay) truncate_to(slot, 0);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (fresh[static_cast<std::size_t>(g)].capacity() == 0) continue;
    table(slot, g).release(arena());
    table(slot, g) = fresh[static_cast<std::size_t>(g)];
  }
  s.length = s.accepted = s.settled = num_tokens;
  s.exact_until = 0;  // nobody told us which tokens these are
  s.used = true;
  note_change(slot);
  return {};
}

Status KVCacheManager::Impl::check_adopted(std::int32_t g, std::span<const std::int32_t> blocks,
                                           std::int32_t num_tokens) const {
  const std::int32_t size = block_size(g);
  const BlockPool& pool = group(g).pool;
  if (blocks.size() != static_cast<std::size_t>(blocks_for(g, num_tokens))) {
    return {ErrorCode::kInvalidArgument,
            concat("adopt: group ", g, " gets ", blocks.size(), " blocks of ", size, " tokens for ",
                   num_tokens, " tokens, needed: ", blocks_for(g, num_tokens))};
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto begin = static_cast<std::int32_t>(i) * size;
    const std::int32_t wanted = std::min(size, num_tokens - begin);
    const BlockId block(blocks[i]);
    if (blocks[i] == BlockTable::kDropped) {
      const GroupSpec& spec = group(g).spec;
      const bool unread =
          windowed(g) && begin >= spec.num_sinks && begin + size <= num_tokens - spec.window + 1;
      if (unread) continue;
      return {ErrorCode::kInvalidArgument, concat("adopt: group ", g, ", logical block ", i,
                                                  ": -1, but position ", num_tokens, " reads it")};
    }
    KVFOLIO_RETURN_IF_ERROR(check_block("adopt", GroupId(g), block));
    if (pool.refs(block) == 0) {
      return {ErrorCode::kInvalidArgument,
              concat("adopt: block ", block.value(), " of group ", g, " is held by nobody")};
    }
    if (pool.valid(block) < wanted) {
      return {ErrorCode::kInvalidArgument,
              concat("adopt: block ", block.value(), " of group ", g, " holds ", pool.valid(block),
                     " tokens, wanted: ", wanted)};
    }
    if (options_.order == Order::kInOrder) continue;  // whoever reads comes later in the stream
    for (const std::int32_t index : in_flight_) {
      const std::uint64_t ticket = step_at(index).ticket;
      if (pool.written_in(block) != static_cast<std::uint32_t>(ticket)) continue;
      return {ErrorCode::kFailedPrecondition,
              concat("adopt: block ", block.value(), " of group ", g, " is written by step ",
                     ticket, ", which is not complete")};
    }
  }
  return {};
}

// ---- truncate ----

Status KVCacheManager::Impl::check_truncate(std::int32_t slot, std::int32_t n) const {
  const Sequence& s = sequences_[slot];
  const bool trimmed = s.trim_first_kept > s.trim_sinks;
  if (trimmed && n > s.trim_sinks && n < s.trim_first_kept) {
    return {ErrorCode::kFailedPrecondition,
            concat("truncate to ", n, ": every group dropped positions ", s.trim_sinks, " to ",
                   s.trim_first_kept - 1, " in a trim")};
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    // A full group lacks nothing but what a trim dropped. The others are asked about what position
    // n reads, not about what they dropped before.
    if (!windowed(g)) continue;
    const std::int32_t size = block_size(g);
    const auto lacks = [&](std::int32_t from, std::int32_t to) -> std::int32_t {
      for (std::int32_t logical = from / size; logical * size < to; ++logical) {
        if (table(slot, g).at(arena(), logical).valid()) continue;
        const bool in_trim = trimmed && n > s.trim_sinks &&
                             std::max(from, logical * size) >= s.trim_sinks &&
                             std::min(to, (logical + 1) * size) <= s.trim_first_kept;
        if (!in_trim) return logical;
      }
      return -1;
    };
    std::int32_t missing = lacks(std::max(0, n - group(g).spec.window + 1), n);
    // The block that the next token goes to has to be there, whatever the window.
    if (n % size != 0 && !table(slot, g).at(arena(), n / size).valid()) missing = n / size;
    if (missing < 0) missing = lacks(0, std::min(group(g).spec.num_sinks, n));
    if (missing >= 0) {
      return {ErrorCode::kFailedPrecondition,
              concat("truncate to ", n, ": group ", g, " (window ", group(g).spec.window,
                     ") no longer holds block ", missing, ", which position ", n, " reads")};
    }
  }
  return {};
}

// Gives back the blocks beyond n, tails first.
void KVCacheManager::Impl::truncate_blocks(std::int32_t slot, std::int32_t n) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int32_t keep = blocks_for(g, n);
    for (std::int32_t logical = table(slot, g).size() - 1; logical >= keep; --logical) {
      release_entry(slot, g, logical);
    }
    table(slot, g).truncate(keep);
    window_begin(slot, g) = std::min(window_begin(slot, g), keep);
    note_entries(slot, g, keep);
  }
}

// The tokens that the sequence itself keeps end with the sequence; those before are on the tree.
void KVCacheManager::Impl::drop_tail_beyond(Sequence& s) noexcept {
  if (!s.publishes || s.place.position <= s.length) return;
  const std::int32_t unit = tree_->unit();
  const std::int32_t position = s.length / unit * unit;
  const std::int32_t rest = s.length - position;
  KVFOLIO_CHECK(rest <= SpanArena::capacity(s.tail));  // room for a unit is kept for this
  tree_->copy_tokens(s.place, position, {arena().at(s.tail), static_cast<std::size_t>(rest)});
  tree_->climb(s.place, position);
}

// Tokens of steps in flight that were cut off want no names any more.
void KVCacheManager::Impl::forget_unnamed(Sequence& s, std::int32_t n) noexcept {
  if (s.num_unnamed == s.num_named) return;
  const auto for_each_entry = [&](const auto& visit) {
    for (const std::int32_t index : in_flight_) {
      if (StepEntry* entry = unnamed_entry(step_at(index), s); entry != nullptr) visit(*entry);
    }
  };
  for_each_entry([&](StepEntry& e) {
    const std::int32_t kept = std::max(0, std::min(e.end, n) - e.begin);
    const std::int32_t gone = std::max(0, e.unnamed - kept);
    e.unnamed -= gone;
    s.num_unnamed -= static_cast<std::uint64_t>(gone);
  });
  for_each_entry([&](StepEntry& e) { e.unnamed_begin = std::min(e.unnamed_begin, s.num_unnamed); });
  s.num_named = std::min(s.num_named, s.num_unnamed);
}

void KVCacheManager::Impl::truncate_to(std::int32_t slot, std::int32_t n) noexcept {
  Sequence& s = sequences_[slot];
  s.replay = false;
  s.used = true;
  truncate_blocks(slot, n);
  s.length = n;
  s.accepted = std::min(s.accepted, n);
  s.settled = std::min(s.settled, n);
  s.draft = n - s.accepted;
  note_change(slot);
  if (s.unnamed_from >= n) s.unnamed_from = kNever;
  forget_unnamed(s, n);
  if (n <= s.trim_sinks) s.trim_sinks = s.trim_first_kept = 0;
  if (s.trim_first_kept > s.trim_sinks) {
    s.exact_until = std::min(s.exact_until, n);  // what follows reads across the gap
  } else if (s.exact_until >= n) {
    s.exact_until = kNever;  // what was not exact is gone
  }
  drop_tail_beyond(s);
  // Room for what went back to the sequence was not part of the promise.
  if (tail_cells(s, s.admitted) > SpanArena::capacity(s.tail)) {
    s.admitted = s.place.position + static_cast<std::int32_t>(SpanArena::capacity(s.tail));
  }
}

Status KVCacheManager::Impl::truncate(SequenceId id, std::int32_t n, std::string_view what) {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find_resting(id, what, slot));
  const Sequence& s = sequences_[slot];
  if (n < 0 || n > s.length) {
    return {ErrorCode::kInvalidArgument,
            concat("truncate to ", n, ", allowed: 0 to the length, ", s.length)};
  }
  if (n == s.length) return {};
  if (n < s.accepted) KVFOLIO_RETURN_IF_ERROR(check_truncate(slot, n));
  truncate_to(slot, n);
  return {};
}

// ---- trim ----

Result<std::int32_t> KVCacheManager::Impl::trim(SequenceId id, const TrimOptions& options) {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find_resting(id, "trim", slot));
  Sequence& s = sequences_[slot];
  if (options.num_sinks < 0 || options.window < 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("trim keeps ", options.num_sinks, " sinks and a window of ",
                         options.window, ", allowed: 0 and above"));
  }
  if (s.draft > 0) {
    return Status(ErrorCode::kFailedPrecondition,
                  concat("trim: the sequence has ", s.draft, " draft tokens; accept() first"));
  }
  const bool trimmed = s.trim_first_kept > s.trim_sinks;
  // All of these are at most the length: no sum below can overflow.
  auto sinks = static_cast<std::int32_t>(std::min<std::int64_t>(options.num_sinks, s.length));
  const auto window = static_cast<std::int32_t>(std::min<std::int64_t>(options.window, s.length));
  if (trimmed) sinks = std::min(sinks, s.trim_sinks);
  const std::int32_t first_kept = std::max(s.length - window, trimmed ? s.trim_first_kept : 0);
  // All of it is kept; sinks that reach the window bring nothing back that is gone.
  if (options.num_sinks >= s.length - window || first_kept <= sinks) return 0;
  // The window reaches tokens before the gap: to drop what lies before them would be a second one.
  if (trimmed && s.length - window < s.trim_sinks) return 0;
  const std::int32_t before = trimmed ? s.trim_first_kept - s.trim_sinks : 0;
  const std::int32_t dropped = (first_kept - sinks) - before;
  if (dropped == 0) return 0;

  // A replayed token's block is held beyond the length; it goes, the append will do without.
  if (s.replay) truncate_to(slot, s.length);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int32_t size = block_size(g);
    // From block `from` down, those that begin at `end` or behind it.
    const auto release = [&](std::int32_t from, std::int32_t end) {
      for (std::int32_t logical = from; logical >= 0 && logical * size >= end; --logical) {
        if (!table(slot, g).at(arena(), logical).valid()) continue;
        release_entry(slot, g, logical);
        table(slot, g).set(arena(), logical, BlockId());
      }
    };
    // What lies within the old gap is gone already and need not be looked at: a sequence that is
    // trimmed for each token pays for that token.
    const std::int32_t last = first_kept / size - 1;
    const std::int32_t old_end = trimmed ? s.trim_first_kept / size * size : 0;
    release(last, std::max(sinks, old_end));
    if (trimmed && s.trim_sinks > 0) release(std::min(last, (s.trim_sinks - 1) / size), sinks);
  }
  s.used = true;
  s.trim_sinks = sinks;
  s.trim_first_kept = first_kept;
  if (mutant(Mutant::kTokensAfterTrimPublished)) return dropped;
  s.exact_until = std::min(s.exact_until, s.length);
  return dropped;
}

// ---- close ----

void KVCacheManager::Impl::release_blocks(std::int32_t slot) noexcept {
  constexpr std::int32_t kAhead = 16;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const auto blocks = std::as_const(*this).table(slot, g).blocks(std::as_const(*this).arena());
    const auto ask_for = [&](std::int32_t end) {  // those before `end`
      const std::int32_t from = std::max(0, end - kAhead);
      if (end > 0) {
        prefetch(g, blocks.subspan(static_cast<std::size_t>(from),
                                   static_cast<std::size_t>(end - from)));
      }
    };
    const std::int32_t size = table(slot, g).size();
    ask_for(size);
    for (std::int32_t logical = size - 1; logical >= 0; --logical) {
      if ((size - 1 - logical) % kAhead == 0) ask_for(logical + 1 - kAhead);
      release_entry(slot, g, logical);
    }
  }
}

void KVCacheManager::Impl::forget_sequence(std::int32_t slot, bool aborted) noexcept {
  tree_->leave(sequences_[slot].place);
  give_slot(slot, aborted);
}

void KVCacheManager::Impl::end_sequence(std::int32_t slot) noexcept {
  Sequence& s = sequences_[slot];
  unlist_open(slot);
  forget_caller_id(slot);
  const bool unsettled = options_.order == Order::kUnordered && !is_complete(s.last_ticket);
  if (unsettled && s.publishes && num_closing_ < options_.max_sequences) {
    // Its last tokens become findable when their step completes. Until then its blocks retire,
    // nobody writes below their valid tokens, and its table tells where they are. Beyond that many
    // sequences, they are not published.
    release_blocks(slot);
    ++victim_versions_[slot];
    s.life = Life::kClosing;
    closing_[num_closing_++] = slot;
    return;
  }
  publish(slot, true);
  release_blocks(slot);
  forget_sequence(slot, false);
}

Status KVCacheManager::Impl::close(SequenceId id) {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find_resting(id, "close", slot));
  end_sequence(slot);
  ++counters_.sequences_closed;
  return {};
}

Status KVCacheManager::Impl::preempt(SequenceId id) {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find(id, slot));
  if (sequences_[slot].step_entry >= 0) KVFOLIO_RETURN_IF_ERROR(undo(id));
  end_sequence(slot);
  ++counters_.sequences_preempted;
  return {};
}

// ---- pins ----

Result<Pinned> KVCacheManager::Impl::pin(std::span<const std::int32_t> tokens,
                                         const OpenOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_open("pin", tokens, options));
  const std::int32_t slot = free_pin_;
  if (slot < 0) {
    return Status(
        ErrorCode::kResourceExhausted,
        concat("pin: all ", options_.max_pins, " pins are taken; unpin one or raise max_pins"));
  }
  PrefixMatch match;
  const bool wants = options_.prefix_cache && options.prefix_cache;
  const std::int32_t root = wants ? tree_->find_root(options.root) : -1;
  if (root >= 0) {
    match =
        tree_->match(root, tokens, options.media, static_cast<std::int32_t>(tokens.size()), false);
  }
  bool room = true;
  for (std::int32_t g = 0; g < num_groups() && room; ++g) {
    room = pin_table(slot, g).reserve(arena(), blocks_for(g, match.tokens));
  }
  if (!room) {
    for (std::int32_t g = 0; g < num_groups(); ++g) pin_table(slot, g).release(arena());
    std::int64_t wanted = 0;
    for (std::int32_t g = 0; g < num_groups(); ++g) wanted += blocks_for(g, match.tokens);
    return table_entries_full("pin", wanted);
  }
  for (std::int32_t g = 0; g < num_groups() && match.tokens > 0; ++g) {
    BlockTable& blocks = pin_table(slot, g);
    blocks.grow(arena(), blocks_for(g, match.tokens));
    tree_->fill_table(match, GroupId(g), blocks.blocks(arena()), true);
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    hold_table(g, pin_table(slot, g).blocks(arena()));
  }
  Pin& pin = pins_[slot];
  free_pin_ = pin.next_free;
  pin.open = true;
  ++num_pins_;
  pins_touched_ = std::max(pins_touched_, slot + 1);
  note_peak();
  return Pinned{PinId(pack(pin.generation, slot)), match.tokens};
}

void KVCacheManager::Impl::release_pin(std::int32_t slot) noexcept {
  Pin& pin = pins_[slot];
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& blocks = pin_table(slot, g);
    for (std::int32_t logical = blocks.size() - 1; logical >= 0; --logical) {
      const BlockId block = blocks.at(arena(), logical);
      if (block.valid()) let_go(g, block, true);
    }
    blocks.release(arena());
  }
  pin.open = false;
  --num_pins_;
  pin.generation = next_generation(pin.generation);
  pin.next_free = free_pin_;
  free_pin_ = slot;
}

Status KVCacheManager::Impl::unpin(PinId id) {
  const std::uint64_t bits = id.value();
  const std::int32_t slot = slot_in(bits);
  const auto generation = static_cast<std::uint32_t>(bits >> 24 & 0xffffffu);
  if (static_cast<std::uint16_t>(bits >> 48) != options_.id_tag || generation == 0 ||
      static_cast<std::size_t>(slot) >= pins_.size() || !pins_[slot].open ||
      pins_[slot].generation != generation) {
    return {ErrorCode::kNotFound,
            concat("pin id ", bits, " is unpinned, of another manager, or was never given out")};
  }
  release_pin(slot);
  return {};
}

// ---- questions ----

Result<SequenceInfo> KVCacheManager::Impl::info(SequenceId id) const {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find(id, slot));
  const Sequence& s = sequences_[slot];
  SequenceInfo info;
  info.length = s.length;
  info.accepted_length = s.accepted;
  info.published_length = s.publishes ? s.place.position : 0;
  info.trim_sinks = s.trim_sinks;
  info.trim_first_kept = s.trim_first_kept;
  info.in_open_step = s.step_entry >= 0;
  if (s.has_caller_id) info.caller_id = s.caller_id;
  info.max_tokens = s.max_tokens;
  info.priority = s.priority;
  info.last_use = s.last_use;
  info.use_count = s.use_count;
  return info;
}

std::int32_t KVCacheManager::Impl::sequences(std::span<SequenceId> out) const noexcept {
  const std::size_t count = std::min(out.size(), open_slots().size());
  for (std::size_t i = 0; i < count; ++i) out[i] = id_of(sequences_[open_slots()[i]]);
  return static_cast<std::int32_t>(count);
}

Result<std::span<const std::int32_t>> KVCacheManager::Impl::block_table(SequenceId id,
                                                                        GroupId group_id) const {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find(id, slot));
  KVFOLIO_RETURN_IF_ERROR(check_group("block_table", group_id));
  return table(slot, group_id.value()).blocks(arena());
}

Status KVCacheManager::Impl::slot_mapping(SequenceId id, GroupId group_id, std::int32_t begin,
                                          std::span<std::int32_t> out) const {
  std::int32_t slot = 0;
  KVFOLIO_RETURN_IF_ERROR(find(id, slot));
  KVFOLIO_RETURN_IF_ERROR(check_group("slot_mapping", group_id));
  const std::int32_t length = sequences_[slot].length;
  if (begin < 0 || begin > length || out.size() > static_cast<std::size_t>(length - begin)) {
    return {ErrorCode::kInvalidArgument,
            concat("slot_mapping of ", out.size(), " tokens from position ", begin,
                   ", but the sequence has ", length)};
  }
  const std::int32_t g = group_id.value();
  const std::int32_t size = block_size(g);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int32_t position = begin + static_cast<std::int32_t>(i);
    const BlockId block = table(slot, g).at(arena(), position / size);
    out[i] = block.valid() ? block.value() * size + position % size : -1;
  }
  return {};
}

}  // namespace kvfolio
