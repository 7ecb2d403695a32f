// SPDX-License-Identifier: Apache-2.0
#include "prefix/tree.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/mutants.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

// ---- creation ----

Result<std::unique_ptr<PrefixTree::Impl>> PrefixTree::Impl::create(
    const PrefixTreeOptions& options) {
  const auto bad = [](const char* field, std::int64_t value, const char* allowed) {
    return Status(ErrorCode::kInvalidArgument, concat(std::string_view(field), " is ", value,
                                                      ", allowed: ", std::string_view(allowed)));
  };
  if (options.groups.empty() || options.groups.size() > static_cast<std::size_t>(kMaxGroups)) {
    return bad("the number of groups", static_cast<std::int64_t>(options.groups.size()), "1 to 16");
  }
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 32;
  if (options.max_index_tokens < 1 || options.max_index_tokens > kMaxTokens) {
    return bad("max_index_tokens", options.max_index_tokens, "1 to 2^32");
  }
  if (options.max_runs < 2 || options.max_runs > (1 << 29)) {
    return bad("max_runs", options.max_runs, "2 to 2^29");
  }
  if (options.max_root_keys < 1 || options.max_root_keys > options.max_runs - 1) {
    return bad("max_root_keys", options.max_root_keys, "1 to max_runs - 1");
  }
  if (options.max_root_key_bytes < 0 || options.max_root_key_bytes > (std::int64_t{1} << 34)) {
    return bad("max_root_key_bytes", options.max_root_key_bytes, "0 to 2^34");
  }
  if (options.max_media_extents < 0 || options.max_media_extents > (1 << 28)) {
    return bad("max_media_extents", options.max_media_extents, "0 to 2^28");
  }

  std::unique_ptr<Impl> tree(new Impl);
  tree->unit_ = options.groups.front().block_size;
  constexpr const char* kAllowedSizes = "1 to 1024, a multiple of the smallest";
  for (const TreeGroup& spec : options.groups) {
    if (spec.block_size < 1) return bad("block_size", spec.block_size, kAllowedSizes);
    tree->unit_ = std::min(tree->unit_, spec.block_size);
  }
  for (const TreeGroup& spec : options.groups) {
    if (spec.block_size > kMaxBlockSize || spec.block_size % tree->unit_ != 0) {
      return bad("block_size", spec.block_size, kAllowedSizes);
    }
    if (spec.num_blocks < 1) return bad("num_blocks", spec.num_blocks, "at least 1");
    if (spec.kind == AttentionKind::kSlidingWindow && spec.window < 1) {
      return bad("window", spec.window, "at least 1");
    }
  }

  tree->units_ = BlockSize(tree->unit_);
  tree->num_groups_ = static_cast<std::int32_t>(options.groups.size());
  tree->max_runs_ = options.max_runs;
  tree->max_root_keys_ = options.max_root_keys;
  tree->max_root_key_bytes_ = options.max_root_key_bytes;
  tree->hash_seed_ = options.hash_seed;

  // Each run may waste most of a granule and up to half of its span in each arena.
  const std::int64_t granules = std::int64_t{options.max_runs} * SpanArena::kGranule;
  std::int64_t entry_cells = 0;
  bool ok = tree->runs_.allocate_zeroed(options.max_runs) &&
            tree->run_groups_.allocate_zeroed(std::int64_t{options.max_runs} * tree->num_groups_) &&
            tree->extents_.allocate_zeroed(options.max_media_extents) &&
            tree->table_.allocate(options.max_runs) && tree->log_.allocate(options.groups);
  for (const TreeGroup& spec : options.groups) {
    entry_cells += 2 * (options.max_index_tokens / spec.block_size + 1) + granules;
    Group group;
    group.spec = spec;
    group.size = BlockSize(spec.block_size);
    ok = ok && group.where.allocate_zeroed(spec.num_blocks);
    tree->groups_.push_back(std::move(group));
  }
  if (!ok) {
    return Status(ErrorCode::kOutOfMemory,
                  concat("no memory for a prefix tree of max_runs ", options.max_runs,
                         " and max_index_tokens ", options.max_index_tokens, "; lower them"));
  }
  const auto make_arena = [](std::unique_ptr<SpanArena>& arena, std::int64_t cells) -> Status {
    Result<SpanArena> made = SpanArena::create(std::min(cells, SpanArena::kMaxCells));
    if (!made) return std::move(made).error();
    arena = std::make_unique<SpanArena>(std::move(*made));
    return {};
  };
  KVFOLIO_RETURN_IF_ERROR(make_arena(tree->tokens_, options.max_index_tokens));
  KVFOLIO_RETURN_IF_ERROR(make_arena(tree->entries_, entry_cells));
  // Spans are powers of two.
  KVFOLIO_RETURN_IF_ERROR(
      make_arena(tree->keys_, 2 * (options.max_root_key_bytes / 4) +
                                  std::int64_t{options.max_root_keys} * SpanArena::kGranule));
  return tree;
}

// ---- roots ----

namespace {

// A key as one string: each field as tag, length, bytes, so that no two keys give the same one. It
// is handed out in pieces: the views of the caller are read where they are.
template <typename Piece>
void for_each_piece(const RootKey& key, const Piece& piece) {
  const std::string_view fields[] = {key.model, key.adapter, key.adapter_version, key.tenant_salt};
  char tag = 1;
  for (const std::string_view field : fields) {
    const auto size = static_cast<std::uint32_t>(field.size());
    piece(&tag, sizeof tag);
    piece(&size, sizeof size);
    piece(field.data(), field.size());
    ++tag;
  }
  piece(&tag, sizeof tag);
  piece(&key.epoch, sizeof key.epoch);
}

std::int64_t bytes_of(const RootKey& key) noexcept {
  std::int64_t bytes = 0;
  for_each_piece(key, [&](const void*, std::size_t n) { bytes += static_cast<std::int64_t>(n); });
  return bytes;
}

}  // namespace

bool PrefixTree::Impl::fits(const RootKey& key) const noexcept {
  const auto most = static_cast<std::size_t>(
      std::min(static_cast<std::int64_t>(kMaxKeyBytes), max_root_key_bytes_));
  std::size_t total = 0;
  for (const std::string_view field :
       {key.model, key.adapter, key.adapter_version, key.tenant_salt}) {
    if (field.size() > most || (total += field.size()) > most) return false;
  }
  return true;
}

// Of up to 1 KiB at a time: one hash of the whole string where that is no longer.
std::uint32_t PrefixTree::Impl::hash_of(const RootKey& key) const noexcept {
  std::array<char, 1024> part;
  std::size_t used = 0;
  std::uint64_t hash = hash_seed_;
  for_each_piece(key, [&](const void* data, std::size_t size) {
    const auto* from = static_cast<const char*>(data);
    while (size > 0) {
      if (used == part.size()) {
        hash = hash_bytes(part.data(), used, hash);
        used = 0;
      }
      const std::size_t n = std::min(size, part.size() - used);
      std::memcpy(part.data() + used, from, n);
      used += n;
      from += n;
      size -= n;
    }
  });
  return static_cast<std::uint32_t>(hash_bytes(part.data(), used, hash));
}

std::int32_t PrefixTree::Impl::lookup_root(const RootKey& key, std::uint32_t hash) const noexcept {
  const std::int64_t bytes = bytes_of(key);
  return table_.find(hash, [&](std::int32_t r) {
    const Run& root = run(r);
    if (root.parent != kNone || root.key_bytes != bytes) return false;
    const auto* kept = reinterpret_cast<const char*>(keys_->at(root.tokens));
    bool same = true;
    for_each_piece(key, [&](const void* data, std::size_t size) {
      same = same && (size == 0 || std::memcmp(kept, data, size) == 0);
      kept += size;
    });
    return same;
  });
}

std::int32_t PrefixTree::Impl::find_root(const RootKey& key) const noexcept {
  return fits(key) ? lookup_root(key, hash_of(key)) : kNone;
}

std::int32_t PrefixTree::Impl::make_root(const RootKey& key) noexcept {
  if (!fits(key)) return kNone;
  const std::uint32_t hash = hash_of(key);
  if (const std::int32_t found = lookup_root(key, hash); found != kNone) return found;
  const std::int64_t bytes = bytes_of(key);
  if (num_roots_ == max_root_keys_ || root_key_bytes_ + bytes > max_root_key_bytes_) return kNone;
  const std::int32_t r = new_run();
  if (r == kNone) return kNone;
  Run& root = run(r);
  if (!keys_->reserve(root.tokens, (bytes + 3) / 4, 0)) {
    free_run(r);
    return kNone;
  }
  auto* kept = reinterpret_cast<char*>(keys_->at(root.tokens));
  for_each_piece(key, [&](const void* data, std::size_t size) {
    if (size != 0) std::memcpy(kept, data, size);
    kept += size;
  });
  root.key_bytes = static_cast<std::int32_t>(bytes);
  root.hash = hash;
  root.chain = static_cast<std::uint32_t>(mix_bits(hash_seed_ ^ static_cast<std::uint32_t>(r)));
  table_insert(r);
  ++num_roots_;
  root_key_bytes_ += bytes;
  return r;
}

// ---- runs ----

std::int32_t PrefixTree::Impl::new_run() noexcept {
  std::int32_t r = free_runs_;
  std::uint32_t generation = 1;
  if (r != kNone) {
    free_runs_ = run(r).parent;
    generation = run(r).generation;
  } else if (runs_touched_ < max_runs_) {
    r = runs_touched_++;
  } else {
    return kNone;
  }
  Run& fresh = run(r);
  fresh = {};
  fresh.parent = fresh.children = fresh.up = fresh.left = fresh.right = fresh.extents = kNone;
  fresh.priority = static_cast<std::uint32_t>(
      mix_bits(hash_seed_ ^ (std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(r))));
  fresh.generation = generation & ((1u << Run::kGenerationBits) - 1);
  fresh.alive = true;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    RunGroup& rg = slots(r, g);
    rg = {};
    rg.last_live = rg.last_idle = kNone;
  }
  ++num_runs_;
  return r;
}

void PrefixTree::Impl::free_run(std::int32_t r) noexcept {
  Run& old = run(r);
  if (old.parent == kNone) {
    keys_->release(old.tokens);
  } else {
    num_tokens_ -= old.length;
    tokens_->release(old.tokens);
    drop_extents(r, old.start);
  }
  for (std::int32_t g = 0; g < num_groups_; ++g) entries_->release(slots(r, g).entries);
  old.alive = false;
  ++old.generation;
  old.parent = free_runs_;
  free_runs_ = r;
  --num_runs_;
}

bool PrefixTree::Impl::reserve_room(std::int32_t r, std::int32_t length) noexcept {
  Run& at = run(r);
  if (!tokens_->reserve(at.tokens, length, at.length)) return false;
  const std::int32_t end = at.start + length;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    RunGroup& rg = slots(r, g);
    const BlockSize size = group(g).size;
    const std::int32_t count = size.block_of(end - 1) - size.block_of(at.start) + 1;
    if (!entries_->reserve(rg.entries, count, rg.count)) return false;
  }
  return true;
}

void PrefixTree::Impl::add_slots(std::int32_t r) noexcept {
  const Run& at = run(r);
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    RunGroup& rg = slots(r, g);
    rg.first = group(g).size.block_of(at.start);
    const std::int32_t count = index_of(r, g, at.end()) + 1;
    std::int32_t* entry = entries(r, g);
    for (; rg.count < count; ++rg.count) entry[rg.count] = kNone;
  }
}

bool PrefixTree::Impl::grow(std::int32_t r, std::span<const std::int32_t> tokens,
                            std::span<const MediaSpan> media) noexcept {
  Run& at = run(r);
  const std::int32_t length = at.length + static_cast<std::int32_t>(tokens.size());
  if (!reserve_room(r, length)) return false;
  if (!media.empty() && !add_extents(r, media, at.end(), at.start + length)) return false;
  std::memcpy(tokens_->at(at.tokens) + at.length, tokens.data(), tokens.size_bytes());
  at.length = length;
  add_slots(r);
  num_tokens_ += static_cast<std::int64_t>(tokens.size());
  if (!at.hashed && length >= unit_) {
    at.hash = first_hash(r);
    table_insert(r);
  }
  return true;
}

std::int32_t PrefixTree::Impl::add_child(std::int32_t parent, std::span<const std::int32_t> tokens,
                                         std::span<const MediaSpan> media) noexcept {
  const std::int32_t r = new_run();
  if (r == kNone) return kNone;
  run(r).parent = parent;
  run(r).start = run(parent).end();
  if (!grow(r, tokens, media)) {
    free_run(r);
    return kNone;
  }
  treap_insert(parent, r, tokens, media);
  return r;
}

std::int32_t PrefixTree::Impl::split(std::int32_t r, std::int32_t cut) noexcept {
  KVFOLIO_CHECK(cut > run(r).start && cut < run(r).end());
  const std::int32_t u = new_run();
  if (u == kNone) return kNone;
  Run& lower = run(r);
  Run& upper = run(u);
  const std::int32_t upper_length = cut - lower.start;
  upper.parent = lower.parent;
  upper.start = lower.start;

  // The extents of the upper part, in order; one that straddles the cut is doubled.
  std::int32_t* link = &lower.extents;
  while (*link != kNone && extents_[*link].end <= cut) link = &extents_[*link].next;
  std::int32_t straddling = kNone;
  if (*link != kNone && extents_[*link].begin < cut) {
    straddling = new_extent();
    if (straddling == kNone) {
      free_run(u);
      return kNone;
    }
  }
  if (!reserve_room(u, upper_length)) {
    if (straddling != kNone) {
      extents_[straddling].next = free_extents_;
      free_extents_ = straddling;
    }
    free_run(u);
    return kNone;
  }
  // From here on nothing fails.
  {
    const std::int32_t lower_extents = *link;
    *link = kNone;
    upper.extents = lower.extents;
    lower.extents = lower_extents;
    if (straddling != kNone) {
      Extent& rest = extents_[lower_extents];
      Extent& head = extents_[straddling];
      head = rest;
      head.end = cut;
      head.next = kNone;
      rest.offset += cut - rest.begin;
      rest.begin = cut;
      std::int32_t* last = &upper.extents;
      while (*last != kNone) last = &extents_[*last].next;
      *last = straddling;
    }
  }

  const std::int32_t* from = tokens_->at(lower.tokens);
  std::memcpy(tokens_->at(upper.tokens), from, static_cast<std::size_t>(upper_length) * 4);
  upper.length = upper_length;
  add_slots(u);

  // The upper run takes the lower one's place among its siblings.
  treap_replace(r, u);
  table_erase(r);
  upper.hash = lower.hash;
  upper.chain = chain_of(u);
  if (upper_length >= unit_) table_insert(u);
  upper.children = r;
  upper.num_children = 1;
  lower.parent = u;
  lower.up = lower.left = lower.right = kNone;

  std::int32_t* own = tokens_->at(lower.tokens);
  lower.length -= upper_length;
  std::memmove(own, own + upper_length, static_cast<std::size_t>(lower.length) * 4);
  tokens_->shrink(lower.tokens, lower.length);
  lower.start = cut;
  if (lower.length >= unit_) {
    lower.hash = first_hash(r);
    table_insert(r);
  }

  // Entries go by the position of their last token.
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    Group& grp = group(g);
    RunGroup& low = slots(r, g);
    RunGroup& high = slots(u, g);
    std::int32_t* entry = entries_->at(low.entries);
    std::int32_t* high_entry = entries_->at(high.entries);
    for (std::int32_t i = 0; i < high.count; ++i) {
      const std::int32_t block = entry[i];
      if (block == kNone) continue;
      const bool ends_below = static_cast<std::int32_t>(grp.where[block].end) > cut;
      if (ends_below && !mutant(Mutant::kSplitMovesEntryToWrongSide)) continue;
      high_entry[i] = block;
      grp.where[block].run = u + 1;
      entry[i] = kNone;
    }
    const std::int32_t shift = grp.size.block_of(cut) - low.first;
    low.first += shift;
    low.count -= shift;
    std::memmove(entry, entry + shift, static_cast<std::size_t>(low.count) * 4);
    entries_->shrink(low.entries, low.count);
    recount(r, g);
    recount(u, g);
    high.live_kids = has_live(r, g) ? 1 : 0;
    high.idle_kids = has_idle(r, g) ? 1 : 0;
  }
  return u;
}

bool PrefixTree::Impl::cut_one(std::int32_t r) noexcept {
  Run& at = run(r);
  if (at.num_children > 0 || at.places > 0) return false;
  if (at.parent == kNone) {
    root_key_bytes_ -= at.key_bytes;
    --num_roots_;
    table_erase(r);
    free_run(r);
    return true;
  }
  std::int32_t keep = at.start;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const RunGroup& rg = slots(r, g);
    if (rg.last_live == kNone) continue;
    const std::int32_t block = entries(r, g)[rg.last_live];
    keep = std::max(keep, static_cast<std::int32_t>(group(g).where[block].end));
  }
  if (keep == at.start) {
    treap_remove(r);
    table_erase(r);
    free_run(r);
    return true;
  }
  // The first unit stays: it is what the run is found and ordered by.
  const std::int32_t length = std::max(keep - at.start, std::min(at.length, unit_));
  if (length == at.length) return false;
  drop_extents(r, at.start + length);
  num_tokens_ -= at.length - length;
  at.length = length;
  tokens_->shrink(at.tokens, length);
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    RunGroup& rg = slots(r, g);
    rg.count = index_of(r, g, at.end()) + 1;
    entries_->shrink(rg.entries, rg.count);
  }
  return false;
}

void PrefixTree::Impl::cut(std::int32_t r) noexcept {
  while (r != kNone) {
    const std::int32_t parent = run(r).parent;
    if (!cut_one(r)) return;
    r = parent;
  }
}

// ---- media of a run ----

std::int32_t PrefixTree::Impl::new_extent() noexcept {
  if (free_extents_ != kNone) {
    const std::int32_t e = free_extents_;
    free_extents_ = extents_[e].next;
    return e;
  }
  if (static_cast<std::size_t>(extents_touched_) == extents_.size()) return kNone;
  return extents_touched_++;
}

bool PrefixTree::Impl::add_extents(std::int32_t r, std::span<const MediaSpan> media,
                                   std::int32_t from, std::int32_t to) noexcept {
  std::int32_t last = kNone;
  for (std::int32_t e = run(r).extents; e != kNone; e = extents_[e].next) last = e;
  for (const MediaSpan& span : media) {
    const std::int32_t begin = std::max(span.begin, from);
    const std::int32_t end = std::min(span.end, to);
    if (begin >= end) continue;
    if (last != kNone && extents_[last].end == begin && span.begin < begin) {
      extents_[last].end = end;  // the run grows inside the span
      continue;
    }
    const std::int32_t e = new_extent();
    if (e == kNone) {
      drop_extents(r, from);
      return false;
    }
    extents_[e] = {begin,
                   end,
                   begin - span.begin,
                   span.end - span.begin,
                   kNone,
                   span.attends_to_itself,
                   span.content_id};
    (last == kNone ? run(r).extents : extents_[last].next) = e;
    last = e;
  }
  return true;
}

void PrefixTree::Impl::drop_extents(std::int32_t r, std::int32_t from) noexcept {
  std::int32_t* link = &run(r).extents;
  while (*link != kNone) {
    Extent& extent = extents_[*link];
    if (extent.begin >= from) {
      const std::int32_t dropped = *link;
      *link = extent.next;
      extent.next = free_extents_;
      free_extents_ = dropped;
      continue;
    }
    extent.end = std::min(extent.end, from);
    link = &extent.next;
  }
}

// ---- places ----

Place PrefixTree::Impl::enter(std::int32_t r, std::int32_t position) noexcept {
  ++run(r).places;
  Place place{r, run(r).generation, position};
  settle(place);
  return place;
}

void PrefixTree::Impl::leave(Place& place) noexcept {
  if (!place.valid()) return;
  Run& at = run(place.run);
  KVFOLIO_CHECK(at.alive && at.generation == place.generation && at.places > 0);
  --at.places;
  cut(place.run);
  place = {};
}

// A split keeps the name on the lower part: the place may lie above its run by now.
void PrefixTree::Impl::settle(Place& place) noexcept {
  std::int32_t r = place.run;
  KVFOLIO_CHECK(run(r).alive && run(r).generation == place.generation);
  while (run(r).parent != kNone && place.position <= run(r).start) r = run(r).parent;
  if (r == place.run) return;
  const std::int32_t left = place.run;
  ++run(r).places;
  --run(left).places;
  place.run = r;
  place.generation = run(r).generation;
  cut(left);
}

void PrefixTree::Impl::prefetch(std::int32_t r) const noexcept {
  __builtin_prefetch(&run(r));
  for (std::int32_t g = 0; g < num_groups_; ++g) {  // these may lie on two lines
    __builtin_prefetch(&slots(r, g));
    __builtin_prefetch(&slots(r, g).idle_kids);
  }
}

void PrefixTree::Impl::prefetch_ends(std::int32_t r) const noexcept {
  __builtin_prefetch(tokens_of(r) + run(r).length, 1);
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    __builtin_prefetch(entries(r, g) + slots(r, g).count, 1);
  }
}

void PrefixTree::Impl::prefetch_eviction(std::int32_t g, std::int32_t block,
                                         int step) const noexcept {
  const Where& where = group(g).where[block];
  if (step == 0) {
    __builtin_prefetch(&where, 1);
    return;
  }
  const std::int32_t r = where.run - 1;
  if (r < 0) return;
  const Run& at = run(r);
  if (step == 1) {
    prefetch(r);
    return;
  }
  const RunGroup& rg = slots(r, g);
  __builtin_prefetch(entries(r, g) + index_of(r, g, static_cast<std::int32_t>(where.end)), 1);
  if (rg.num_live > 1) return;
  // The run may vanish, out of the table, from between its siblings, and with its memory.
  if (at.hashed != 0) table_.prefetch(at.hash);
  for (const std::int32_t beside : {at.parent, at.up, at.left, at.right}) {
    if (beside != kNone) __builtin_prefetch(&run(beside), 1);
  }
  tokens_->prefetch(at.tokens);
  entries_->prefetch(rg.entries);
}

void PrefixTree::Impl::climb(Place& place, std::int32_t position) noexcept {
  KVFOLIO_CHECK(position <= place.position);
  place.position = position;
  settle(place);
}

void PrefixTree::Impl::copy_tokens(const Place& place, std::int32_t begin,
                                   std::span<std::int32_t> out) const noexcept {
  std::int32_t end = begin + static_cast<std::int32_t>(out.size());
  KVFOLIO_CHECK(end <= place.position);
  for (std::int32_t r = place.run; end > begin; r = run(r).parent) {
    const Run& at = run(r);
    if (end <= at.start) continue;
    const std::int32_t from = std::max(begin, at.start);
    std::memcpy(out.data() + (from - begin), tokens_of(r) + (from - at.start),
                static_cast<std::size_t>(end - from) * 4);
    end = from;
  }
}

// ---- the public face ----

PrefixTree::PrefixTree(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
PrefixTree::PrefixTree(PrefixTree&&) noexcept = default;
PrefixTree& PrefixTree::operator=(PrefixTree&&) noexcept = default;
PrefixTree::~PrefixTree() = default;

Result<PrefixTree> PrefixTree::create(const PrefixTreeOptions& options) {
  Result<std::unique_ptr<Impl>> impl = Impl::create(options);
  if (!impl) return std::move(impl).error();
  return PrefixTree(std::move(*impl));
}

std::int32_t PrefixTree::find_root(const RootKey& key) const noexcept {
  return impl_->find_root(key);
}
std::int32_t PrefixTree::make_root(const RootKey& key) noexcept { return impl_->make_root(key); }

PrefixMatch PrefixTree::match(std::int32_t root, std::span<const std::int32_t> tokens,
                              std::span<const MediaSpan> media, std::int32_t max_tokens,
                              bool allow_whole) const noexcept {
  if (root < 0) return {};
  return impl_->match(root, tokens, media, max_tokens, allow_whole);
}
void PrefixTree::fill_table(const PrefixMatch& match, GroupId group, std::span<std::int32_t> out,
                            bool one_more) const noexcept {
  impl_->fill_table(match, group, out, one_more);
}

Place PrefixTree::enter(std::int32_t run, std::int32_t position) noexcept {
  return impl_->enter(run, position);
}
void PrefixTree::leave(Place& place) noexcept { impl_->leave(place); }
void PrefixTree::climb(Place& place, std::int32_t position) noexcept {
  impl_->climb(place, position);
}
void PrefixTree::copy_tokens(const Place& place, std::int32_t begin,
                             std::span<std::int32_t> out) const noexcept {
  impl_->copy_tokens(place, begin, out);
}

void PrefixTree::prefetch(const Place& place) const noexcept { impl_->prefetch(place.run); }
void PrefixTree::prefetch_ends(const Place& place) const noexcept {
  impl_->prefetch_ends(place.run);
}
void PrefixTree::prefetch(GroupId group, std::span<const std::int32_t> blocks) const noexcept {
  const auto& where = impl_->groups_[static_cast<std::size_t>(group.value())].where;
  for (const std::int32_t block : blocks) {
    if (block >= 0) __builtin_prefetch(&where[block], 1);
  }
}

void PrefixTree::prefetch_eviction(GroupId group, BlockId block, int step) const noexcept {
  impl_->prefetch_eviction(group.value(), block.value(), step);
}

bool PrefixTree::extend(Place& place, std::span<const std::int32_t> tokens,
                        std::span<const MediaSpan> media, const PublishOffer& offer,
                        Published& published) noexcept {
  return impl_->extend(place, tokens, media, offer, published);
}
BlockId PrefixTree::entry_at(const Place& place, GroupId group,
                             std::int32_t logical) const noexcept {
  return BlockId(impl_->entry_at(place, group.value(), logical));
}

std::int32_t PrefixTree::findable_end(GroupId group, BlockId block) const noexcept {
  const Impl::Where& where = impl_->where(group, block);
  return where.run == 0 ? 0 : static_cast<std::int32_t>(where.end);
}
void PrefixTree::findable_ends(GroupId group, std::span<const std::int32_t> blocks,
                               std::span<std::int32_t> ends) const noexcept {
  const auto& where = impl_->groups_[static_cast<std::size_t>(group.value())].where;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    // An entry that is none has no end either.
    ends[i] = blocks[i] < 0 ? 0 : static_cast<std::int32_t>(where[blocks[i]].end);
  }
}
void PrefixTree::set_idle(GroupId group, std::span<const std::int32_t> blocks) noexcept {
  impl_->mark(group.value(), blocks, true);
}
void PrefixTree::set_busy(GroupId group, std::span<const std::int32_t> blocks) noexcept {
  impl_->mark(group.value(), blocks, false);
}
void PrefixTree::replace(GroupId group, BlockId block, BlockId by) noexcept {
  impl_->replace(group.value(), block.value(), by.value());
}
void PrefixTree::unhang(GroupId group, BlockId block) noexcept {
  impl_->unhang(group.value(), block.value());
}
std::int32_t PrefixTree::num_idle(GroupId group) const noexcept {
  return impl_->groups_[static_cast<std::size_t>(group.value())].num_idle;
}
bool PrefixTree::has_changes() const noexcept { return !impl_->log_.empty(); }
TreeChange PrefixTree::take_change() noexcept { return impl_->log_.take(); }
void PrefixTree::clear_changes() noexcept { impl_->log_.clear(); }
void PrefixTree::copy_from(const PrefixTree& other) noexcept { impl_->copy_from(*other.impl_); }
std::int32_t PrefixTree::unit() const noexcept { return impl_->unit_; }
std::int32_t PrefixTree::num_runs() const noexcept { return impl_->num_runs_; }
std::int64_t PrefixTree::num_tokens() const noexcept { return impl_->num_tokens_; }
Status PrefixTree::check_invariants() const { return impl_->check_invariants(); }

}  // namespace kvfolio
